"""How long a reported XID takes its GPU away."""

from dataclasses import replace

import msgspec
import pytest

from controller.fleet.faults import (
    MAX_FAULTS,
    Fault,
    after_evidence,
    in_force,
    lifted,
    reported,
)
from controller.policy import Consequence, Policy
from gpuwarden.evidence.model import Evidence, FailedRead, GpuProcess, MigDevice
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import BOOT, WALL, Scene
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu

GPU, OTHER = gpu_uuid(1), gpu_uuid(2)
MIG = "MIG-aaaaaaaa-0000-4000-8000-000000000000"
JUDGE = Policy().consequence
SHOWN = Scene(
    ca=SpiffeCa(at=WALL), evidence={"inventory": inventory(gpu(0), gpu(1)), "processes": ()}
).accepted()


def evidence(**changes: object) -> Evidence:
    """Evidence signed at 1000 ms of the node's boot."""
    return msgspec.structs.replace(SHOWN.evidence, boottime_ms="1000", **changes)


def processes(*pids: int, gpu: str = GPU) -> tuple[GpuProcess, ...]:
    return tuple(GpuProcess(gpu=gpu, pid=pid, pod_uid=None) for pid in pids)


def fault(xid: int, happened_ms: int = 500, gpu: str = GPU) -> Fault:
    return Fault(gpu, xid, BOOT, happened_ms)


def held(faults: tuple[Fault, ...]) -> list[str]:
    return list(in_force(faults, JUDGE))


class TestFatal:
    def test_evidence_that_shows_the_gpu_does_not_end_it(self) -> None:
        faults = (fault(48),)
        assert after_evidence(faults, evidence(), JUDGE) is faults
        assert in_force(faults, JUDGE) == {GPU: "xid 48, until the GPU is reset"}

    def test_another_boot_ends_it(self) -> None:
        assert after_evidence((fault(48),), evidence(boot_id="another"), JUDGE) == ()

    def test_a_gpu_that_was_lost_and_answers_again_was_reset(self) -> None:
        gone = evidence(inventory=inventory(gpu(1), lost=(lost_gpu(0),)))
        meanwhile = after_evidence((fault(48),), gone, JUDGE)
        assert held(meanwhile) == [GPU]
        assert held(after_evidence(meanwhile, evidence(), JUDGE)) == []

    def test_a_gpu_that_could_not_be_read_for_a_while_was_not_reset(self) -> None:
        missing = (msgspec.structs.replace(lost_gpu(0), error="UNKNOWN"),)
        for lost in (missing, ()):
            faults = (fault(48),)
            shown = evidence(inventory=inventory(gpu(1), lost=lost))
            assert after_evidence(faults, shown, JUDGE) is faults

    def test_the_loss_of_another_gpu_ends_nothing(self) -> None:
        gone = evidence(inventory=inventory(gpu(0), lost=(lost_gpu(1),)))
        faults = after_evidence((fault(48),), gone, JUDGE)
        assert held(after_evidence(faults, evidence(), JUDGE)) == [GPU]

    def test_an_xid_that_nobody_knows_is_fatal(self) -> None:
        assert held((fault(4711),)) == [GPU]


