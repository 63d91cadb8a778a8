"""What the Verifier makes of allocations and processes: form decides, contradictions are said."""

from typing import Any

import pytest

from controller.fleet.attestation_result import Accepted, Refused
from controller.fleet.trust import _FACTS
from controller.fleet.view import acceptance_of
from gpuwarden.evidence.model import TYPE_EVIDENCE, Allocation, FailedRead, GpuProcess
from gpuwarden.reasons import Effect, ReasonCode
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu

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


def test_use_changes_neither_class_nor_identity_nor_pins() -> None:
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
def test_malformed_use_is_refused_in_any_round(malformed: dict[str, Any]) -> None:
    for refused in (Scene(evidence=malformed).run(), later(Scene(), **malformed)[1]):
        assert isinstance(refused, Refused)
        assert (refused.code, refused.effect) == (ReasonCode.INVENTORY_INVALID, Effect.REVOKE)
        assert len(refused.findings) == 1


def test_all_that_is_malformed_is_said_at_once() -> None:
    card = gpu(0, ecc=None, virt="perhaps")
    refused = Scene(evidence={"inventory": inventory(card), "allocations": (BAD_NAME,)}).run()
    assert isinstance(refused, Refused)
    assert [x.detail.partition(":")[0] for x in refused.findings] == [
        "gpus[0].virt",
        "allocations[0].namespace",
    ]


def test_a_device_that_is_not_here_is_a_warning() -> None:
    elsewhere = Allocation("team-a", "job", "main", "nvidia.com/gpu", gpu_uuid(9))
    accepted = Scene(evidence={"allocations": (elsewhere,)}).accepted()
    assert accepted.warnings == (f"allocated but not here: {gpu_uuid(9)} of team-a/job",)


def test_a_pinned_gpu_that_is_gone_without_a_word_is_still_this_nodes() -> None:
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


@pytest.mark.parametrize("pods", [("x",), (POD, POD), tuple(f"{n:032x}" for n in range(1025))])
def test_malformed_pods_are_refused(pods: tuple[str, ...]) -> None:
    refused = Scene(wants_pods=True, evidence={"pods": pods}).run()
    assert isinstance(refused, Refused)
    assert refused.code is ReasonCode.INVENTORY_INVALID


def test_a_failed_look_at_the_pods_is_a_warning_and_remembered() -> None:
    read = FailedRead(fact="pods", gpu=None, call="/proc/PID/cgroup", error="TIMEOUT")
    evidence = {"pods": None, "failed_reads": (read,)}
    accepted = Scene(wants_pods=True, evidence=evidence).accepted()
    assert accepted.warnings == ("not read: pods",)
    found = acceptance_of(accepted, None, accepted_wall_ns=1)
    assert (found.pods, found.pods_unread) == (None, True)
