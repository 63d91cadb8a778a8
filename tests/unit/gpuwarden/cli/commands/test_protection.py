"""`protection check`: the pods that would be evicted, before anybody sets the taint."""

import json

import pytest

from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli

SERVER = pb.EvictedPod(node="gpu-1", namespace="spire-server", name="spire-server-0")
WEB = pb.EvictedPod(node="gpu-2", namespace="team-a", name="web-0", after_s=300)


def test_every_pod_that_would_be_evicted_is_listed(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.evicted = [SERVER, WEB]
    ran = ask("protection", "check")
    assert ran.code == 3
    assert [line.split() for line in ran.lines] == [
        ["NODE", "NAMESPACE", "POD", "EVICTED"],
        ["gpu-1", "spire-server", "spire-server-0", "at", "once"],
        ["gpu-2", "team-a", "web-0", "after", "300s"],
    ]
    asked = [x for x in fleet.asked if isinstance(x, pb.CheckProtectionRequest)]
    assert [(x.node, x.after) for x in asked] == [("", ""), ("", "spire-server-0")]


def test_it_passes_where_none_would_be(ask: Cli, fleet: FakeFleetServer) -> None:
    ran = ask("protection", "check", "gpu-1")
    assert (ran.code, ran.out) == (0, "No pod of 2 nodes would be evicted.\n")
    (asked,) = (x for x in fleet.asked if isinstance(x, pb.CheckProtectionRequest))
    assert asked.node == "gpu-1"


def test_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.evicted = [SERVER]
    assert ask("protection", "check", "-o", "name").out == "spire-server/spire-server-0\n"
    found = json.loads(ask("protection", "check", "-o", "json").out)
    assert found["nodes"] == 2
    assert [x["name"] for x in found["pods"]] == ["spire-server-0"]


@pytest.mark.parametrize("code", [ReasonCode.NODE_UNKNOWN, ReasonCode.CONTROLLER_NOT_READY])
def test_no_answer_is_not_an_empty_one(ask: Cli, fleet: FakeFleetServer, code: ReasonCode) -> None:
    fleet.refusal = Refusal(code, "not known")
    ran = ask("protection", "check")
    assert ran.code not in {0, 3}
    assert "not known" in ran.err
