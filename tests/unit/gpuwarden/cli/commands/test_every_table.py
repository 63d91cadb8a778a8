"""Every table with the names of real clusters: within a terminal, whole for `wide` and a pipe."""

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from controller.record import Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.cli import commands
from gpuwarden.cli.text.tables import Column, visible
from gpuwarden.dead_letter_files import LETTERS
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import placement_pb2 as place
from tests.builders.fleet_messages import class_message, gpu_message, node_message
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, mig_uuid
from tests.builders.replica_log import CARD, ReplicaLog
from tests.fakes.fleet_server import FakeFleetServer, changes
from tests.hang import HANG_S
from tests.unit.gpuwarden.cli.conftest import Cli, Terminal

Names = tuple[tuple[str, ...], str, tuple[str, ...]]
"""Of nodes, of a namespace and of pods."""
HOSTS = tuple(f"ip-10-120-33-{x}.eu-central-1.compute.internal" for x in (141, 142))
NAMESPACE = "ml-platform-training"
PODS = tuple(f"llama-finetune-worker-7d9f5c6b8-{x}" for x in ("w9b7m", "x2k4j"))
REAL: Names = (HOSTS, NAMESPACE, PODS)
ZONES: Names = (tuple(f"gke-prod-a100-spot-pool-3f9c2d1e-{x}" for x in "ab"), NAMESPACE, PODS)
LONGEST: Names = (
    tuple(f"{'n' * 252}{x}" for x in "ab"),
    "s" * 63,
    tuple(f"{'p' * 252}{x}" for x in "ab"),
)
"""As long as Kubernetes lets names be."""
AGO = "2026-11-27T20:00:00.000Z"
LONG_CODE = max(ReasonCode, key=len).value
DETAIL = (
    "needs 9 GPUs, node has 8; memory>=80Gi: 0 of 8, largest 79.6Gi; accepted classes:"
    " h100-sxm5-80gb-hbm3-prod-eu-central-1"
)
CLASS = "h100-sxm5-80gb-hbm3-driver-570-vbios-96-00-74-00-99-prod-eu-central-1"
SPIRE = "spiffe://prod.example.org/spire/agent/k8s_psat/prod/0c6ed0ce-5d4f-4b2c-9b1d-3f7e36ad2a70"


