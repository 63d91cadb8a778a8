from dataclasses import replace

import msgspec
import pytest

from controller.fleet.attestation_result import Accepted, Refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.enrollment import (
    Candidate,
    ContestedClaim,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentSnapshot,
    QuarantineEntry,
)
from controller.fleet.quarantine import (
    Change,
    EnrollmentChange,
    accepted,
    enrollment_changes,
    enrollment_digest,
    show,
)
from controller.policy import Level, NodePool, Policy
from controller.verifier.context import HardwareQuestion, SpireQuestion, Standing, no_hardware
from controller.verifier.inventory import next_record
from gpuwarden.evidence.model import FailedRead, Gpu, Inventory, LostGpu, MigDevice
from gpuwarden.reasons import Effect, ReasonCode, Refusal
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import NODE, WALL, Scene
from tests.builders.inventory import HOST, gpu, gpu_uuid, inventory, lost_gpu
from tests.builders.node_views import node_view

CA = SpiffeCa(at=WALL)
OTHER = "gpu-2"
MIG_A = "MIG-aaaaaaaa-0000-4000-8000-000000000000"
MIG_B = "MIG-bbbbbbbb-0000-4000-8000-000000000000"


def two_gpus(**changes: object) -> Scene:
    """A node that was accepted with GPUs 0 and 1 and is remembered so."""
    scene = Scene(ca=CA, evidence={"inventory": inventory(gpu(0), gpu(1))}, **changes)  # type: ignore[arg-type] # fields vary
    scene.remember(scene.accepted())
    return scene


def shows(scene: Scene, *args: object, **kwargs: object) -> Scene:
    scene.evidence = {"inventory": inventory(*args, **kwargs)}  # type: ignore[arg-type] # passed on
    return scene


def refused(scene: Scene) -> Refused:
    result = scene.run()
    assert isinstance(result, Refused), result
    return result


def other(*enrolled_gpus: EnrolledGpu, denial: QuarantineEntry | None = None) -> EnrollmentRecord:
    return EnrollmentRecord(OTHER, gpus=enrolled_gpus, denial=denial)


def test_evidence_changes_nothing_of_a_record_but_what_it_shows() -> None:
    """Whatever else a record holds, such as which denial was lifted, the next one holds."""
    denial = QuarantineEntry("NODE_DENIED", "why", "someone", 7)
    before = EnrollmentRecord(NODE, "uid-0", "spiffe://a", (), "0" * 32, (), denial, lifted_ns=6)
    after = next_record(
        before,
        node=NODE,
        node_uid="uid-1",
        instance="1" * 32,
        standing=Standing(Level.L0),
        gpus=(EnrolledGpu("GPU-a"),),
        system_uuid="s",
    )
    assert after == EnrollmentRecord(
        NODE,
        "uid-1",
        None,
        (EnrolledGpu("GPU-a"),),
        "1" * 32,
        ("0" * 32,),
        denial,
        lifted_ns=6,
        system_uuid="s",
    )


class TestFirstUse:
    def test_it_enrolled_gpus_what_answers_sorted_by_uuid(self) -> None:
        scene = shows(Scene(ca=CA), gpu(1, serial="N/A"), gpu(0))
        change = scene.accepted().enrollment
        assert change is not None
        assert change.old is None
        assert change.new.node_uid == "uid-1"
        assert change.new.gpus == (
            EnrolledGpu(gpu_uuid(1), gpu(0).serial, pci_bus_id=gpu(0).pci_bus_id),
            EnrolledGpu(gpu_uuid(2), None, pci_bus_id=gpu(1).pci_bus_id),
        )

    def test_the_same_serial_on_two_gpus_is_a_board(self) -> None:
        shows(Scene(ca=CA), gpu(0, serial="1"), gpu(1, serial="1")).accepted()

    def test_a_gpu_that_was_already_lost_is_pinned_and_completed_when_it_is_back(self) -> None:
        scene = shows(Scene(ca=CA), gpu(0), lost=(lost_gpu(1),))
        first = scene.accepted()
        assert [x.uuid for x in first.lost] == [gpu_uuid(2)]
        assert first.warnings == ()
        scene.remember(first)
        back = shows(scene, gpu(0), gpu(1)).accepted()
        assert back.enrollment is not None
        assert back.enrollment.new.enrolled_gpu(gpu_uuid(2)) == EnrolledGpu(
            gpu_uuid(2), gpu(1).serial, pci_bus_id=gpu(1).pci_bus_id
        )

    def test_nothing_is_pinned_by_evidence_with_failed_reads(self) -> None:
        read = FailedRead("serial", gpu_uuid(1), "DeviceGetSerial", "UNKNOWN")
        scene = Scene(ca=CA, evidence={"failed_reads": (read,)})
        assert refused(scene).code is ReasonCode.INVENTORY_INCOMPLETE


