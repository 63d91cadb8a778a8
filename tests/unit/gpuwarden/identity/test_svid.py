"""What the Workload API offers becomes an SVID only if all of it fits together, now."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import (
    IdentityWithdrawnError,
    Offer,
    OfferRefusedError,
    appraise,
    choose,
    end_of,
    exactly,
    is_behind,
    is_same,
    is_stale,
)
from sandbox.spiffe.ca import InsecureCa, IssuedSvid

NOW = datetime(2027, 1, 15, tzinfo=UTC)
DAY = timedelta(days=1)
AGENT = "spiffe://example.org/gpuwarden/agent/node-a"
OTHER = "spiffe://example.org/other"
WANTED = exactly(SpiffeId("example.org", "/gpuwarden/agent/node-a"))


def authority(**kwargs: object) -> InsecureCa:
    return InsecureCa("example.org", now=lambda: NOW, **kwargs)  # type: ignore[arg-type] # passes any keyword on


CA = authority()


def offer(issued: IssuedSvid | None = None, spiffe_id: str = AGENT) -> Offer:
    issued = issued or CA.issue(spiffe_id)
    return Offer(spiffe_id, issued.private_key, issued.chain, (CA.certificate,), (spiffe_id,))


@pytest.mark.parametrize(
    ("offered", "taken"),
    [
        ([OTHER, AGENT], 1),
        ([AGENT, OTHER], 0),
        ([OTHER], 0),
        ([], 0),
        (["no SPIFFE ID", AGENT], 1),
        ([AGENT, AGENT], 0),
    ],
)
def test_the_configured_identity_is_taken_wherever_it_is(offered: list[str], taken: int) -> None:
    assert choose(offered, WANTED) == taken


def test_of_several_wanted_identities_the_order_sent_decides_nothing() -> None:
    ids = ["spiffe://example.org/b", "spiffe://example.org/a"]
    assert ids[choose(ids, lambda _: True)] == ids[::-1][choose(ids[::-1], lambda _: True)]


def test_a_good_offer_becomes_the_svid() -> None:
    made = offer()
    svid = appraise(made, WANTED, NOW, DAY, 7)
    assert (str(svid.spiffe_id), svid.generation) == (AGENT, 7)
    assert (svid.private_key, svid.chain, svid.roots) == (
        made.private_key,
        made.chain,
        (CA.certificate,),
    )
    assert svid.not_after == NOW + timedelta(hours=1)
    assert "PrivateKey" not in repr(svid) + repr(made)


def test_another_identity_is_a_withdrawal_that_names_what_was_offered() -> None:
    made = replace(offer(spiffe_id=OTHER), offered=(OTHER,) * 10)
    with pytest.raises(IdentityWithdrawnError, match=r"only spiffe://example.org/other, .*2 more"):
        appraise(made, WANTED, NOW, DAY, 1)


@pytest.mark.parametrize(("count", "more"), [(8, ""), (9, " and 1 more")])
def test_eight_identities_are_shown(count: int, more: str) -> None:
    made = replace(offer(spiffe_id=OTHER), offered=tuple(f"id-{x}" for x in range(count)))
    with pytest.raises(IdentityWithdrawnError) as caught:
        appraise(made, WANTED, NOW, DAY, 1)
    listed = ", ".join(f"id-{x}" for x in range(8))
    assert str(caught.value) == f"configured identity not offered, only {listed}{more}"


def test_an_svid_may_live_as_long_as_is_allowed() -> None:
    made = offer(CA.issue(AGENT, not_before=NOW, ttl=timedelta(hours=2)))
    appraise(made, WANTED, NOW, timedelta(hours=2), 1)
    with pytest.raises(OfferRefusedError, match="at most 1:59:59"):
        appraise(made, WANTED, NOW, timedelta(hours=2) - timedelta(seconds=1), 1)


def test_a_short_list_of_identities_is_shown_whole() -> None:
    with pytest.raises(IdentityWithdrawnError, match=f"only {OTHER}$"):
        appraise(offer(spiffe_id=OTHER), WANTED, NOW, DAY, 1)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (replace(offer(), private_key=CA.issue(AGENT).private_key), "does not belong"),
        (replace(offer(), private_key=ed25519.Ed25519PrivateKey.generate()), "expected EC or RSA"),
        (replace(offer(), roots=()), "no roots"),
        (replace(offer(), roots=(authority().certificate,)), "no path"),
        (offer(CA.issue(AGENT, ttl=-timedelta(seconds=1))), "ended"),
        (offer(CA.issue(AGENT, not_before=NOW + timedelta(seconds=1))), "begins"),
        (offer(CA.issue(AGENT, ttl=timedelta(hours=25))), "1 day, 1:00:10, at most 1 day"),
        (offer(CA.issue(AGENT, OTHER)), "exactly one URI SAN"),
        (offer(CA.issue(OTHER)), "leaf carries"),
    ],
)
def test_an_offer_that_does_not_fit_together_is_refused(made: Offer, reason: str) -> None:
    with pytest.raises(OfferRefusedError, match=reason) as refusal:
        appraise(made, WANTED, NOW, DAY, 1)
    assert not isinstance(refusal.value, IdentityWithdrawnError)


def test_the_same_material_is_recognised_and_any_other_is_not() -> None:
    made = offer()
    svid = appraise(made, WANTED, NOW, DAY, 1)
    assert is_same(svid, made)
    assert not is_same(svid, offer())
    assert not is_same(svid, replace(made, roots=(CA.certificate, authority().certificate)))


@pytest.mark.parametrize(
    ("minutes", "stale"), [(0, False), (44, False), (45, False), (46, True), (61, True)]
)
def test_a_renewal_is_overdue_after_three_quarters_of_the_lifetime(
    minutes: int, stale: bool
) -> None:
    svid = appraise(offer(CA.issue(AGENT, not_before=NOW)), WANTED, NOW, DAY, 1)
    assert is_stale(svid, NOW + timedelta(minutes=minutes)) is stale


def test_the_first_certificate_to_end_ends_the_svid() -> None:
    below = authority(issuer=CA, ttl=timedelta(minutes=5))
    svid = appraise(offer(below.issue(AGENT)), WANTED, NOW, DAY, 1)
    assert end_of(svid) == NOW + timedelta(minutes=5)


@pytest.mark.parametrize(
    ("fresh", "behind"),
    [
        (offer(CA.issue(AGENT, not_before=NOW)), False),
        (offer(CA.issue(AGENT, not_before=NOW + timedelta(minutes=10))), False),
        (offer(CA.issue(AGENT, not_before=NOW + timedelta(minutes=11))), False),
        (offer(CA.issue(AGENT, not_before=NOW + timedelta(minutes=12))), True),
        (offer(CA.issue(AGENT, not_before=NOW + timedelta(minutes=15))), True),
        (replace(offer(), roots=(CA.certificate, authority().certificate)), True),
        (offer(spiffe_id=OTHER), True),
    ],
    ids=[
        "same age",
        "a little newer",
        "nearly a quarter",
        "a quarter",
        "much newer",
        "other bundle",
        "other identity",
    ],
)
def test_a_watch_is_behind_a_fetch_that_it_should_have_seen(fresh: Offer, behind: bool) -> None:
    assert is_behind(offer(CA.issue(AGENT, not_before=NOW)), fresh) is behind


def test_what_counts_is_the_leaf_and_not_what_vouches_for_it() -> None:
    old = authority(issuer=CA, ttl=timedelta(minutes=50))
    new = InsecureCa("example.org", now=lambda: NOW + timedelta(minutes=30), issuer=CA)
    early, late = (CA.issue(AGENT, not_before=NOW + timedelta(minutes=x)) for x in (0, 30))
    above_old, above_new = old.issue(AGENT).chain[1:], new.issue(AGENT).chain[1:]
    seen = replace(offer(early), chain=(early.chain[0], *above_old))
    assert not is_behind(seen, replace(offer(early), chain=(early.chain[0], *above_new)))
    assert is_behind(seen, replace(offer(late), chain=(late.chain[0], *above_old)))
    assert is_behind(replace(seen, chain=(early.chain[0], *above_new)), offer(late))
