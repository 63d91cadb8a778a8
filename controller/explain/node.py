"""Why a node is eligible or not, as lines for people and for support bundles; last refusals.

Text only: must not decide anything. Codes of refusals are kept, never their texts.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controller.fleet.enrollment import EnrollmentRecord
from controller.fleet.view import (
    Acceptance,
    GpuView,
    NodeState,
    NodeView,
    PastRefusal,
)
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.reasons import ReasonCode

_STATE_LINES: Mapping[NodeState, str] = {
    NodeState.UNKNOWN: "no evidence has been seen since this controller started",
    NodeState.REFUSED: "no evidence has been accepted; the last attempt was refused",
    NodeState.STALE: "the lease ran out: no evidence was accepted in time",
    NodeState.REVOKED: "trust was taken away by a refusal; the next accepted evidence restores it",
    NodeState.QUARANTINED: "trust was taken away until an operator acts",
}


def findings(node: NodeView, record: EnrollmentRecord | None, now_ns: int) -> list[str]:
    """What holds and what does not, where no other part of an explanation says it.

    Order: state, GPUs that are not usable, enrolled GPUs.
    """
    lines = [_state_line(node, now_ns)]
    if node.acceptance is not None:
        lines.extend(_gpu_lines(node.acceptance))
    lines.extend(_enrolled_gpu_lines(node, record))
    return lines


def pin_document(record: EnrollmentRecord | None) -> str:
    """RFC 8785 JSON of what is enrolled, empty when nothing is."""
    if record is None or not record.gpus:
        return ""
    return canonical_json(
        {
            "node": {"name": record.node, "uid": record.node_uid},
            "spireAgent": record.spire_agent,
            "systemUuid": record.system_uuid,
            "gpus": [
                {
                    "uuid": enrolled_gpu.uuid,
                    "serial": enrolled_gpu.serial,
                    "identityKey": enrolled_gpu.identity_key,
                    "enrolled": enrolled_gpu.enrolled,
                    "migDevices": list(enrolled_gpu.mig_devices),
                }
                for enrolled_gpu in record.gpus
            ],
        }
    ).decode()


def _state_line(node: NodeView, now_ns: int) -> str:
    state = node.state(now_ns)
    if state is NodeState.ELIGIBLE and node.acceptance is not None:
        left_s = (node.acceptance.fresh_until_ns - now_ns) // NS_PER_S
        return f"evidence counts for another {left_s} s"
    return _STATE_LINES[state]


def _gpu_lines(accepted: Acceptance) -> list[str]:
    return [
        f"GPU {gpu.index} {gpu.uuid}: {_trouble(gpu)}; not allocatable"
        for gpu in accepted.gpus
        if gpu.lost is not None or gpu.unhealthy is not None
    ]


def _trouble(gpu: GpuView) -> str:
    return f"lost ({gpu.lost.error})" if gpu.lost is not None else f"unhealthy ({gpu.unhealthy})"


def _enrolled_gpu_lines(node: NodeView, record: EnrollmentRecord | None) -> list[str]:
    if record is None or not record.gpus:
        return ["enrolled GPUs: none yet"]
    enrolled = sum(enrolled_gpu.enrolled for enrolled_gpu in record.gpus)
    lines = [f"enrolled GPUs: {len(record.gpus)}, {enrolled} of them by an operator"]
    if node.acceptance is not None:
        shown = {gpu.uuid for gpu in node.acceptance.gpus}
        lines.extend(
            f"enrolled GPU {enrolled_gpu.uuid} is not in the last accepted evidence"
            for enrolled_gpu in record.gpus
            if enrolled_gpu.uuid not in shown
        )
    return lines


# --- support bundle

WITHHELD: Final = ("detail", "warnings", "gpus", "instanceId", "bootId", "systemUuid")
_VERSION: Final = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,5}){1,3}(?:(?:a|b|rc|\.dev)[0-9]{1,4})?")


def node_line(node: NodeView, now_ns: int, streams: int) -> dict[str, object]:
    """What leaves of a node; `now_ns` is CLOCK_BOOTTIME."""
    accepted = node.acceptance
    return {
        "name": node.name,
        "state": node.state(now_ns).value,
        "blockedBy": None if node.blocked is None else node.blocked.code.value,
        "mode": node.mode.value,
        "streams": streams,
        "acceptance": None if accepted is None else _acceptance(accepted, now_ns),
        "refusals": [_refusal_document(one) for one in node.refusals],
        "waitsForOperator": node.candidate is not None,
    }


def _acceptance(accepted: Acceptance, now_ns: int) -> dict[str, object]:
    return {
        "at": rfc3339(accepted.accepted_wall_ns),
        "freshForSeconds": max(0, accepted.fresh_until_ns - now_ns) // NS_PER_S,
        "level": accepted.level.value,
        "attestationHash": accepted.attestation_hash,
        "driver": _version(accepted.host.driver),
        "agent": _version(accepted.agent_version),
        "gpus": len(accepted.gpus),
        "lost": sum(gpu.lost is not None for gpu in accepted.gpus),
        "unhealthy": sum(gpu.unhealthy is not None for gpu in accepted.gpus),
        "warnings": len(accepted.warnings),
    }


def _refusal_document(one: PastRefusal) -> dict[str, object]:
    return {
        "last": rfc3339(one.wall_ns),
        "code": one.code.value,
        "step": one.step,
        "effect": one.effect.value,
        "count": one.count,
    }


def _version(text: str | None) -> str | None:
    """A node may call its version anything; what does not look like one is left out."""
    return text if text is not None and _VERSION.fullmatch(text) else None


# --- recent refusals

KEPT: Final = 256


@dataclass(frozen=True, slots=True)
class RecentRefusal:
    """What was refused to whom; times are nanoseconds since the Unix epoch."""

    what: str
    """`evidence`, or the full name of a gRPC method, `unknown` for one that is not gpuwarden's."""
    subject: str | None
    """Node that evidence was about, or kind of caller; None where nobody was recognised."""
    code: ReasonCode
    step: int | None
    """Of verification."""
    first_ns: int
    last_ns: int
    count: int = 1


class RecentRefusals:
    """The last refusals of this controller, a repeated one counted; one for the process.

    Bounded, whatever callers do: the one that was seen longest ago goes first. One event loop.
    """

    def __init__(self, wall_ns: Callable[[], int], kept: int = KEPT) -> None:
        self._wall_ns = wall_ns
        self._kept = kept
        self._entries: OrderedDict[tuple[str, str | None, str, int | None], RecentRefusal] = (
            OrderedDict()
        )

    def note(
        self, what: str, subject: str | None, code: ReasonCode, step: int | None = None
    ) -> None:
        """Take note of a refusal."""
        now_ns, key = self._wall_ns(), (what, subject, code.value, step)
        known = self._entries.pop(key, None)
        self._entries[key] = (
            RecentRefusal(what, subject, code, step, now_ns, now_ns)
            if known is None
            else replace(known, last_ns=now_ns, count=known.count + 1)
        )
        if len(self._entries) > self._kept:
            self._entries.popitem(last=False)

    def newest_first(self) -> tuple[RecentRefusal, ...]:
        """All that are kept."""
        return tuple(reversed(self._entries.values()))
