from dataclasses import replace
from typing import Any

import msgspec
import pytest

from controller.fleet.attestation_result import Accepted, Refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.faults import Fault
from controller.fleet.trust import _FACTS
from controller.fleet.view import acceptance_of
from controller.policy import Level, Policy
from controller.verifier.context import HardwareQuestion, Standing
from gpuwarden.evidence.model import TYPE_EVIDENCE, Allocation, FailedRead, GpuProcess, NvLink
from gpuwarden.reasons import Effect, ReasonCode, Refusal
from tests.builders.evidence import NODE, Scene
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, lost_gpu

# --- An inventory that a stream has shown before is not worked out again, nor taken for another


def two_rounds(scene: Scene, **second: Any) -> tuple[Accepted, Accepted]:
    """Two rounds of one stream; the second evidence differs by `second`."""
    stream = scene.opened()
    first = scene.answer(stream)
    assert isinstance(first, Accepted), first
    scene.remember(first)
    scene.evidence = scene.evidence | second
    result = scene.answer(first.stream, 2)
    assert isinstance(result, Accepted), result
    return first, result


def test_the_same_inventory_has_the_very_same_documents() -> None:
    first, second = two_rounds(Scene())
    assert second.evidence.inventory is first.evidence.inventory
    assert second.class_document is first.class_document
    assert second.identity_document is first.identity_document
    assert second.evidence_digest != first.evidence_digest
    assert second.evidence.seq == first.evidence.seq + 1


def test_the_same_inventory_in_other_bytes_is_the_same_inventory() -> None:
    scene = Scene()
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    document = scene.document(first.stream, scene.challenge(first.stream, 2))
    spaced = msgspec.json.format(msgspec.json.encode(document), indent=1)
    scene.payload = spaced
    second = scene.answer(first.stream, 2)
    assert isinstance(second, Accepted), second
    assert second.evidence.inventory is first.evidence.inventory
    assert second.class_document is first.class_document


@pytest.mark.parametrize(
    "changed",
    [
        inventory(host=host(driver="575.51.03")),
        inventory(gpu(nvlinks=(NvLink(link=0, active=True, peer="00000000:C0:00.0"),))),
        inventory(gpu(ecc=False)),
    ],
    ids=["driver", "link", "ecc"],
)
def test_another_inventory_is_judged_as_if_it_were_the_first(changed: Any) -> None:
    _, second = two_rounds(Scene(), inventory=changed)
    fresh = Scene(evidence={"inventory": changed}).accepted()
    assert second.evidence.inventory == changed
    assert second.attestation_hash == fresh.attestation_hash
    assert second.class_document == fresh.class_document
    assert second.identity_document == fresh.identity_document


def test_a_failed_read_is_another_inventory() -> None:
    scene = Scene()
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    read = FailedRead(
        fact="vbios", gpu=gpu().uuid, call="nvmlDeviceGetVbiosVersion", error="UNKNOWN"
    )
    scene.evidence = {"failed_reads": (read,)}
    result = scene.answer(first.stream, 2)
    assert isinstance(result, Refused)
    assert result.code is ReasonCode.INVENTORY_INCOMPLETE


def test_enrolled_gpus_and_policy_are_asked_again_about_the_same_inventory() -> None:
    scene = Scene()
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    scene.policy = Policy(denied_keys=frozenset({gpu().uuid}))
    denied = scene.answer(first.stream, 2)
    assert isinstance(denied, Refused)
    assert denied.code is ReasonCode.GPU_DENIED
    scene.policy = Policy(denied_drivers=frozenset({host().driver or ""}))
    forbidden = scene.answer(first.stream, 3)
    assert isinstance(forbidden, Refused)
    assert forbidden.code is ReasonCode.POLICY_DENIED


class Rising:
    """Hardware that is confirmed from the second question on."""

    level = Level.L0

    def __call__(self, question: HardwareQuestion) -> Standing | Refusal:
        standing = replace(question.standing, level=self.level)
        self.level = Level.L2
        return standing


def test_another_standing_makes_other_documents_of_the_same_inventory() -> None:
    first, second = two_rounds(Scene(hardware=Rising()))
    assert (first.level, second.level) == (Level.L0, Level.L2)
    assert second.attestation_hash != first.attestation_hash
    assert b'"level":"L2"' in second.class_document


def test_another_node_uid_makes_another_identity_of_the_same_inventory() -> None:
    scene = Scene(directory=DirectorySnapshot({NODE: KnownNode(None)}))
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted)
    scene.remember(first)
    scene.directory = DirectorySnapshot({NODE: KnownNode("uid-9")})
    second = scene.answer(first.stream, 2)
    assert isinstance(second, Accepted)
    assert b"uid-9" in second.identity_document
    assert b"uid-9" not in first.identity_document