class TestLostGpus:
    def test_a_reported_loss_keeps_the_node(self) -> None:
        result = shows(two_gpus(), gpu(0), lost=(lost_gpu(1),)).accepted()
        assert result.lost == (lost_gpu(1),)
        assert (result.enrollment, result.warnings) == (None, ())

    def test_a_gpu_that_is_simply_absent_is_lost_as_well(self) -> None:
        result = shows(two_gpus(), gpu(1)).accepted()
        assert result.lost == (LostGpu(gpu_uuid(1), -1, gpu(0).pci_bus_id, "VANISHED"),)

    def test_a_gpu_that_is_absent_may_have_no_known_place(self) -> None:
        scene = Scene(ca=CA)
        enrolled_gpus = (EnrolledGpu(gpu_uuid(1), gpu(0).serial), EnrolledGpu(gpu_uuid(2)))
        scene.enrollment = scene.enrollment.with_record(
            EnrollmentRecord(NODE, "uid-1", gpus=enrolled_gpus)
        )
        result = shows(scene, gpu(0)).accepted()
        assert result.lost == (LostGpu(gpu_uuid(2), -1, "", "VANISHED"),)

    def test_what_was_never_pinned_cannot_be_lost(self) -> None:
        result = shows(two_gpus(), gpu(0), gpu(1), lost=(lost_gpu(5),)).accepted()
        assert (result.lost, result.enrollment) == ((), None)
        assert result.warnings == (f"{gpu_uuid(6)} is reported lost but not enrolled here",)

    def test_a_lost_gpu_leaves_the_class_as_it_was(self) -> None:
        scene = two_gpus()
        whole = scene.accepted().attestation_hash
        assert shows(scene, gpu(0), lost=(lost_gpu(1),)).accepted().attestation_hash == whole

    def test_when_none_answers_there_is_no_class_but_the_loss_counts(self) -> None:
        scene = two_gpus()
        scene.evidence = {"inventory": Inventory(HOST, (), (lost_gpu(0), lost_gpu(1)))}
        result = refused(scene)
        assert (result.code, result.effect) == (ReasonCode.INVENTORY_EMPTY, Effect.TRANSIENT)
        assert result.lost == (lost_gpu(0), lost_gpu(1))


class TestSerials:
    def test_a_serial_that_a_newer_driver_reports_is_enrolled_once(self) -> None:
        scene = Scene(ca=CA, evidence={"inventory": inventory(gpu(0, serial=None), gpu(1))})
        scene.remember(scene.accepted())
        gained = shows(scene, gpu(0), gpu(1)).accepted()
        assert gained.enrollment is not None
        before, after = gained.enrollment.old, gained.enrollment.new
        assert before is not None
        assert after == replace(
            before, gpus=(replace(before.gpus[0], serial=gpu(0).serial), before.gpus[1])
        )
        scene.remember(gained)
        assert scene.accepted().enrollment is None
        another = refused(shows(scene, gpu(0, serial="777"), gpu(1)))
        assert another.code is ReasonCode.INVENTORY_CHANGED

    def test_a_card_whose_serial_is_no_longer_reported_is_not_offered(self) -> None:
        result = shows(two_gpus(), gpu(0, serial="N/A"), gpu(1)).accepted()
        [lost] = result.lost
        assert lost.uuid == gpu_uuid(1)
        assert lost.error == f"serial: not reported, {gpu(0).serial} is enrolled"
        assert result.enrollment is None

    def test_where_no_serial_is_reported_any_more_nothing_is_decided(self) -> None:
        result = refused(shows(two_gpus(), gpu(0, serial=None), gpu(1, serial=None)))
        assert (result.code, result.effect) == (
            ReasonCode.INVENTORY_INCOMPLETE,
            Effect.TRANSIENT,
        )


class TestChangedGpus:
    def test_a_new_uuid_is_another_machine(self) -> None:
        result = refused(shows(two_gpus(), gpu(0), gpu(1), gpu(2)))
        assert (result.code, result.effect) == (
            ReasonCode.INVENTORY_CHANGED,
            Effect.QUARANTINE,
        )
        assert gpu_uuid(3) in result.detail

    def test_a_swapped_card_is_a_change_and_the_old_one_lost(self) -> None:
        result = refused(shows(two_gpus(), gpu(0), gpu(1, uuid=gpu_uuid(9))))
        assert result.code is ReasonCode.INVENTORY_CHANGED
        assert [x.uuid for x in result.lost] == [gpu_uuid(2)]

    def test_a_changed_serial_is_a_change(self) -> None:
        assert (
            refused(shows(two_gpus(), gpu(0, serial="other"), gpu(1))).code
            is ReasonCode.INVENTORY_CHANGED
        )

    def test_a_bus_address_may_change(self) -> None:
        moved = gpu(0, pci_bus_id="00000000:99:00.0")
        assert shows(two_gpus(), moved, gpu(1)).accepted().enrollment is None


