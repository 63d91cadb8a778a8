"""What people are shown of a pod at each step of its life: stages, `why`, page and list.

The words are in `pod_life.txt`. What is not there yet, or not any more, must not read like
something that is there, and a step of a pod with which nothing is wrong must not read like a
fault. `python -m tests.unit.controller.explain.test_pod_life` writes the file: read what changed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import Any, Final

import pytest

from controller.access import Caller, CallerKind
from controller.console.pages import Pages
from controller.explain.pod import AllocationTrace
from controller.explain.pod_views import SeenPod, pod_detail, pod_rows, with_holders
from controller.ledger.record import GpuRecord, HolderState, Origin, PodRef, PodSeen, PodSight
from controller.ledger.store import Entry, LedgerSnapshot
from controller.messages import trace_message
from controller.policy import NodeMode
from controller.web.api.v1_operations import StatusView
from controller.web.api.viewers import Viewer
from gpuwarden.audit.reading import Recent
from gpuwarden.audit.record import decode_record
from gpuwarden.cli.commands.explain import is_finding
from gpuwarden.cli.commands.why import cause_of
from gpuwarden.evidence.model import Allocation, GpuProcess, LostGpu
from tests.builders.accounts import (
    MADE,
    NODE,
    REQUIREMENT,
    UID,
    account,
    held,
    node_of,
    pod_document,
    waiting_document,
)
from tests.builders.audit_log import GENESIS, line
from tests.builders.pods import GPU_RESOURCE

WORDS: Final = Path(__file__).with_name("pod_life.txt")
GPU: Final = "GPU-00000000-0000-4000-8000-00000000000a"
LEVEL: Final = {"gpuwarden.dev/min-level": "L0"}
GUARANTEE: Final = {"gpuwarden.dev/guarantee-given": "set"}
SAID: Final = re.compile(r"<dd>(.*?)</dd>")
WHY: Final = re.compile(r'<h2 id="why">(.*?)</h2>')
TAG: Final = re.compile(r"<.*?>")
PAGES: Final = Pages()
VIEWER: Final = Viewer(
    Caller(CallerKind.INSPECTOR, "r", None), "r", operates=False, has_serials=True
)
STATUS: Final = StatusView(
    cluster="lab",
    replica="controller-0",
    version="0",
    not_ready="",
    warnings=[],
    enforcement="enforce",
    evaluation=False,
    leads=True,
    replicas=[],
    alarms={},
    spire="ok",
    ledger_known=True,
)

Document = dict[str, Any]
Logged = tuple[str, str, tuple[str, ...]]
"""Kind, decision and codes of a record."""


def pod(needs: dict[str, str], gpus: int, **status: Any) -> Document:
    """A bound one, which runs unless `status` says otherwise."""
    return _with_limit(pod_document(needs | GUARANTEE, **status), gpus)


def unbound(needs: dict[str, str], gpus: int) -> Document:
    made = waiting_document()
    made["metadata"]["annotations"] = needs
    return _with_limit(made, gpus)


def _with_limit(document: Document, gpus: int) -> Document:
    if gpus:
        (container,) = document["spec"]["containers"]
        container["resources"] = {"limits": {GPU_RESOURCE: str(gpus)}}
    return document


def by_kubelet(state: HolderState = HolderState.CONFIRMED) -> GpuRecord:
    origin = Origin.KUBELET
    return held(state, GPU, reservation="v1.k1.kubelet", origin=origin, restored=True)


@dataclass(frozen=True)
class Step:
    """What is known of the pod then."""

    name: str
    document: Document | None
    records: tuple[GpuRecord, ...] = ()
    uses: tuple[GpuProcess, ...] = ()
    given: tuple[Allocation, ...] | None = ()
    log: tuple[Logged, ...] = ()
    mode: NodeMode = NodeMode.PLUGIN
    fault: dict[str, Any] = field(default_factory=dict)
    """Of the node's first GPU."""
    known: dict[str, Any] = field(default_factory=dict)
    """Of `account`."""


