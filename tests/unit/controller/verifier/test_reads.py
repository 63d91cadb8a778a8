"""What a failed read costs: a warning, one GPU, or the inventory as a whole."""

import pytest

from agent.gpu.facts import NO_VALUE
from controller.fleet.enrollment import EnrolledGpu
from controller.verifier.reads import (
    Readable,
    failed_reads_of,
    readable,
    warnings_of_readings,
)
from gpuwarden.evidence.auxiliary_facts import Dropped
from gpuwarden.evidence.model import Evidence, FailedRead, Inventory
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import WALL, Scene
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu

CA = SpiffeCa(at=WALL)
BUS_1, BUS_2, BUS_3 = (gpu(n).pci_bus_id for n in range(1, 4))
ELSEWHERE = "00000000:FF:00.0"
FIVE = {
    gpu_uuid(n + 1): EnrolledGpu(gpu_uuid(n + 1), f"16542230{n:05d}", pci_bus_id=gpu(n).pci_bus_id)
    for n in range(5)
}


def failed(fact: str, on: str | None, error: str = "UNKNOWN") -> FailedRead:
    return FailedRead(fact=fact, gpu=on, call="nvml", error=error)


def evidence(hardware: Inventory, *reads: FailedRead) -> Evidence:
    scene = Scene(ca=CA, evidence={"inventory": hardware, "failed_reads": reads})
    stream = scene.opened()
    document = scene.document(stream, scene.challenge(stream))
    assert isinstance(document, Evidence)
    return document


def read(
    hardware: Inventory, *reads: FailedRead, enrolled: dict[str, EnrolledGpu] = FIVE
) -> Readable:
    return readable(evidence(hardware, *reads), enrolled)


class TestAGpuThatShowsItsName:
    def test_is_unhealthy_with_the_first_fact_that_was_not_read(self) -> None:
        hardware = inventory(gpu(0), gpu(1))
        found = read(hardware, failed("vbios", gpu_uuid(2)), failed("ecc", gpu_uuid(2)))
        assert found.unhealthy == {gpu_uuid(2): "vbios: UNKNOWN"}
        assert (found.missing, found.undecidable) == ({}, ())

    def test_counts_as_lost_among_those_that_are(self) -> None:
        hardware = inventory(gpu(0), gpu(1), lost=(lost_gpu(2),))
        found = read(hardware, failed("vbios", gpu_uuid(2)))
        assert [x.uuid for x in found.inventory.gpus] == [gpu_uuid(1)]
        assert [(x.uuid, x.index, x.pci_bus_id, x.error) for x in found.inventory.lost] == [
            (gpu_uuid(3), 2, BUS_2, "GPU_IS_LOST"),
            (gpu_uuid(2), 1, BUS_1, "vbios: UNKNOWN"),
        ]

    def test_may_be_named_by_its_place(self) -> None:
        found = read(inventory(gpu(0), gpu(1)), failed("vbios", BUS_1))
        assert list(found.unhealthy) == [gpu_uuid(2)]

    def test_all_of_them_leave_the_inventory_open(self) -> None:
        found = read(
            inventory(gpu(0), gpu(1)), failed("vbios", gpu_uuid(1)), failed("ecc", gpu_uuid(2))
        )
        assert found.undecidable == (f"ecc of {gpu_uuid(2)}", f"vbios of {gpu_uuid(1)}")

    @pytest.mark.parametrize("fact", ["gpus", "arch", "driver", "cc", "systemUuid"])
    def test_a_fact_of_the_node_is_no_fact_of_the_gpu_it_was_read_by(self, fact: str) -> None:
        found = read(inventory(gpu(0), gpu(1)), failed(fact, gpu_uuid(2)))
        assert (found.unhealthy, found.undecidable) == ({}, (f"{fact} of {gpu_uuid(2)}",))

    def test_a_fact_without_a_gpu_is_the_nodes(self) -> None:
        found = read(inventory(gpu(0), gpu(1)), failed("vbios", None))
        assert (found.unhealthy, found.undecidable) == ({}, ("vbios",))

    def test_a_fact_that_nobody_needs_costs_nothing(self) -> None:
        asked = evidence(inventory(gpu(0)), failed("persistenceMode", gpu_uuid(1)))
        found = readable(asked, FIVE)
        assert found == Readable(asked.inventory, {}, {}, ())
        assert found.inventory is asked.inventory
        assert [*warnings_of_readings(asked, found)] == [
            f"not read: persistenceMode of {gpu_uuid(1)}"
        ]

    @pytest.mark.parametrize("shown", [None, "", "0"])
    def test_an_enrolled_serial_that_is_no_longer_reported_is_not_read(
        self, shown: str | None
    ) -> None:
        asked = evidence(inventory(gpu(0), gpu(1, serial=shown)))
        found = readable(asked, FIVE)
        why = "serial: not reported, 1654223000001 is enrolled"
        assert found.unhealthy == {gpu_uuid(2): why}
        assert [*warnings_of_readings(asked, found)] == [
            f"{gpu_uuid(2)} is not offered: not read: {why}"
        ]

    def test_a_serial_that_was_never_enrolled_is_not_missed(self) -> None:
        enrolled = {gpu_uuid(1): EnrolledGpu(gpu_uuid(1))}
        assert not read(inventory(gpu(0, serial=None)), enrolled=enrolled).unhealthy