class TestCandidates:
    """What an operator may be asked about: hardware against which only the enrolled GPUs stand."""

    def test_a_swapped_card_is_offered_as_it_answers(self) -> None:
        result = refused(shows(two_gpus(), gpu(0), gpu(1, uuid=gpu_uuid(9))))
        assert result.candidate == Candidate(
            "INVENTORY_CHANGED",
            "uid-1",
            None,
            (
                EnrolledGpu(gpu_uuid(1), gpu(0).serial, pci_bus_id=gpu(0).pci_bus_id),
                EnrolledGpu(gpu_uuid(9), gpu(1).serial, pci_bus_id=gpu(1).pci_bus_id),
            ),
            result.evidence_digest,
            HOST.system_uuid,
        )
        assert result.evidence_digest

    def test_a_new_node_uid_is_offered(self) -> None:
        scene = two_gpus()
        scene.directory = DirectorySnapshot({NODE: KnownNode("uid-2")})
        result = refused(scene)
        assert result.code is ReasonCode.NODE_UID_CHANGED
        assert result.candidate is not None
        assert result.candidate.node_uid == "uid-2"

    def test_what_nobody_enrolled_is_offered_and_counts_once_accepted(self) -> None:
        scene = Scene(ca=CA)
        scene.settings = replace(scene.settings, enrollment_required=True)
        result = refused(scene)
        assert result.code is ReasonCode.INVENTORY_NOT_ENROLLED
        assert result.candidate is not None
        shown = show(
            NODE, None, node_view(NODE, candidate=result.candidate), unwritten=None, now_ns=0
        )
        record = accepted(shown, scene.enrollment, shown.version, actor="ann")
        assert isinstance(record, EnrollmentRecord)
        scene.enrollment = scene.enrollment.with_record(record)
        scene.accepted()

    def test_a_card_of_which_a_fact_is_unread_is_offered_by_name(self) -> None:
        scene = shows(two_gpus(), gpu(0), gpu(7, serial=None))
        read = FailedRead("serial", gpu_uuid(8), "DeviceGetSerial", "UNKNOWN")
        scene.evidence = {**scene.evidence, "failed_reads": (read,)}
        candidate = refused(scene).candidate
        assert candidate is not None
        assert [(x.uuid, x.complete, x.enrolled) for x in candidate.gpus] == [
            (gpu_uuid(1), True, False),
            (gpu_uuid(8), False, False),
        ]

    @pytest.mark.parametrize("worse", ["claimed", "denied", "policy", "incomplete"])
    def test_what_is_worse_than_other_hardware_is_not(self, worse: str) -> None:
        scene = shows(two_gpus(), gpu(0), gpu(7))
        if worse == "claimed":
            scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(8))))
        elif worse == "denied":
            denial = QuarantineEntry("X", "thief", "operator", 0)
            record = other(EnrolledGpu(gpu_uuid(8)), denial=denial)
            scene.enrollment = scene.enrollment.with_record(record)
        elif worse == "policy":
            scene.policy = Policy(denied_keys=frozenset({gpu_uuid(8)}))
        else:
            read = FailedRead("driver", None, "SystemGetDriverVersion", "UNKNOWN")
            scene.evidence = {**scene.evidence, "failed_reads": (read,)}
        assert refused(scene).candidate is None


