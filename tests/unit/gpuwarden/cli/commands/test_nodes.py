"""`nodes` and `node …`: shown to people and programs; acts are shown, asked, sent as shown."""

import io
import json
from datetime import datetime

import pytest
import yaml

from gpuwarden.cli.connection.options import NAMELESS
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import operator_pb2 as ops
from tests.builders.fleet_messages import gpu_message, node_message
from tests.builders.inventory import gpu_uuid
from tests.fakes.fleet_server import FakeFleetServer, changes
from tests.unit.gpuwarden.cli.conftest import NOW_S, REVOKED, Cli, Terminal

HOSTILE = "\x1b[31mevil\x1b[0m\nforged   eligible"


def test_nodes_are_listed(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message(), node_message("gpu-b1", **REVOKED)]
    ran = ask("nodes")
    assert ran.code == 0
    assert ran.lines[0].split() == [
        "NAME", "STATE", "LEVEL", "GPUS", "CLASS", "SEEN", "REASON",
    ]  # fmt: skip
    assert ran.lines[1].split() == [
        "gpu-a1", "eligible", "L0", "8", "abababab", "2m", "-",
    ]  # fmt: skip
    assert ran.lines[2].split()[:4] == ["gpu-b1", "revoked", "L0", "7/8"]
    assert ran.lines[2].split()[-2:] == ["2m", "INVENTORY_CHANGED"]


def test_wide_nodes_say_more(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message(**REVOKED)]
    ran = ask("nodes", "-o", "wide")
    assert "DRIVER" in ran.lines[0]
    assert "570.86.10" in ran.lines[1]
    assert "a card was swapped" in ran.lines[1]
    assert "NVIDIA H100 80GB HBM3" in ran.lines[1]


def test_nodes_by_name(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message("b"), node_message("a")]
    assert ask("nodes", "--output", "name").out == "b\na\n"


@pytest.mark.parametrize("format_", ["json", "yaml"])
def test_nodes_for_programs(ask: Cli, fleet: FakeFleetServer, format_: str) -> None:
    fleet.nodes = [node_message(gpu_count=0)]
    ran = ask("nodes", "-o", format_)
    found = json.loads(ran.out) if format_ == "json" else yaml.safe_load(ran.out)
    assert found["nodes"][0]["name"] == "gpu-a1"
    assert found["nodes"][0]["freshForMs"] == 62_900
    assert found["nodes"][0]["gpuCount"] == 0
    assert found["notReady"] == ""


def test_no_nodes(ask: Cli) -> None:
    assert ask("nodes").out == "No nodes.\n"


def test_what_makes_the_list_incomplete_goes_to_standard_error_and_no_other_warning(
    ask: Cli, fleet: FakeFleetServer
) -> None:
    fleet.warnings = ["InsecureStaticNodes"]
    assert ask("nodes").err == ""
    fleet.not_ready = "CONTROLLER_NOT_READY: first\x1b round"
    assert ask("nodes").err == (
        "warning: nothing is decided yet: CONTROLLER_NOT_READY: first\\x1b round\n"
    )


def _chosen(ask: Cli, *options: str) -> list[str]:
    ran = ask("nodes", "-o", "name", *options)
    assert ran.code == 0
    return ran.lines


def test_nodes_are_chosen_by_state_class_and_label(ask: Cli, fleet: FakeFleetServer) -> None:
    a, b = "v1:sha256:" + "a" * 64, "v1:sha256:" + "b" * 64
    fleet.nodes = [
        node_message("a", attestation_hash=a, gpus=[gpu_message(labels=["big", "new"])]),
        node_message("b", attestation_hash=b, state="stale"),
        node_message("c", state="quarantined", gpus=[gpu_message(labels=["big"])]),
        node_message("d", gpus=[gpu_message(labels=["new"]), gpu_message(labels=["big"])]),
    ]
    fleet.classes = [
        pb.Class(names=["both"], hashes=[a, b]),
        pb.Class(attestation_hash=a, names=["one"]),
    ]
    assert _chosen(ask, "--state", "stale", "--state", "quarantined") == ["b", "c"]
    assert _chosen(ask, "--class", "both") == ["a", "b"]
    assert _chosen(ask, "--class", "one") == ["a"]
    assert _chosen(ask, "-l", "big") == ["a", "c", "d"]
    assert _chosen(ask, "-l", "big,new") == ["a"]
    assert _chosen(ask, "-l", "big", "--label", "new", "--class", "both") == ["a"]
    assert _chosen(ask, "--class", "both", "--state", "quarantined") == []
    assert [
        x["name"] for x in json.loads(ask("nodes", "--class", "one", "-o", "json").out)["nodes"]
    ] == ["a"]


