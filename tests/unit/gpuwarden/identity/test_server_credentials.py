"""The fetcher called as gRPC calls it: it answers with what is new, after a moment, else None.

gRPC's threads are invisible to coverage; what a handshake makes of the answers is
shown by the integration test of the credentials.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuwarden.identity.server_credentials import (
    ServerPem,
    _Fetcher,
    _PemFetcher,
    _utc_now,
    pem_credentials,
)
from gpuwarden.identity.svid import Svid, SvidSource
from sandbox.spiffe.ca import InsecureCa
from tests.builders.svids import FakeSvidSource, new_svid

CONTROLLER = "spiffe://example.org/gpuwarden/controller"
ROOT = InsecureCa("example.org")
GOOD = new_svid(ROOT, CONTROLLER)


def no_pause(_seconds: float) -> None:
    """Time is not what these tests are about."""


def fetcher_of(
    source: SvidSource,
    errors: list[str],
    now: Callable[[], datetime] = _utc_now,
    on_offer: Callable[[], None] = lambda: None,
) -> _Fetcher:
    return _Fetcher(source, errors.append, now, on_offer, no_pause)


def test_a_good_svid_gives_its_configuration_once_because_each_one_is_a_risk_to_the_others() -> (
    None
):
    errors: list[str] = []
    fetcher = fetcher_of(FakeSvidSource(GOOD), errors)
    assert fetcher() not in {fetcher.closed, None}
    assert (fetcher(), fetcher()) == (None, None)
    assert errors == []


def test_another_svid_gives_another_configuration() -> None:
    source = FakeSvidSource(GOOD)
    fetcher = fetcher_of(source, [])
    first = fetcher()
    source.put(new_svid(ROOT, CONTROLLER, generation=2))
    second = fetcher()
    assert second not in {first, fetcher.closed, None}
    assert fetcher() is None


def test_a_change_waits_until_handshakes_that_have_passed_are_under_way() -> None:
    pauses: list[float] = []
    source = FakeSvidSource(GOOD)
    fetcher = _Fetcher(source, print, _utc_now, pause=pauses.append)
    fetcher()
    fetcher()
    source.put(None)
    fetcher()
    fetcher()
    assert pauses == [0.1, 0.1]


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
def test_without_a_good_svid_the_answer_is_the_closed_bypass(svid: Svid | None, told: str) -> None:
    errors: list[str] = []
    source = FakeSvidSource(GOOD)
    fetcher = fetcher_of(source, errors)
    assert fetcher() is not fetcher.closed
    source.put(svid)
    assert fetcher() is fetcher.closed
    assert fetcher() is None
    assert errors == [told, told]


def test_each_handshake_with_our_svid_is_counted_and_no_other() -> None:
    offers: list[None] = []
    source = FakeSvidSource(GOOD)
    fetcher = fetcher_of(source, [], on_offer=lambda: offers.append(None))
    fetcher()
    fetcher()
    source.put(None)
    fetcher()
    assert len(offers) == 2


def test_who_counts_handshakes_cannot_break_one() -> None:
    def broken() -> None:
        raise RuntimeError("no counter")

    errors: list[str] = []
    fetcher = fetcher_of(FakeSvidSource(GOOD), errors, on_offer=broken)
    assert fetcher() is not fetcher.closed
    assert errors == []


def test_an_svid_that_has_expired_meanwhile_closes_the_bypass_again() -> None:
    now = _utc_now()
    fetcher = fetcher_of(FakeSvidSource(GOOD), [], lambda: now)
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

    good = FakeSvidSource(GOOD)
    fetcher = _Fetcher(good, broken, _utc_now, pause=no_pause)
    assert fetcher() is not fetcher.closed
    fetcher._source = BrokenSource()
    assert fetcher() is fetcher.closed


# --- from PEM that others keep


def _pem(svid: Svid = GOOD, roots: bytes | None = None) -> ServerPem:
    chain = b"".join(one.public_bytes(Encoding.PEM) for one in svid.chain)
    key = svid.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return ServerPem(chain, key, roots)


def test_pem_is_offered_once_and_again_when_it_has_changed() -> None:
    found: list[ServerPem | None] = [_pem()]
    errors: list[str] = []
    offers: list[None] = []
    fetcher = _PemFetcher(lambda: found[0], errors.append, lambda: offers.append(None), no_pause)
    first = fetcher()
    assert first not in {fetcher.closed, None}
    found[0] = _pem()
    assert fetcher() is None
    found[0] = _pem(roots=_pem().chain)
    second = fetcher()
    assert second not in {first, fetcher.closed, None}
    assert (len(offers), errors) == (3, [])


def test_without_pem_no_handshake_is_served_and_that_is_reported() -> None:
    found: list[ServerPem | None] = [_pem()]
    errors: list[str] = []
    fetcher = _PemFetcher(lambda: found[0], errors.append, lambda: None, no_pause)
    fetcher()
    found[0] = None
    assert fetcher() is fetcher.closed
    assert errors == ["there is nothing to verify clients with"]


def test_a_key_is_in_no_text() -> None:
    assert "PRIVATE KEY" not in repr(_pem())


@pytest.mark.parametrize("demands", [False, True])
def test_credentials_of_pem_can_be_made_before_there_is_any(demands: bool) -> None:
    credentials = pem_credentials(lambda: None, print, demands_certificates=demands)
    assert isinstance(credentials, grpc.ServerCredentials)