class TestClaims:
    def test_the_owner_keeps_its_gpu_and_is_named(self) -> None:
        scene = two_gpus()
        thief = Scene(node=OTHER, ca=CA, enrollment=scene.enrollment)
        thief.directory = DirectorySnapshot({OTHER: KnownNode()})
        result = refused(shows(thief, gpu(0), gpu(7)))
        assert (result.code, result.effect) == (ReasonCode.GPU_CLAIMED_TWICE, Effect.REVOKE)
        assert result.contested == (ContestedClaim(gpu_uuid(1), OTHER, NODE),)
        scene.accepted()

    def test_a_lost_gpu_of_another_node_cannot_be_claimed_at_first_use(self) -> None:
        scene = Scene(ca=CA)
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(2))))
        assert (
            refused(shows(scene, gpu(0), lost=(lost_gpu(1),))).code is ReasonCode.GPU_CLAIMED_TWICE
        )

    def test_a_gpu_reported_lost_that_was_never_pinned_is_not_claimed(self) -> None:
        scene = two_gpus()
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(6))))
        shows(scene, gpu(0), gpu(1), lost=(lost_gpu(5),)).accepted()

    def test_a_enrolled_gpu_that_is_reported_lost_is_still_claimed(self) -> None:
        scene = two_gpus()
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(2))))
        result = refused(shows(scene, gpu(0), lost=(lost_gpu(1),)))
        assert result.contested == (ContestedClaim(gpu_uuid(2), NODE, OTHER),)

    def test_two_nodes_that_pinned_the_same_gpu_have_it_neither(self) -> None:
        scene = two_gpus()
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(1))))
        assert refused(scene).code is ReasonCode.GPU_CLAIMED_TWICE

    def test_an_enrolled_gpu_beats_first_use_on_both_sides(self) -> None:
        enrolled_gpu = EnrolledGpu(gpu_uuid(1), gpu(0).serial, enrolled=True)
        owner = Scene(ca=CA)
        owner.enrollment = owner.enrollment.with_record(
            EnrollmentRecord(NODE, gpus=(enrolled_gpu,))
        )
        owner.enrollment = owner.enrollment.with_record(other(EnrolledGpu(gpu_uuid(1))))
        owner.accepted()
        loser = two_gpus()
        loser.enrollment = loser.enrollment.with_record(other(replace(enrolled_gpu)))
        assert refused(loser).code is ReasonCode.GPU_CLAIMED_TWICE

    def test_what_was_enrolled_stays_enrolled_when_it_is_completed(self) -> None:
        enrolled_gpu = EnrolledGpu(gpu_uuid(1), None, enrolled=True, complete=False)
        scene = Scene(ca=CA)
        scene.enrollment = scene.enrollment.with_record(
            EnrollmentRecord(NODE, gpus=(enrolled_gpu,))
        )
        change = scene.accepted().enrollment
        assert change is not None
        assert change.new.gpus == (
            EnrolledGpu(gpu_uuid(1), gpu(0).serial, pci_bus_id=gpu(0).pci_bus_id, enrolled=True),
        )

    def test_what_was_not_enrolled_is_not_by_being_listed_later(self) -> None:
        enrolled_gpu = EnrolledGpu(gpu_uuid(1), None, complete=False)
        pools = (NodePool("gpu-1", uuids=frozenset({gpu_uuid(1)})),)
        scene = Scene(ca=CA, policy=Policy(pools=pools))
        scene.enrollment = scene.enrollment.with_record(
            EnrollmentRecord(NODE, gpus=(enrolled_gpu,))
        )
        change = scene.accepted().enrollment
        assert change is not None
        assert not change.new.gpus[0].enrolled

    def test_enrolled_for_two_nodes_is_nobodys(self) -> None:
        enrolled_gpu = EnrolledGpu(gpu_uuid(1), gpu(0).serial, enrolled=True)
        scene = Scene(ca=CA)
        for record in (EnrollmentRecord(NODE, gpus=(enrolled_gpu,)), other(enrolled_gpu)):
            scene.enrollment = scene.enrollment.with_record(record)
        assert refused(scene).code is ReasonCode.GPU_CLAIMED_TWICE

    def test_a_pool_that_lists_a_gpu_keeps_other_nodes_from_it(self) -> None:
        pools = (NodePool("dgx-*", uuids=frozenset({gpu_uuid(1)})),)
        scene = Scene(ca=CA, policy=Policy(pools=pools))
        result = refused(scene)
        assert result.contested == (ContestedClaim(gpu_uuid(1), NODE, "pool dgx-*"),)

    def test_a_pool_of_others_that_does_not_list_it_is_no_rival(self) -> None:
        pools = (NodePool("dgx-*", uuids=frozenset({gpu_uuid(7)})),)
        Scene(ca=CA, policy=Policy(pools=pools)).accepted()

    def test_the_pool_itself_beats_a_first_use_elsewhere(self) -> None:
        pools = (NodePool("gpu-1", uuids=frozenset({gpu_uuid(1)})), NodePool("x*"))
        scene = Scene(ca=CA, policy=Policy(pools=pools))
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(1))))
        change = scene.accepted().enrollment
        assert change is not None
        assert change.new.gpus[0].enrolled

    def by_serial(self, text: str, *elsewhere: NodePool) -> Scene:
        """A new node that shows GPU 0 with a serial that an operator listed for it."""
        mine = NodePool("gpu-1", serials=frozenset({text}))
        scene = Scene(ca=CA, policy=Policy(pools=(mine, *elsewhere)))
        return shows(scene, gpu(0, serial=text))

    def test_a_listed_serial_is_no_weapon_against_another_nodes_uuid(self) -> None:
        scene = self.by_serial("1650000000001")
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(1), "777")))
        result = refused(scene)
        assert result.code is ReasonCode.GPU_CLAIMED_TWICE
        assert result.contested == (ContestedClaim(gpu_uuid(1), NODE, OTHER),)

    def test_a_listed_serial_beats_a_first_use_of_the_same_board(self) -> None:
        scene = self.by_serial("777")
        scene.enrollment = scene.enrollment.with_record(other(EnrolledGpu(gpu_uuid(1), "777")))
        scene.accepted()

    def test_a_pin_of_its_own_without_a_serial_does_not_stand_against_a_listed_serial(self) -> None:
        scene = self.by_serial("777")
        mine = EnrollmentRecord(NODE, gpus=(EnrolledGpu(gpu_uuid(1), None, complete=False),))
        for record in (mine, other(EnrolledGpu(gpu_uuid(1), "777"))):
            scene.enrollment = scene.enrollment.with_record(record)
        scene.accepted()

    def test_a_uuid_that_two_pools_list_is_not_kept_from_the_pool_that_asks(self) -> None:
        uuids = frozenset({gpu_uuid(1)})
        pools = (NodePool("gpu-1", uuids=uuids), NodePool("x*", uuids=uuids))
        Scene(ca=CA, policy=Policy(pools=pools)).accepted()

    def test_a_listed_serial_does_not_beat_a_uuid_listed_elsewhere(self) -> None:
        scene = self.by_serial("777", NodePool("x*", uuids=frozenset({gpu_uuid(1)})))
        result = refused(scene)
        assert [x.owner for x in result.contested] == ["pool x*"]


