"""`gpuwarden reservations`: tables for people, messages for programs."""

import json
from typing import Any

import pytest
import yaml

from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.cli.conftest import Cli

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
        "origin": "gate",
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
        ["NAMESPACE", "POD", "STATE", "NODE", "GPUS", "ORIGIN", "SHARED", "AGE"],
        ["other", "z", "Confirmed", "gpu-1", "GPU-a", "gate", "-", "119s"],
        ["team-a", "a", "Confirmed", "gpu-1", "GPU-a", "gate", "gpu-1:0", "-"],
        ["team-a", "b", "Confirmed", "gpu-1", "GPU-a", "gate", "-", "2h"],
    ]
    assert [x.after for x in fleet.asked if isinstance(x, pb.ListReservationsRequest)] == [
        "",
        "1",
        "2",
    ]


def test_what_is_special_about_a_gpu_is_said(ask: Cli, fleet: FakeFleetServer) -> None:
    gpus = [
        pb.ReservedGpu(uuid="GPU-a", state="Releasing", holders=1),
        pb.ReservedGpu(uuid="GPU-b", state="Releasing", holders=3),
        pb.ReservedGpu(uuid="GPU-c"),
    ]
    fleet.reservations = [reservation(state="Releasing", gpus=gpus)]
    assert "GPU-a,GPU-b(3 holders),GPU-c(no record)" in ask("reservations").lines[1]


def test_wide_reservations_say_more(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.reservations = [reservation(adopted=True)]
    assert ask("reservations", "-o", "wide").lines[1].split()[-3:] == [
        "yes",
        "uid-of-train-0",
        "v1.k1.train-0",
    ]


@pytest.mark.parametrize("format_", ["json", "yaml"])
def test_reservations_for_programs(ask: Cli, fleet: FakeFleetServer, format_: str) -> None:
    fleet.reservations = [reservation("a"), reservation("b")]
    out = ask("reservations", "-o", format_).out
    found = json.loads(out) if format_ == "json" else yaml.safe_load(out)
    assert [x["pod"] for x in found["reservations"]] == ["a", "b"]
    assert found["reservations"][0]["gpus"] == [
        {"uuid": "GPU-a", "state": "Confirmed", "holders": 1}
    ]
    assert found["reservations"][0]["adopted"] is False


def test_ids_alone_and_none_at_all(ask: Cli, fleet: FakeFleetServer) -> None:
    assert ask("reservations").out == "No reservations.\n"
    fleet.reservations = [reservation("a")]
    assert ask("reservations", "-o", "name").out == "v1.k1.a\n"


def test_the_question_says_which(ask: Cli, fleet: FakeFleetServer) -> None:
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
        assert len(out.splitlines()) == 2
