"""Reservations of a ledger as messages, page by page."""

from dataclasses import replace

from controller.ledger.record import GpuRecord, HolderState, Origin, PodRef
from controller.ledger.store import Entry, LedgerSnapshot
from controller.messages import ReservationQuery, reservation_page
from gpuwarden.wire.v1 import placement_pb2 as pb
from tests.builders.ledger import OTHER_POD, SHARE, holder, record

WALL_NS = 1_800_000_000 * 1_000_000_000
MADE = "2027-01-15T07:58:20Z"
"""100 s before."""


def ledger(*records: GpuRecord, made_at: str = MADE) -> LedgerSnapshot:
    return LedgerSnapshot.of(Entry(x, "1", made_at) for x in records)


def listed(here: LedgerSnapshot, **wanted: object) -> pb.ListReservationsResponse:
    return reservation_page(here, replace(ReservationQuery(), **wanted), WALL_NS)  # type: ignore[arg-type] # fields of ReservationQuery


def names(page: pb.ListReservationsResponse) -> list[str]:
    return [x.id for x in page.reservations]


def pods(count: int) -> list[GpuRecord]:
    refs = [PodRef("team-a", f"p{n}", f"uid-{n}") for n in range(count)]
    return [
        replace(record(holder(f"GPU-{n}", pod=x), gpu=f"GPU-{n}"), node=f"gpu-{n % 2}")
        for n, x in enumerate(refs)
    ]


def test_a_reservation_says_who_what_where_since_when() -> None:
    part = holder("GPU-a", "GPU-b", state=HolderState.CONFIRMED, origin=Origin.ADMISSION)
    young = replace(part, state=HolderState.PROPOSED)
    here = LedgerSnapshot.of(
        (
            Entry(record(part), "1", MADE),
            Entry(record(young, gpu="GPU-b"), "1", "2027-01-15T07:59:00Z"),
        )
    )
    (found,) = listed(here).reservations
    assert found == pb.Reservation(
        id="v1.k.uid-0",
        namespace="team-a",
        pod="train-0",
        uid="uid-0",
        node="gpu-1",
        gpus=[
            pb.ReservedGpu(uuid="GPU-a", state="Confirmed", holders=1),
            pb.ReservedGpu(uuid="GPU-b", state="Proposed", holders=1),
        ],
        state="Proposed",
        origin="admission",
        made_at=MADE,
        age_s=100,
    )


def test_pods_of_a_share_group_are_two_reservations_of_one_gpu() -> None:
    both = record(holder(), holder(pod=OTHER_POD, adopted=True), share=SHARE)
    first, second = listed(ledger(both)).reservations
    assert (first.pod, second.pod) == ("train-0", "train-1")
    assert [x.gpus[0].holders for x in (first, second)] == [2, 2]
    assert {first.share_group, second.share_group} == {"gpu-1:0"}
    assert (first.adopted, second.adopted) == (False, True)


def test_a_gpu_without_its_record_is_shown_without_a_state() -> None:
    (found,) = listed(ledger(record(holder("GPU-a", "GPU-b")))).reservations
    assert [(x.uuid, x.state) for x in found.gpus] == [("GPU-a", "Proposed"), ("GPU-b", "")]


def test_an_unborn_pod_has_no_name() -> None:
    unborn = holder(pod=PodRef("team-a", owner="o"), reservation="v1.k.n")
    (found,) = listed(ledger(record(unborn))).reservations
    assert (found.namespace, found.pod, found.uid) == ("team-a", "", "")


def test_pages_are_in_order_and_whole() -> None:
    here, after, found = ledger(*reversed(pods(7))), "", list[list[str]]()
    while True:
        page = listed(here, after=after, limit=3)
        found.append(names(page))
        after = page.next_after
        if not after:
            break
    assert [len(x) for x in found] == [3, 3, 1]
    assert [x for page in found for x in page] == sorted(f"v1.k.uid-{n}" for n in range(7))


def test_a_node_s_and_a_namespace_s_alone() -> None:
    foreign = PodRef("team-b", "x", "uid-9")
    here = ledger(*pods(4), replace(record(holder(pod=foreign)), node="gpu-9"))
    assert names(listed(here, node="gpu-1")) == ["v1.k.uid-1", "v1.k.uid-3"]
    assert len(names(listed(here, namespace="team-a"))) == 4
    assert names(listed(here, namespace="team-c")) == []
    assert listed(here, node="gpu-0", limit=1).next_after != ""
    assert listed(here, node="gpu-0", limit=2).next_after == ""


def test_a_store_without_times_says_none() -> None:
    for made_at in ("", "soon", "2027-01-15T08:00:01Z"):
        (found,) = listed(ledger(record(), made_at=made_at)).reservations
        assert (found.made_at, found.age_s) == (made_at, 0)