class TestDenials:
    def test_a_denial_follows_the_hardware_to_another_node(self) -> None:
        denial = QuarantineEntry("INVENTORY_CHANGED", "swapped", "controller", 0)
        scene = Scene(ca=CA)
        scene.enrollment = scene.enrollment.with_record(
            other(EnrolledGpu(gpu_uuid(1)), denial=denial)
        )
        result = refused(scene)
        assert result.code is ReasonCode.GPU_DENIED
        assert [x.code for x in result.findings] == [
            ReasonCode.GPU_DENIED,
            ReasonCode.GPU_CLAIMED_TWICE,
        ]

    def test_denying_a_thief_does_not_deny_its_victim(self) -> None:
        enrolled_gpu = EnrolledGpu(gpu_uuid(1), gpu(0).serial, enrolled=True)
        denial = QuarantineEntry("OPERATOR", "thief", "operator", 0)
        scene = Scene(ca=CA)
        scene.enrollment = scene.enrollment.with_record(
            EnrollmentRecord(NODE, gpus=(enrolled_gpu,))
        )
        scene.enrollment = scene.enrollment.with_record(
            other(EnrolledGpu(gpu_uuid(1)), denial=denial)
        )
        scene.accepted()


class TestRequiredEnrollment:
    def required(self, policy: Policy, *enrolled_gpus: EnrolledGpu) -> Scene:
        scene = Scene(ca=CA, policy=policy)
        scene.settings = replace(scene.settings, enrollment_required=True)
        if enrolled_gpus:
            scene.enrollment = scene.enrollment.with_record(
                EnrollmentRecord(NODE, gpus=enrolled_gpus)
            )
        return scene

    @pytest.mark.parametrize(
        "pool",
        [
            NodePool("gpu-*", uuids=frozenset({gpu_uuid(1)})),
            NodePool("gpu-*", serials=frozenset({str(gpu().serial)})),
        ],
    )
    def test_a_pool_that_lists_uuid_or_serial_admits(self, pool: NodePool) -> None:
        change = self.required(Policy(pools=(pool,))).accepted().enrollment
        assert change is not None
        assert change.new.gpus[0].enrolled

    def test_an_operators_pin_admits_and_is_completed(self) -> None:
        scene = self.required(Policy(), EnrolledGpu(gpu_uuid(1), enrolled=True, complete=False))
        change = scene.accepted().enrollment
        assert change is not None
        assert change.new.gpus == (
            EnrolledGpu(
                gpu_uuid(1), gpu().serial, pci_bus_id=gpu().pci_bus_id, enrolled=True, complete=True
            ),
        )

    def test_a_pin_from_first_use_is_not_enough(self) -> None:
        scene = self.required(Policy(), EnrolledGpu(gpu_uuid(1), gpu().serial))
        assert refused(scene).code is ReasonCode.INVENTORY_NOT_ENROLLED

    def test_a_new_gpu_on_an_enrolled_node_is_a_change(self) -> None:
        scene = self.required(Policy(), EnrolledGpu(gpu_uuid(1), gpu().serial, enrolled=True))
        assert refused(shows(scene, gpu(0), gpu(1))).code is ReasonCode.INVENTORY_CHANGED

    def test_without_enrollment_a_pool_without_lists_demands_nothing(self) -> None:
        Scene(ca=CA, policy=Policy(pools=(NodePool("gpu-*"),))).accepted()


class Confirmed:
    """A SPIRE server that says L1 under the given agent ID."""

    def __init__(self, agent: str | None) -> None:
        self._agent = agent

    def entry(self, question: SpireQuestion) -> Refusal | None:
        del question
        return None

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        del question
        return Standing(Level.L1, "k8s_psat", self._agent)

    def image(self, question: SpireQuestion) -> Refusal | None:
        del question
        return None


def split(*migs: str, index: int = 0) -> Gpu:
    devices = tuple(MigDevice(uuid=x, profile="1g.10gb", memory_mib=9856) for x in migs)
    return gpu(index, mig=True, mig_devices=devices)


