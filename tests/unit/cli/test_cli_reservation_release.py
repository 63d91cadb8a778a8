"""`reservation release`: shown, asked, sent as shown, and how it ends."""

import io
import json

import pytest

from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.cli.conftest import Cli

GPU = "GPU-a"
BY_POD = ("reservation", "release", GPU, "--reason", "ticket 7", "--pod", "team-a/train-0")
BY_ID = ("reservation", "release", GPU, "--reason", "ticket 7", "--reservation", "v1.k1.x")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def held(name: str = "v1.k1.x", state: str = "Releasing", gpu: str = GPU) -> pb.Reservation:
    return pb.Reservation(
        id=name,
        namespace="team-a",
        pod="train-0",
        uid=f"uid-of-{name}",
        node="gpu-1",
        gpus=[pb.ReservedGpu(uuid=gpu, state=state, holders=1)],
        state=state,
        origin="gate",
    )


@pytest.fixture
def fleet(fleet: FakeFleetServer) -> FakeFleetServer:
    fleet.reservations = [held(), held("v1.k1.y", gpu="GPU-b")]
    return fleet


def sent(fleet: FakeFleetServer) -> list[object]:
    return [x for x in fleet.asked if isinstance(x, ops.ReleaseGpuRequest)]


SENT = ops.ReleaseGpuRequest(gpu=GPU, reservation="v1.k1.x", reason="ticket 7")


@pytest.mark.parametrize("command", [BY_POD, BY_ID], ids=["pod", "reservation"])
def test_the_one_reservation_is_released(
    ask: Cli, fleet: FakeFleetServer, command: tuple[str, ...]
) -> None:
    ran = ask(*command, "--yes")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "GPU-a: released from team-a/train-0 on gpu-1\n"
    assert sent(fleet) == [SENT]


def test_a_person_is_shown_whose_it_is_and_asked(
    ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    ran = ask(*BY_POD)
    assert ran.code == 0
    assert "uid-of-v1.k1.x" in ran.err
    assert "v1.k1.y" not in ran.err
    assert ran.err.endswith("Is nothing of it left, and GPU-a to be released? [y/N] ")
    assert sent(fleet) == [SENT]


@pytest.mark.parametrize(
    ("stdin", "code"), [(Terminal("n\n"), 1), (io.StringIO("y\n"), 2)], ids=["no", "a program"]
)
def test_without_a_yes_nothing_is_sent(
    ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO, code: int
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    assert ask(*BY_POD).code == code
    assert sent(fleet) == []


@pytest.mark.parametrize("command", [BY_POD, BY_ID], ids=["pod", "reservation"])
def test_where_it_has_no_part_nothing_is_done(
    ask: Cli, fleet: FakeFleetServer, command: tuple[str, ...]
) -> None:
    fleet.reservations = []
    ran = ask(*command, "--yes")
    assert ran.code == 0
    assert ran.out == f"GPU-a: {command[-1]} has no part in it, nothing was done\n"
    found = json.loads(ask(*command, "--yes", "-o", "json").out)
    assert found == {"already": True, "node": "", "namespace": "", "pod": ""}


def test_of_two_pods_of_a_name_the_one_that_has_gone(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.reservations = [held("v1.k1.w", "Confirmed"), held()]
    assert ask(*BY_POD, "--yes").code == 0
    assert sent(fleet) == [SENT]


@pytest.mark.parametrize("state", ["Releasing", "Confirmed"])
def test_of_several_none_is_guessed(ask: Cli, fleet: FakeFleetServer, state: str) -> None:
    fleet.reservations = [held("v1.k1.w", state), held(state=state)]
    ran = ask(*BY_POD, "--yes")
    assert ran.code == 1
    assert ran.err.endswith("are being released there: give --reservation\n")
    assert sent(fleet) == []


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--pod", "team-a/train-0", "--reservation", "v1.k1.x"),
        ("--pod", "train-0"),
        ("--pod", "/train-0"),
        ("--pod", "team-a/"),
        ("--pod", "team-a/train-0/x"),
    ],
)
def test_a_wrong_call_is_one(ask: Cli, fleet: FakeFleetServer, options: tuple[str, ...]) -> None:
    ran = ask("reservation", "release", GPU, "--reason", "x", *options, "--yes")
    assert ran.code == 2
    assert fleet.asked == []


def test_a_reason_is_needed(ask: Cli, fleet: FakeFleetServer) -> None:
    assert ask("reservation", "release", GPU, "--pod", "team-a/train-0", "--yes").code == 2
    assert fleet.asked == []


def test_a_refusal_is_told(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.refusal = Refusal(ReasonCode.RESERVATION_IN_USE, "gpu-1 shows a process of the pod")
    ran = ask(*BY_ID, "--yes")
    assert ran.code == 1
    assert ran.err == "gpuwarden: RESERVATION_IN_USE: gpu-1 shows a process of the pod\n"


def test_the_name_is_the_gpu_s(ask: Cli) -> None:
    assert ask(*BY_POD, "--yes", "-o", "name").out == "GPU-a\n"