def test_a_state_or_class_that_does_not_exist_is_refused(ask: Cli) -> None:
    assert ask("nodes", "--state", "healthy").code == 2
    ran = ask("nodes", "--class", "nope")
    assert (ran.code, ran.out, ran.err) == (1, "", "gpuwarden: no class 'nope'\n")


def test_a_watch_shows_a_chosen_node_once_more_when_it_leaves_the_choice(
    ask: Cli, fleet: FakeFleetServer
) -> None:
    revoked = [node_message(x, **REVOKED) for x in ("gpu-a1", "gpu-b1")]
    later = [
        pb.WatchNodesResponse(node=x) for x in (revoked[0], revoked[0], node_message("gpu-b1"))
    ]
    fleet.changes = changes([node_message("gpu-a1"), revoked[1]], *later)
    lines = ask("nodes", "--watch", "--state", "eligible").lines
    assert [x.split()[1:3] for x in lines] == [
        ["NAME", "STATE"],
        ["gpu-a1", "eligible"],
        ["gpu-a1", "revoked"],
        ["gpu-b1", "eligible"],
    ]


@pytest.mark.parametrize("format_", ["table", "wide", "json", "yaml", "name"])
def test_hostile_names_do_not_reach_the_terminal(
    ask: Cli, fleet: FakeFleetServer, format_: str
) -> None:
    fleet.nodes = [node_message(HOSTILE, detail=HOSTILE, products=[HOSTILE, "\u202e\x7f"])]
    out = ask("nodes", "-o", format_).out
    assert all(x.isprintable() or x == "\n" for x in out)
    assert "forged" in out
    if format_ in {"table", "wide"}:
        assert len(out.splitlines()) == 2


def test_watch_prints_nodes_and_then_changes(ask: Cli, fleet: FakeFleetServer) -> None:
    later = pb.WatchNodesResponse(node=node_message("gpu-a1", **REVOKED))
    gone = pb.WatchNodesResponse(node=node_message("gpu-b1"), removed=True)
    fleet.changes = changes([node_message("gpu-a1"), node_message("gpu-b1")], later, gone)
    ran = ask("nodes", "--watch")
    time = datetime.fromtimestamp(NOW_S).strftime("%H:%M:%S")  # noqa: DTZ006 - as people read it
    assert [line.split()[:3] for line in ran.lines] == [
        ["TIME", "NAME", "STATE"],
        [time, "gpu-a1", "eligible"],
        [time, "gpu-b1", "eligible"],
        [time, "gpu-a1", "revoked"],
        [time, "gpu-b1", "removed"],
    ]
    assert all(len(x) <= 80 for x in ran.lines)
    assert (ran.code, ran.err) == (5, "gpuwarden: the controller is going away\n")