class TestMigDevices:
    """A MIG device belongs to the node that showed it, as a GPU does."""

    def owner(self, *migs: str, enrolled: bool = False) -> Scene:
        """A newcomer beside a node that has a GPU with these MIG devices."""
        scene = Scene(ca=CA)
        card = EnrolledGpu(gpu_uuid(8), enrolled=enrolled, mig_devices=migs)
        scene.enrollment = scene.enrollment.with_record(other(card))
        return scene

    def test_another_nodes_is_refused_to_the_claimant(self) -> None:
        result = refused(shows(self.owner(MIG_A), split(MIG_A, MIG_B)))
        assert (result.code, result.effect) == (ReasonCode.GPU_CLAIMED_TWICE, Effect.REVOKE)
        assert result.detail == f"{MIG_A} belongs to {OTHER}"
        assert result.contested == (ContestedClaim(MIG_A, NODE, OTHER),)

    def test_its_owner_is_unharmed(self) -> None:
        """Refused evidence claims nothing: whoever showed it first goes on."""
        owner = shows(Scene(ca=CA), split(MIG_A))
        owner.remember(owner.accepted())
        thief = Scene(ca=CA, node=OTHER, enrollment=owner.enrollment)
        thief.directory = DirectorySnapshot({OTHER: KnownNode("uid-2")})
        assert refused(shows(thief, split(MIG_A, index=3))).code is ReasonCode.GPU_CLAIMED_TWICE
        owner.accepted()

    def test_two_nodes_with_devices_of_their_own_are_both_accepted(self) -> None:
        shows(self.owner(MIG_A), split(MIG_B)).accepted()

    def test_those_of_accepted_evidence_are_enrolled_with_their_gpu(self) -> None:
        change = shows(Scene(ca=CA), split(MIG_B, MIG_A)).accepted().enrollment
        assert change is not None
        assert change.new.gpus[0].mig_devices == (MIG_A, MIG_B)

    def test_another_split_is_no_change_of_hardware(self) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A))
        scene.remember(scene.accepted())
        change = shows(scene, split(MIG_B)).accepted().enrollment
        assert change is not None
        assert change.new.gpus[0].mig_devices == (MIG_B,)
        assert MIG_A not in scene.enrollment.with_record(change.new).claims

    def test_unchanged_ones_write_nothing(self) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A))
        scene.remember(scene.accepted())
        assert scene.accepted().enrollment is None

    def test_those_of_a_lost_gpu_stay_its_nodes(self) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A), gpu(1))
        scene.remember(scene.accepted())
        shows(scene, gpu(1), lost=(lost_gpu(0),))
        scene.remember(scene.accepted())
        assert MIG_A in scene.enrollment.claims

    def test_what_could_not_be_read_stays(self) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A, MIG_B))
        scene.remember(scene.accepted())
        read = FailedRead(
            "migDevices", gpu_uuid(1), "nvmlDeviceGetMigDeviceHandleByIndex", "UNKNOWN"
        )
        shows(scene, split(MIG_B))
        scene.evidence |= {"failed_reads": (read,)}
        assert scene.accepted().enrollment is None

    def test_a_gpu_that_an_operator_enrolled_takes_no_device_from_another(self) -> None:
        """An operator lists GPUs; which MIG devices are on them is only the node's word."""
        scene = self.owner(MIG_A)
        mine = EnrolledGpu(gpu_uuid(1), gpu(0).serial, enrolled=True)
        scene.enrollment = scene.enrollment.with_record(EnrollmentRecord(NODE, gpus=(mine,)))
        assert refused(shows(scene, split(MIG_A))).code is ReasonCode.GPU_CLAIMED_TWICE

    def test_a_pool_of_the_policy_can_list_one_for_its_nodes(self) -> None:
        scene = shows(self.owner(MIG_A), split(MIG_A))
        scene.policy = Policy(pools=(NodePool("gpu-1", uuids=frozenset({gpu_uuid(1), MIG_A})),))
        scene.accepted()

    def test_a_pool_that_lists_one_keeps_other_nodes_from_it(self) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A))
        scene.policy = Policy(pools=(NodePool("dgx-*", uuids=frozenset({MIG_A})),))
        assert refused(scene).contested == (ContestedClaim(MIG_A, NODE, "pool dgx-*"),)

    @pytest.mark.parametrize(
        ("fact", "known"), [("migDevices", (MIG_A, MIG_B)), ("persistenceMode", (MIG_B,))]
    )
    def test_those_that_were_not_all_read_keep_what_was_known(
        self, fact: str, known: tuple[str, ...]
    ) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A))
        scene.remember(scene.accepted())
        read = FailedRead(fact, gpu_uuid(1), "DeviceGetMigDeviceHandleByIndex", "UNKNOWN")
        scene.evidence = {"inventory": inventory(split(MIG_B)), "failed_reads": (read,)}
        change = scene.accepted().enrollment
        assert change is not None
        assert change.new.gpus[0].mig_devices == known

    def test_one_on_the_deny_list_is_refused(self) -> None:
        scene = shows(Scene(ca=CA), split(MIG_A))
        scene.policy = Policy(denied_keys=frozenset({MIG_A}))
        assert refused(scene).code is ReasonCode.GPU_DENIED

    def test_an_operator_cannot_enroll_what_another_node_has(self) -> None:
        scene = two_gpus()
        scene.enrollment = scene.enrollment.with_record(
            other(EnrolledGpu(gpu_uuid(8), mig_devices=(MIG_A,)))
        )
        shown = Candidate(
            "INVENTORY_CHANGED",
            "uid-1",
            None,
            (EnrolledGpu(split(MIG_A).uuid, mig_devices=(MIG_A,)),),
            "e" * 64,
        )
        record = scene.enrollment.records[NODE].denied(
            QuarantineEntry("INVENTORY_CHANGED", "why", "controller", 1, shown)
        )
        seen = show(NODE, record, None, unwritten=None, now_ns=0)
        result = accepted(seen, scene.enrollment, seen.version, actor="ann")
        assert isinstance(result, Refusal)
        assert result == Refusal(ReasonCode.GPU_CLAIMED_TWICE, f"{MIG_A} is enrolled for {OTHER}")

    def test_accepting_enrolls_the_devices_that_were_shown(self) -> None:
        record = EnrollmentRecord(NODE).denied(
            QuarantineEntry(
                "INVENTORY_CHANGED",
                "why",
                "controller",
                1,
                Candidate(
                    "INVENTORY_CHANGED",
                    None,
                    None,
                    (EnrolledGpu(split(MIG_A).uuid, mig_devices=(MIG_A,)),),
                    "e" * 64,
                ),
            )
        )
        seen = show(NODE, record, None, unwritten=None, now_ns=0)
        result = accepted(seen, EnrollmentSnapshot.of([record]), seen.version, actor="ann")
        assert isinstance(result, EnrollmentRecord)
        assert result.gpus[0].mig_devices == (MIG_A,)