def fill(
    fleet: FakeFleetServer, nodes: tuple[str, ...], namespace: str, pods: tuple[str, ...]
) -> None:
    """Answers of a fleet with two nodes and two pods of these names."""
    owners = [f"{namespace}/{pod}" for pod in pods]
    slices = [
        pb.MigDevice(uuid=mig_uuid(1), profile="1g.10gb+me", state="reserved", reserved_by=owners),
        pb.MigDevice(uuid=mig_uuid(2), profile="1g.10gb", state="free"),
    ]
    fleet.gpus = [
        gpu_message(0, node=nodes[0], state="reserved", reserved_by=owners[:1]),
        gpu_message(1, node=nodes[1], state="split", mig="on", mig_devices=slices),
        gpu_message(2, node=nodes[1], state="unavailable", product="NVIDIA RTX PRO 6000 Blackwell"),
    ]
    bad = {"state": "quarantined", "code": LONG_CODE, "detail": DETAIL, "lost_gpu_count": 1}
    fleet.nodes = [
        node_message(nodes[0], gpus=fleet.gpus[:1]),
        node_message(nodes[1], gpus=fleet.gpus[1:], **bad),
    ]
    fleet.changes = changes(fleet.nodes, pb.WatchNodesResponse(node=fleet.nodes[1]))
    candidate = pb.Candidate(
        code="INVENTORY_CHANGED",
        evidence_digest="cd" * 32,
        changes=[
            pb.EnrollmentChange(change="added", subject=gpu_uuid(9), offered="1654223000011"),
            pb.EnrollmentChange(
                change="changed", subject="SPIRE agent", enrolled=SPIRE, offered=SPIRE
            ),
        ],
    )
    fleet.enrollments = {nodes[1]: pb.Enrollment(candidate=candidate)}
    resource = "nvidia.com/mig-1g.10gb.shared-by-time-slicing"
    fleet.uses = {
        nodes[1]: pb.GpuUse(
            allocations_read=True,
            processes_read=True,
            allocations=[
                pb.Allocation(
                    namespace=namespace,
                    pod=pod,
                    container="trainer-with-a-long-name",
                    resource=resource,
                    device=f"{mig_uuid(1)}::7",
                    uuid=mig_uuid(1),
                )
                for pod in pods
            ],
            processes=[pb.GpuProcess(gpu=mig_uuid(1), pid=4194303, pod_uid=mig_uuid(3)[4:])],
        )
    }
    fleet.classes = [
        class_message(names=[CLASS, "h100"], nodes=nodes),
        class_message(inventory(gpu(0, vbios="96.00.99.00.01"), host=host(driver="575.51.03"))),
        pb.Class(names=[CLASS], hashes=["v1:sha256:" + "ab" * 32]),
    ]
    change = pb.ClassChange(
        at=AGO,
        old_hash="v1:sha256:" + "ab" * 32,
        new_hash="v1:sha256:" + "cd" * 32,
        facts=[
            pb.FactChange(path="gpus[0].firmware.gspFirmwareDigest", old="ab" * 32, new="cd" * 32)
        ],
    )
    fleet.explanations = {
        nodes[1]: pb.ExplainNodeResponse(
            node=fleet.nodes[1],
            enrollment=fleet.enrollments[nodes[1]],
            class_changes=[change],
            refusals=[pb.PastRefusal(at=AGO, code=LONG_CODE, count=12345, detail=DETAIL)],
        )
    }
    fleet.fit = pb.FitPodResponse(
        managed=True,
        requirements=["2 GPUs of at least 80Gi"],
        fits=[
            pb.Fit(pod=pods[0], node=nodes[0], passes=True, score=7, guarantee="exact"),
            pb.Fit(pod=pods[1], node=nodes[1], code=LONG_CODE, detail=DETAIL, class_change=change),
        ],
    )
    fleet.reservations = [
        place.Reservation(
            id=f"v1.{at}",
            namespace=namespace,
            pod=pods[at],
            node=nodes[at],
            state="Confirmed",
            age_s=400 * 86_400,
            gpus=[
                place.ReservedGpu(uuid=uuid, state="Confirmed", holders=1)
                for uuid in ([gpu_uuid(x) for x in range(8)] if at else [mig_uuid(1)])
            ],
        )
        for at in range(2)
    ]
    fleet.use = place.ListUseResponse(
        faults=[
            place.UseFault(
                kind="unreserved_use",
                node=nodes[0],
                gpu=gpu_uuid(1),
                namespace=namespace,
                pod=pods[0],
                since=AGO,
            ),
            place.UseFault(kind="unreserved_use", node=nodes[1], uid=mig_uuid(3)[4:], since=AGO),
        ],
        fault_count=2,
        idle=[
            place.IdleGpu(
                gpu=gpu_uuid(at), node=nodes[at], namespace=namespace, pod=pods[at], since=AGO
            )
            for at in range(2)
        ],
        idle_count=2,
        namespaces=[
            place.NamespaceUse(namespace=namespace, reserved_gpu_s=10**9, idle_gpu_s=10**8)
        ],
        since=AGO,
    )
    fleet.accounts = {
        owners[0]: place.ExplainPodResponse(
            namespace=namespace,
            name=pods[0],
            managed=True,
            records_since=AGO,
            stages=[
                place.Stage(
                    name="reserved",
                    state="reached",
                    at=AGO,
                    source="the ledger of this replica",
                    gpus=[gpu_uuid(x) for x in range(8)],
                ),
                place.Stage(name="bound", state="waiting"),
            ],
            rejections=[
                place.Rejection(code=LONG_CODE, count=2, nodes=nodes, detail=DETAIL),
            ],
            earlier=fleet.reservations,
            records=[
                place.PodRecord(
                    seq=123456,
                    at=AGO,
                    kind="reservation.allocation_recorded",
                    decision="quarantined",
                    node=nodes[0],
                    codes=[LONG_CODE, "NODE_STALE"],
                )
            ],
        )
    }
    fleet.evicted = [
        place.EvictedPod(node=nodes[at], namespace=namespace, name=pods[at], after_s=300 * at)
        for at in range(2)
    ]


def history(folder: Path, nodes: tuple[str, ...], namespace: str, pods: tuple[str, ...]) -> None:
    """A log in which a GPU moved, was reserved and was used by somebody else."""
    log = ReplicaLog(folder)
    log.accept(nodes[0], 10)
    log.accept(nodes[1], 20)
    refs: dict[str, Any] = {
        "uid": "u",
        "node": nodes[1],
        "reservation": "v1.k.u",
        "gpus": [CARD.uuid],
        "gpu": CARD.uuid,
        "detail": DETAIL,
    }
    for kind, subject in (
        (RecordKind.RESERVATION_RESERVED, f"pod/{namespace}/{pods[0]}"),
        (RecordKind.NODE_STATE, f"node/{nodes[1]}"),
    ):
        log.note(Record(kind, "c", subject, "quarantined", (LONG_CODE,), refs=refs), 30)


COMMANDS = {
    "nodes": "nodes",
    "nodes --watch": "nodes --watch",
    "node show": "node show {node}",
    "gpus": "gpus",
    "gpu show": "gpu show {gpu} --store {store}",
    "use": "use",
    "top": "top --once",
    "events": "events --store {store}",
    "reservations": "reservations",
    "classes": "classes",
    "class diff": "class diff {left} {right}",
    "protection check": "protection check",
    "explain node": "explain node {node}",
    "explain pod": "explain pod {pod}",
    "fit": "fit -f {manifest}",
    "export list": "export list --folder {export}",
}
Run = Callable[..., str]