def test_a_dropped_fact_is_told_as_an_agent_tells_it_that_dropped_it_itself() -> None:
    [read_] = failed_reads_of([Dropped("product", gpu_uuid(1), "\\x00")])
    assert (read_.fact, read_.gpu, read_.error) == ("product", gpu_uuid(1), NO_VALUE)


class TestAGpuWithoutAName:
    """Of the enrolled GPUs 0 to 4, GPU 0 answers and GPU 1 is lost."""

    SEEN = inventory(gpu(0), lost=(lost_gpu(1),))

    def which(self, *reads: FailedRead) -> list[str]:
        return [*read(self.SEEN, *reads).missing]

    @pytest.mark.parametrize("fact", ["uuid", "pciBusId"])
    def test_is_the_enrolled_one_that_the_read_names(self, fact: str) -> None:
        found = read(self.SEEN, failed(fact, gpu_uuid(4)))
        assert found.missing == {gpu_uuid(4): f"{fact}: UNKNOWN"}
        assert (found.unhealthy, found.undecidable) == ({}, ())

    def test_is_the_enrolled_one_at_its_place(self) -> None:
        assert self.which(failed("uuid", BUS_3)) == [gpu_uuid(4)]

    @pytest.mark.parametrize("place", [None, ELSEWHERE, BUS_1])
    def test_is_else_any_that_is_not_seen(self, place: str | None) -> None:
        assert self.which(failed("uuid", place)) == [gpu_uuid(3)]

    def test_each_is_another_one(self) -> None:
        assert self.which(*(failed("uuid", None, f"E{n}") for n in range(3))) == [
            gpu_uuid(3),
            gpu_uuid(4),
            gpu_uuid(5),
        ]

    def test_those_that_say_most_come_first(self) -> None:
        reads = (
            failed("uuid", None, "nothing"),
            failed("uuid", BUS_3, "place"),
            failed("uuid", gpu_uuid(3), "name"),
        )
        assert read(self.SEEN, *reads).missing == {
            gpu_uuid(3): "uuid: name",
            gpu_uuid(4): "uuid: place",
            gpu_uuid(5): "uuid: nothing",
        }

    def test_a_place_that_says_nothing_gives_way_to_one_that_does(self) -> None:
        reads = (failed("uuid", ELSEWHERE, "elsewhere"), failed("uuid", BUS_2, "place"))
        assert read(self.SEEN, *reads).missing == {
            gpu_uuid(3): "uuid: place",
            gpu_uuid(4): "uuid: elsewhere",
        }

    @pytest.mark.parametrize(
        "reads",
        [
            (failed("uuid", gpu_uuid(9)),),
            (failed("uuid", gpu_uuid(2)),),
            tuple(failed("uuid", None, f"E{n}") for n in range(4)),
        ],
        ids=["a name that is not enrolled", "one that is lost", "more than are missing"],
    )
    def test_that_can_be_none_of_them_leaves_the_inventory_open(
        self, reads: tuple[FailedRead, ...]
    ) -> None:
        found = read(self.SEEN, *reads)
        assert found.missing == {}
        assert found.undecidable == tuple({f"uuid of {x.gpu}" if x.gpu else "uuid" for x in reads})

    def test_is_told_as_a_warning(self) -> None:
        asked = evidence(self.SEEN, failed("uuid", BUS_3))
        assert [*warnings_of_readings(asked, readable(asked, FIVE))] == [
            f"{gpu_uuid(4)} is not offered: a GPU has no name: uuid: UNKNOWN"
        ]