def test_views_of_unchanged_gpus_are_kept_unless_something_was_said_about_them() -> None:
    first, second = two_rounds(Scene(evidence={"inventory": inventory(gpu(0), gpu(1))}))
    before = acceptance_of(first, None, accepted_wall_ns=1)
    assert acceptance_of(second, before, accepted_wall_ns=2).gpus is before.gpus
    ill = replace(before, gpus=(replace(before.gpus[0], unhealthy="xid 79"), before.gpus[1]))
    after = acceptance_of(second, ill, accepted_wall_ns=2)
    assert after.gpus == before.gpus
    gone = replace(second, lost=(lost_gpu(5),))
    assert len(acceptance_of(gone, before, accepted_wall_ns=2).gpus) == 3


# --- What the Verifier makes of allocations and processes: form decides, contradictions are said

HELD = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(1))
PROCESS = GpuProcess(gpu_uuid(1), 4711, "4f1f6b1c-6c6f-4d0e-9a34-5b7f0c2d9e11")
BAD_NAME = Allocation("Team", "job", "main", "nvidia.com/gpu", gpu_uuid(1))


def later(scene: Scene, **second: Any) -> tuple[Accepted, Accepted | Refused]:
    """Two rounds of one stream with the same inventory."""
    first = scene.answer(scene.opened())
    assert isinstance(first, Accepted), first
    scene.remember(first)
    scene.evidence = scene.evidence | second
    result = scene.answer(first.stream, 2)
    assert isinstance(result, Accepted | Refused), result
    return first, result


def test_use_changes_neither_class_nor_identity_nor_enrolled_gpus() -> None:
    first, second = later(Scene(), allocations=(HELD,), processes=(PROCESS,))
    assert isinstance(second, Accepted)
    assert second.attestation_hash == first.attestation_hash
    assert second.identity_digest == first.identity_digest
    assert second.enrollment is None
    assert second.warnings == ()
    before = acceptance_of(first, None, accepted_wall_ns=1)
    after = acceptance_of(second, before, accepted_wall_ns=2)
    assert (after.allocations, after.processes) == ((HELD,), (PROCESS,))
    assert (before.allocations, before.processes) == (None, None)
    assert _FACTS(after) == _FACTS(before), "an unchanged round for the audit log"


def test_unchanged_use_is_kept_once() -> None:
    scene = Scene(evidence={"allocations": (HELD,), "processes": (PROCESS,)})
    first, second = later(scene)
    assert isinstance(second, Accepted)
    before = acceptance_of(first, None, accepted_wall_ns=1)
    after = acceptance_of(second, before, accepted_wall_ns=2)
    assert after.allocations is before.allocations
    assert after.processes is before.processes


@pytest.mark.parametrize(
    "malformed",
    [{"allocations": (BAD_NAME,)}, {"processes": (GpuProcess(gpu_uuid(1), -1, None),)}],
    ids=["allocation", "process"],
)
def test_malformed_use_is_a_warning_in_any_round(malformed: dict[str, Any]) -> None:
    for found in (Scene(evidence=malformed).run(), later(Scene(), **malformed)[1]):
        assert isinstance(found, Accepted)
        [warning] = found.warnings
        [name] = malformed
        assert warning.startswith(f"ignored: {name} is malformed: 1 of 1 entries, such as ")


def test_garbage_in_auxiliary_facts_changes_no_trust() -> None:
    """Neither hash nor identity nor enrollment; each round says what was ignored."""
    card = gpu(0, product="\u2122", module_id=-1, nvlinks=(NvLink(255, True, "x"),))
    plain = Scene(evidence={"inventory": inventory(gpu(0))}).accepted()
    odd, again = later(Scene(evidence={"inventory": inventory(card)}))
    assert isinstance(again, Accepted)
    for found in (odd, again):
        assert found.attestation_hash == plain.attestation_hash
        assert found.identity_digest == plain.identity_digest
        assert len(found.warnings) == 3
        assert found.evidence.inventory.gpus[0].product is None
    assert odd.enrollment == plain.enrollment
    assert again.stream.appraised is odd.stream.appraised


def test_all_that_is_malformed_is_said_at_once() -> None:
    card = gpu(0, vbios="a b", virt="perhaps")
    refused = Scene(evidence={"inventory": inventory(card)}).run()
    assert isinstance(refused, Refused)
    assert (refused.code, refused.effect) == (ReasonCode.INVENTORY_INVALID, Effect.REVOKE)
    found = [x.detail.partition(":")[0] for x in refused.findings]
    assert found == ["gpus[0].vbios", "gpus[0].virt"]


def test_a_device_that_is_not_here_is_a_warning() -> None:
    elsewhere = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(9))
    accepted = Scene(evidence={"allocations": (elsewhere,)}).accepted()
    assert accepted.warnings == (f"allocated but not here: {gpu_uuid(9)} of team-a/job",)