class TestContained:
    """94 is contained in the processes that were on the GPU."""

    def test_it_ends_with_the_last_of_its_processes(self) -> None:
        faults: tuple[Fault, ...] = (fault(94),)
        for pids, expected in (((7, 8), [GPU]), ((8, 9), [GPU]), ((9,), [])):
            faults = after_evidence(faults, evidence(processes=processes(*pids)), JUDGE)
            assert held(faults) == expected

    def test_a_process_that_came_later_is_not_one_of_them(self) -> None:
        """Also not one that got the number of one that has ended."""
        faults: tuple[Fault, ...] = (fault(94),)
        for pids in ((7, 8), (8,), (7,)):
            faults = after_evidence(faults, evidence(processes=processes(*pids)), JUDGE)
        assert held(faults) == []

    def test_a_gpu_without_processes_is_healthy_at_once(self) -> None:
        assert held(after_evidence((fault(94),), evidence(), JUDGE)) == []

    def test_evidence_that_was_signed_before_it_ends_nothing(self) -> None:
        faults = (fault(94, happened_ms=1000),)
        assert after_evidence(faults, evidence(), JUDGE) is faults

    @pytest.mark.parametrize("gpu", [None, GPU])
    def test_processes_that_were_not_all_read_end_nothing(self, gpu: str | None) -> None:
        read = FailedRead(fact="processes", gpu=gpu, call="x", error="TOO_MANY")
        faults = (fault(94),)
        assert after_evidence(faults, evidence(failed_reads=(read,)), JUDGE) is faults
        assert after_evidence(faults, evidence(processes=None), JUDGE) is faults

    def test_processes_of_another_gpu_do_not_count(self) -> None:
        shown = evidence(processes=processes(7, gpu=OTHER))
        assert held(after_evidence((fault(94),), shown, JUDGE)) == []

    def test_processes_of_its_mig_devices_do(self) -> None:
        device = MigDevice(uuid=MIG, profile="1g.10gb", memory_mib=1)
        split = inventory(gpu(0, mig=True, mig_devices=(device,)), gpu(1))
        shown = evidence(inventory=split, processes=processes(7, gpu=MIG))
        assert held(after_evidence((fault(94),), shown, JUDGE)) == [GPU]

    def test_each_fault_of_a_gpu_is_named(self) -> None:
        faults = (fault(94), fault(48), fault(94, gpu=OTHER))
        assert in_force(faults, JUDGE) == {
            GPU: "xid 94, until its processes end; xid 48, until the GPU is reset",
            OTHER: "xid 94, until its processes end",
        }


class TestReports:
    def test_the_same_failure_reported_again_is_no_new_one(self) -> None:
        ended = lifted((fault(94),))
        assert reported(ended, GPU, 94, BOOT, 500) is ended
        assert reported(ended, GPU, 94, BOOT, 499) is ended

    def test_one_that_happens_again_counts_again(self) -> None:
        assert reported(lifted((fault(94),)), GPU, 94, BOOT, 501) == (fault(94, 501),)

    def test_one_of_another_boot_counts_again(self) -> None:
        [again] = reported(lifted((fault(94),)), GPU, 94, "another", 1)
        assert (again.boot_id, again.ended) == ("another", False)

    def test_others_stay(self) -> None:
        faults = reported(reported((fault(94),), GPU, 48, BOOT, 1), OTHER, 94, BOOT, 1)
        assert faults == (fault(94), fault(48, 1), fault(94, 1, OTHER))

    def test_memory_is_bounded_and_forgets_ended_ones_first(self) -> None:
        faults = tuple(fault(1000 + n, n) for n in range(MAX_FAULTS))
        faults = (faults[0], replace(faults[1], ended=True), *faults[2:])
        after = reported(faults, GPU, 48, BOOT, 500)
        assert len(after) == MAX_FAULTS
        assert faults[0] in after
        assert faults[1] not in after
        assert faults[0] not in reported(after, GPU, 62, BOOT, 501)

    def test_the_latest_of_each_gpu_stays(self) -> None:
        faults = (fault(48, 1, OTHER), *(fault(1000 + n, 2 + n) for n in range(MAX_FAULTS - 1)))
        after = reported(faults, GPU, 62, BOOT, 500)
        assert held(after) == [OTHER, GPU]
        assert fault(1000, 2) not in after


class TestPolicy:
    @pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 92, 107, 137, 152, 153, 154, 157, 161])
    def test_faults_of_applications_and_information_take_nothing(self, xid: int) -> None:
        assert Policy().consequence(xid) is Consequence.NONE
        assert held((fault(xid),)) == []

    @pytest.mark.parametrize("xid", [8, 39, 60, 82, 89, 94, 96, 105, 126, 135, 139])
    def test_contained_errors_last_as_long_as_their_processes(self, xid: int) -> None:
        assert Policy().consequence(xid) is Consequence.PROCESS

    @pytest.mark.parametrize(
        "xid", [1, 46, 48, 62, 64, 74, 79, 95, 108, 119, 120, 140, 151, 159, 160, 162, 163, 999]
    )
    def test_all_others_need_a_reset(self, xid: int) -> None:
        assert Policy().consequence(xid) is Consequence.RESET

    def test_a_cluster_may_judge_otherwise(self) -> None:
        policy = Policy(xids={94: Consequence.RESET, 48: Consequence.NONE})
        faults = (fault(94), fault(48))
        shown = after_evidence(faults, evidence(), policy.consequence)
        assert in_force(shown, policy.consequence) == {GPU: "xid 94, until the GPU is reset"}
