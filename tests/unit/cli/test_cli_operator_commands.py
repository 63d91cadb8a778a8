"""`node accept|quarantine|release`: shown, asked, sent as shown, and how it ends."""

import io
import json

import pytest

from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops
from tests.builders.fleet_messages import node_message
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.cli.conftest import Cli

NODE = "gpu-a1"
WHY = ("--reason", "ticket 7")
VERSION = "v1:sha256:" + "0" * 64


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def enrollment(fleet: FakeFleetServer) -> pb.Enrollment:
    fleet.nodes = [node_message(NODE, state="quarantined", code="INVENTORY_CHANGED")]
    fleet.enrollments[NODE] = pb.Enrollment(
        gpus=[pb.PinnedGpu(uuid="GPU-old", serial="1"), pb.PinnedGpu(uuid="GPU-x", enrolled=True)],
        node_uid="uid-1",
        denial=pb.Denial(
            code="INVENTORY_CHANGED",
            reason="GPU-new is not one of the 2 pinned GPUs",
            actor="controller",
            at="2026-11-27T20:01:00.000Z",
        ),
        candidate=pb.Candidate(
            code="INVENTORY_CHANGED",
            evidence_digest="ab" * 32,
            changes=[
                pb.PinChange(change="removed", subject="GPU-old", pinned="1"),
                pb.PinChange(change="added", subject="GPU-new\x1b", offered="2"),
                pb.PinChange(change="kept", subject="GPU-x"),
            ],
        ),
        version=VERSION,
    )
    return fleet.enrollments[NODE]


SHOWN = [
    "Pinned:           2 GPUs, 1 of them by an operator",
    "Pinned node UID:  uid-1",
    (
        "Denied:           INVENTORY_CHANGED by the controller at 2026-11-27T20:01:00.000Z: "
        "GPU-new is not one of the 2 pinned GPUs"
    ),
    "",
    "Waits for an operator:",
    "CHANGE    SUBJECT       PINNED   OFFERED",
    "removed   GPU-old       1        -",
    "added     GPU-new\\x1b   -        2",
    "1 kept, shown by evidence abababababababab",
]


@pytest.mark.usefixtures("enrollment")
class TestShow:
    def test_pins_denial_and_difference_are_shown(self, ask: Cli) -> None:
        out = ask("node", "show", NODE).lines
        assert out[-len(SHOWN) :] == SHOWN

    def test_they_are_in_the_structured_answer(self, ask: Cli) -> None:
        found = json.loads(ask("node", "show", NODE, "-o", "json").out)
        assert found["name"] == NODE
        assert found["enrollment"]["version"] == VERSION
        assert found["enrollment"]["candidate"]["changes"][1]["offered"] == "2"

    def test_a_lost_gpu_does_not_wait_for_an_operator(
        self, ask: Cli, enrollment: pb.Enrollment
    ) -> None:
        enrollment.candidate.code = "GPU_LOST"
        out = ask("node", "show", NODE).out
        assert "Waits for an operator" not in out
        assert "Lost; if that is for good, `node accept` drops it from the pins:\n" in out

    def test_an_explanation_has_the_difference_too(self, ask: Cli, fleet: FakeFleetServer) -> None:
        fleet.explanations = {
            NODE: pb.ExplainNodeResponse(
                node=node_message(NODE), enrollment=fleet.enrollments[NODE]
            )
        }
        out = ask("explain", "node", NODE).lines
        assert out[-5:] == SHOWN[-5:]


