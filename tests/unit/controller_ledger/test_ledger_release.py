from dataclasses import replace

import pytest

from controller.ledger.claim import Move
from controller.ledger.record import HolderState, PodGone, PodSeen, PodSight
from controller.ledger.release import (
    DEFAULT_GRACE_NS,
    GivenDevice,
    NodeGone,
    ReleaseWatch,
    UseReport,
    after_report,
    end_step,
    release_step,
    watch_release,
)
from tests.builders.ledger import holder

S = 1_000_000_000
NOW = 1_000 * S
ALIVE = PodSeen("uid-0", "gpu-1", "v1.k.uid-0", has_ended=False)
ENDED = replace(ALIVE, has_ended=True)
PART = holder(state=HolderState.RELEASING)
FREE = Move(HolderState.RELEASED, "its node shows nothing of it any more")
GIVEN = GivenDevice("team-a", "train-0", "GPU-a")


def report(age_s: int, **more: object) -> UseReport:
    quiet = UseReport("boot-1", NOW + age_s * S, {}, frozenset())
    return replace(quiet, **more)  # type: ignore[arg-type] # fields of UseReport


def decided(*reports: UseReport, gone: NodeGone | None = None) -> Move | None:
    watch: ReleaseWatch | None = watch_release(None, PodGone(), NOW)
    assert watch is not None
    for each in reports:
        watch = after_report(watch, PART, "GPU-a", each)
    return release_step(watch, gone, 0, NOW + 10_000 * S, DEFAULT_GRACE_NS)


class TestReports:
    def test_two_quiet_ones_free_it(self) -> None:
        assert decided(report(1), report(2)) == FREE

    def test_one_does_not(self) -> None:
        assert decided() is None
        assert decided(report(1)) is None

    def test_the_same_counts_once(self) -> None:
        assert decided(report(1), report(1)) is None

    @pytest.mark.parametrize("age_s", [-5, 0])
    def test_what_was_asked_before_the_end_does_not_count(self, age_s: int) -> None:
        assert decided(report(age_s), report(1)) is None

    @pytest.mark.parametrize(
        "use",
        [
            {"users": {"GPU-a": frozenset({"uid-0"})}},
            {"users": {"GPU-b": frozenset({"uid-9", "uid-0"})}},
            {"users": None},
            {"pods": frozenset({"uid-0"})},
            {"pods": None},
            {"given": frozenset({GIVEN})},
            {"given": frozenset({replace(GIVEN, device="GPU-a::3")})},
            {"given": None},
        ],
    )
    def test_use_and_what_cannot_be_read_begin_the_count_anew(self, use: dict[str, object]) -> None:
        assert decided(report(1), report(2, **use), report(3)) is None
        assert decided(report(1), report(2, **use), report(3), report(4)) == FREE
        assert decided(report(1, **use), report(2, **use)) is None

    @pytest.mark.parametrize(
        "other",
        [
            {"users": {"GPU-a": frozenset({"uid-9", None})}},
            {"pods": frozenset({"uid-9"})},
            {"given": frozenset({replace(GIVEN, pod="train-1")})},
            {"given": frozenset({replace(GIVEN, namespace="team-b")})},
            {"given": frozenset({replace(GIVEN, device="GPU-ab")})},
        ],
    )
    def test_others_use_does_not_matter(self, other: dict[str, object]) -> None:
        assert decided(report(1, **other), report(2, **other)) == FREE


USED: dict[str, object] = {"users": {"GPU-a": frozenset({"uid-0"})}}


class TestReboot:
    def test_one_quiet_report_after_a_boot_that_came_after_the_end(self) -> None:
        assert decided(report(1, **USED), report(2, boot_id="boot-2")) == FREE

    def test_a_boot_that_nobody_saw_the_last_of_proves_nothing(self) -> None:
        assert decided(report(-1), report(1, boot_id="boot-2")) is None

    def test_a_process_after_the_boot_is_one(self) -> None:
        after = report(2, boot_id="boot-2", **USED)
        assert decided(report(1), after) is None


class TestTheWatch:
    def test_it_begins_with_the_proof_of_the_end(self) -> None:
        assert watch_release(None, None, NOW) is None
        assert watch_release(None, ALIVE, NOW) is None
        assert watch_release(None, ENDED, NOW) == ReleaseWatch(NOW)

    def test_it_goes_on_without_news_and_ends_when_the_pod_lives(self) -> None:
        watch = after_report(ReleaseWatch(NOW), PART, "GPU-a", report(1))
        assert watch_release(watch, None, NOW + 5) is watch
        assert watch_release(watch, PodGone(), NOW + 5) is watch
        assert watch_release(watch, ALIVE, NOW + 5) is None

    def test_without_one_nothing_is_let_go(self) -> None:
        assert release_step(None, None, 0, NOW, DEFAULT_GRACE_NS) is None


class TestANodeThatIsGone:
    @pytest.mark.parametrize(
        ("last_asked_s", "age_s", "is_free"),
        [(0, 299, False), (0, 300, True), (200, 499, False), (200, 500, True)],
    )
    def test_it_is_waited_for_in_silence(
        self, last_asked_s: int, age_s: int, is_free: bool
    ) -> None:
        found = release_step(
            None, NodeGone(NOW), NOW + last_asked_s * S, NOW + age_s * S, DEFAULT_GRACE_NS
        )
        assert found == (
            Move(HolderState.RELEASED, "its node is gone for good") if is_free else None
        )


@pytest.mark.parametrize(
    ("pod", "gone", "ends"),
    [
        (ALIVE, None, False),
        (None, None, False),
        (ENDED, None, True),
        (PodGone(), None, True),
        (ALIVE, NodeGone(NOW), True),
    ],
)
def test_a_confirmed_one_ends_with_its_pod_or_its_node(
    pod: PodSight, gone: NodeGone | None, ends: bool
) -> None:
    found = end_step(holder(state=HolderState.CONFIRMED), pod, gone)
    assert (found is not None and found.to is HolderState.RELEASING) == ends
    assert end_step(holder(), pod, gone) is None
    assert end_step(PART, pod, gone) is None
