"""Commands that ask a controller: tables for people, messages for programs, exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.fleet_messages import class_message, gpu_message, node_message
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, mig_uuid
from tests.fakes.fleet_server import FakeFleetServer, changes
from tests.unit.cli.conftest import Cli

REVOKED: dict[str, Any] = {
    "state": "revoked",
    "code": "INVENTORY_CHANGED",
    "detail": "a card was swapped",
    "fresh_for_ms": 0,
    "lost_gpu_count": 1,
    "warnings": ["clock is 40 s ahead"],
}
HOSTILE = "\x1b[31mevil\x1b[0m\nforged   eligible"


def test_nodes_are_listed(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message(), node_message("gpu-b1", **REVOKED)]
    ran = ask("nodes")
    assert ran.code == 0
    assert ran.lines[0].split() == [
        "NAME", "STATE", "LEVEL", "GPUS", "PRODUCTS", "CLASS", "FRESH", "REASON",
    ]  # fmt: skip
    assert ran.lines[1].split() == [
        "gpu-a1", "eligible", "L0", "8", "NVIDIA", "H100", "80GB", "HBM3", "abababababab", "62s",
        "-",
    ]  # fmt: skip
    assert ran.lines[2].split()[:4] == ["gpu-b1", "revoked", "L0", "7/8"]
    assert ran.lines[2].split()[-2:] == ["-", "INVENTORY_CHANGED"]


def test_wide_nodes_say_more(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [node_message(**REVOKED)]
    ran = ask("nodes", "-o", "wide")
    assert "DRIVER" in ran.lines[0]
    assert "570.86.10" in ran.lines[1]
    assert "a card was swapped" in ran.lines[1]


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


def test_warnings_go_to_standard_error(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.not_ready = "CONTROLLER_NOT_READY: first round"
    fleet.warnings = ["InsecureStaticNodes\x1b"]
    assert ask("nodes").err == (
        "warning: CONTROLLER_NOT_READY: first round\nwarning: InsecureStaticNodes\\x1b\n"
    )


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
    assert [line.split()[:2] for line in ran.lines] == [
        ["NAME", "STATE"],
        ["gpu-a1", "eligible"],
        ["gpu-b1", "eligible"],
        ["gpu-a1", "revoked"],
        ["gpu-b1", "removed"],
    ]
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
    assert f"0       {gpu_uuid(1)}   1654223000000   NVIDIA H100" in out
    assert "79.6Gi" in out


def test_a_node_without_evidence_shows_what_there_is(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes = [pb.Node(name="new", state="unknown", code="NODE_NO_EVIDENCE", mode="env")]
    assert ask("node", "show", "new").lines == [
        "Name:    new",
        "State:   unknown",
        "Reason:  NODE_NO_EVIDENCE",
        "Mode:    env",
        "",
        "Pinned:  nothing yet",
    ]


def test_a_node_says_what_it_promises_and_why_no_more(ask: Cli, fleet: FakeFleetServer) -> None:
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


def test_gpus_are_listed_with_serial_and_uuid(ask: Cli, fleet: FakeFleetServer) -> None:
    slices = [pb.MigDevice(uuid=mig_uuid(1), profile="1g.10gb", memory_mib=9856)]
    fleet.gpus = [gpu_message(0), gpu_message(1, mig="on", mig_devices=slices, serial="")]
    out = ask("gpus").out
    cards, devices = out.split("\n\n")
    assert cards.splitlines()[0].split() == [
        "NODE", "INDEX", "UUID", "SERIAL", "PRODUCT", "MEMORY", "MIG", "HEALTH",
    ]  # fmt: skip
    assert gpu_uuid(1) in cards
    assert "1654223000000" in cards
    assert devices.splitlines()[1].split() == ["gpu-a1", "1", mig_uuid(1), "1g.10gb", "9.6Gi"]


def test_gpus_of_one_node_by_name(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpus = [gpu_message(0), gpu_message(1, node="other")]
    assert ask("gpus", "--node", "other", "-o", "name").out == f"{gpu_uuid(2)}\n"
    assert ask("gpus", "--node", "third").out == "No GPUs.\n"


def test_gpus_wide_and_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.gpus = [gpu_message(0, nvlinks_active=17, nvlinks_total=18, labels=["big", "x"])]
    wide = ask("gpus", "-o", "wide").lines
    assert "NVLINKS" in wide[0]
    assert "17/18" in wide[1]
    assert "big,x" in wide[1]
    assert json.loads(ask("gpus", "-o", "json").out)["gpus"][0]["nvlinksTotal"] == 18


def test_classes_are_listed(ask: Cli, fleet: FakeFleetServer) -> None:
    one = class_message(names=["h100"])
    fleet.classes = [one, pb.Class(names=["set"], level="L1", hashes=["x", "y"])]
    ran = ask("class", "list")
    digits = one.attestation_hash.removeprefix("v1:sha256:")[:12]
    assert ran.lines[1].split() == [digits, "h100", "L0", "1", "8"]
    assert ran.lines[2].split() == ["set", "set", "L1", "0", "0"]
    assert ask("class", "list", "-o", "name").out == f"{one.attestation_hash}\nset\n"
    assert one.attestation_hash in ask("class", "list", "-o", "wide").out
    assert json.loads(ask("class", "list", "-o", "json").out)["classes"][1]["document"] is None


def test_no_classes(ask: Cli) -> None:
    assert ask("class", "list").out == "No classes.\n"


def test_a_class_is_shown_with_its_document(ask: Cli, fleet: FakeFleetServer) -> None:
    one = class_message()
    fleet.classes = [one]
    out = ask("class", "show", one.attestation_hash).out
    assert f"Class:  {one.attestation_hash}\n" in out
    assert "platform.driver:    570.86.10\n" in out
    assert "gpus[0].memoryMiB:  81559\n" in out
    assert "gpus[0].ecc:        true\n" in out
    assert "attestor:           null\n" in out
    found = json.loads(ask("class", "show", one.attestation_hash, "-o", "json").out)
    assert found["document"]["platform"]["driver"] == "570.86.10"
    assert ask("class", "show", one.attestation_hash, "-o", "name").out == (
        f"{one.attestation_hash}\n"
    )


def test_a_named_class_shows_its_hashes(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.classes = [pb.Class(names=["set"], level="L1", hashes=["x", "y"])]
    assert ask("class", "show", "set").lines == [
        "Names:  set",
        "Level:  L1",
        "Hash:   x",
        "Hash:   y",
        "GPUs:   0",
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attestation_hash": "v1:sha256:" + "0" * 64}, "the document hashes to v1:sha256:"),
        ({"document": "{}"}, "the controller's class document: Object missing required field"),
    ],
)
def test_a_document_that_is_not_the_class_is_a_finding(
    ask: Cli, fleet: FakeFleetServer, changed: dict[str, Any], message: str
) -> None:
    fleet.classes = [class_message(names=["x"], **changed)]
    ran = ask("class", "show", "x")
    assert (ran.code, ran.out) == (3, "")
    assert message in ran.err


def test_classes_are_compared(ask: Cli, fleet: FakeFleetServer) -> None:
    old = class_message(names=["old"])
    new = class_message(inventory(gpu(ecc=None), host=host(driver="580.1")), names=["new"])
    named = pb.Class(names=["only"], hashes=[new.attestation_hash])
    fleet.classes = [old, new, named]
    ran = ask("class", "diff", "old", "only")
    assert ran.code == 3
    assert [line.split() for line in ran.lines] == [
        ["PATH", "LEFT", "RIGHT"],
        ["platform.driver", "570.86.10", "580.1"],
        ["gpus[10de:2330].ecc", "true", "null"],
    ]
    assert json.loads(ask("class", "diff", "old", "new", "-o", "json").out)[1] == {
        "path": "gpus[10de:2330].ecc",
        "left": True,
        "right": None,
    }
    assert ask("class", "diff", "old", "new", "-o", "name").out == (
        "platform.driver\ngpus[10de:2330].ecc\n"
    )


def test_the_same_class_does_not_differ(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.classes = [class_message(names=["a"])]
    ran = ask("class", "diff", "a", "a")
    assert (ran.code, ran.out) == (0, "The classes are the same.\n")


@pytest.mark.parametrize(
    ("hashes", "message"),
    [
        (["x", "y"], "'set' has no document: it names 2 hashes, give one of them"),
        ([], "'set' has no document: no node has shown it yet"),
    ],
)
def test_a_class_without_document_cannot_be_compared(
    ask: Cli, fleet: FakeFleetServer, hashes: list[str], message: str
) -> None:
    fleet.classes = [pb.Class(names=["set"], hashes=hashes)]
    ran = ask("class", "diff", "set", "set")
    assert (ran.code, ran.err) == (1, f"gpuwarden: {message}\n")


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
    findings=["lease: ended", "pins: differ\x1b"],
)


def test_a_node_is_explained(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.explanations = {"gpu-a1": EXPLANATION}
    out = ask("explain", "node", "gpu-a1").out
    assert "Cause:         A GPU was added or swapped" in out
    assert "What to do:    If the card was replaced on purpose" in out
    assert "Findings:\n  lease: ended\n  pins: differ\\x1b\n" in out
    assert "2026-11-27T20:01:00.000Z   16     INVENTORY_CHANGED   3       GPU added\n" in out
    assert 'Pinned identity:\n  {"cluster":"other"}\n' in out
    assert 'Identity of the last acceptance:\n  {"cluster":"prod"}\n' in out


def test_a_healthy_node_is_explained_briefly(ask: Cli, fleet: FakeFleetServer) -> None:
    same = '{"cluster":"prod"}'
    fleet.explanations = {
        "a": pb.ExplainNodeResponse(node=node_message(), identity_document=same, pin_document=same),
        "b": pb.ExplainNodeResponse(node=node_message(code="SOMETHING_NEW")),
    }
    healthy = ask("explain", "node", "a").out
    assert "Refusals" not in healthy
    assert "Pinned" not in healthy
    assert "Cause" not in ask("explain", "node", "b").out


def test_an_explanation_for_programs(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.explanations = {"gpu-a1": EXPLANATION}
    found = json.loads(ask("explain", "node", "gpu-a1", "-o", "json").out)
    assert found["pinDocument"] == {"cluster": "other"}
    assert ask("explain", "node", "gpu-a1", "-o", "name").out == (
        "INVENTORY_CHANGED\nNVML_UNAVAILABLE\n"
    )


POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, creationTimestamp: 2026-11-27T10:00:00Z}\n"
FIT = pb.FitPodResponse(
    guarded=True,
    requirements=["attested class v1:sha256:ab"],
    fits=[
        pb.Fit(node="gpu-a1", passes=True, score=7, guarantee="exact"),
        pb.Fit(node="gpu-b1", code="HASH_MISMATCH", detail="another class"),
    ],
)


@pytest.fixture
def pod(tmp_path: Path) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return str(path)


def test_where_a_pod_fits(ask: Cli, fleet: FakeFleetServer, pod: str) -> None:
    fleet.fit = FIT
    ran = ask("fit", "-f", pod, "-n", "team-a")
    assert ran.code == 0
    assert ran.lines == [
        "The pod asks for:",
        "  attested class v1:sha256:ab",
        "",
        "NODE     FITS   SCORE   GUARANTEE   REASON          DETAIL",
        "gpu-a1   yes    7       exact       -               -",
        "gpu-b1   no     -       -           HASH_MISMATCH   another class",
    ]
    [request] = fleet.asked
    assert isinstance(request, pb.FitPodRequest)
    assert request.namespace == "team-a"
    assert json.loads(request.pod_json)["metadata"]["creationTimestamp"] == "2026-11-27T10:00:00Z"


def test_where_a_pod_fits_by_name(ask: Cli, fleet: FakeFleetServer, pod: str) -> None:
    fleet.fit = FIT
    assert ask("fit", "-f", pod, "-o", "name").out == "gpu-a1\n"
    assert json.loads(ask("fit", "-f", pod, "-o", "json").out)["guarded"] is True


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (pb.FitPodResponse(), (0, "The pod asks for nothing of gpuwarden")),
        (pb.FitPodResponse(guarded=True), (3, "No nodes.")),
        (pb.FitPodResponse(guarded=True, fits=FIT.fits[1:]), (3, "HASH_MISMATCH")),
        (
            pb.FitPodResponse(code="REQ_INVALID", detail="min-level: L9"),
            (3, "The pod is refused: REQ_INVALID min-level: L9"),
        ),
    ],
)
def test_other_answers_for_a_pod(
    ask: Cli, fleet: FakeFleetServer, pod: str, answer: pb.FitPodResponse, ended: tuple[int, str]
) -> None:
    fleet.fit = answer
    ran = ask("fit", "-f", pod)
    assert ran.code == ended[0]
    assert ended[1] in ran.out


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file or directory"), ("- a\n", "expected an object such as a Pod")],
)
def test_a_bad_manifest_is_a_usage_error(
    ask: Cli, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_text(content)
    ran = ask("fit", "-f", str(path))
    assert ran.code == 2
    assert message in ran.err


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal(ReasonCode.ROLE_DENIED, "role agent"), 4),
        (Refusal(ReasonCode.CHAIN_INVALID, "x"), 4),
        (Refusal(ReasonCode.CONTROLLER_NOT_READY, "x"), 5),
        (Refusal(ReasonCode.REQ_INVALID, "bad\x1b"), 1),
    ],
)
def test_a_refusal_has_its_exit_code_and_text(
    ask: Cli, fleet: FakeFleetServer, refusal: Refusal, code: int
) -> None:
    fleet.refusal = refusal
    ran = ask("gpus")
    detail = refusal.detail.replace("\x1b", "\\x1b")
    assert (ran.code, ran.err) == (code, f"gpuwarden: {refusal.code}: {detail}\n")


def test_no_answer_in_time(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.hangs = True
    ran = ask("nodes", "--timeout", "0.2")
    assert (ran.code, ran.err) == (124, "gpuwarden: no answer in time; see --timeout\n")


def use_message() -> pb.GpuUse:
    held = {"namespace": "team-a", "container": "main", "resource": "nvidia.com/gpu"}
    return pb.GpuUse(
        allocations_read=True,
        allocations=[pb.Allocation(pod="job-0", device=f"{gpu_uuid(1)}::3", **held)],
        processes_read=True,
        processes=[pb.GpuProcess(gpu=gpu_uuid(1), pid=4711), pb.GpuProcess(pod_uid="4f1f6b1c")],
    )


def test_who_uses_a_node_is_shown(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.nodes, fleet.uses = [node_message()], {"gpu-a1": use_message()}
    lines = ask("node", "show", "gpu-a1").lines
    at = lines.index("Allocated by kubelet:")
    assert lines[at + 1].split() == ["NAMESPACE", "POD", "CONTAINER", "RESOURCE", "DEVICE"]
    assert lines[at + 2].split() == [
        "team-a", "job-0", "main", "nvidia.com/gpu", f"{gpu_uuid(1)}::3",
    ]  # fmt: skip
    at = lines.index("Processes on GPUs:")
    assert lines[at + 2].split() == ["4711", gpu_uuid(1), "-"]
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