def on(system: str | None) -> Inventory:
    return inventory(gpu(0), host=msgspec.structs.replace(HOST, system_uuid=system))


class TestSystemUuid:
    ONE = "11111111-2222-4333-8444-555555555555"
    TWO = "99999999-2222-4333-8444-55555555555a"

    def enrolled(self, system: str | None) -> Scene:
        scene = Scene(ca=CA, evidence={"inventory": on(system)})
        scene.remember(scene.accepted())
        return scene

    def test_the_enrolled_cards_in_another_machine_wait_for_an_operator(self) -> None:
        scene = self.enrolled(self.ONE)
        scene.evidence = {"inventory": on(self.TWO)}
        result = refused(scene)
        assert (result.code, result.effect) == (ReasonCode.SYSTEM_UUID_CHANGED, Effect.QUARANTINE)
        assert result.detail == f"system UUID is {self.TWO}, {self.ONE} is enrolled"
        assert result.candidate is not None
        assert result.candidate.system_uuid == self.TWO

    def test_accepting_enrolls_the_new_machine(self) -> None:
        scene = self.enrolled(self.ONE)
        scene.evidence = {"inventory": on(self.TWO)}
        shown = refused(scene).candidate
        record = scene.enrollment.records[NODE].denied(QuarantineEntry("X", "why", "c", 1, shown))
        seen = show(NODE, record, None, unwritten=None, now_ns=0)
        assert EnrollmentChange(
            Change.CHANGED, "system UUID", self.ONE, self.TWO
        ) in enrollment_changes(seen)
        after = accepted(seen, scene.enrollment, seen.version, actor="ann")
        assert isinstance(after, EnrollmentRecord)
        scene.enrollment = scene.enrollment.with_record(after)
        scene.accepted()

    def test_it_is_enrolled_once_it_is_shown(self) -> None:
        scene = self.enrolled(None)
        scene.evidence = {"inventory": on(self.ONE)}
        change = scene.accepted().enrollment
        assert change is not None
        assert (change.old and change.old.system_uuid, change.new.system_uuid) == (None, self.ONE)

    def test_one_that_is_not_shown_any_more_stays_and_contradicts_nothing(self) -> None:
        scene = self.enrolled(self.ONE)
        scene.evidence = {"inventory": on(None)}
        assert scene.accepted().enrollment is None

    def test_spelling_is_no_change(self) -> None:
        scene = self.enrolled(self.TWO)
        scene.evidence = {"inventory": on(self.TWO.upper())}
        assert scene.accepted().enrollment is None

    def test_the_operators_version_covers_it(self) -> None:
        one, two = (EnrollmentRecord(NODE, system_uuid=x) for x in (self.ONE, self.TWO))
        assert enrollment_digest(one) != enrollment_digest(two)


