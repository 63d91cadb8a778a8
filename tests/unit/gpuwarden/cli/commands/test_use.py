"""`use`, `top` and `why`: at a look what is used, idle, and stands against a pod."""

import json
from typing import Any

import pytest

from gpuwarden.cli.commands import top as top_command
from gpuwarden.cli.text.output import Format
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import placement_pb2 as place
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli, Terminal

AGO = "2026-11-27T20:00:00.000Z"
"""Two minutes before the time of the tests."""
THIEF = place.UseFault(
    kind="unreserved_use", node="gpu-1", gpu="GPU-aaaaaaaa-1", uid="uid-9", since=AGO
)
HOST = place.UseFault(kind="unreserved_use", node="gpu-2", gpu="GPU-cccccccc-1", since=AGO)
WRONG = place.UseFault(
    kind="other_gpu", node="gpu-1", gpu="GPU-bbbbbbbb-1", namespace="team-a", pod="x", since=AGO
)
IDLE = place.IdleGpu(
    gpu="GPU-dddddddd-1", node="gpu-1", namespace="team-a", pod="train-0", since=AGO
)
TIME = place.NamespaceUse(namespace="team-a", reserved_gpu_s=36_000, idle_gpu_s=9_000, idle_gpus=1)
FOUND = place.ListUseResponse(
    faults=[THIEF, HOST, WRONG],
    fault_count=3,
    idle=[IDLE],
    idle_count=1,
    namespaces=[TIME, place.NamespaceUse(namespace="team-b")],
    since=AGO,
)


# --- use


