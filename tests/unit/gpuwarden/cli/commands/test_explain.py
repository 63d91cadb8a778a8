"""`explain node|pod`: findings, reasons and records for people; exit codes."""

import json
from typing import Any

import pytest

from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import placement_pb2
from tests.builders.fleet_messages import node_message
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.commands.test_reservations import HOSTILE, reservation
from tests.unit.gpuwarden.cli.conftest import REVOKED, Cli

EXPLANATION = pb.ExplainNodeResponse(
    node=node_message(**REVOKED),
    refusals=[
        pb.PastRefusal(
            at="2026-11-27T20:01:00.000Z",
            code="INVENTORY_CHANGED",
            detail="GPU added",
            step=16,
            count=3,
        ),
        pb.PastRefusal(at="2026-11-27T20:00:00.000Z", code="NVML_UNAVAILABLE", count=1),
    ],
    identity_document='{"cluster":"prod"}',
    pin_document='{"cluster":"other"}',
    findings=["lease: ended", "enrolled GPUs: differ\x1b"],
)


def test_a_node_is_explained(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.explanations = {"gpu-a1": EXPLANATION}
    out = ask("explain", "node", "gpu-a1").out
    assert out.startswith(
        "gpu-a1 is revoked: INVENTORY_CHANGED, 60s ago\n"
        "  a card was swapped\n"
        "  L0, class abababab, 8 GPUs, mode env, accepted 2m ago\n"
        "  lease: ended\n"
        "  enrolled GPUs: differ\\x1b\n"
        "  clock is 40 s ahead\n"
        "\n"
        "Cause:       A GPU was added or swapped"
    )
    assert "What to do:  Look at the change with `gpuwarden node show gpu-a1`;" in out
    assert "\n60s  INVENTORY_CHANGED  3      GPU added\n" in out
    assert "{" not in out
    wide = ask("explain", "node", "gpu-a1", "-o", "wide").out
    assert "2026-11-27T20:01:00.000Z  16    GPU added\n" in wide


def _denied(actor: str = "controller") -> pb.Denial:
    at = "2026-11-27T19:00:00.000Z"
    return pb.Denial(code="INVENTORY_CHANGED", reason="why\x1b", actor=actor, at=at)


CANDIDATE = pb.Candidate(code="INVENTORY_CHANGED", changes=[pb.EnrollmentChange(change="added")])
LOST = pb.Candidate(code="GPU_LOST", changes=[pb.EnrollmentChange(change="removed")])
RELEASE = '    gpuwarden node release gpu-a1 --reason "…"'
ACCEPT = '    gpuwarden node accept gpu-a1 --reason "…"'


@pytest.mark.parametrize(
    ("state", "enrollment", "lines"),
    [
        ("eligible", pb.Enrollment(), []),
        ("revoked", pb.Enrollment(), []),
        (
            "quarantined",
            pb.Enrollment(denial=_denied(), candidate=CANDIDATE),
            [
                "  where the new hardware is meant to be there:",
                ACCEPT,
                "  where the enrolled hardware is back:",
                RELEASE,
            ],
        ),
        ("quarantined", pb.Enrollment(denial=_denied()), ["  once its cause is gone:", RELEASE]),
        (
            "eligible",
            pb.Enrollment(candidate=LOST),
            ["  where the GPU is gone for good:", ACCEPT],
        ),
        (
            "eligible",
            pb.Enrollment(faults=[pb.GpuFault(gpu="GPU-a", xid=48)]),
            ["  once the GPU was reset:", RELEASE],
        ),
        *(
            (
                state,
                pb.Enrollment(),
                [
                    "  to see whether its agent runs:",
                    "    kubectl get pods -A -o wide --field-selector spec.nodeName=gpu-a1",
                ],
            )
            for state in ("stale", "unknown")
        ),
    ],
)
def test_the_next_command_is_named_whole_on_a_line(
    ask: Cli, fleet: FakeFleetServer, state: str, enrollment: pb.Enrollment, lines: list[str]
) -> None:
    found = pb.ExplainNodeResponse(node=node_message(state=state), enrollment=enrollment)
    fleet.explanations = {"gpu-a1": found}
    ran = ask("explain", "node", "gpu-a1")
    at = ran.lines.index("Next:") + 1 if "Next:" in ran.lines else len(ran.lines)
    assert ran.lines[at : at + len(lines)] == lines
    assert ("Next:" in ran.lines) == bool(lines)
    assert not any(len(x) > 80 for x in ran.lines)


def test_who_has_quarantined_a_node_and_why(ask: Cli, fleet: FakeFleetServer) -> None:
    node = node_message(state="quarantined", code="INVENTORY_CHANGED", detail="why\x1b")
    enrollment = pb.Enrollment(denial=_denied("spiffe://x/operator/ann"))
    fleet.explanations = {"gpu-a1": pb.ExplainNodeResponse(node=node, enrollment=enrollment)}
    out = ask("explain", "node", "gpu-a1").out
    head = "gpu-a1 is quarantined: INVENTORY_CHANGED, 62m ago by spiffe://x/operator/ann\n"
    assert out.startswith(f"{head}  why\\x1b\n  L0,")


def test_what_changed_and_when_is_told(ask: Cli, fleet: FakeFleetServer) -> None:
    change = pb.ClassChange(
        at="2026-11-27T20:01:00.000Z",
        old_hash="v1:sha256:" + "ab" * 32,
        new_hash="v1:sha256:" + "cd" * 32,
        facts=[pb.FactChange(path="gpus[0].vbios", old="96.00.74.00.11", new="96.00.74.00.99")],
    )
    found = pb.ExplainNodeResponse(node=node_message(), class_changes=[change])
    fleet.explanations = {"gpu-a1": found}
    assert ask("explain", "node", "gpu-a1").lines[-3:] == [
        "Its class changed 60s ago, at 2026-11-27T20:01:00.000Z: abababab to cdcdcdcd",
        "FACT           BEFORE          NOW",
        "gpus[0].vbios  96.00.74.00.11  96.00.74.00.99",
    ]


def test_a_healthy_node_is_explained_briefly(ask: Cli, fleet: FakeFleetServer) -> None:
    same = '{"cluster":"prod"}'
    fleet.explanations = {
        "a": pb.ExplainNodeResponse(node=node_message(), identity_document=same, pin_document=same),
        "b": pb.ExplainNodeResponse(node=node_message(code="SOMETHING_NEW")),
    }
    healthy = ask("explain", "node", "a").out
    assert "Refusals" not in healthy
    assert "Enrolled" not in healthy
    assert "Cause" not in ask("explain", "node", "b").out


def test_an_explanation_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.explanations = {"gpu-a1": EXPLANATION}
    found = json.loads(ask("explain", "node", "gpu-a1", "-o", "json").out)
    assert found["pinDocument"] == {"cluster": "other"}
    assert ask("explain", "node", "gpu-a1", "-o", "name").out == (
        "INVENTORY_CHANGED\nNVML_UNAVAILABLE\n"
    )


STAGES = ("required", "reserved", "bound", "kubelet", "nvml")
AT = "2026-11-27T20:00:00.000Z"


def account(*states: str, **changes: Any) -> placement_pb2.ExplainPodResponse:
    stages = [
        placement_pb2.Stage(name=name, state=state, at=AT, source="ledger", findings=[f"of {name}"])
        for name, state in zip(STAGES, states or ["reached"] * 5, strict=True)
    ]
    fields: dict[str, Any] = {
        "namespace": "team-a",
        "name": "train-0",
        "uid": "uid-0",
        "phase": "Running",
        "managed": True,
        "stages": stages,
        "records_since": AT,
    }
    return placement_pb2.ExplainPodResponse(**(fields | changes))


WAITING = ("reached", *["waiting"] * 4)
BUSY = placement_pb2.Rejection(
    code="GPU_BUSY", detail="no free GPU", count=2, nodes=["gpu-1", "gpu-2"]
)


def test_a_pod_that_has_its_gpu(ask: Cli, fleet: FakeFleetServer) -> None:
    found = account(guarantee_given="node", guarantee="node", guarantee_limit="protection is off")
    found.stages[4].gpus.append("GPU-a")
    found.stages[4].evidence_digest = "ab" * 32
    found.records.add(seq=7, at=AT, kind="bind.decision", decision="allowed", node="gpu-1")
    fleet.accounts["team-a/train-0"] = found
    ran = ask("explain", "pod", "team-a/train-0")
    assert ran.code == 0
    assert ran.lines[:5] == [
        "Pod:              team-a/train-0",
        "UID:              uid-0",
        "Phase:            Running",
        "Guarantee given:  node",
        "Guarantee now:    node: protection is off",
    ]
    rows = [line.split() for line in ran.lines]
    assert ["nvml", "reached", "2m", "ledger", "GPU-a"] in rows
    wide = [line.split() for line in ask("explain", "pod", "team-a/train-0", "-o", "wide").lines]
    assert ["nvml", "reached", "2m", "ledger", AT, "ab" * 32, "GPU-a", "GPU-a"] in wide
    assert ["required:", "of", "required"] in rows
    assert f"In this replica's audit log since 2m ago, {AT}:" in ran.lines
    assert ["2m", "7", "bind.decision", "allowed", "gpu-1", "-"] in rows
    assert "Rejected" not in ran.out


def test_a_pod_that_waits_for_a_node(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.accounts["default/train-0"] = account(*WAITING, rejections=[BUSY])
    ran = ask("explain", "pod", "train-0")
    assert ran.code == 3
    rows = [line.split() for line in ran.lines]
    assert "0 nodes would pass now" in ran.lines
    assert ["2", "GPU_BUSY", "gpu-1:", "no", "free", "GPU"] in rows
    assert "gpu-1,gpu-2" in ask("explain", "pod", "train-0", "-o", "wide").out
    assert "What to do: " in ran.out
    text = f"Nothing about it in this replica's audit log since 2m ago, {AT}."
    assert text in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("detail", "nodes", "shown"),
    [
        ("gpu-1: no free GPU", ["gpu-1", "gpu-2"], "gpu-1: no free GPU"),
        ("no free GPU", ["gpu-1"], "gpu-1: no free GPU"),
        ("", ["gpu-1"], "gpu-1"),
        ("no free GPU", [], "no free GPU"),
    ],
)
def test_an_example_of_a_rejection_names_its_node_once(
    ask: Cli, fleet: FakeFleetServer, detail: str, nodes: list[str], shown: str
) -> None:
    one = placement_pb2.Rejection(code="NODE_REFUSED", detail=detail, count=1, nodes=nodes)
    fleet.accounts["default/train-0"] = account(*WAITING, rejections=[one])
    out = ask("explain", "pod", "train-0").out
    assert f"\n1      NODE_REFUSED  {shown}\n" in out
    assert f"`gpuwarden explain node {nodes[0] if nodes else 'NODE'}`" in " ".join(out.split())


def test_a_pod_that_would_pass_somewhere(ask: Cli, fleet: FakeFleetServer) -> None:
    found = account(*WAITING, passing=9, passing_nodes=["gpu-3"], rejections=[BUSY])
    found.guarantee, found.guarantee_limit = "set", "kubelet chooses the GPU"
    fleet.accounts["team-a/train-0"] = found
    ran = ask("explain", "pod", "train-0", "-n", "team-a")
    assert ran.code == 0
    assert "9 nodes would pass now: gpu-3" in ran.lines
    assert "Guarantee possible now:  set: kubelet chooses the GPU" in ran.lines
    assert "What to do" not in ran.out


def test_a_pod_that_is_refused_itself(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.accounts["team-a/train-0"] = account(*WAITING, code="REQ_INVALID", detail="a bad hash")
    ran = ask("explain", "pod", "team-a/train-0")
    assert (ran.code, "The pod is refused: REQ_INVALID a bad hash" in ran.lines) == (3, True)


def test_a_pod_that_is_not_managed_waits_for_others(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.accounts["team-a/train-0"] = account(*WAITING, managed=False)
    ran = ask("explain", "pod", "team-a/train-0")
    assert ran.code == 0
    assert "/filter" not in ran.out


def test_stages_that_do_not_agree_are_a_finding(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.accounts["team-a/train-0"] = account(*["reached"] * 4, "mismatch", wrong=True)
    assert ask("explain", "pod", "team-a/train-0").code == 3


def test_report_only_mode_is_shown_and_keeps_no_pod_waiting(
    ask: Cli, fleet: FakeFleetServer
) -> None:
    waiting = account(*WAITING, rejections=[BUSY], report_only=True)
    refused = account(*WAITING, code="REQ_INVALID", detail="a bad hash", report_only=True)
    shown = []
    for found in (account(report_only=True), waiting, refused):
        fleet.accounts["team-a/train-0"] = found
        shown.append(ask("explain", "pod", "team-a/train-0"))
    assert [x.code for x in shown] == [0, 0, 0]
    assert all("report-only: gpuwarden refuses and reserves nothing" in x.out for x in shown)
    assert "The pod would be refused: REQ_INVALID a bad hash" in shown[-1].lines
    fleet.accounts["team-a/train-0"] = account(
        *["reached"] * 4, "mismatch", wrong=True, report_only=True
    )
    assert ask("explain", "pod", "team-a/train-0").code == 3
    fleet.accounts["team-a/train-0"] = account()
    assert "report-only" not in ask("explain", "pod", "team-a/train-0").out


def test_a_pod_that_is_gone(ask: Cli, fleet: FakeFleetServer) -> None:
    found = account(*["over"] * 5, phase="", records_since="", earlier=[reservation()])
    fleet.accounts["team-a/train-0"] = found
    ran = ask("explain", "pod", "team-a/train-0")
    assert ran.code == 0
    assert "Phase:  gone" in ran.lines
    assert "This replica's audit log cannot be read." in ran.lines
    assert "Earlier pods of this name still hold:" in ran.lines
    unknown = ask("explain", "pod", "team-a/train-1")
    assert (unknown.code, unknown.err) == (1, "gpuwarden: no pod 'team-a/train-1'\n")


@pytest.mark.parametrize("name", ["/", "a/", "/b", "a/b/c", ""])
def test_names_that_are_none(ask: Cli, fleet: FakeFleetServer, name: str) -> None:
    ran = ask("explain", "pod", name)
    assert ran.code == 2
    assert "expected NAMESPACE/NAME or NAME" in ran.err
    assert not fleet.asked


def test_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.accounts["team-a/train-0"] = account(*WAITING, rejections=[BUSY], code="REQ_INVALID")
    found = json.loads(ask("explain", "pod", "team-a/train-0", "-o", "json").out)
    assert [x["name"] for x in found["stages"]] == list(STAGES)
    assert found["rejections"][0]["nodes"] == ["gpu-1", "gpu-2"]
    names = ask("explain", "pod", "team-a/train-0", "-o", "name").out
    assert names == "REQ_INVALID\nGPU_BUSY\n"


@pytest.mark.parametrize("format_", ["table", "wide", "json", "yaml", "name"])
def test_hostile_text_does_not_reach_the_terminal(
    ask: Cli, fleet: FakeFleetServer, format_: str
) -> None:
    rejection = placement_pb2.Rejection(code=HOSTILE, detail=HOSTILE, count=1, nodes=[HOSTILE])
    found = account(*WAITING, rejections=[rejection], phase=HOSTILE, guarantee_limit=HOSTILE)
    found.guarantee = found.guarantee_given = HOSTILE
    found.passing_nodes.append(HOSTILE)
    found.stages[2].findings.append(HOSTILE)
    found.stages[2].source = HOSTILE
    found.records.add(kind=HOSTILE, node=HOSTILE, codes=[HOSTILE])
    found.earlier.add(pod=HOSTILE)
    fleet.accounts["team-a/train-0"] = found
    out = ask("explain", "pod", "team-a/train-0", "-o", format_).out
    assert all(x.isprintable() or x == "\n" for x in out)
    assert "forged" in out
    assert not any(line.startswith("forged") for line in out.splitlines())