WITH_GPU: Final = pod(REQUIREMENT, 1)
DELETED: Final = pod(REQUIREMENT, 1)
DELETED["metadata"]["deletionTimestamp"] = "2026-11-27T20:10:00Z"
STARTING: Final = {"phase": "Pending", "containerStatuses": None}
GIVEN: Final = (Allocation("team-a", "train-0", "main", GPU_RESOURCE, GPU),)
USES: Final = (GpuProcess(GPU, 7, UID),)
LOG: Final[tuple[Logged, ...]] = (
    ("admission.decision", "admitted", ()),
    ("filter.decision", "passed", ("GPU_BUSY",)),
    ("bind.decision", "allowed", ()),
)
ELSEWHERE: Final[tuple[Logged, ...]] = (
    ("admission.decision", "refused", ("BYPASS_PRIVILEGED",)),
    ("filter.decision", "rejected", ("GPU_BUSY",)),
)
"""Where another replica gave the answers that counted."""
WOULD: Final[tuple[Logged, ...]] = (
    ("admission.decision", "reported", ("BYPASS_PRIVILEGED",)),
    ("filter.decision", "reported", ("HASH_MISMATCH",)),
    ("bind.decision", "reported", ("BYPASS_PRIVILEGED",)),
)
REPORT: Final = {"report_only": True}
UNREAD: Final = {"now_ns": 2**63}
RELEASING: Final = (by_kubelet(HolderState.RELEASING),)
ENV: Final = NodeMode.ENV
SICK: Final = {"unhealthy": "xid 79, until the GPU is reset"}
LOST: Final = {"lost": LostGpu(uuid="GPU-gpu-1-0", index=0, pci_bus_id="", error="GPU_IS_LOST")}
LIVES: Final[dict[str, tuple[Step, ...]]] = {
    "a pod on a plugin node": (
        Step("it waits", unbound(REQUIREMENT, 1), log=LOG[:1]),
        Step("it is bound", pod(REQUIREMENT, 1, **STARTING), log=LOG),
        Step("kubelet was not asked", pod(REQUIREMENT, 1, **STARTING), given=None, log=LOG),
        Step("kubelet has given its GPU", WITH_GPU, given=GIVEN, log=LOG),
        Step("it uses the GPU, without a record", WITH_GPU, uses=USES, given=GIVEN, log=LOG),
        Step("another replica decided", WITH_GPU, uses=USES, given=GIVEN, log=ELSEWHERE),
        Step("it has its record", WITH_GPU, (by_kubelet(),), USES, GIVEN, LOG),
        Step("its node's mode changes to env", WITH_GPU, (by_kubelet(),), USES, GIVEN, LOG, ENV),
        Step("the ledger is unread", WITH_GPU, (by_kubelet(),), USES, GIVEN, LOG, known=UNREAD),
        Step("it is being deleted", DELETED, (by_kubelet(),), USES, GIVEN, LOG),
        Step("it is deleted, and a process of it runs", None, RELEASING, USES, GIVEN, LOG),
        Step("it is deleted, and nothing runs", None, RELEASING, log=LOG),
        Step("its GPU is released", None, log=LOG),
    ),
    "a pod in report mode": (
        Step("it waits", unbound(REQUIREMENT, 1), log=WOULD[:1], known=REPORT),
        Step("it is bound", pod(REQUIREMENT, 1, **STARTING), log=WOULD, known=REPORT),
        Step("it runs", WITH_GPU, uses=USES, given=GIVEN, log=WOULD, known=REPORT),
        Step("it runs on an env node", WITH_GPU, uses=USES, log=LOG, mode=ENV, known=REPORT),
        Step("it has ended", pod(REQUIREMENT, 1, phase="Succeeded"), log=WOULD, known=REPORT),
        Step("it is deleted", None, log=WOULD, known=REPORT),
    ),
    "a pod that asks for no GPU": (
        Step("it waits", unbound(LEVEL, 0), log=LOG[:1]),
        Step("it runs", pod(LEVEL, 0), log=LOG),
        Step("it runs on an env node", pod(LEVEL, 0), log=LOG, mode=ENV),
        Step("it has ended", pod(LEVEL, 0, phase="Succeeded"), log=LOG),
        Step("it is deleted", None, log=LOG),
    ),
    "a pod of a Job": (
        Step(
            "it failed before it was bound",
            pod(REQUIREMENT, 1, node="", phase="Failed", reason="NodeAffinity"),
        ),
        Step("it runs", WITH_GPU, (by_kubelet(),), USES, GIVEN, LOG),
        Step(
            "it has ended, and a process of it runs",
            pod(REQUIREMENT, 1, phase="Succeeded"),
            RELEASING,
            USES,
            GIVEN,
            LOG,
        ),
        Step("nothing runs", pod(REQUIREMENT, 1, phase="Succeeded"), RELEASING, log=LOG),
        Step("its GPU is released", pod(REQUIREMENT, 1, phase="Succeeded"), log=LOG),
    ),
    "a pod on an env node": (
        Step("it waits", unbound(REQUIREMENT, 0), log=LOG[:1], mode=ENV),
        Step("it is bound", pod_document(), (held(HolderState.PROPOSED),), log=LOG, mode=ENV),
        Step("it runs", pod_document(), (held(),), log=LOG, mode=ENV),
        Step("its GPU is unhealthy", pod_document(), (held(),), log=LOG, mode=ENV, fault=SICK),
        Step("its GPU is lost", pod_document(), (held(),), log=LOG, mode=ENV, fault=LOST),
        Step("its record is lost", pod_document(), log=LOG, mode=ENV),
        Step(
            "it has ended",
            pod_document(phase="Failed"),
            (held(HolderState.RELEASING),),
            log=LOG,
            mode=ENV,
        ),
        Step("it is deleted", None, (held(HolderState.RELEASING),), log=LOG, mode=ENV),
    ),
    "a pod that asks gpuwarden for nothing": (
        Step("it waits", unbound({}, 1)),
        Step("it runs", pod({}, 1), uses=USES, given=GIVEN),
        Step("it has ended", pod({}, 1, phase="Succeeded")),
        Step(
            "its namespace was enforced when kubelet gave its GPU",
            pod({}, 1),
            (by_kubelet(),),
            USES,
            GIVEN,
        ),
    ),
}