def test_use_tells_what_since_when_and_whose(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.use = FOUND
    ran = ask("use")
    assert ran.code == 0
    assert [line.split() for line in ran.lines if line] == [
        ["Used", "otherwise", "than", "reserved:", "3"],
        ["KIND", "NODE", "GPU", "SINCE", "OWNER"],
        ["unreserved_use", "gpu-1", "GPU-aaaaaaaa", "2m", "pod", "UID", "uid-9"],
        ["unreserved_use", "gpu-2", "GPU-cccccccc", "2m", "process", "of", "the", "host"],
        ["other_gpu", "gpu-1", "GPU-bbbbbbbb", "2m", "team-a/x"],
        ["Reserved", "and", "idle:", "1"],
        ["NAMESPACE", "POD", "NODE", "IDLE", "GPU"],
        ["team-a", "train-0", "gpu-1", "2m", "GPU-dddddddd"],
        ["GPU", "time", "since", f"{AGO}:"],
        ["NAMESPACE", "RESERVED-GPU-HOURS", "IDLE-GPU-HOURS", "IDLE", "IDLE-NOW"],
        ["team-a", "10.0", "2.5", "25%", "1"],
        ["team-b", "0.0", "0.0", "-", "0"],
    ]
    assert all(len(line) <= 80 for line in ran.lines)


def test_use_of_nothing(ask: Cli) -> None:
    assert ask("use").out == (
        "Used otherwise than reserved: 0\n\nReserved and idle: 0\n\n"
        "GPU time since since this replica's start:\nNone.\n"
    ).replace("since since", "since")


def test_use_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.use = FOUND
    found = json.loads(ask("use", "-o", "json", "-n", "team-a").out)
    assert found["namespaces"][0]["idleGpuS"] == "9000"
    assert [x.namespace for x in fleet.asked if isinstance(x, place.ListUseRequest)] == ["team-a"]
    assert ask("use", "-o", "name").out.split() == [
        *("GPU-aaaaaaaa-1", "GPU-cccccccc-1", "GPU-bbbbbbbb-1", "GPU-dddddddd-1")
    ]


def test_use_that_is_refused(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.refusal = Refusal(ReasonCode.ROLE_DENIED, "no")
    assert ask("use").code == 4


# --- top


def gpu(state: str, node: str = "gpu-1") -> pb.Gpu:
    return pb.Gpu(node=node, state=state)


def shown(fleet: FakeFleetServer) -> None:
    fleet.nodes = [
        pb.Node(name="gpu-1", state="eligible", accepted_at=AGO),
        pb.Node(name="gpu-2", state="stale", code="NODE_STALE", accepted_at=AGO),
    ]
    states = ("free", "free", "reserved", "used", "lost")
    fleet.gpus = [*map(gpu, states), gpu("unavailable", "gpu-2")]
    fleet.use = FOUND


def test_top_shows_once_where_there_is_no_terminal(ask: Cli, fleet: FakeFleetServer) -> None:
    shown(fleet)
    ran = ask("top")
    assert ran.code == 0
    lines = [line.split() for line in ran.lines]
    assert lines[-3][:6] == ["NODE", "STATE", "GPUS", "FREE", "RESERVED", "IDLE"]
    assert lines[-2] == ["gpu-2", "stale", "1", "0", "0", "0", "0", "1", "NODE_STALE"]
    assert lines[-1] == ["gpu-1", "eligible", "5", "2", "1", "1", "1", "1", "-"]
    assert "Nodes: 2: 1 eligible, 1 stale" in ran.out
    assert "unreserved_use on gpu-1 GPU-aaaaaaaa for 2m: pod UID uid-9" in ran.out
    assert "team-a/train-0 on gpu-1 GPU-dddddddd for 2m" in ran.out
    assert "\x1b" not in ran.out
    assert all(len(line) <= 80 for line in ran.lines)


def test_top_lists_a_few_and_counts_the_rest(ask: Cli, fleet: FakeFleetServer) -> None:
    shown(fleet)
    fleet.use = place.ListUseResponse(faults=[THIEF] * 7, fault_count=9)
    text = ask("top").out
    assert text.count("pod UID uid-9") == 5
    assert "and 4 more: gpuwarden use" in text


async def test_top_goes_on_on_a_terminal(
    fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(fleet)
    terminal, slept = Terminal(), list[float]()

    class EnoughError(Exception):
        """Ends the test."""

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            raise EnoughError

    monkeypatch.setattr("gpuwarden.cli.commands.top.sys.stdout", terminal)
    monkeypatch.setattr("gpuwarden.cli.commands.top.asyncio.sleep", sleep)
    client: Any = FakeClient(fleet)
    with pytest.raises(EnoughError):
        await top_command._look_on(client, 5.0, Format.TABLE)
    assert slept == [5.0, 5.0]
    assert terminal.getvalue().count("\x1b[H\x1b[2J") == 2


class FakeClient:
    def __init__(self, fleet: FakeFleetServer) -> None:
        self._fleet = fleet

    async def nodes(self) -> pb.ListNodesResponse:
        return pb.ListNodesResponse(nodes=self._fleet.nodes)

    async def gpus(self, _node: str) -> pb.ListGpusResponse:
        return pb.ListGpusResponse(gpus=self._fleet.gpus)

    async def use(self, _namespace: str) -> place.ListUseResponse:
        return self._fleet.use


def test_top_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    shown(fleet)
    (line,) = ask("top", "-o", "json").lines
    assert json.loads(line).keys() == {"nodes", "gpus", "use"}
    assert ask("top", "-o", "name").out == "gpu-2\n"


@pytest.mark.parametrize("interval", ["0.4", "-1", "nan"])
def test_top_asks_not_too_often(ask: Cli, interval: str) -> None:
    ran = ask("top", "--interval", interval)
    assert ran.code == 2
    assert "expected 0.5 or more" in ran.err


# --- why


def account(**changes: Any) -> place.ExplainPodResponse:
    fields: dict[str, Any] = {
        "namespace": "team-a",
        "name": "train-0",
        "phase": "Pending",
        "managed": True,
        "stages": [place.Stage(name="bound", state="waiting")],
        "rejections": [
            place.Rejection(
                code="NODE_STALE", count=3, nodes=["gpu-1"], detail="its lease has run out"
            ),
            place.Rejection(code="GPU_BUSY", count=1),
        ],
    }
    return place.ExplainPodResponse(**(fields | changes))


def why(ask: Cli, fleet: FakeFleetServer, found: place.ExplainPodResponse) -> tuple[int, str]:
    fleet.accounts = {"team-a/train-0": found}
    ran = ask("why", "team-a/train-0")
    assert all(len(line) <= 80 for line in ran.lines)
    assert ran.lines[-1] == "more: gpuwarden explain pod team-a/train-0"
    return ran.code, " ".join(ran.out.split())


def test_why_names_the_first_rejection_and_the_fix(ask: Cli, fleet: FakeFleetServer) -> None:
    code, text = why(ask, fleet, account())
    assert code == 3
    assert text.startswith(
        "team-a/train-0: waits: 3 of 4 nodes reject it with NODE_STALE, for example gpu-1: its"
        " lease has run out fix: "
    )
    assert " NODE " not in text


@pytest.mark.parametrize(
    ("detail", "said"),
    [
        ("its lease has run out", "NODE_STALE, for example gpu-1: its lease has run out fix:"),
        ("gpu-1: its lease has run out", "NODE_STALE, for example gpu-1: its lease has run out"),
        ("", "NODE_STALE, for example gpu-1 fix:"),
    ],
)
def test_why_names_the_node_of_its_example_once(
    ask: Cli, fleet: FakeFleetServer, detail: str, said: str
) -> None:
    found = account()
    found.rejections[0].detail = detail
    text = why(ask, fleet, found)[1]
    assert said in text
    assert text.partition(" fix: ")[0].count("gpu-1") == 1


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        (
            {"passing": 2, "passing_nodes": ["gpu-1", "gpu-2"]},
            0,
            "waits for its scheduler: 2 nodes would pass now: gpu-1,gpu-2 more:",
        ),
        (
            {"code": "REQ_INVALID", "detail": "d", "report_only": True},
            0,
            "would be refused: REQ_INVALID d fix: ",
        ),
        ({"passing": 1, "passing_nodes": []}, 0, "waits for its scheduler: 1 node would pass"),
        (
            {"rejections": [place.Rejection(code="GPU_BUSY", count=1)]},
            3,
            "waits: 1 of 1 node rejects it with GPU_BUSY",
        ),
        ({"code": "POD_UNKNOWN", "detail": "d"}, 3, "is refused: POD_UNKNOWN d fix: "),
        ({"rejections": []}, 3, "waits: there is no node to look at more:"),
        ({"managed": False}, 0, "asks gpuwarden for nothing"),
        ({"code": "SOMETHING_NEW", "detail": "d"}, 3, "is refused: SOMETHING_NEW d more:"),
        (
            {
                "wrong": True,
                "stages": [
                    place.Stage(
                        name="nvml",
                        state="mismatch",
                        findings=["its GPU a is lost: delete the pod", "no process of it"],
                    )
                ],
            },
            3,
            "its GPU a is lost: delete the pod more:",
        ),
        (
            {
                "wrong": True,
                "stages": [place.Stage(name="nvml", state="mismatch", findings=["uses GPU-b"])],
            },
            3,
            "nvml is mismatch: uses GPU-b more:",
        ),
    ],
)
def test_why_has_a_sentence_for_each_case(
    ask: Cli, fleet: FakeFleetServer, changes: dict[str, Any], code: int, said: str
) -> None:
    found = why(ask, fleet, account(**changes))
    assert found[0] == code
    assert found[1].startswith(f"team-a/train-0: {said}")


ALONE = place.Rejection(code="NODE_STALE", count=1, nodes=["gpu-1"], detail="its lease has run out")
EARLY = [
    place.Stage(name="reserved", state="reached", gpus=["GPU-a"]),
    place.Stage(name="bound", state="waiting"),
]


def test_why_says_of_a_pod_with_gpus_on_a_node_that_it_stays_there(
    ask: Cli, fleet: FakeFleetServer
) -> None:
    code, text = why(ask, fleet, account(stages=EARLY, rejections=[ALONE]))
    assert code == 3
    said = "team-a/train-0: waits: stays with its node gpu-1 (NODE_STALE: its lease has run out) "
    assert text.startswith(said + "fix: ")
    assert "Or delete the pod: its owner makes another. more:" in text


@pytest.mark.parametrize(
    "changes",
    [
        {"rejections": [ALONE]},
        {"stages": EARLY},
        {"stages": EARLY, "rejections": [ALONE], "passing": 1},
        {"stages": EARLY, "rejections": [ALONE, place.Rejection(code="GPU_BUSY", count=1)]},
        {"stages": EARLY, "rejections": [place.Rejection(code="GPU_BUSY", count=2, nodes=["n"])]},
    ],
)
def test_why_says_it_of_no_other(ask: Cli, fleet: FakeFleetServer, changes: dict[str, Any]) -> None:
    text = why(ask, fleet, account(**changes))[1]
    assert "stays with" not in text
    assert "delete the pod: its owner" not in text


def bound(**stages: place.Stage) -> list[place.Stage]:
    """The stages of a bound pod; `stages` by name."""
    found = [place.Stage(name="bound", state="reached")]
    for name, stage in stages.items():
        found.append(place.Stage(name=name))
        found[-1].MergeFrom(stage)
    return found


HELD = place.Stage(state="reached", gpus=["GPU-a", "GPU-b"], findings=["Confirmed on n", "more"])
LEFT = place.Stage(state="reached", gpus=["GPU-a"], findings=["Releasing on n"])
NONE_HELD = place.Stage(state="over", findings=["nothing"])
LATER = place.Stage(state="waiting", findings=["later"])
GIVES = place.Stage(state="reached", gpus=["GPU-a"])
WOULD = [
    place.PodRecord(kind="filter.decision", decision="reported", codes=["GPU_BUSY"]),
    place.PodRecord(kind="filter.decision", decision="passed", codes=["GPU_BUSY"]),
    place.PodRecord(kind="admission.decision", decision="reported", codes=["BYPASS_ENV"]),
    place.PodRecord(kind="bind.decision", decision="reported", codes=["X"], uid="another"),
]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"stages": bound(reserved=HELD)},
            "is bound; reserved for it: GPU-a,GPU-b (Confirmed on n)",
        ),
        (
            {"stages": bound(reserved=LATER, kubelet=GIVES)},
            "is bound; kubelet gave it GPU-a; not recorded yet (later)",
        ),
        (
            {
                "stages": bound(
                    reserved=LATER, kubelet=place.Stage(state="unknown", findings=["not asked"])
                )
            },
            "is bound; not asked; not recorded yet (later)",
        ),
        (
            {"stages": bound(reserved=place.Stage(state="unneeded", findings=["no GPU"]))},
            "is bound; no GPU",
        ),
        (
            {
                "stages": bound(
                    reserved=place.Stage(state="unneeded", findings=["report-only"]), kubelet=GIVES
                ),
                "report_only": True,
                "records": WOULD,
            },
            "is bound; kubelet gave it GPU-a; report-only; would have been refused: BYPASS_ENV fix",
        ),
        (
            {"stages": bound(reserved=place.Stage(state="unknown", findings=["unread"]))},
            "is bound; what is reserved for it is not known: unread",
        ),
        ({"stages": bound(reserved=HELD), "managed": False}, "is bound; reserved for it: GPU-a"),
        (
            {"stages": bound(reserved=LEFT, nvml=place.Stage(state="over")), "phase": "Succeeded"},
            "has ended (Succeeded); still holds GPU-a: Releasing on n more:",
        ),
        (
            {"stages": bound(reserved=LEFT, nvml=GIVES), "phase": "", "managed": False},
            "is gone; still holds GPU-a: Releasing on n; its processes still use GPU-a more:",
        ),
        (
            {"stages": bound(reserved=NONE_HELD), "phase": "Succeeded"},
            "has ended (Succeeded); holds no GPU more:",
        ),
        (
            {
                "stages": [
                    place.Stage(name="bound", state="over"),
                    place.Stage(name="reserved", state="over"),
                ],
                "phase": "Failed",
            },
            "has ended (Failed); was bound to no node; holds no GPU more:",
        ),
        (
            {
                "stages": [
                    place.Stage(name="bound", state="over"),
                    place.Stage(name="reserved", state="unknown", findings=["unread"]),
                ],
                "phase": "",
            },
            "is gone; whether it holds a GPU is not known: unread more:",
        ),
    ],
)
def test_why_tells_a_pod_that_does_not_wait_from_one_that_has_its_gpus(
    ask: Cli, fleet: FakeFleetServer, changes: dict[str, Any], said: str
) -> None:
    found = why(ask, fleet, account(**{"rejections": [], **changes}))
    assert found[0] == 0
    assert found[1].startswith(f"team-a/train-0: {said}")


def test_why_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.accounts = {"team-a/train-0": account()}
    ran = ask("why", "train-0", "-n", "team-a", "-o", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["pod"], found["code"]) == (3, "team-a/train-0", "NODE_STALE")
    assert found["fix"]
    assert ask("why", "team-a/train-0", "-o", "name").out == "NODE_STALE\n"
    assert ask("why", "a/b/c").code == 2
