"""A fleet in every state, with pods, hostile names and an audit log, for a browser."""

import asyncio
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from controller.access import Person
from controller.audit.log import DurableLog
from controller.audit.opening import audit_log
from controller.audit.sealing import LogIdentity
from controller.explain.pod_views import SeenPod
from controller.fleet.directory import KnownNode
from controller.people.rights import INSPECT, OPERATE
from controller.placement.explanation import FitReport, NodeFit, Rejection
from controller.record import Record
from controller.web.api.v1_operations import Witness
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import RecordKind, decode_record
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import ClassDocument, Platform
from gpuwarden.moment import NS_PER_S, rfc3339
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.settings.controller import AuditSettings
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.accounts import (
    UID,
    account,
    held,
    node_of,
    pod_document,
    waiting_document,
)
from tests.builders.audit_log import GENESIS, line
from tests.builders.fleet_views import acceptance, fleet, gpu, healthy, node
from tests.fakes.http_api import ApiWorld
from tests.hang import HANG_S

TOKEN = "jane-token"  # noqa: S105 -- of a fake
HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'
ZONE = "topology.kubernetes.io/zone"
_NOW_NS = SystemClock().wall_ns()


async def fill(world: ApiWorld) -> None:
    """Everything that a page can show."""
    world.people[TOKEN] = Person("jane@example.org")
    world.rights |= {("jane@example.org", INSPECT), ("jane@example.org", OPERATE)}
    await world.reserve()
    world.fleet = fleet(*_nodes())
    world.labels = {
        name: KnownNode(labels={ZONE: f"zone-{index % 2}"})
        for index, name in enumerate(world.fleet.nodes)
    }
    world.seen = [
        SeenPod("team-a", "train-0", "uid-0", "gpu-1"),
        SeenPod("team-b", "waits-0", "uid-9", ""),
        SeenPod("team-b", "train-7", "uid-8", ""),
    ]
    bound = account(pod_document(), held(), node=node_of())
    waiting = account(pod_document(node=""), node=None)
    assert bound is not None
    assert waiting is not None
    assert waiting.explanation is not None
    rejections = (
        Rejection(ReasonCode.NODE_STALE, HOSTILE, 3, ("gpu-3", "gpu-4", "gpu-5")),
        Rejection(ReasonCode.HASH_MISMATCH, "", 1, ("gpu-2",)),
    )
    waiting = replace(waiting, explanation=replace(waiting.explanation, rejections=rejections))
    pending = account(
        _pending_document(), name="train-7", namespace="team-b", recent=_log_of_pending(), node=None
    )
    assert pending is not None
    assert pending.explanation is not None
    reasons = (
        Rejection(ReasonCode.NODE_STALE, "gpu-3: silent for 2m10s", 3, ("gpu-3", "gpu-4", "gpu-5")),
        Rejection(ReasonCode.HASH_MISMATCH, "gpu-2: driver 550.54.15", 1, ("gpu-2",)),
    )
    explained = replace(pending.explanation, rejections=reasons, passing=0, examples=())
    pending = replace(pending, explanation=explained)
    world.traces = {
        "team-a/train-0": bound,
        "team-b/waits-0": waiting,
        "team-b/train-7": pending,
    }
    refusal = Refusal(ReasonCode.NODE_STALE, HOSTILE)
    fits = tuple(NodeFit(x, refusal, 0, None) for x in sorted(world.fleet.nodes))
    report = FitReport(fits, {ReasonCode.NODE_STALE: len(fits)}, None)
    silent = Refusal(ReasonCode.NODE_STALE, "silent for 2m10s")
    plain = tuple(replace(x, refusal=silent) for x in fits)
    world.fits = {
        "team-b/waits-0": report,
        "team-b/train-7": replace(report, fits=plain),
    }
    world.warnings = [HOSTILE]
    world.alarms = {"gpu-2": ("LOG_RESET",)}
    await _fill_log(world)


def _ago(seconds: float) -> str:
    return rfc3339(_NOW_NS - int(seconds * NS_PER_S))


def _pending_document() -> dict[str, Any]:
    found = waiting_document("0/6 nodes are available")
    found["metadata"] |= {
        "namespace": "team-b",
        "name": "train-7",
        "creationTimestamp": _ago(130),
    }
    found["status"]["conditions"][0]["lastTransitionTime"] = _ago(129)
    return found