def test_watch_for_programs_is_one_object_per_line(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.changes = changes([node_message("a\x7f")])
    lines = [json.loads(line) for line in ask("nodes", "-w", "-o", "json").lines]
    assert [line["synced"] for line in lines] == [False, True]
    assert lines[0]["node"]["name"] == "a\x7f"


def test_watch_by_name(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.changes = changes([node_message("a")], pb.WatchNodesResponse(node=node_message("b\n")))
    assert ask("nodes", "-w", "-o", "name").out == "a\nb\\n\n"


def test_one_node_is_shown_with_its_gpus(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message(gpus=[gpu_message(0), gpu_message(1)], **REVOKED)]
    out = ask("node", "show", "gpu-a1").out
    assert "Name:          gpu-a1\n" in out
    assert "Reason:        INVENTORY_CHANGED a card was swapped\n" in out
    assert "Warning:       clock is 40 s ahead\n" in out
    assert "\n0    GPU-00000001  H100 80GB HBM3  " in out
    wide = ask("node", "show", "gpu-a1", "-o", "wide").out
    assert gpu_uuid(1) in wide
    assert "79.6Gi" in wide


def test_a_node_without_evidence_shows_what_there_is(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [pb.Node(name="new", state="unknown", code="NODE_NO_EVIDENCE", mode="env")]
    assert ask("node", "show", "new").lines == [
        "Name:    new",
        "State:   unknown",
        "Reason:  NODE_NO_EVIDENCE",
        "Mode:    env",
        "",
        "Enrolled:  nothing yet",
    ]


def test_the_guarantee_of_a_node_has_the_reason_of_its_limit(
    ask: Cli, fleet: FakeFleetServer
) -> None:
    fleet.nodes = [node_message("a", guarantee="exact")]
    assert "Guarantee:     exact\n" in ask("node", "show", "a").out
    fleet.nodes = [node_message("b", guarantee="node", guarantee_limit="protection is off")]
    for shown in (ask("node", "show", "b").out, ask("nodes", "-o", "wide").out):
        assert "node, no more: protection is off" in shown


def test_one_node_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message()]
    assert json.loads(ask("node", "show", "gpu-a1", "-o", "json").out)["driver"] == "570.86.10"
    assert ask("node", "show", "gpu-a1", "-o", "name").out == "gpu-a1\n"


def test_an_unknown_node_is_an_error(ask: Cli) -> None:
    ran = ask("node", "show", "nope")
    assert (ran.code, ran.out, ran.err) == (1, "", "gpuwarden: no node 'nope'\n")


def use_message() -> pb.GpuUse:
    held = {"namespace": "team-a", "container": "main", "resource": "nvidia.com/gpu"}
    return pb.GpuUse(
        allocations_read=True,
        allocations=[
            pb.Allocation(pod="job-0", device=f"{gpu_uuid(1)}::3", uuid=gpu_uuid(1), **held)
        ],
        processes_read=True,
        processes=[pb.GpuProcess(gpu=gpu_uuid(1), pid=4711), pb.GpuProcess(pod_uid="4f1f6b1c")],
    )


def test_who_uses_a_node_is_shown(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes, fleet.uses = [node_message()], {"gpu-a1": use_message()}
    lines = ask("node", "show", "gpu-a1").lines
    at = lines.index("Allocated by kubelet:")
    assert lines[at + 1].split() == ["NAMESPACE", "POD", "CONTAINER", "RESOURCE", "DEVICE"]
    assert lines[at + 2].split() == [
        "team-a", "job-0", "main", "nvidia.com/gpu", "GPU-00000001",
    ]  # fmt: skip
    assert f"{gpu_uuid(1)}::3" in ask("node", "show", "gpu-a1", "-o", "wide").out
    at = lines.index("Processes on GPUs:")
    assert lines[at + 2].split() == ["4711", "GPU-00000001", "-"]
    assert lines[at + 3].split()[-1] == "4f1f6b1c"


def test_nobody_and_not_read_are_two_things(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message()]
    assert "kubelet" not in ask("node", "show", "gpu-a1").out
    for read, text in ((True, "None."), (False, "Not read.")):
        fleet.uses = {"gpu-a1": pb.GpuUse(allocations_read=read, processes_read=read)}
        out = ask("node", "show", "gpu-a1").out
        assert f"Allocated by kubelet:\n{text}\n\nProcesses on GPUs:\n{text}\n" in out


def test_use_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes, fleet.uses = [node_message()], {"gpu-a1": use_message()}
    found = json.loads(ask("node", "show", "gpu-a1", "-o", "json").out)["use"]
    assert found["allocationsRead"] is True
    assert found["allocations"][0]["pod"] == "job-0"
    assert [x["pid"] for x in found["processes"]] == [4711, 0]


def test_names_of_pods_cannot_forge_output(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message()]
    held = pb.Allocation(
        namespace=HOSTILE, pod=HOSTILE, container=HOSTILE, resource=HOSTILE, device=HOSTILE
    )
    process = pb.GpuProcess(gpu=HOSTILE, pod_uid=HOSTILE)
    fleet.uses = {
        "gpu-a1": pb.GpuUse(
            allocations_read=True, processes_read=True, allocations=[held], processes=[process]
        )
    }
    out = ask("node", "show", "gpu-a1").out
    assert "\x1b" not in out
    assert not [x for x in out.splitlines() if x.startswith("forged")]


NODE = "gpu-a1"
WHY = ("--reason", "ticket 7")
VERSION = "v1:sha256:" + "0" * 64


@pytest.fixture
def enrollment(fleet: FakeFleetServer) -> pb.Enrollment:
    fleet.nodes = [node_message(NODE, state="quarantined", code="INVENTORY_CHANGED")]
    fleet.enrollments[NODE] = pb.Enrollment(
        gpus=[
            pb.EnrolledGpu(uuid="GPU-old", serial="1"),
            pb.EnrolledGpu(uuid="GPU-x", enrolled=True),
        ],
        node_uid="uid-1",
        denial=pb.Denial(
            code="INVENTORY_CHANGED",
            reason="GPU-new is not one of the 2 enrolled GPUs",
            actor="controller",
            at="2026-11-27T20:01:00.000Z",
        ),
        candidate=pb.Candidate(
            code="INVENTORY_CHANGED",
            evidence_digest="ab" * 32,
            changes=[
                pb.EnrollmentChange(change="removed", subject="GPU-old", enrolled="1"),
                pb.EnrollmentChange(change="added", subject="GPU-new\x1b", offered="2"),
                pb.EnrollmentChange(change="kept", subject="GPU-x"),
            ],
        ),
        version=VERSION,
    )
    return fleet.enrollments[NODE]


SHOWN = [
    "Enrolled:           2 GPUs, 1 of them by an operator",
    "Enrolled node UID:  uid-1",
    "Quarantined:        INVENTORY_CHANGED by the controller 60s ago,",
    "                    2026-11-27T20:01:00.000Z: GPU-new is not one of the 2",
    "                    enrolled GPUs",
    "",
    "Waits for an operator:",
    "CHANGE   SUBJECT      ENROLLED  OFFERED",
    "removed  GPU-old      1         -",
    "added    GPU-new\\x1b  -         2",
    "1 kept, shown by evidence abababababababab",
]


@pytest.mark.usefixtures("enrollment")
class TestShow:
    def test_enrollment_quarantine_and_difference_are_shown(self, ask: Cli) -> None:
        out = ask("node", "show", NODE).lines
        assert out[-len(SHOWN) :] == SHOWN

    def test_who_ended_the_quarantine_before_is_shown(
        self, ask: Cli, enrollment: pb.Enrollment
    ) -> None:
        assert "Previous quarantine" not in ask("node", "show", NODE).out
        enrollment.ClearField("denial")
        enrollment.ClearField("candidate")
        enrollment.previous_quarantine_ended_by = "user ann\x1b"
        enrollment.previous_quarantine_at = "2026-11-27T20:01:00.000Z"
        assert ask("node", "show", NODE).lines[-1] == (
            "Previous quarantine:  60s ago, 2026-11-27T20:01:00.000Z, ended by user ann\\x1b"
        )

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
        assert "Lost; to remove it from the enrollment, run `gpuwarden node accept`:\n" in out

    def test_an_explanation_has_the_difference_too(self, ask: Cli, fleet: FakeFleetServer) -> None:
        fleet.explanations = {
            NODE: pb.ExplainNodeResponse(
                node=node_message(NODE), enrollment=fleet.enrollments[NODE]
            )
        }
        out = ask("explain", "node", NODE).lines
        assert out[-5:] == SHOWN[-5:]


@pytest.mark.usefixtures("enrollment")
class TestWhoActs:
    @pytest.mark.parametrize("act", ["accept", "release", "quarantine"])
    def test_a_name_is_sent_as_a_claim(self, ask: Cli, fleet: FakeFleetServer, act: str) -> None:
        ran = ask("node", act, NODE, *WHY, "--yes", "--as-recorded-by", "ann@example.org")
        assert (ran.code, ran.err) == (0, "")
        sent = fleet.asked[-1]
        assert isinstance(
            sent, ops.AcceptNodeRequest | ops.ReleaseNodeRequest | ops.QuarantineNodeRequest
        )
        assert sent.claimed_by == "ann@example.org"

    @pytest.mark.parametrize("act", ["accept", "release", "quarantine"])
    def test_who_gives_none_is_told_what_was_recorded(self, ask: Cli, act: str) -> None:
        ran = ask("node", act, NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (0, f"{NAMELESS}\n")

    @pytest.mark.parametrize("act", ["accept", "release", "quarantine"])
    @pytest.mark.parametrize("name", ["Ann B", "ann,x", "x" * 101, "ann\n"])
    def test_what_is_no_name_is_refused_before_anything_is_asked(
        self, ask: Cli, fleet: FakeFleetServer, act: str, name: str
    ) -> None:
        ran = ask("node", act, NODE, *WHY, "--yes", "--as-recorded-by", name)
        assert ran.code == 2
        assert "--as-recorded-by: expected 1 to 100 letters" in ran.err
        assert fleet.asked == []


@pytest.mark.usefixtures("enrollment")
class TestAccept:
    def test_it_sends_what_was_shown(self, ask: Cli, fleet: FakeFleetServer) -> None:
        ran = ask("node", "accept", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (0, f"{NAMELESS}\n")
        assert ran.out == f"{NODE}: 2 GPUs are enrolled; its next evidence makes it eligible\n"
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
        question = f"Accept this hardware for {NODE}? [y/N] {NAMELESS}"
        assert ran.err.splitlines() == [*SHOWN, "", question]
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
            "gpuwarden: stdin is not a terminal; use --yes\n",
        )
        assert all(isinstance(x, pb.GetNodeRequest) for x in fleet.asked)

    def test_another_version_than_the_expected_one_is_not_accepted(
        self, ask: Cli, fleet: FakeFleetServer
    ) -> None:
        ran = ask("node", "accept", NODE, *WHY, "--yes", "--if-version", "v1:sha256:1")
        assert ran.code == 1
        assert f"its enrollment has version {VERSION}" in ran.err
        assert all(isinstance(x, pb.GetNodeRequest) for x in fleet.asked)
        assert ask("node", "accept", NODE, *WHY, "-y", "--if-version", VERSION).code == 0

    def test_nothing_to_accept_is_an_error(self, ask: Cli, enrollment: pb.Enrollment) -> None:
        enrollment.ClearField("candidate")
        ran = ask("node", "accept", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (
            1,
            f"gpuwarden: {NODE} shows no hardware that waits; to end a quarantine, release it\n",
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
        assert ran.out == f"{NODE}: released from quarantine; its next evidence decides\n"
        assert fleet.asked[-1] == ops.ReleaseNodeRequest(
            name=NODE, reason="ticket 7", expected_version=VERSION
        )

    def test_faults_of_gpus_are_released_where_there_is_no_quarantine(
        self, ask: Cli, enrollment: pb.Enrollment
    ) -> None:
        enrollment.ClearField("denial")
        enrollment.faults.add(gpu="GPU-1", xid=48)
        assert "GPU-1 xid 48" in ask("node", "show", NODE).out
        ran = ask("node", "release", NODE, *WHY, "--yes")
        assert (
            ran.out == f"{NODE}: released from the faults of its GPUs; its next evidence decides\n"
        )

    def test_a_node_that_is_not_quarantined_is_an_error(
        self, ask: Cli, enrollment: pb.Enrollment
    ) -> None:
        enrollment.ClearField("denial")
        ran = ask("node", "release", NODE, *WHY, "--yes")
        assert (ran.code, ran.err) == (
            1,
            f"gpuwarden: {NODE} is not quarantined; `gpuwarden explain node {NODE}` says more\n",
        )


@pytest.mark.usefixtures("enrollment")
class TestQuarantine:
    def test_it_asks_first_and_prints_warnings(
        self, ask: Cli, fleet: FakeFleetServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet.warnings_of_acts = ["the audit record is not durable yet"]
        monkeypatch.setattr("sys.stdin", Terminal("y\n"))
        ran = ask("node", "quarantine", NODE, *WHY)
        assert ran.code == 0
        assert ran.err == (
            f"Quarantine {NODE}? [y/N] {NAMELESS}\nwarning: the audit record is not durable yet\n"
        )
        assert ran.out.startswith(f"{NODE}: no managed pod is placed there")
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