@pytest.mark.usefixtures("enrollment")
class TestAccept:
    def test_it_sends_what_was_shown(self, ask: Cli, fleet: FakeFleetServer) -> None:
        ran = ask("node", "accept", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out == f"{NODE}: 2 GPUs are pinned, its next evidence lets it back in\n"
        assert fleet.asked[-1] == ops.AcceptNodeRequest(
            name=NODE, reason="ticket 7", expected_version=VERSION
        )

    @pytest.mark.parametrize("answer", ["y\n", "Yes\n"])
    def test_a_person_is_shown_the_difference_and_asked(
        self, ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch, answer: str
    ) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        ran = ask("node", "accept", NODE, *WHY)
        assert ran.code == 0
        assert ran.err.splitlines() == [*SHOWN, "", f"Make this the hardware of {NODE}? [y/N] "]
        assert isinstance(fleet.asked[-1], ops.AcceptNodeRequest)

    @pytest.mark.parametrize("answer", ["", "\n", "n\n", "yep\n"])
    def test_anything_but_yes_does_nothing(
        self, ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch, answer: str
    ) -> None:
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        ran = ask("node", "accept", NODE, *WHY)
        assert ran.code == 1
        assert ran.err.endswith("gpuwarden: not confirmed, nothing was done\n")
        assert all(isinstance(x, pb.GetNodeRequest) for x in fleet.asked)

    def test_a_program_must_say_yes(
        self, ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
        ran = ask("node", "accept", NODE, *WHY)
        assert (ran.code, ran.err) == (
            2,
            "gpuwarden: standard input is no terminal: give --yes\n",
        )
        assert all(isinstance(x, pb.GetNodeRequest) for x in fleet.asked)

    def test_another_version_than_the_expected_one_is_not_accepted(
        self, ask: Cli, fleet: FakeFleetServer
    ) -> None:
        ran = ask("node", "accept", NODE, *WHY, "--yes", "--if-version", "v1:sha256:1")
        assert ran.code == 1
        assert f"its enrolment has version {VERSION}" in ran.err
        assert all(isinstance(x, pb.GetNodeRequest) for x in fleet.asked)
        assert ask("node", "accept", NODE, *WHY, "-y", "--if-version", VERSION).code == 0

    def test_nothing_to_accept_is_an_error(self, ask: Cli, enrollment: pb.Enrollment) -> None:
        enrollment.ClearField("candidate")
        ran = ask("node", "accept", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (
            1,
            f"gpuwarden: {NODE} shows no hardware that waits to be accepted; see `node release`\n",
        )

    def test_for_programs(self, ask: Cli) -> None:
        ran = ask("node", "accept", NODE, *WHY, "--yes", "-o", "json")
        assert json.loads(ran.out)["enrollment"]["version"] == VERSION
        assert ask("node", "accept", NODE, *WHY, "--yes", "-o", "name").out == f"{NODE}\n"

    def test_a_reason_is_needed(self, ask: Cli) -> None:
        ran = ask("node", "accept", NODE, "--yes")
        assert ran.code == 2
        assert "--reason" in ran.err


@pytest.mark.usefixtures("enrollment")
class TestRelease:
    def test_it_sends_what_was_shown(self, ask: Cli, fleet: FakeFleetServer) -> None:
        ran = ask("node", "release", NODE, *WHY, "--yes")
        assert ran.out == f"{NODE}: the denial has ended, its next evidence decides\n"
        assert fleet.asked[-1] == ops.ReleaseNodeRequest(
            name=NODE, reason="ticket 7", expected_version=VERSION
        )

    def test_no_denial_is_an_error(self, ask: Cli, enrollment: pb.Enrollment) -> None:
        enrollment.ClearField("denial")
        ran = ask("node", "release", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (
            1,
            f"gpuwarden: {NODE} is not denied; see `explain node`\n",
        )


@pytest.mark.usefixtures("enrollment")
class TestQuarantine:
    def test_it_is_asked_and_warnings_are_told(
        self, ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet.warnings_of_acts = ["the audit record is not durable yet"]
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
        ran = ask("node", "quarantine", NODE, *WHY)
        assert ran.code == 0
        assert ran.err == (f"Take {NODE} out? [y/N] warning: the audit record is not durable yet\n")
        assert ran.out.startswith(f"{NODE}: no guarded pod is placed there")
        assert fleet.asked == [ops.QuarantineNodeRequest(name=NODE, reason="ticket 7")]

    @pytest.mark.parametrize(
        ("code", "exit_code"),
        [
            (ReasonCode.ROLE_DENIED, 4),
            (ReasonCode.ENROLLMENT_CONFLICT, 1),
            (ReasonCode.ENROLLMENT_STALE, 5),
        ],
    )
    def test_refusals_are_exit_codes(
        self, ask: Cli, fleet: FakeFleetServer, code: ReasonCode, exit_code: int
    ) -> None:
        fleet.refusal = Refusal(code, "because")
        ran = ask("node", "quarantine", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (exit_code, f"gpuwarden: {code}: because\n")
