"""`reservations` and `reservation release`: who holds what; shown, asked, sent as shown."""

import io
import json
from typing import Any

import pytest
import yaml

from gpuwarden.cli.connection.options import NAMELESS
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import operator_pb2 as ops
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli, Terminal

HOSTILE = "\x1b[31mevil\x1b[0m\nforged"


def reservation(pod: str = "train-0", **changes: Any) -> pb.Reservation:
    fields: dict[str, Any] = {
        "id": f"v1.k1.{pod}",
        "namespace": "team-a",
        "pod": pod,
        "uid": f"uid-of-{pod}",
        "node": "gpu-1",
        "gpus": [pb.ReservedGpu(uuid="GPU-a", state="Confirmed", holders=1)],
        "state": "Confirmed",
        "origin": "binding",
        "made_at": "2026-11-27T20:00:00Z",
        "age_s": 7300,
    }
    return pb.Reservation(**(fields | changes))


def test_reservations_are_listed_by_namespace_and_pod(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.reservations = [
        reservation("b", id="1"),
        reservation("a", id="2", share_group="gpu-1:0", age_s=0),
        reservation("z", id="3", namespace="other", age_s=119),
    ]
    ran = ask("reservations")
    assert ran.code == 0
    assert [line.split() for line in ran.lines] == [
        ["NAMESPACE", "POD", "STATE", "NODE", "AGE", "GPUS"],
        ["other", "z", "Confirmed", "gpu-1", "119s", "GPU-a"],
        ["team-a", "a", "Confirmed", "gpu-1", "-", "GPU-a"],
        ["team-a", "b", "Confirmed", "gpu-1", "2h", "GPU-a"],
    ]
    assert [x.after for x in fleet.asked if isinstance(x, pb.ListReservationsRequest)] == [
        "",
        "1",
        "2",
    ]


def test_state_and_holders_of_a_gpu_are_shown(ask: Cli, fleet: FakeFleetServer) -> None:
    gpus = [
        pb.ReservedGpu(uuid="GPU-a", state="Releasing", holders=1),
        pb.ReservedGpu(uuid="GPU-b", state="Releasing", holders=3),
        pb.ReservedGpu(uuid="GPU-c"),
    ]
    fleet.reservations = [reservation(state="Releasing", gpus=gpus)]
    text = " ".join(ask("reservations").out.split())
    assert text.endswith("GPU-a, GPU-b (3 holders), GPU-c (no record)")


def test_wide_reservations_say_more(ask: Cli, fleet: FakeFleetServer) -> None:
    whole = "GPU-5d2b0c1e-8f1f-4f3e-9d0a-6f0f0a4b7c11"
    gpus = [pb.ReservedGpu(uuid=whole, state="Confirmed", holders=1)]
    fleet.reservations = [reservation(restored=True, share_group="gpu-1:0", gpus=gpus)]
    assert ask("reservations", "-o", "wide").lines[1].split()[5:] == [
        *("binding", "gpu-1:0", "yes", "uid-of-train-0", "v1.k1.train-0", whole, "GPU-5d2b0c1e"),
    ]
    assert ask("reservations").lines[1].split()[-1] == "GPU-5d2b0c1e"


def test_reservations_are_chosen_by_state(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.reservations = [
        reservation(x, id=x, state=x) for x in ("Confirmed", "Proposed", "Releasing")
    ]
    chosen = ask("reservations", "--state", "Releasing", "--state", "Confirmed", "-o", "name")
    assert chosen.out == "Confirmed\nReleasing\n"
    assert ask("reservations", "--state", "Gone").code == 2


@pytest.mark.parametrize("format_", ["json", "yaml"])
def test_reservations_for_programs(ask: Cli, fleet: FakeFleetServer, format_: str) -> None:
    fleet.reservations = [reservation("a"), reservation("b")]
    out = ask("reservations", "-o", format_).out
    found = json.loads(out) if format_ == "json" else yaml.safe_load(out)
    assert [x["pod"] for x in found["reservations"]] == ["a", "b"]
    assert found["reservations"][0]["gpus"] == [
        {"uuid": "GPU-a", "state": "Confirmed", "holders": 1}
    ]
    assert found["reservations"][0]["restored"] is False


def test_ids_alone_and_none_at_all(ask: Cli, fleet: FakeFleetServer) -> None:
    assert ask("reservations").out == "No reservations.\n"
    fleet.reservations = [reservation("a")]
    assert ask("reservations", "-o", "name").out == "v1.k1.a\n"


def test_filters_are_sent_to_the_controller(ask: Cli, fleet: FakeFleetServer) -> None:
    ask("reservations", "--node", "gpu-1", "-n", "team-a")
    assert fleet.asked == [pb.ListReservationsRequest(node="gpu-1", namespace="team-a")]


def test_a_ledger_that_cannot_be_shown_is_an_error(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.refusal = Refusal(ReasonCode.LEDGER_UNAVAILABLE, "the ledger was not read lately")
    ran = ask("reservations")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "gpuwarden: LEDGER_UNAVAILABLE: the ledger was not read lately\n"


@pytest.mark.parametrize("format_", ["table", "wide", "json", "yaml", "name"])
def test_hostile_names_do_not_reach_the_terminal(
    ask: Cli, fleet: FakeFleetServer, format_: str
) -> None:
    fleet.reservations = [
        reservation(HOSTILE, namespace=HOSTILE, share_group=HOSTILE, state=HOSTILE, uid=HOSTILE)
    ]
    out = ask("reservations", "-o", format_).out
    assert all(x.isprintable() or x == "\n" for x in out)
    assert "forged" in out
    if format_ in {"table", "wide"}:
        assert not [x for x in out.splitlines() if x.startswith("forged")]


GPU = "GPU-a"
BY_POD = ("reservation", "release", GPU, "--reason", "ticket 7", "--pod", "team-a/train-0")
BY_ID = ("reservation", "release", GPU, "--reason", "ticket 7", "--reservation", "v1.k1.x")


def held(name: str = "v1.k1.x", state: str = "Releasing", gpu: str = GPU) -> pb.Reservation:
    return pb.Reservation(
        id=name,
        namespace="team-a",
        pod="train-0",
        uid=f"uid-of-{name}",
        node="gpu-1",
        gpus=[pb.ReservedGpu(uuid=gpu, state=state, holders=1)],
        state=state,
        origin="binding",
    )


def sent(fleet: FakeFleetServer) -> list[ops.ReleaseGpuRequest]:
    return [x for x in fleet.asked if isinstance(x, ops.ReleaseGpuRequest)]


SENT = ops.ReleaseGpuRequest(gpu=GPU, reservation="v1.k1.x", reason="ticket 7")


class TestRelease:
    @pytest.fixture
    def fleet(self, fleet: FakeFleetServer) -> FakeFleetServer:
        fleet.reservations = [held(), held("v1.k1.y", gpu="GPU-b")]
        return fleet

    @pytest.mark.parametrize("command", [BY_POD, BY_ID], ids=["pod", "reservation"])
    def test_the_one_reservation_is_released(
        self, ask: Cli, fleet: FakeFleetServer, command: tuple[str, ...]
    ) -> None:
        ran = ask(*command, "--yes")
        assert (ran.code, ran.err) == (0, f"{NAMELESS}\n")
        assert ran.out == "GPU-a: released from team-a/train-0 on gpu-1\n"
        assert sent(fleet) == [SENT]

    def test_a_beginning_of_the_uuid_is_enough(self, ask: Cli, fleet: FakeFleetServer) -> None:
        one = "GPU-5d2b0c1e-8f1f-4f3e-9d0a-6f0f0a4b7c11"
        fleet.reservations = [held(gpu=one), held("v1.k1.y", gpu=f"{one[:-1]}2")]
        short = ("reservation", "release", "gpu-5D2B0C1E", *BY_POD[3:], "--yes")
        ran = ask(*short)
        assert (ran.code, sent(fleet)) == (2, [])
        assert ran.err == "gpuwarden: gpu-5D2B0C1E begins 2 UUIDs: give more of it\n"
        del fleet.reservations[1]
        assert ask(*short).out.startswith(f"{one}: released")
        assert [x.gpu for x in sent(fleet)] == [one]

    def test_the_name_of_who_acts_is_sent_as_a_claim(
        self, ask: Cli, fleet: FakeFleetServer
    ) -> None:
        ran = ask(*BY_POD, "--yes", "--as-recorded-by", "ann")
        assert (ran.code, ran.err) == (0, "")
        assert [x.claimed_by for x in sent(fleet)] == ["ann"]
        assert ask(*BY_POD, "--yes", "--as-recorded-by", "Ann B").code == 2
        assert len(sent(fleet)) == 1

    def test_a_person_is_shown_whose_it_is_and_asked(
        self, ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
        ran = ask(*BY_POD)
        assert ran.code == 0
        assert "uid-of-v1.k1.x" in ran.err
        assert "v1.k1.y" not in ran.err
        question = "Does nothing of the pod run any more? Release GPU-a? [y/N] "
        assert ran.err.endswith(f"{question}{NAMELESS}\n")
        assert sent(fleet) == [SENT]

    @pytest.mark.parametrize(
        ("stdin", "code"), [(Terminal("n\n"), 1), (io.StringIO("y\n"), 2)], ids=["no", "a program"]
    )
    def test_without_a_yes_nothing_is_sent(
        self,
        ask: Cli,
        fleet: FakeFleetServer,
        monkeypatch: pytest.MonkeyPatch,
        stdin: io.StringIO,
        code: int,
    ) -> None:
        monkeypatch.setattr("sys.stdin", stdin)
        assert ask(*BY_POD).code == code
        assert sent(fleet) == []

    @pytest.mark.parametrize("command", [BY_POD, BY_ID], ids=["pod", "reservation"])
    def test_where_it_has_no_part_nothing_is_done(
        self, ask: Cli, fleet: FakeFleetServer, command: tuple[str, ...]
    ) -> None:
        fleet.reservations = []
        ran = ask(*command, "--yes")
        assert ran.code == 0
        assert ran.out == f"GPU-a: {command[-1]} does not hold it; nothing was done\n"
        found = json.loads(ask(*command, "--yes", "-o", "json").out)
        assert found == {"already": True, "node": "", "namespace": "", "pod": ""}

    def test_of_two_pods_of_a_name_the_one_that_has_gone(
        self, ask: Cli, fleet: FakeFleetServer
    ) -> None:
        fleet.reservations = [held("v1.k1.w", "Confirmed"), held()]
        assert ask(*BY_POD, "--yes").code == 0
        assert sent(fleet) == [SENT]

    @pytest.mark.parametrize("state", ["Releasing", "Confirmed"])
    def test_of_several_none_is_guessed(self, ask: Cli, fleet: FakeFleetServer, state: str) -> None:
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
    def test_a_wrong_call_is_one(
        self, ask: Cli, fleet: FakeFleetServer, options: tuple[str, ...]
    ) -> None:
        ran = ask("reservation", "release", GPU, "--reason", "x", *options, "--yes")
        assert ran.code == 2
        assert fleet.asked == []

    def test_a_reason_is_needed(self, ask: Cli, fleet: FakeFleetServer) -> None:
        assert ask("reservation", "release", GPU, "--pod", "team-a/train-0", "--yes").code == 2
        assert fleet.asked == []

    def test_a_refusal_is_printed(self, ask: Cli, fleet: FakeFleetServer) -> None:
        fleet.refusal = Refusal(ReasonCode.RESERVATION_IN_USE, "gpu-1 shows a process of the pod")
        ran = ask(*BY_ID, "--yes")
        assert ran.code == 1
        assert ran.err == "gpuwarden: RESERVATION_IN_USE: gpu-1 shows a process of the pod\n"

    def test_the_name_is_the_gpu_s(self, ask: Cli) -> None:
        assert ask(*BY_POD, "--yes", "-o", "name").out == "GPU-a\n"
