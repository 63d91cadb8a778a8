"""Which reservations are idle and since when, and how much GPU time that costs a namespace."""

from dataclasses import replace

import pytest

from controller.binding.idle import (
    IDLE_AFTER_NS,
    MAX_GAP_NS,
    MAX_NAMESPACES,
    OTHERS,
    Account,
    Holding,
    IdleChanges,
    IdleGpu,
    IdleWatch,
    Remembered,
    account_record,
    holdings_of,
    idle_by_namespace,
    idle_record,
    remembered,
    used_by_holders,
)
from controller.fleet.view import Acceptance
from controller.ledger.record import HolderState, Origin, PodRef, ShareGroup
from controller.ledger.release import UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from controller.record import Record
from gpuwarden.audit.record import RecordKind
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, record
from tests.builders.logged import logged

NODE = "gpu-1"
S = 1_000_000_000
WALL = 1_000_000 * S
STEP = 60 * S
Users = dict[str, set[str | None]]
KEY = ("gpu-a", "v1.k.uid-0")
STATIC = {"static-0": "uid-0"}
"""What the node calls a static pod, and what the API does."""


def held(
    *parts: str, pod: PodRef = POD, state: HolderState = HolderState.CONFIRMED
) -> LedgerSnapshot:
    return LedgerSnapshot.of(
        Entry(record(holder(x, pod=pod, state=state), gpu=x), "1") for x in parts
    )


def shown(at_ns: int = 0, *, mig: bool = False) -> Acceptance:
    slices = (mig_slice("MIG-1"), mig_slice("MIG-2")) if mig else ()
    cards = [gpu(0, "GPU-a", mig=mig, mig_devices=slices), gpu(1, "GPU-b")]
    made = acceptance(hash_of("a"), cards, issued_ns=at_ns)
    return replace(made, accepted_wall_ns=WALL + at_ns)


def report(at_ns: int = 0, users: Users | None = None) -> UseReport:
    found = None if users is None else {x: frozenset(y) for x, y in users.items()}
    return UseReport("boot", at_ns, found, frozenset())


