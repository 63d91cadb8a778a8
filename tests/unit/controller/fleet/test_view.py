from dataclasses import replace

from controller.fleet.attestation_result import Accepted
from controller.fleet.view import Acceptance, acceptance_of
from gpuwarden.evidence.model import Fabric, GpuProcess
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import BOOT, INSTANCE, WALL, Scene
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu

CA = SpiffeCa(at=WALL)


def scene_of(*gpus: object, lost: tuple[object, ...] = ()) -> Scene:
    return Scene(ca=CA, evidence={"inventory": inventory(*gpus, lost=lost)})  # type: ignore[arg-type] # passed on


def read(accepted: Accepted, before: Acceptance | None = None) -> Acceptance:
    return acceptance_of(accepted, before, accepted_wall_ns=7)


def test_facts_are_carried_over() -> None:
    fabric = Fabric("nvswitch", None, None)
    accepted = scene_of(gpu(0, fabric=fabric, serial="N/A")).accepted()
    acceptance = read(accepted)
    view = acceptance.gpus[0]
    assert (view.uuid, view.product, view.memory_mib) == (gpu_uuid(1), gpu().product, 81559)
    assert (view.serial, view.fabric_kind, view.lost) == (None, "nvswitch", None)
    assert (acceptance.instance_id, acceptance.boot_id) == (INSTANCE, BOOT)
    assert acceptance.agent_version == "0.1.0"
    assert acceptance.accepted_wall_ns == 7
    assert acceptance.fresh_until_ns == accepted.fresh_until_ns


def test_unknown_memory_is_no_memory() -> None:
    acceptance = read(scene_of(gpu(0, memory_bytes=None), gpu(1, memory_bytes="0")).accepted())
    assert [x.memory_mib for x in acceptance.gpus] == [None, None]


def test_gpus_stand_in_bus_order_whatever_the_agent_says() -> None:
    cards = (gpu(0, index=1), gpu(1, index=0, pci_bus_id="00000000:0A:00.0"))
    acceptance = read(scene_of(*cards).accepted())
    assert [(x.index, x.uuid) for x in acceptance.gpus] == [(0, gpu_uuid(2)), (1, gpu_uuid(1))]


def test_a_lost_gpu_keeps_place_and_facts() -> None:
    scene = scene_of(gpu(0), gpu(1), gpu(2))
    first = scene.accepted()
    scene.remember(first)
    scene.evidence = {"inventory": inventory(gpu(0), gpu(2, index=1))}
    after = read(scene.accepted(), read(first))
    assert [x.uuid for x in after.gpus] == [gpu_uuid(1), gpu_uuid(2), gpu_uuid(3)]
    assert [x.index for x in after.gpus] == [0, 1, 2]
    assert after.gpus[1].product == gpu().product
    assert after.gpus[1].lost is not None
    assert after.gpus[0].lost is None


def test_a_lost_gpu_that_was_never_read_has_no_facts() -> None:
    acceptance = read(scene_of(gpu(0), lost=(lost_gpu(1),)).accepted())
    assert [(x.uuid, x.product) for x in acceptance.gpus] == [
        (gpu_uuid(1), gpu().product),
        (gpu_uuid(2), None),
    ]


def test_a_lost_gpu_that_nobody_can_place_comes_last() -> None:
    scene = scene_of(gpu(0), gpu(1))
    first = scene.accepted()
    scene.remember(first)
    record = scene.enrollment.records["gpu-1"]
    enrolled_gpus = (replace(record.gpus[0], pci_bus_id=None), record.gpus[1])
    scene.enrollment = scene.enrollment.with_record(replace(record, gpus=enrolled_gpus))
    scene.evidence = {"inventory": inventory(gpu(1, index=0))}
    after = scene.accepted()
    assert [x.uuid for x in read(after).gpus] == [gpu_uuid(2), gpu_uuid(1)]
    assert [x.uuid for x in read(after, read(first)).gpus] == [gpu_uuid(1), gpu_uuid(2)]


def test_a_loss_ends_earlier_bad_news_about_the_gpu() -> None:
    scene = scene_of(gpu(0), gpu(1))
    first = scene.accepted()
    scene.remember(first)
    before = read(first)
    sick = replace(before, gpus=(replace(before.gpus[0], unhealthy="xid 79"), before.gpus[1]))
    scene.evidence = {"inventory": inventory(gpu(1), lost=(lost_gpu(0),))}
    lost = read(scene.accepted(), sick).gpus[0]
    assert (lost.unhealthy, lost.lost) == (None, lost_gpu(0))


def test_processes_are_counted_per_gpu() -> None:
    scene = scene_of(gpu(0), gpu(1))
    scene.evidence["processes"] = tuple(
        GpuProcess(gpu_uuid(n), pid, None) for n, pid in ((1, 10), (1, 11), (2, 12))
    )
    assert read(scene.accepted()).processes_by_gpu == {gpu_uuid(1): 2, gpu_uuid(2): 1}
