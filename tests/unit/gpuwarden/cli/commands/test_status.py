"""`status`: the controller, its fleet in numbers, warnings once."""

import json

from gpuwarden import __version__
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli


def status(**changes: object) -> pb.GetStatusResponse:
    fields: dict[str, object] = {
        "cluster": "prod",
        "replica": "c-0",
        "version": __version__,
        "protocol": 1,
        "enforcement": "namespaces",
        "protection": "cluster",
    }
    return pb.GetStatusResponse(**(fields | changes))  # type: ignore[arg-type] # fields


def test_a_controller_of_which_all_is_well(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.status = status(
        leads=True,
        replicas=["c-0", "c-1"],
        nodes=[pb.Count(name="eligible", count=3)],
        gpus=[pb.Count(name="lost", count=1), pb.Count(name="ok", count=23)],
        agents=[pb.Count(name="0.1.0", count=2), pb.Count(name="0.2.0", count=1)],
    )
    ran = ask("status")
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == [
        "Cluster:      prod",
        "Replica:      c-0, the leader",
        "Replicas:     c-0, c-1",
        f"Version:      {__version__}, protocol 1",
        "Ready:        yes",
        "Enforcement:  namespaces",
        "Protection:   cluster",
        "Nodes:        3: 3 eligible",
        "GPUs:         24: 1 lost, 23 ok",
        "Agents:       2 of version 0.1.0, 1 of version 0.2.0",
    ]


def test_warnings_and_nodes_that_are_out_are_shown_and_are_no_finding(
    ask: Cli, fleet: FakeFleetServer
) -> None:
    fleet.status = status(
        version="0.0.1",
        warnings=["InsecureStaticNodes\x1b " + "word " * 20],
        nodes=[pb.Count(name=x, count=1) for x in ("unknown", "eligible", "quarantined")],
    )
    ran = ask("status")
    assert ran.code == 0
    assert f"This program:  {__version__}" in ran.lines
    assert "Replica:       c-0" in ran.lines
    assert "GPUs:          none" in ran.lines
    at = ran.lines.index("Warnings:")
    assert ran.lines[at + 1].startswith("  InsecureStaticNodes\\x1b word")
    assert ran.lines[at + 2].startswith("  word")
    assert ran.lines[-1] == "Next: gpuwarden nodes --state unknown --state quarantined"
    assert not any(len(x) > 80 for x in ran.lines)


def test_a_controller_that_does_not_decide_is_a_finding(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.status = status(not_ready="first round: 9 ms")
    ran = ask("status")
    assert (ran.code, "Ready:        no: first round: 9 ms" in ran.lines) == (3, True)


def test_alarms_against_a_log_are_a_finding(ask: Cli, fleet: FakeFleetServer) -> None:
    codes = ["CHECKPOINT_INCONSISTENT", "LOG_RESET"]
    fleet.status = status(alarms=[pb.WitnessAlarm(node="gpu-1", codes=codes)])
    ran = ask("status")
    assert ran.code == 3
    assert ran.lines[-2:] == [
        "Alarms:",
        "  gpu-1 reports CHECKPOINT_INCONSISTENT,LOG_RESET against an audit log",
    ]


def test_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.status = status(nodes=[pb.Count(name="eligible", count=3)])
    assert ask("status", "-o", "name").out == "c-0\n"
    found = json.loads(ask("status", "-o", "json").out)
    assert found["nodes"] == [{"name": "eligible", "count": 3}]
    assert found["notReady"] == ""