class Watched:
    """A node that reports every minute."""

    def __init__(self, watch: IdleWatch | None = None) -> None:
        self.watch = watch or IdleWatch()
        self.at_ns = 0

    def reports(
        self,
        ledger: LedgerSnapshot,
        users: Users | None = None,
        *,
        after_ns: int = STEP,
        unread: bool = False,
    ) -> IdleChanges:
        self.at_ns += after_ns
        seen = report(self.at_ns, None if unread else users or {})
        return self.watch.reported(NODE, shown(self.at_ns), seen, ledger, STATIC.get)

    def until_told(self, ledger: LedgerSnapshot) -> IdleGpu:
        for _ in range(IDLE_AFTER_NS // STEP):
            assert self.reports(ledger) == IdleChanges()
        (begun,) = self.reports(ledger).begun
        return begun

    @property
    def account(self) -> Account:
        return self.watch.accounts()["team-a"]


# --- what is held, and what of it is used


def test_bound_pods_hold_what_the_node_shows() -> None:
    found = list(holdings_of(shown(mig=True), NODE, held("GPU-b", "MIG-2", "GPU-x")))
    assert found == [
        Holding("MIG-2", NODE, POD, "v1.k.uid-0"),
        Holding("GPU-b", NODE, POD, "v1.k.uid-0"),
    ]


@pytest.mark.parametrize("state", [HolderState.PROPOSED, HolderState.RELEASING])
def test_a_pod_that_is_not_bound_or_has_ended_lets_nothing_idle(state: HolderState) -> None:
    assert list(holdings_of(shown(), NODE, held("GPU-a", state=state))) == []


def test_a_record_of_another_node_does_not_count() -> None:
    assert list(holdings_of(shown(), "gpu-2", held("GPU-a"))) == []


def together(*pods: PodRef, share: ShareGroup | None = None) -> LedgerSnapshot:
    """A GPU that these pods hold: as a share group, else in slices of time."""
    origin = Origin.KUBELET if share is None else Origin.BINDING_WEBHOOK
    parts = [holder(pod=x, state=HolderState.CONFIRMED, origin=origin) for x in pods]
    return LedgerSnapshot.of([Entry(record(*parts, share=share), "1")])


TEAM_B = PodRef("team-b", "nb-0", "uid-b")


def test_each_pod_holds_a_gpu_that_several_pods_share() -> None:
    found = list(holdings_of(shown(), NODE, together(POD, OTHER_POD)))
    assert [x.pod for x in found] == [POD, OTHER_POD]


@pytest.mark.parametrize(
    ("share", "used"),
    [(None, {"v1.k.uid-1"}), (SHARE, {"v1.k.uid-0", "v1.k.uid-1"})],
    ids=["slices of time", "share group"],
)
def test_a_pod_uses_what_its_share_group_uses(share: ShareGroup | None, used: set[str]) -> None:
    ledger = together(POD, OTHER_POD, share=share)
    found = used_by_holders(shown(), report(users={"GPU-a": {"uid-1", "uid-9"}}), ledger)
    assert found == frozenset(("gpu-a", x) for x in used)
    assert used_by_holders(shown(), report(users={"GPU-a": {"uid-9"}}), ledger) == frozenset()


@pytest.mark.parametrize(
    ("users", "used"),
    [
        ({}, False),
        ({"GPU-a": {"uid-0"}}, True),
        ({"GPU-a": {"uid-9", None}}, False),
        ({"GPU-b": {"uid-0"}}, False),
        ({"GPU-a": {"static-0"}}, True),
    ],
)
def test_only_processes_of_the_holder_are_use(users: Users, used: bool) -> None:
    """A static pod has another UID on its node than in the API."""
    found = used_by_holders(shown(), report(users=users), held("GPU-a"), STATIC.get)
    assert found == (frozenset({KEY}) if used else frozenset())


def test_a_process_on_the_whole_gpu_is_use_of_the_holder_s_mig_device() -> None:
    ledger = held("MIG-1")
    used = used_by_holders(shown(mig=True), report(users={"GPU-a": {"uid-0"}}), ledger)
    assert used == frozenset({("mig-1", "v1.k.uid-0")})


def test_a_process_of_no_pod_is_no_use_of_a_holder_that_is_unborn() -> None:
    unborn = PodRef("team-a", None, None)
    used = used_by_holders(shown(), report(users={"GPU-a": {None}}), held("GPU-a", pod=unborn))
    assert used == frozenset()


def test_processes_that_could_not_be_read_say_nothing() -> None:
    assert used_by_holders(shown(), report(), held("GPU-a")) is None


# --- over time


def test_a_gpu_is_told_after_a_quarter_of_an_hour_with_the_time_of_the_first_report() -> None:
    watched = Watched()
    begun = watched.until_told(held("GPU-a"))
    assert begun == IdleGpu(Holding("GPU-a", NODE, POD, "v1.k.uid-0"), WALL + STEP)
    assert watched.watch.standing() == (begun,)
    assert idle_by_namespace(watched.watch.standing()) == {"team-a": 1}
    assert watched.reports(held("GPU-a")) == IdleChanges()


@pytest.mark.parametrize("used", [True, False])
def test_use_or_the_reservation_s_end_ends_it(used: bool) -> None:
    watched = Watched()
    begun = watched.until_told(held("GPU-a"))
    ledger = held("GPU-a") if used else LedgerSnapshot()
    assert watched.reports(ledger, {"GPU-a": {"uid-0"}}) == IdleChanges(ended=(begun,))
    assert watched.watch.standing() == ()


def test_use_in_between_begins_the_time_again() -> None:
    watched = Watched()
    for _ in range(10):
        watched.reports(held("GPU-a"))
    watched.reports(held("GPU-a"), {"GPU-a": {"uid-0"}})
    begun = watched.until_told(held("GPU-a"))
    assert begun.since_wall_ns == WALL + 12 * STEP


def test_another_reservation_begins_the_time_again() -> None:
    watched = Watched()
    watched.reports(held("GPU-a"))
    begun = watched.until_told(held("GPU-a", pod=OTHER_POD))
    assert begun.since_wall_ns == WALL + 2 * STEP


def test_time_counts_between_reports() -> None:
    watched = Watched()
    rounds: tuple[Users, ...] = ({}, {"GPU-a": {"uid-0"}}, {}, {})
    for users in rounds:
        watched.reports(held("GPU-a"), users)
    assert watched.account == Account(reserved_ns=3 * STEP, idle_ns=STEP)


def test_every_gpu_counts() -> None:
    watched = Watched()
    for _ in range(2):
        watched.reports(held("GPU-a", "GPU-b"))
    assert watched.account == Account(2 * STEP, 2 * STEP)


def test_the_time_of_a_gpu_in_slices_is_divided_between_its_pods() -> None:
    """Each has its part, whoever uses it, and the part of a pod without a process is idle."""
    watched, ledger = Watched(), together(POD, OTHER_POD, TEAM_B)
    for _ in range(4):
        watched.reports(ledger, {"GPU-a": {"uid-0"}})
    assert watched.watch.accounts() == {
        "team-a": Account(2 * STEP, STEP),
        "team-b": Account(STEP, STEP),
    }


def test_every_pod_of_an_idle_gpu_in_slices_is_told() -> None:
    watched, ledger = Watched(), together(POD, TEAM_B)
    for _ in range(IDLE_AFTER_NS // STEP):
        watched.reports(ledger)
    begun = watched.reports(ledger).begun
    assert [x.holding.pod for x in begun] == [POD, TEAM_B]
    assert idle_by_namespace(watched.watch.standing()) == {"team-a": 1, "team-b": 1}
    (ended,) = watched.reports(ledger, {"GPU-a": {"uid-b"}}).ended
    assert ended.holding.pod == TEAM_B


def test_a_static_pod_whose_process_runs_is_not_idle() -> None:
    watched = Watched()
    for _ in range(20):
        watched.reports(held("GPU-a"), {"GPU-a": {"static-0"}})
    assert watched.watch.standing() == ()
    assert watched.account == Account(19 * STEP, 0)


@pytest.mark.parametrize(("gap_ns", "counted"), [(MAX_GAP_NS, True), (MAX_GAP_NS + 1, False)])
def test_a_silence_counts_as_nothing_and_ends_what_was_told(gap_ns: int, counted: bool) -> None:
    watched = Watched()
    begun = watched.until_told(held("GPU-a"))
    before = watched.account
    changes = watched.reports(held("GPU-a"), after_ns=gap_ns)
    more = Account(gap_ns, gap_ns) if counted else Account()
    assert watched.account == before.plus(more)
    assert changes == (IdleChanges() if counted else IdleChanges(ended=(begun,)))


def test_reports_without_processes_change_nothing() -> None:
    watched = Watched()
    begun = watched.until_told(held("GPU-a"))
    assert watched.reports(held("GPU-a"), unread=True) == IdleChanges()
    assert watched.watch.standing() == (begun,)


def test_a_node_that_is_gone_ends_what_was_told() -> None:
    watched = Watched()
    begun = watched.until_told(held("GPU-a"))
    assert watched.watch.forget(NODE) == IdleChanges(ended=(begun,))
    assert watched.watch.forget(NODE) == IdleChanges()


def test_the_longest_idle_comes_first() -> None:
    watched = Watched()
    watched.reports(held("GPU-b"))
    for _ in range(20):
        watched.reports(held("GPU-a", "GPU-b"))
    assert [x.holding.gpu for x in watched.watch.standing()] == ["GPU-b", "GPU-a"]


def test_what_was_taken_for_the_log_is_not_taken_again() -> None:
    watched = Watched()
    for _ in range(3):
        watched.reports(held("GPU-a"))
    assert watched.watch.take_accounts() == {"team-a": Account(2 * STEP, 2 * STEP)}
    assert watched.watch.take_accounts() == {}
    assert watched.account == Account(2 * STEP, 2 * STEP)


def test_namespaces_without_number_share_one_account() -> None:
    watch = IdleWatch()
    watch.remember(Remembered({f"n{x}": Account(1, 1) for x in range(MAX_NAMESPACES)}))
    watched = Watched(watch)
    for _ in range(2):
        watched.reports(held("GPU-a"))
    assert watch.accounts()[OTHERS] == Account(STEP, STEP)
    assert len(watch.accounts()) == MAX_NAMESPACES + 1


# --- across restarts


def test_what_was_told_before_a_restart_stands_at_once_with_its_time() -> None:
    watch = IdleWatch()
    watch.remember(Remembered({"team-a": Account(9, 5)}, {KEY: 7}, "2026-01-01T00:00:00.000Z"))
    watched = Watched(watch)
    changes = watched.reports(held("GPU-a"))
    assert changes == IdleChanges(resumed=watch.standing())
    assert changes
    assert [x.since_wall_ns for x in watch.standing()] == [7]
    assert watched.account == Account(9, 5)
    assert watch.accounted_since == "2026-01-01T00:00:00.000Z"
    watched.reports(held("GPU-a"))
    assert watched.account == Account(9 + STEP, 5 + STEP)


def test_what_was_told_before_a_restart_and_is_used_now_has_ended() -> None:
    watch = IdleWatch()
    watch.remember(Remembered({}, {KEY: 7}))
    watched = Watched(watch)
    changes = watched.reports(held("GPU-a"), {"GPU-a": {"uid-0"}})
    (ended,) = changes.ended
    assert (ended.holding.gpu, ended.since_wall_ns, changes.resumed) == ("GPU-a", 7, ())
    assert watched.reports(held("GPU-a")) == IdleChanges()


def test_the_log_gives_back_what_was_written() -> None:
    idle = IdleGpu(Holding("GPU-a", NODE, POD, "v1.k.uid-0"), 3_000_000)
    other = IdleGpu(Holding("GPU-b", NODE, POD, "v1.k.uid-0"), 4_000_000)
    records = logged(
        account_record("team-a", Account(5_000_000, 2_000_000)),
        idle_record(idle, ended=False),
        idle_record(other, ended=False),
        idle_record(other, ended=True),
        account_record("team-a", Account(1_000_000, 1_000_000)),
        Record(RecordKind.NODE_STATE, "x", "node/a", "idle", refs={"gpus": ["GPU-x"]}),
    )
    found = remembered(records)
    assert found.accounts == {"team-a": Account(6_000_000, 3_000_000)}
    assert found.idle == {KEY: 3_000_000}
    assert found.since == records[0].ts


@pytest.mark.parametrize("text", [7, "-1", "x", "٣", None])
def test_what_is_no_number_counts_as_nothing(text: object) -> None:
    refs = {"reservedMs": text, "idleMs": "4"}
    strange = Record(RecordKind.USE_ACCOUNT, "x", "namespace/a", "accounted", refs=refs)  # type: ignore[arg-type]
    assert remembered(logged(strange)).accounts == {"a": Account(0, 4_000_000)}
    without = Record(RecordKind.USE_IDLE, "x", "pod/a/b", "idle", refs={"gpus": "GPU-a"})
    assert remembered(logged(without)).idle == {}
