"""What the audit log says about attestation: results as records. Pure; no secrets, short."""

from typing import Final

from controller.audit.record import Json, Record
from controller.verifier.context import StreamState
from controller.verifier.result import Accepted, BadNewsAccepted, Refused
from gpuwarden.audit.exhibit import Exhibit
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode

_MAX_DETAIL: Final = 300


def accepted_record(
    accepted: Accepted, stream: StreamState, exhibit: Exhibit | None = None
) -> Record:
    """A grant: from now on this node may be chosen for this hash."""
    return Record(
        RecordKind.EVIDENCE_ACCEPTED,
        actor=str(stream.peer),
        subject=f"node/{accepted.node}",
        decision="accepted",
        codes=(ReasonCode.ACCEPTED.value,),
        refs={
            "hash": accepted.attestation_hash,
            "level": accepted.level.value,
            "identity": accepted.identity_digest,
            "evidence": accepted.evidence_digest,
            "instance": stream.hello.instance_id,
            "bootId": stream.hello.boot_id,
            "agent": stream.hello.agent_version,
            "stream": stream.stream_id,
            "leaf": stream.leaf_sha256,
            "gpus": [gpu.uuid for gpu in accepted.evidence.inventory.gpus],
            "lost": [gpu.uuid for gpu in accepted.lost],
            **_bundle(exhibit),
        },
        exhibit=exhibit,
    )


def round_record(accepted: Accepted, stream: StreamState) -> Record:
    """An unchanged round; the log counts it."""
    return Record(
        RecordKind.EVIDENCE_ROUND,
        actor=str(stream.peer),
        subject=f"node/{accepted.node}",
        decision="accepted",
        codes=(ReasonCode.ACCEPTED.value,),
        refs={"hash": accepted.attestation_hash, "evidence": accepted.evidence_digest},
    )


def refused_record(refusal: Refused, peer: str, exhibit: Exhibit | None = None) -> Record:
    """A refusal, and what it did to the node if it named one; authentic evidence is kept."""
    exhibit = exhibit if refusal.evidence_digest else None
    return Record(
        RecordKind.EVIDENCE_REFUSED,
        actor=peer,
        subject=f"node/{refusal.node}" if refusal.node else f"peer/{peer}",
        decision="refused",
        codes=(refusal.code.value,),
        refs={
            "step": refusal.step,
            "effect": refusal.effect.value,
            "detail": refusal.detail[:_MAX_DETAIL],
            "evidence": refusal.evidence_digest,
            "findings": [finding.code.value for finding in refusal.findings],
            "contested": [f"{claim.uuid} {claim.owner}" for claim in refusal.contested],
            "lost": [gpu.uuid for gpu in refusal.lost],
            **_bundle(exhibit),
        },
        exhibit=exhibit,
    )


def bad_news_record(
    news: BadNewsAccepted, stream: StreamState, exhibit: Exhibit | None = None
) -> Record:
    """Trust that the node itself took away."""
    return Record(
        RecordKind.NODE_STATE,
        actor=str(stream.peer),
        subject=f"node/{news.node}",
        decision="bad-news",
        refs={
            "kind": news.news.kind,
            "gpu": news.news.gpu,
            "xid": news.news.xid,
            "evidence": news.evidence_digest,
            **_bundle(exhibit),
        },
        exhibit=exhibit,
    )


def _bundle(exhibit: Exhibit | None) -> dict[str, Json]:
    """Against which roots the signer's chain was verified."""
    return {} if exhibit is None else {"bundle": exhibit.bundle}
