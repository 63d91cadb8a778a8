"""The fetcher called as gRPC calls it: it always answers, and never with what gRPC had before.

gRPC's threads are invisible to coverage; what a handshake makes of the answers is
shown by the integration test of the credentials.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from gpuwarden.identity.server_credentials import _Fetcher, _utc_now
from gpuwarden.identity.svid import Svid
from sandbox.spiffe.ca import InsecureCa, utc_now
from tests.builders.svids import FakeSvidSource, new_svid

CONTROLLER = "spiffe://example.org/gpuwarden/controller"
ROOT = InsecureCa("example.org")
GOOD = new_svid(ROOT, CONTROLLER)


def test_a_good_svid_gives_a_configuration_each_time_and_is_encoded_once() -> None:
    errors: list[str] = []
    fetcher = _Fetcher(FakeSvidSource(GOOD), errors.append, _utc_now)
    first = fetcher()
    assert first is not fetcher.closed
    assert fetcher() is first
    assert errors == []


def test_another_svid_gives_another_configuration() -> None:
    source = FakeSvidSource(GOOD)
    fetcher = _Fetcher(source, print, utc_now)
    first = fetcher()
    source.put(new_svid(ROOT, CONTROLLER, generation=2))
    second = fetcher()
    assert second is not first
    assert fetcher() is second


@pytest.mark.parametrize(
    ("svid", "told"),
    [
        (None, "no SVID in this test"),
        (replace(GOOD, roots=()), "ValueError: own SVID refused: no roots to verify against"),
        (
            replace(GOOD, private_key=new_svid(ROOT, CONTROLLER).private_key),
            "ValueError: private key does not belong to the leaf",
        ),
    ],
)
def test_without_a_good_svid_the_answer_is_the_closed_door(svid: Svid | None, told: str) -> None:
    errors: list[str] = []
    source = FakeSvidSource(GOOD)
    fetcher = _Fetcher(source, errors.append, utc_now)
    assert fetcher() is not fetcher.closed
    source.put(svid)
    assert fetcher() is fetcher.closed
    assert errors == [told]


def test_each_handshake_with_our_svid_is_counted_and_no_other() -> None:
    offers: list[None] = []
    source = FakeSvidSource(GOOD)
    fetcher = _Fetcher(source, print, utc_now, lambda: offers.append(None))
    fetcher()
    fetcher()
    source.put(None)
    fetcher()
    assert len(offers) == 2


def test_who_counts_handshakes_cannot_break_one() -> None:
    def broken() -> None:
        raise RuntimeError("no counter")

    errors: list[str] = []
    fetcher = _Fetcher(FakeSvidSource(GOOD), errors.append, utc_now, broken)
    assert fetcher() is not fetcher.closed
    assert errors == []


def test_an_svid_that_has_expired_meanwhile_closes_the_door_again() -> None:
    now = utc_now()
    fetcher = _Fetcher(FakeSvidSource(GOOD), print, lambda: now)
    assert fetcher() is not fetcher.closed
    now += timedelta(hours=2)
    assert fetcher() is fetcher.closed


class BrokenSource:
    def current(self) -> Svid | None:
        raise ZeroDivisionError

    def state(self) -> str:
        return ""

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        return notify


def test_nothing_that_fails_leaves_the_fetcher() -> None:
    def broken(_: str) -> None:
        raise ZeroDivisionError

    fetcher = _Fetcher(BrokenSource(), broken, utc_now)
    assert fetcher() is fetcher.closed