class TestNodeUid:
    def reborn(self, scene: Scene, agent: str | None = None) -> Scene:
        scene.directory = DirectorySnapshot({NODE: KnownNode("uid-2")})
        scene.spire = Confirmed(agent) if agent else None
        return scene

    def test_at_l0_the_operator_decides(self) -> None:
        result = refused(self.reborn(two_gpus()))
        assert (result.code, result.effect) == (ReasonCode.NODE_UID_CHANGED, Effect.QUARANTINE)

    def test_at_l1_a_new_spire_agent_with_the_same_hardware_repins(self) -> None:
        scene = two_gpus(spire=Confirmed("agent-1"))
        change = self.reborn(scene, "agent-2").accepted().enrollment
        assert change is not None
        assert (change.new.node_uid, change.new.spire_agent) == ("uid-2", "agent-2")

    def test_the_same_spire_agent_under_a_new_uid_is_not_reattested(self) -> None:
        scene = two_gpus(spire=Confirmed("agent-1"))
        assert refused(self.reborn(scene, "agent-1")).code is ReasonCode.NODE_UID_CHANGED

    def test_with_less_hardware_it_is_not_the_same_machine(self) -> None:
        scene = self.reborn(two_gpus(spire=Confirmed("agent-1")), "agent-2")
        assert refused(shows(scene, gpu(0))).code is ReasonCode.NODE_UID_CHANGED

    def test_a_directory_that_loses_its_uids_cannot_be_compared(self) -> None:
        scene = two_gpus()
        scene.directory = DirectorySnapshot({NODE: KnownNode()})
        assert refused(scene).code is ReasonCode.NODE_UID_CHANGED

    def test_a_uid_is_pinned_when_the_directory_gets_one(self) -> None:
        scene = Scene(ca=CA, directory=DirectorySnapshot({NODE: KnownNode()}))
        scene.remember(scene.accepted())
        scene.directory = DirectorySnapshot({NODE: KnownNode("uid-1")})
        change = scene.accepted().enrollment
        assert change is not None
        assert change.new.node_uid == "uid-1"


class TestLevels:
    """What confirms evidence ends in the class document, so it cannot be left out unseen."""

    def test_spire_raises_the_level_and_changes_the_class(self) -> None:
        plain, confirmed = Scene(ca=CA).accepted(), Scene(ca=CA, spire=Confirmed("a")).accepted()
        assert (plain.level, plain.attestor) == (Level.L0, None)
        assert (confirmed.level, confirmed.attestor) == (Level.L1, "k8s_psat")
        assert plain.attestation_hash != confirmed.attestation_hash

    def test_hardware_adds_measurements_and_keys_to_enrolled_gpus(self) -> None:
        key = "c" * 64
        scene = Scene(ca=CA, hardware=Reports({gpu_uuid(1): key}))
        result = scene.accepted()
        assert result.level is Level.L2
        assert b'"spdm":"dddd' in result.class_document
        assert key.encode() in result.identity_document
        assert result.enrollment is not None
        assert result.enrollment.new.gpus[0].identity_key == key

    def test_a_key_completes_an_older_pin_and_stays_when_it_is_not_shown(self) -> None:
        scene = two_gpus()
        scene.hardware = Reports({gpu_uuid(1): "c" * 64})
        result = scene.accepted()
        assert result.enrollment is not None
        assert [x.identity_key for x in result.enrollment.new.gpus] == ["c" * 64, None]
        scene.remember(result)
        scene.hardware = no_hardware
        assert scene.accepted().enrollment is None


class Reports:
    def __init__(self, keys: dict[str, str]) -> None:
        self._keys = keys

    def __call__(self, question: HardwareQuestion) -> Standing | Refusal:
        spdm = {x.uuid: "d" * 64 for x in question.evidence.inventory.gpus}
        return replace(question.standing, level=Level.L2, spdm=spdm, identity_keys=self._keys)


def test_policy_may_deny_by_identity_key() -> None:
    class KeyHolder(Confirmed):
        def agent(self, question: SpireQuestion) -> Standing | Refusal:
            del question
            return Standing(Level.L1, "tpm_devid", identity_keys={gpu_uuid(1): "e" * 64})

    scene = Scene(ca=CA, spire=KeyHolder("a"), policy=Policy(denied_keys=frozenset({"e" * 64})))
    assert refused(scene).code is ReasonCode.GPU_DENIED


def test_incomplete_evidence_lists_only_a_few_facts() -> None:
    reads = tuple(FailedRead("vbios", gpu_uuid(n), "V", "UNKNOWN") for n in range(1, 8))
    detail = refused(Scene(ca=CA, evidence={"failed_reads": reads})).detail
    assert detail.endswith(f"vbios of {gpu_uuid(4)} and 3 more")
    four = refused(Scene(ca=CA, evidence={"failed_reads": reads[:4]})).detail
    assert four.endswith(f"vbios of {gpu_uuid(4)}")
    assert isinstance(Scene(ca=CA).run(), Accepted)