def test_an_enrolled_gpu_that_is_no_longer_listed_still_belongs_to_its_node() -> None:
    scene = Scene(evidence={"inventory": inventory(gpu(0), gpu(1))})
    scene.remember(scene.accepted())
    held = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(2))
    scene.evidence = {"inventory": inventory(gpu(0)), "allocations": (held,)}
    accepted = scene.accepted()
    assert [x.uuid for x in accepted.lost] == [lost_gpu(1).uuid]
    assert not [x for x in accepted.warnings if "allocated" in x]


def test_a_failed_read_of_allocations_is_a_warning() -> None:
    read = FailedRead(
        fact="allocations", gpu=None, call="PodResourcesLister/List", error="UNAVAILABLE"
    )
    accepted = Scene(evidence={"failed_reads": (read,)}).accepted()
    assert accepted.warnings == ("not read: allocations",)
    assert acceptance_of(accepted, None, accepted_wall_ns=1).allocations is None
    assert accepted.attestation_hash == Scene().accepted().attestation_hash


POD = "0b7c1a52-0000-4000-8000-000000000001"


def test_pods_are_taken_where_they_were_asked_for() -> None:
    scene = Scene(wants_pods=True, evidence={"pods": (POD,)})
    first, second = later(scene)
    assert isinstance(second, Accepted)
    assert first.attestation_hash == Scene().accepted().attestation_hash
    before = acceptance_of(first, None, accepted_wall_ns=1)
    after = acceptance_of(second, before, accepted_wall_ns=2)
    assert (after.pods, after.pods_unread) == ((POD,), False)
    assert after.gpus is before.gpus
    plain = acceptance_of(Scene().accepted(), None, accepted_wall_ns=1)
    assert (plain.pods, plain.pods_unread) == (None, False)
    assert _FACTS(after) == _FACTS(before)


def test_an_agent_that_knows_nothing_of_pods_answers_as_before() -> None:
    assert Scene(wants_pods=True).accepted().warnings == ()


def test_pods_that_nobody_asked_for_are_refused() -> None:
    refused = Scene(evidence={"pods": (POD,)}).run()
    assert isinstance(refused, Refused)
    assert refused.code is ReasonCode.TYPE_UNEXPECTED


def test_pods_under_the_name_of_the_other_kind_are_no_evidence() -> None:
    scene = Scene(wants_pods=True, evidence={"pods": (POD,)})
    scene.message = {"payload_type": TYPE_EVIDENCE}
    refused = scene.run()
    assert isinstance(refused, Refused)
    assert refused.code is ReasonCode.SIG_INVALID


@pytest.mark.parametrize("pods", [("x",), (POD, "x"), tuple(f"{n:032x}" for n in range(1025))])
def test_malformed_pods_count_as_not_read(pods: tuple[str, ...]) -> None:
    """Any pod may run then."""
    accepted = Scene(wants_pods=True, evidence={"pods": pods}).accepted()
    assert len(accepted.warnings) == 1
    assert acceptance_of(accepted, None, accepted_wall_ns=1).pods is None


def test_the_same_pod_twice_is_one() -> None:
    accepted = Scene(wants_pods=True, evidence={"pods": (POD, POD)}).accepted()
    assert acceptance_of(accepted, None, accepted_wall_ns=1).pods == (POD,)


def test_a_failed_look_at_the_pods_is_a_warning_and_remembered() -> None:
    read = FailedRead(fact="pods", gpu=None, call="/proc/PID/cgroup", error="TIMEOUT")
    evidence = {"pods": None, "failed_reads": (read,)}
    accepted = Scene(wants_pods=True, evidence=evidence).accepted()
    assert accepted.warnings == ("not read: pods",)
    found = acceptance_of(accepted, None, accepted_wall_ns=1)
    assert (found.pods, found.pods_unread) == (None, True)


def test_a_fault_of_the_enrollment_takes_its_gpu_away_until_its_end_is_seen() -> None:
    scene = Scene(evidence={"inventory": inventory(gpu(0), gpu(1))})
    first = scene.accepted()
    scene.remember(first)
    record = scene.enrollment.records[scene.node]
    fault = Fault(gpu_uuid(2), 48, first.evidence.boot_id, happened_ms=1)
    scene.enrollment = scene.enrollment.with_record(replace(record, faults=(fault,)))
    held = scene.accepted()
    assert held.unhealthy == {gpu_uuid(2): "xid 48, until the GPU is reset"}
    scene.enrollment = scene.enrollment.with_record(
        replace(record, faults=(replace(fault, boot_id="the one before"),))
    )
    ended = scene.accepted()
    assert ended.unhealthy == {}
    assert ended.enrollment is not None
    assert ended.enrollment.new.faults == ()