def _log_of_pending() -> Recent:
    made: tuple[tuple[RecordKind, str, list[str], str], ...] = (
        (RecordKind.ADMISSION_DECISION, "admitted", [], _ago(130)),
        (RecordKind.FILTER_DECISION, "rejected", ["NODE_STALE", "HASH_MISMATCH"], _ago(129)),
    )
    lines = (
        line(number, GENESIS, kind=kind, decision=decision, codes=codes, ts=at, refs={"uid": UID})
        for number, (kind, decision, codes, at) in enumerate(made, start=4)
    )
    return Recent(tuple(decode_record(x.removesuffix(b"\n")) for x in lines), _ago(3600))


def _nodes() -> list[Any]:
    """Each with evidence of some seconds ago."""
    return [
        view
        if view.acceptance is None
        else replace(
            view,
            acceptance=replace(
                view.acceptance, accepted_wall_ns=_NOW_NS - (3 + 4 * number) * NS_PER_S
            ),
        )
        for number, view in enumerate(_views())
    ]


def _views() -> list[Any]:
    hostile = [gpu(0, "GPU-hostile", product=HOSTILE), gpu(1, "GPU-gone", lost=True)]
    refused = node("gpu-5", acceptance(gpus=hostile), blocked=ReasonCode.NODE_DENIED)
    assert refused.blocked is not None
    refused = replace(
        refused, blocked=replace(refused.blocked, detail=HOSTILE), warnings=(HOSTILE,)
    )
    stale = healthy("gpu-3", gpus=8)
    assert stale.acceptance is not None
    stale = replace(stale, acceptance=replace(stale.acceptance, fresh_until_ns=0))
    used = healthy("gpu-1", gpus=8)
    assert used.acceptance is not None
    seen = MappingProxyType({"GPU-gpu-1-0": 2, "GPU-gpu-1-5": 1})
    used = replace(used, acceptance=replace(used.acceptance, processes_by_gpu=seen))
    bad = node("gpu-4", acceptance(gpus=[gpu(0, "GPU-q")]), blocked=ReasonCode.INVENTORY_CHANGED)
    other = healthy("gpu-2", "b", gpus=8)
    return [
        _of(used, "570.86.10"),
        _of(other, "550.54.15"),
        _of(stale, "570.86.10"),
        bad,
        refused,
        node("gpu-6"),
    ]


def _of(view: Any, driver: str) -> Any:
    platform = Platform(arch="x86_64", driver=driver, cc=None)
    document = ClassDocument(
        level="L0", trust_domain="example.org", attestor=None, platform=platform, gpus=(), tpm=None
    )
    return replace(
        view, acceptance=replace(view.acceptance, class_document=canonical_json(document))
    )


def log_of(world: ApiWorld) -> DurableLog:
    """Opened again it publishes the checkpoint with which it was closed."""
    return audit_log(
        AuditSettings(dir=world.audit),
        LogIdentity("lab/controller-0", "boot", "1" * 32),
        SystemClock(),
        Instruments(Process.CONTROLLER, "0.1.0"),
        copies_to=None,
    )


async def _fill_log(world: ApiWorld) -> None:
    async with asyncio.timeout(HANG_S):
        log = await log_of(world).open()
        for number in range(6):
            gpus: Any = [f"GPU-gpu-1-{x}" for x in range(8)]
            refs = {"gpus": gpus, "evidence": "e" * 64, "reason": HOSTILE, "node": "gpu-1"}
            kind = RecordKind.EVIDENCE_ACCEPTED
            await log.grant(Record(kind, "agent", f"node/gpu-{number}", "accepted", refs=refs))
        refs = {"gpus": ["GPU-gpu-1-0"], "node": "gpu-1", "uid": "uid-0", "reservation": "r"}
        kind = RecordKind.RESERVATION_RESERVED
        await log.grant(Record(kind, "controller", "pod/team-a/train-0", "proposed", refs=refs))
        await log.close()
        again = await log_of(world).open()
        await again.close()
    world.published = again.published
    assert again.published is not None
    world.witnesses = [Witness("gpu-1", again.published.note)]