def trace_at(step: Step) -> AllocationTrace:
    refs = {"uid": UID, "node": NODE}
    lines = (
        line(n, GENESIS, kind=kind, decision=decision, codes=list(codes), refs=refs)
        for n, (kind, decision, codes) in enumerate(step.log, 4)
    )
    records = tuple(decode_record(x.removesuffix(b"\n")) for x in lines)
    node = node_of(*step.uses, allocations=step.given, mode=step.mode)
    assert node.acceptance is not None
    first, *others = node.acceptance.gpus
    gpus = (replace(first, **step.fault), *others)
    node = replace(node, acceptance=replace(node.acceptance, gpus=gpus))
    found = account(
        step.document, *step.records, node=node, recent=Recent(records, MADE), **step.known
    )
    assert found is not None
    return found


def on_page(found: AllocationTrace) -> Iterable[str]:
    """What the pod's page says beside the stages that the command line has too."""
    detail = pod_detail(trace_message(found, 0))
    shown: dict[str, Any] = {
        "pod": detail,
        "verdicts": None,
        "viewer": VIEWER,
        "status": STATUS,
        "query": {},
    }
    text = PAGES.render("pod", **shown, path="", twin="", as_of="")
    phase, _, managed, guarantee = (unescape(TAG.sub("", x)) for x in SAID.findall(text))
    yield f"phase: {phase}"
    yield f"managed: {managed}"
    yield f"guarantee: {guarantee}"
    for stage in detail.stages[1:3]:
        heading = f"<h3>{stage.name}: {stage.state}</h3>"
        assert heading in text
        yield f"{stage.name} {stage.state}: {'; '.join(stage.findings)}"
    yield from (f"section: {x}" for x in WHY.findall(text))


def in_list(step: Step) -> str:
    """State of the pod in the list of pods."""
    ledger, document = LedgerSnapshot.of(Entry(x, "1", MADE) for x in step.records), step.document
    if document is None:
        return next((x.state for x in pod_rows([], ledger)), "no row")
    node = document["spec"].get("nodeName", "")
    has_ended = document["status"]["phase"] in {"Succeeded", "Failed"}
    is_managed = trace_at(step).case.managed and not has_ended
    managed = [SeenPod("team-a", "train-0", UID, node)] if is_managed else []

    def sight(pod: PodRef) -> PodSight:
        return PodSeen(UID, node, None, has_ended) if pod.uid == UID else None

    rows = pod_rows(with_holders(managed, ledger, sight), ledger)
    return next((x.state for x in rows), "no row")


def words_at(step: Step) -> str:
    found = trace_at(step)
    message = trace_message(found, 0)
    cause, code = cause_of(message)
    lines = [f"  {x.name} {x.state}: {'; '.join(x.findings)}".rstrip() for x in message.stages]
    lines.append(f"  why, exit code {3 if is_finding(message) else 0}: {cause}")
    lines += [f"  code: {code}"] if code else []
    lines += [f"  page, {x}" for x in on_page(found)]
    return "\n".join([f"{step.name}:", *lines, f"  list: {in_list(step)}\n"])


def words_of(life: str) -> str:
    return "\n".join([f"## {life}\n", *map(words_at, LIVES[life])])


@pytest.mark.parametrize("life", LIVES)
def test_each_step_of_a_pod_reads_as_what_it_is(life: str) -> None:
    parts = WORDS.read_text().split("## ")[1:]
    expected = {x.partition("\n")[0]: f"## {x}".rstrip() for x in parts}
    assert expected.keys() == LIVES.keys()
    assert words_of(life).rstrip() == expected[life]


@pytest.mark.parametrize("life", LIVES)
def test_nothing_is_wrong_with_a_pod_that_only_goes_on(life: str) -> None:
    wrong = [x.name for x in LIVES[life] if trace_at(x).is_wrong]
    of_env = ["its GPU is unhealthy", "its GPU is lost", "its record is lost"]
    assert wrong == (of_env if life == "a pod on an env node" else [])


if __name__ == "__main__":
    WORDS.write_text("\n\n".join(words_of(x).rstrip() for x in LIVES) + "\n")
