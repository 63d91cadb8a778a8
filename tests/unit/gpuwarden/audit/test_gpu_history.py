"""Where a GPU has been and who has had it, by the records of one or several logs."""

from collections.abc import Mapping

import msgspec
import pytest

from gpuwarden.audit.gpu_history import (
    HISTORY_KINDS,
    GpuHistory,
    Happening,
    Hold,
    Shown,
    Sought,
    Stay,
    evidence_of,
    gpu_histories,
    gpu_history,
    nodes_of,
    shown_by,
    with_serial,
)
from gpuwarden.audit.record import FORMAT, GENESIS, LogRecord, RecordKind
from gpuwarden.evidence.model import Inventory, MigDevice
from tests.builders.inventory import gpu, inventory

A, B, OTHER = "GPU-aaaa", "GPU-abbb", "GPU-cccc"
KINDS = {x.value.removeprefix("reservation."): x for x in RecordKind}


class Logs:
    """Records of replicas with times of one's own, and the evidence that was archived."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.archive: dict[str, Inventory] = {}

    def note(
        self,
        at: int,
        kind: RecordKind,
        subject: str,
        decision: str,
        refs: Mapping[str, object],
        *,
        origin: str = "lab/a",
    ) -> None:
        self.records.append(
            LogRecord(
                v=FORMAT,
                seq=len(self.records) + 1,
                ts=when(at),
                boot="boot",
                origin=origin,
                instance="me",
                kind=kind.value,
                actor="x",
                subject=subject,
                decision=decision,
                codes=(),
                refs=dict(refs),
                prev=GENESIS,
            )
        )

    def accept(
        self,
        at: int,
        node: str,
        *uuids: str,
        shown: Inventory | None = None,
        lost: tuple[str, ...] = (),
        origin: str = "lab/a",
    ) -> str:
        digest = f"{at:064x}"
        if shown is not None:
            self.archive[digest] = shown
        refs = {"gpus": list(uuids), "lost": list(lost), "evidence": digest}
        self.note(at, RecordKind.EVIDENCE_ACCEPTED, f"node/{node}", "accepted", refs, origin=origin)
        return digest

    def reserve(
        self,
        at: int,
        what: str,
        pod: str,
        *uuids: str,
        uid: str | None = "uid-1",
        reservation: str = "r1",
        origin: str = "lab/a",
    ) -> None:
        refs = {"uid": uid, "node": "n1", "reservation": reservation, "gpus": list(uuids)}
        self.note(at, KINDS[what], f"pod/team-a/{pod}", what, refs, origin=origin)

    def shown_of(self, digest: str) -> Shown | None:
        return shown_by(self.archive.get(digest))

    def of(self, wanted: str) -> tuple[GpuHistory, ...]:
        return gpu_histories(self.records, wanted, self.shown_of)

    def one(self, wanted: str = A) -> GpuHistory:
        (found,) = self.of(wanted)
        return found


def when(at: int) -> str:
    return f"2026-11-29T00:00:{at:02d}.000Z"


def places(history: GpuHistory) -> list[tuple[str, str, str | None]]:
    return [(x.node, x.since, x.until) for x in history.stays]


@pytest.fixture
def logs() -> Logs:
    return Logs()


def test_a_gpu_that_moves_has_one_stay_on_each_node(logs: Logs) -> None:
    first = logs.accept(1, "n1", A, OTHER)
    logs.accept(2, "n1", A)
    logs.accept(3, "n2", A)
    assert places(logs.one()) == [("n1", when(1), when(3)), ("n2", when(3), None)]
    assert logs.one().stays[0] == Stay(
        "n1", when(1), when(3), None, None, None, None, first, "lab/a", 1
    )
    assert places(logs.one(OTHER)) == [("n1", when(1), when(2))]


def test_another_node_s_evidence_ends_no_stay(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    logs.accept(2, "n2", OTHER)
    assert places(logs.one()) == [("n1", when(1), None)]


def test_a_gpu_that_comes_back_has_a_second_stay(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    logs.accept(2, "n1", OTHER)
    logs.accept(3, "n1", A)
    assert places(logs.one()) == [("n1", when(1), when(2)), ("n1", when(3), None)]


def test_serial_slot_and_machine_come_from_the_archived_evidence(logs: Logs) -> None:
    card = gpu(uuid=A, serial="165", index=1, pci_bus_id="00000000:0A:00.0", product="H100")
    shown = inventory(card)
    host = msgspec.structs.replace(shown.host, system_uuid="vm-1")
    logs.accept(1, "n1", A, shown=msgspec.structs.replace(shown, host=host))
    history = logs.one("165")
    assert (history.uuid, history.serial, history.product) == (A, "165", "H100")
    (stay,) = history.stays
    assert (stay.machine, stay.index, stay.pci_bus_id) == ("vm-1", 1, "00000000:0A:00.0")
    assert logs.of("16") == ()


def test_another_slot_of_the_same_node_is_another_stay(logs: Logs) -> None:
    for at, index in ((1, 0), (2, 0), (3, 1)):
        logs.accept(at, "n1", A, shown=inventory(gpu(uuid=A, index=index)))
    found = [(x.index, x.since, x.until) for x in logs.one().stays]
    assert found == [(0, when(1), when(3)), (1, when(3), None)]


@pytest.mark.parametrize("known", [1, 2])
def test_evidence_that_is_not_kept_splits_no_stay_and_takes_no_slot_away(
    logs: Logs, known: int
) -> None:
    for at in (1, 2):
        shown = inventory(gpu(uuid=A, index=3, pci_bus_id="bus")) if at == known else None
        logs.accept(at, "n1", A, shown=shown)
    (stay,) = logs.one().stays
    assert (stay.index, stay.pci_bus_id, stay.since) == (3, "bus", when(1))


def test_a_long_list_of_gpus_is_read_from_the_evidence(logs: Logs) -> None:
    digest = "f" * 64
    logs.archive[digest] = inventory(gpu(uuid=A, serial="165"))
    refs = {"gpus": {"count": 99, "digest": "d", "first": [OTHER]}, "evidence": digest}
    logs.note(1, RecordKind.EVIDENCE_ACCEPTED, "node/n1", "accepted", refs)
    assert places(logs.one("165")) == [("n1", when(1), None)]


def test_a_long_list_whose_evidence_is_not_kept_says_what_its_beginning_says(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    short = {"count": 99, "digest": "d", "first": [OTHER]}
    logs.note(2, RecordKind.EVIDENCE_ACCEPTED, "node/n1", "accepted", {"gpus": short})
    logs.note(3, RecordKind.EVIDENCE_ACCEPTED, "node/n1", "accepted", {"digest": "d"})
    assert places(logs.one()) == [("n1", when(1), None)]
    assert places(logs.one(OTHER)) == [("n1", when(2), None)]


def test_a_reservation_of_many_gpus_is_a_hold_of_those_that_its_record_names(logs: Logs) -> None:
    refs = {"gpus": {"count": 99, "first": [A]}, "reservation": "r1", "node": "n1", "uid": "u"}
    logs.note(1, RecordKind.RESERVATION_RESERVED, "pod/team-a/train-0", "reserved", refs)
    logs.note(
        2, RecordKind.RESERVATION_RESERVED, "pod/team-a/x", "reserved", {"gpus": {"count": 9}}
    )
    assert [x.pod for x in logs.one().holds] == ["train-0"]


def test_a_lost_gpu_stays_and_its_loss_has_a_time_until_it_answers(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    logs.accept(2, "n1", lost=(A,))
    logs.accept(3, "n1", lost=(A,))
    assert [(x.until, x.lost) for x in logs.one().stays] == [(None, when(2))]
    logs.accept(4, "n1", A)
    assert [(x.until, x.lost) for x in logs.one().stays] == [(None, None)]


def test_the_beginning_of_a_uuid_means_all_that_begin_so(logs: Logs) -> None:
    logs.accept(1, "n1", B, A, OTHER)
    assert [x.uuid for x in logs.of("GPU-a")] == [A, B]
    assert logs.of("GPU-x") == ()
    assert logs.of("") == ()


def test_evidence_of_gpus_whose_serials_are_known_is_not_read_again(logs: Logs) -> None:
    unread = inventory(gpu(uuid=A, serial=None), gpu(uuid=B, serial="166"))
    whole = inventory(gpu(uuid=A, serial="165"), gpu(uuid=B, serial="166"))
    for at, shown in ((1, unread), (2, whole), (3, whole)):
        logs.accept(at, "n1", A, B, shown=shown)
    logs.accept(4, "n2", B)
    looked: list[str] = []

    def shown_of(digest: str) -> Shown | None:
        looked.append(digest)
        return logs.shown_of(digest)

    assert with_serial(logs.records, "165", shown_of) == {A}
    assert looked == [f"{1:064x}", f"{2:064x}"]


def test_a_serial_of_two_gpus_means_both(logs: Logs) -> None:
    logs.accept(
        1, "n1", A, B, shown=inventory(gpu(uuid=A, serial="165"), gpu(uuid=B, serial="165"))
    )
    assert [x.uuid for x in logs.of("165")] == [A, B]


def test_a_reservation_is_one_hold_from_its_first_record_to_its_end(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    for at, what in ((2, "reserved"), (3, "confirmed"), (4, "releasing")):
        logs.reserve(at, what, "train-0", A, OTHER)
    held = Hold("team-a", "train-0", "uid-1", A, "n1", "r1", when(2), None, "releasing", "lab/a", 2)
    assert logs.one().holds == (held,)
    logs.reserve(5, "released", "train-0", A)
    (hold,) = logs.one().holds
    assert (hold.since, hold.until, hold.state) == (when(2), when(5), "released")


@pytest.mark.parametrize("end", ["released", "expired", "revoked", "ended"])
def test_each_end_ends_a_hold_once(logs: Logs, end: str) -> None:
    logs.reserve(1, "reserved", "train-0", A)
    logs.reserve(2, end, "train-0", A)
    logs.reserve(3, "ended", "train-0", A, origin="lab/b")
    logs.reserve(4, "confirmed", "train-0", A, origin="lab/b")
    (hold,) = logs.one().holds
    assert (hold.until, hold.state) == (when(2), end)


def test_a_restored_reservation_goes_on(logs: Logs) -> None:
    logs.reserve(1, "reserved", "train-0", A)
    logs.reserve(2, "released", "train-0", A)
    logs.reserve(3, "restored", "train-0", A)
    assert [(x.until, x.state) for x in logs.one().holds] == [(None, "restored")]


def test_what_an_earlier_version_has_recorded_belongs_to_it(logs: Logs) -> None:
    def renamed(kind: str) -> None:
        logs.records[-1] = msgspec.structs.replace(logs.records[-1], kind=kind)

    logs.reserve(1, "allocated", "train-0", A)
    renamed("reservation.settled")
    logs.reserve(2, "released", "train-0", A)
    logs.reserve(3, "restored", "train-0", A)
    renamed("reservation.adopted")
    (hold,) = logs.one().holds
    assert (hold.since, hold.until, hold.state) == (when(1), None, "adopted")
    refs = {"uid": "u9", "node": "n1", "gpus": [A]}
    logs.note(4, RecordKind.RESERVATION_UNRESERVED, "pod/team-b/thief", "off_book", refs)
    renamed("reservation.offbook")
    logs.note(5, RecordKind.RESERVATION_UNRESERVED, "pod/team-b/thief", "off_book", refs)
    renamed("reservation.painted")
    assert [x.kind for x in logs.one().happenings] == ["reservation.offbook"]


def test_an_end_whose_beginning_is_not_kept_is_a_hold_of_that_moment(logs: Logs) -> None:
    logs.reserve(7, "released", "train-0", A)
    assert [(x.since, x.until) for x in logs.one().holds] == [(when(7), when(7))]


def test_a_pod_that_is_born_later_gets_its_name(logs: Logs) -> None:
    logs.reserve(1, "reserved", "-", A, uid=None)
    assert [(x.pod, x.uid) for x in logs.one().holds] == [("", "")]
    logs.reserve(2, "confirmed", "train-0", A)
    assert [(x.pod, x.uid) for x in logs.one().holds] == [("train-0", "uid-1")]


def test_holds_of_mig_devices_belong_to_their_gpu(logs: Logs) -> None:
    part = MigDevice(uuid="MIG-1", profile="1g.10gb", memory_mib=9728)
    logs.accept(1, "n1", A, shown=inventory(gpu(uuid=A, mig=True, mig_devices=(part,))))
    logs.reserve(2, "allocated", "small", "MIG-1")
    logs.reserve(3, "allocated", "else", "MIG-2", reservation="r2")
    assert [(x.pod, x.gpu) for x in logs.one().holds] == [("small", "MIG-1")]


def test_whose_a_mig_device_is_may_be_known_later_or_from_elsewhere(logs: Logs) -> None:
    logs.reserve(1, "allocated", "small", "MIG-1")
    logs.reserve(2, "allocated", "other", "MIG-2", reservation="r2")
    logs.note(3, RecordKind.NODE_STATE, "node/n1", "gpu-unhealthy", {"gpu": "MIG-1"})
    known = gpu_history(logs.records, A, logs.shown_of, mig_devices=("MIG-2",))
    assert [x.pod for x in known.holds] == ["other"]
    part = MigDevice(uuid="MIG-1", profile="1g.10gb", memory_mib=9728)
    logs.accept(4, "n1", A, shown=inventory(gpu(uuid=A, mig=True, mig_devices=(part,))))
    assert [x.pod for x in logs.one().holds] == ["small"]
    assert [x.at for x in logs.one().happenings] == [when(3)]
    assert logs.one().records_since == when(1)


def test_logs_of_replicas_are_merged_by_time_and_a_record_counts_once(logs: Logs) -> None:
    logs.accept(3, "n2", A, origin="lab/b")
    logs.accept(1, "n1", A)
    logs.accept(2, "n1", A, origin="lab/b")
    logs.reserve(4, "confirmed", "train-0", A, origin="lab/b")
    logs.reserve(2, "reserved", "train-0", A)
    logs.records += logs.records
    assert places(logs.one()) == [("n1", when(1), when(3)), ("n2", when(3), None)]
    assert [(x.since, x.state) for x in logs.one().holds] == [(when(2), "confirmed")]


def test_faults_and_unreserved_use_are_told(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    refs = {"uid": "u9", "node": "n1", "gpus": [A]}
    logs.note(2, RecordKind.RESERVATION_UNRESERVED, "pod/team-b/thief", "unreserved_use", refs)
    logs.note(3, RecordKind.NODE_STATE, "node/n1", "gpu-unhealthy", {"gpu": A, "detail": "xid 79"})
    logs.note(
        4,
        RecordKind.NODE_STATE,
        "node/n1",
        "gpu-unhealthy",
        {"count": 3, "last": {"gpu": A, "kind": "xid"}},
    )
    logs.note(5, RecordKind.NODE_STATE, "node/n1", "gpu-unhealthy", {"gpu": OTHER})
    logs.note(6, RecordKind.NODE_STATE, "node/n1", "stale", {"gpu": None})
    assert logs.one().happenings == (
        Happening(
            when(2), "reservation.unreserved", "unreserved_use", "pod/team-b/thief", "n1", "u9"
        ),
        Happening(when(3), "node.state", "gpu-unhealthy", "node/n1", "n1", "xid 79"),
        Happening(when(4), "node.state", "gpu-unhealthy", "node/n1", "n1", "xid"),
    )


def test_every_kind_of_record_that_counts_begins_with_one_that_is_read(logs: Logs) -> None:
    logs.accept(1, "n1", A)
    logs.reserve(2, "reserved", "train-0", A)
    logs.note(3, RecordKind.NODE_STATE, "node/n1", "gpu-unhealthy", {"gpu": A})
    assert {x.kind for x in logs.records if x.kind.startswith(HISTORY_KINDS)} == {
        "evidence.accepted",
        "node.state",
        "reservation.reserved",
    }


# --- which records a history needs


def chosen(logs: Logs, *gpus: str, nodes: tuple[str, ...] = ()) -> list[int]:
    sought = Sought(gpus, frozenset(nodes))
    return [
        x.seq for x in logs.records if sought.named_by(x, logs.shown_of) or sought.has_node_of(x)
    ]


def test_which_records_name_a_gpu(logs: Logs) -> None:
    logs.accept(1, "n1", A, OTHER)
    logs.accept(2, "n1", OTHER)
    logs.accept(3, "n2", OTHER, lost=(A,))
    logs.reserve(4, "reserved", "train-0", A)
    logs.reserve(5, "released", "train-0", OTHER)
    logs.note(6, RecordKind.NODE_STATE, "node/n1", "gpu-unhealthy", {"gpu": A})
    logs.note(7, RecordKind.NODE_STATE, "node/n1", "stale", {})
    logs.note(8, RecordKind.RESERVATION_UNRESERVED, "pod/x/y", "used", {"gpus": [A]})
    logs.reserve(9, "confirmed", "small", "MIG-1")
    assert chosen(logs, A) == [1, 3, 4, 6, 8]
    assert chosen(logs, "GPU-") == [1, 2, 3, 4, 5, 6, 8]
    assert chosen(logs, A, "MIG-1") == [1, 3, 4, 6, 8, 9]
    assert chosen(logs, A, nodes=("n1", "n3")) == [1, 2, 3, 4, 6, 8]
    assert Sought((A, OTHER)).named_by(logs.records[0], logs.shown_of) == {A, OTHER}
    assert nodes_of(logs.records[:1]) == {"n1"}
    assert nodes_of(logs.records) == {"n1", "n2"}
    assert [evidence_of(x) for x in logs.records[2:4]] == [f"{3:064x}", ""]


def test_a_list_that_was_too_long_is_read_in_the_evidence(logs: Logs) -> None:
    digest = f"{1:064x}"
    refs = {"gpus": {"first": [OTHER], "count": 2}, "lost": [], "evidence": digest}
    logs.note(1, RecordKind.EVIDENCE_ACCEPTED, "node/n1", "accepted", refs)
    assert chosen(logs, A) == []
    logs.archive[digest] = inventory(gpu(uuid=A), gpu(1, uuid=OTHER))
    assert chosen(logs, A) == [1]
    assert chosen(logs, OTHER) == [1]


def test_the_chosen_records_of_all_logs_have_the_whole_history(logs: Logs) -> None:
    """As replicas are asked: by UUID, then also by what the others have of nodes and MIG."""
    part = MigDevice(uuid="MIG-1", profile="1g.10gb", memory_mib=9728)
    logs.accept(
        1, "n1", A, OTHER, shown=inventory(gpu(uuid=A, mig_devices=(part,))), origin="lab/b"
    )
    logs.reserve(2, "reserved", "small", "MIG-1", origin="lab/c")
    logs.reserve(3, "reserved", "not-ours", "MIG-2", reservation="r2", origin="lab/c")
    logs.accept(4, "n1", OTHER, origin="lab/c")
    logs.accept(5, "n3", OTHER, origin="lab/c")
    first = {x.seq for x in logs.records if Sought((A,)).named_by(x, logs.shown_of)}
    assert first == {1}
    nodes = nodes_of(x for x in logs.records if x.seq in first)
    again = Sought((A, "MIG-1"), nodes)
    some = [x for x in logs.records if again.named_by(x, logs.shown_of) or again.has_node_of(x)]
    assert [x.seq for x in some] == [1, 2, 4]
    assert gpu_histories(some, A, logs.shown_of) == logs.of(A)
    assert places(logs.one()) == [("n1", when(1), when(4))]
    assert [x.pod for x in logs.one().holds] == ["small"]