def tables() -> Iterator[tuple[Column[Any], ...]]:
    """The columns of every table of the commands."""
    for module in iter_modules(commands.__path__):
        found = import_module(f"{commands.__name__}.{module.name}")
        for value in vars(found).values():
            if isinstance(value, tuple) and value and all(isinstance(x, Column) for x in value):
                yield value


@pytest.fixture
def run(cli: Cli, fleet: FakeFleetServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command of `COMMANDS` against a fleet of such names; gives what it prints."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    store, letters, manifest = tmp_path / "log", tmp_path / "export", tmp_path / "pod.yaml"
    manifest.write_text("{kind: Pod}")
    letters.mkdir()

    def ran(words: str, names: Names, *more: str, terminal: bool) -> str:
        nodes, namespace, pods = names
        fill(fleet, *names)
        shutil.rmtree(store, ignore_errors=True)
        history(store, *names)
        (letters / LETTERS.format(exporter="postgres")).write_text(f'{{"reason": "{DETAIL}"}}\n')
        line = COMMANDS[words].format(
            node=nodes[1],
            pod=f"{namespace}/{pods[0]}",
            gpu=CARD.uuid,
            store=store,
            export=letters,
            manifest=manifest,
            left=fleet.classes[0].attestation_hash,
            right=fleet.classes[1].attestation_hash,
        )
        local = {"gpu show", "events", "export list"}
        asked = () if words in local else ("--server", fleet.target)
        screen = Terminal()
        with monkeypatch.context() as patch:
            if terminal:
                patch.setattr("sys.stdout", screen)
            done = cli(*line.split(), *more, *asked)
        return screen.getvalue() if terminal else done.out

    return ran


def heading(columns: Iterable[Column[Any]], *, wide: bool = False) -> str:
    return " ".join(x.title for x in visible(tuple(columns), wide=wide))


def words_of(text: str) -> list[str]:
    """Lines, with one blank between words."""
    return [" ".join(line.split()) for line in text.splitlines()]


@pytest.mark.parametrize("words", COMMANDS)
def test_no_table_is_wider_than_a_terminal(run: Run, words: str) -> None:
    for names in (REAL, ZONES):
        text = run(words, names, terminal=True)
        assert [x for x in text.splitlines() if len(x) > 80] == []
    # Outside of tables a name is never cut; it has a line of its own.
    text = run(words, LONGEST, terminal=True)
    assert [x for x in text.splitlines() if len(x) > 80 and " " in x.strip()] == []


def test_every_table_is_shown_by_one_of_these_and_keeps_its_titles(run: Run) -> None:
    """Where a command leaves a column out, it is the first."""
    lines = words_of("".join(run(words, LONGEST, terminal=True) for words in COMMANDS))
    missing = [x for x in map(heading, tables()) if not any(line.endswith(x) for line in lines)]
    assert missing == []


@pytest.mark.parametrize("wide", [False, True])
def test_a_program_and_wide_get_each_row_whole_and_on_one_line(run: Run, wide: bool) -> None:
    """After a heading no line is indented up to the end of its table."""
    more = ("-o", "wide") if wide else ()
    titles = tuple(heading(x, wide=wide) for x in tables())
    shown = 0
    for words in COMMANDS:
        text = run(words, LONGEST, *more, terminal=False)
        assert "…" not in text
        if wide:
            assert run(words, LONGEST, *more, terminal=True) == text
        for part in text.split("\n\n"):
            lines = words_of(part)
            for at in (n for n, line in enumerate(lines) if line.endswith(titles)):
                shown += 1
                assert [x for x in part.splitlines()[at:] if x.startswith(" ")] == []
    assert shown >= len(COMMANDS)


def test_the_width_is_that_of_the_terminal(tmp_path: Path) -> None:
    """By a process on a pseudo-terminal of 60 columns; COLUMNS, which shells set, comes first."""
    (tmp_path / LETTERS.format(exporter="postgres")).write_text(f'{{"reason": "{DETAIL}"}}\n')
    command = [sys.executable, "-m", "gpuwarden.cli", "export", "list", "--folder", str(tmp_path)]
    longest = []
    for columns in ({}, {"COLUMNS": "100"}):
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        with open(child, "wb", buffering=0) as stdout:  # noqa: PTH123 - a descriptor
            environment = {"PATH": os.environ["PATH"], "NO_COLOR": "1", **columns}
            subprocess.run(command, check=True, stdout=stdout, env=environment, timeout=HANG_S)
        lines = os.read(parent, 10_000).decode().split("\r\n")
        os.close(parent)
        longest.append(max(map(len, lines)))
    assert longest == [56, 99]
