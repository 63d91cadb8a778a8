"""Which write comes next, from the time and from what the API holds."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controller.certificates.material import Authorities, pem_of
from controller.certificates.plan import (
    Bundles,
    Change,
    Found,
    Held,
    PutAuthorities,
    PutBundle,
    PutLeaf,
    Terms,
    Unreadable,
    is_trusted,
)
from tests.builders.managed_certificates import (
    DAY,
    MAKER,
    NOW,
    PEOPLE,
    SPECS,
    TERMS,
    WEBHOOKS,
    after,
    authorities,
    installed,
    leaf,
    named,
    next_step,
    texts,
    until_done,
    value,
    with_leaf,
)

SECOND = timedelta(seconds=1)


def nothing() -> Held:
    """Before the first start: webhooks are registered, their authority is not known."""
    return Held(
        {WEBHOOKS: Found("1", Bundles((b"", b""))), PEOPLE: None},
        dict.fromkeys(SPECS.values()),
        None,
    )


class TestFirstInstallation:
    def test_the_authority_then_its_bundles_then_leaves(self) -> None:
        held, done = until_done(nothing())
        assert done == ["created", "bundle", "published", "leaf"]
        kept = value(held.authorities)
        assert (kept.current.ends, kept.published) == (NOW + TERMS.authority, NOW)
        assert kept.next is not None
        assert kept.next.ends == NOW + 2 * TERMS.authority
        for spec, found in held.leaves.items():
            assert isinstance(found, Found), spec
            assert found.value.ends == NOW + TERMS.leaf
            assert found.value.bundle == kept.bundle

    def test_what_is_made_is_created_and_never_written_over(self) -> None:
        held = nothing()
        versions: dict[str, str | None] = {}
        while writes := next_step(held).writes:
            versions |= {named(x): x.version for x in writes if x.version is None}
            held = after(held, writes)
        assert set(versions) == {"created", "bundle", "leaf"}

    def test_every_webhook_gets_the_bundle(self) -> None:
        held = after(nothing(), next_step(nothing()).writes)
        bundle = value(held.authorities).bundle
        assert next_step(held).writes == (
            PutBundle(WEBHOOKS, "1", bundle, 2),
            PutBundle(PEOPLE, None, bundle, 1),
        )

    def test_webhooks_that_are_not_registered_are_not_waited_for(self) -> None:
        held = replace(nothing(), targets={WEBHOOKS: None, PEOPLE: None})
        _, done = until_done(held)
        assert done == ["created", "bundle", "published", "leaf"]

    def test_no_leaf_is_made_while_somebody_does_not_trust_it(self) -> None:
        broken = Unreadable("MutatingWebhookConfiguration gpuwarden-pods: 403")
        held = replace(nothing(), targets={WEBHOOKS: broken, PEOPLE: None})
        held, done = until_done(held)
        assert done == ["created", "bundle"]
        assert next_step(held).faults == (broken.text,)


class TestMixedRevisions:
    """Some controllers may still show certificates of others."""

    OTHERS = pem_of((MAKER.authority(NOW, NOW + DAY).certificate,))
    MORE = pem_of((MAKER.authority(NOW, NOW + DAY).certificate,))

    def change(self, *texts: bytes) -> Held:
        targets = {WEBHOOKS: Found("1", Bundles(texts)), PEOPLE: Found("1", Bundles(texts[:1]))}
        return replace(nothing(), targets=targets, is_mixed=True)

    def test_what_webhooks_trust_is_kept_behind_the_managed_authorities(self) -> None:
        text = b"# ours\r\n" + self.OTHERS.replace(b"\n", b"\r\n") + self.MORE
        held, done = until_done(self.change(text, self.MORE + self.MORE, b"no PEM"))
        assert done == ["created", "bundle", "published", "leaf"]
        bundle = value(held.authorities).bundle
        kept = self.OTHERS.replace(b"\n", b"\r\n").rstrip() + b"\n" + self.MORE
        assert texts(held, WEBHOOKS) == {bundle + kept}
        assert texts(held, PEOPLE) == {bundle}

    def test_the_scheduler_gets_its_certificate_when_all_are_of_one(self) -> None:
        held, _ = until_done(self.change(self.OTHERS, self.OTHERS))
        missing = {spec.name for spec, found in held.leaves.items() if found is None}
        assert missing == {"scheduler"}
        held, done = until_done(replace(held, is_mixed=False))
        assert done == ["bundle, leaf"]
        assert texts(held, WEBHOOKS) == {value(held.authorities).bundle}
        assert isinstance(held.leaves[SPECS["scheduler"]], Found)

    def test_a_certificate_that_the_scheduler_has_is_renewed(self) -> None:
        held = replace(installed(authorities()), is_mixed=True)
        writes = next_step(held, NOW + TERMS.leaf - TERMS.renew_before).writes
        assert SPECS["scheduler"] in [x.spec for x in writes if isinstance(x, PutLeaf)]


class TestTrustedLeaf:
    def test_every_bundle_has_the_authority_that_issued_it(self) -> None:
        kept, other = authorities(), authorities()
        targets = installed(kept).targets
        assert is_trusted(leaf("admission", kept), targets)
        assert not is_trusted(leaf("admission", other), targets)
        for found in (
            Found("1", Bundles((kept.bundle, other.bundle))),
            Unreadable("MutatingWebhookConfiguration gpuwarden-pods: 403"),
        ):
            assert not is_trusted(leaf("admission", kept), {WEBHOOKS: found})
        assert is_trusted(leaf("admission", kept), {WEBHOOKS: None})

    def test_of_its_own_bundle_only_the_issuer_counts(self) -> None:
        """The next authority is in the bundle, too, and signed nothing yet."""
        kept = authorities()
        assert kept.next is not None
        bundle = pem_of((kept.next.certificate,))
        assert not is_trusted(leaf("admission", kept), {WEBHOOKS: Found("1", Bundles((bundle,)))})


class TestRenewal:
    def test_nothing_is_left_to_do_afterwards(self) -> None:
        assert next_step(installed(authorities())) == next_step(installed(authorities()))
        assert next_step(installed(authorities())).writes == ()

    @pytest.mark.parametrize(("later", "is_due"), [(-SECOND, False), (timedelta(), True)])
    def test_a_leaf_is_renewed_in_time(self, later: timedelta, *, is_due: bool) -> None:
        now = NOW + TERMS.leaf - TERMS.renew_before + later
        writes = next_step(installed(authorities()), now).writes
        assert [named(x) for x in writes] == (["leaf"] * len(SPECS) if is_due else [])
        for write in writes:
            assert isinstance(write, PutLeaf)
            assert write.version == "1"
            assert write.leaf.ends == now + TERMS.leaf

    def test_a_leaf_does_not_outlive_its_authority(self) -> None:
        kept = replace(authorities(), published=None)
        held = installed(kept)
        held = replace(held, targets={**held.targets, WEBHOOKS: Unreadable("x")})
        now = kept.current.ends - 40 * DAY
        writes = next_step(held, now).writes
        assert {x.leaf.ends for x in writes if isinstance(x, PutLeaf)} == {kept.current.ends}
        assert next_step(after(held, writes), now + DAY).writes == ()

    def test_a_leaf_for_other_names_is_replaced(self) -> None:
        kept = authorities()
        spec = SPECS["admission"]
        for other in (
            replace(spec, names=("gpuwarden-admission.elsewhere.svc",)),
            replace(spec, common_name="other"),
            SPECS["scheduler"],
        ):
            wrong = MAKER.leaf(other, kept.current, kept.bundle, NOW, NOW + TERMS.leaf)
            (write,) = next_step(with_leaf(installed(kept), spec, wrong)).writes
            assert isinstance(write, PutLeaf)
            assert (write.spec, write.is_new) == (spec, True)

    def test_a_leaf_of_another_authority_is_replaced(self) -> None:
        kept = authorities()
        strange = replace(leaf("api", authorities()), bundle=kept.bundle)
        (write,) = next_step(with_leaf(installed(kept), SPECS["api"], strange)).writes
        assert isinstance(write, PutLeaf)
        assert write.leaf.is_issued_by(kept.current.certificate)

    def test_a_clock_that_goes_back_replaces_nothing(self) -> None:
        held = installed(authorities())
        assert next_step(held, NOW - timedelta(hours=1)).writes == ()
        assert [named(x) for x in next_step(held, NOW - 100 * DAY).writes] == ["published"]

    @pytest.mark.parametrize(("later", "is_late"), [(-SECOND, False), (SECOND, True)])
    def test_what_was_not_renewed_is_told(self, later: timedelta, *, is_late: bool) -> None:
        now = NOW + TERMS.leaf - TERMS.renew_before / 2 + later
        faults = next_step(installed(authorities()), now).faults
        text = (
            "Secret gpuwarden-webhook-tls: the certificate ends at 2027-04-15T08:00:00Z and was"
            " not renewed"
        )
        assert (text in faults) is is_late


class TestRotation:
    @staticmethod
    def last_day(held: Held) -> datetime:
        """The first moment at which an authority has too little left for a whole leaf."""
        return value(held.authorities).current.ends - TERMS.last_of_authority

    def test_the_next_authority_takes_over_and_the_one_after_it_is_announced(self) -> None:
        held = installed(authorities())
        before, now = value(held.authorities), self.last_day(held)
        held = installed(before, now)
        assert next_step(held, now - SECOND).writes == ()
        held, done = until_done(held, now)
        assert done == ["rotated", "announced", "bundle, bundle of a leaf", "published", "leaf"]
        kept = value(held.authorities)
        assert kept.current == before.next
        assert kept.next is not None
        assert kept.next.ends == kept.current.ends + TERMS.authority
        assert kept.former == (before.current.certificate,)
        for found in held.leaves.values():
            assert isinstance(found, Found)
            assert found.value.is_issued_by(kept.current.certificate)

    def test_the_key_of_a_former_authority_is_gone(self) -> None:
        held = installed(authorities())
        now = self.last_day(held)
        (write,) = next_step(installed(value(held.authorities), now), now).writes
        assert isinstance(write, PutAuthorities)
        assert write.change is Change.ROTATED
        assert write.authorities.next is None

    @pytest.mark.parametrize(("settled", "rotates"), [(-SECOND, False), (timedelta(), True)])
    def test_it_does_not_take_over_before_clients_have_had_time_to_read(
        self, settled: timedelta, *, rotates: bool
    ) -> None:
        kept = authorities(published=None)
        now = kept.current.ends - 100 * DAY
        held = installed(replace(kept, published=now - TERMS.settling - settled), now)
        assert [named(x) for x in next_step(held, now).writes] == (["rotated"] if rotates else [])

    def test_it_does_not_take_over_while_a_bundle_lacks_it(self) -> None:
        kept = authorities()
        old = kept.bundle.replace(_pem(kept), b"")
        for held in (
            with_leaf(
                installed(kept), SPECS["extender"], replace(leaf("extender", kept), bundle=old)
            ),
            replace(installed(kept), targets={WEBHOOKS: Found("1", Bundles((kept.bundle, old)))}),
        ):
            now = self.last_day(held)
            done = [named(x) for x in next_step(held, now).writes]
            assert "rotated" not in done
            assert done[0].startswith("bundle")

    def test_a_former_authority_is_forgotten_when_it_has_ended(self) -> None:
        former = authorities(NOW - 380 * DAY)
        kept = replace(authorities(), former=(former.current.certificate,))
        ends = former.current.ends
        assert next_step(installed(kept, ends - SECOND), ends - SECOND).writes == ()
        (write,) = next_step(installed(kept, ends), ends).writes
        assert write == PutAuthorities("1", replace(kept, former=()), Change.FORGOTTEN)

    def test_that_it_is_published_is_noted_once(self) -> None:
        kept = authorities(published=None)
        (write,) = next_step(installed(kept)).writes
        assert write == PutAuthorities("1", replace(kept, published=NOW), Change.PUBLISHED)
        assert next_step(installed(replace(kept, published=NOW))).writes == ()

    @pytest.mark.parametrize(("ahead", "is_noted"), [(3600, False), (3601, True)])
    def test_a_time_of_a_clock_that_was_wrong_is_corrected(
        self, ahead: int, *, is_noted: bool
    ) -> None:
        kept = authorities(published=NOW + timedelta(seconds=ahead))
        assert [named(x) for x in next_step(installed(kept)).writes] == ["published"] * is_noted


class TestHealing:
    def test_a_controller_that_was_down_beyond_the_end_of_the_authority(self) -> None:
        """The next one is trusted since long: its leaves are good at once."""
        before = authorities()
        now = before.current.ends + DAY
        held, done = until_done(installed(before), now)
        assert done[0] == "rotated"
        kept = value(held.authorities)
        assert kept.current == before.next
        assert kept.former == ()
        assert held.publish(kept.current.certificate)

    def test_a_controller_that_was_down_beyond_the_end_of_both(self) -> None:
        before = authorities()
        assert before.next is not None
        now = before.next.ends
        held, done = until_done(installed(before), now)
        assert done == ["created", "bundle, bundle of a leaf", "published", "leaf"]
        kept = value(held.authorities)
        assert kept.current.ends == now + TERMS.authority
        for found in held.leaves.values():
            assert isinstance(found, Found)
            assert found.value.is_issued_by(kept.current.certificate)

    def test_a_deleted_authority_is_trusted_until_its_leaves_are_replaced(self) -> None:
        before = authorities()
        held, done = until_done(replace(installed(before), authorities=None))
        assert done[:2] == ["created", "bundle, bundle of a leaf"]
        kept = value(held.authorities)
        assert kept.former == (before.current.certificate,)
        for found in held.leaves.values():
            assert isinstance(found, Found)
            assert found.value.is_issued_by(kept.current.certificate)

    def test_a_deleted_leaf_is_made_again(self) -> None:
        kept = authorities()
        held = replace(installed(kept), leaves={**installed(kept).leaves, SPECS["api"]: None})
        (write,) = next_step(held).writes
        assert isinstance(write, PutLeaf)
        assert (write.spec.name, write.version) == ("api", None)

    def test_malformed_secrets_are_told_and_left_alone(self) -> None:
        kept = authorities()
        broken = Unreadable("Secret gpuwarden-authority: current.key: there is none")
        plan = next_step(replace(installed(kept), authorities=broken))
        assert (plan.writes, plan.faults) == ((), (broken.text,))
        other = Unreadable("Secret gpuwarden-http-api-tls: tls.crt: expected a PEM certificate")
        held = installed(kept)
        plan = next_step(replace(held, leaves={**held.leaves, SPECS["api"]: other}))
        assert (plan.writes, plan.faults) == ((), (other.text,))


def test_clients_have_a_tenth_of_a_leaf_to_read_and_a_day_at_most() -> None:
    assert TERMS.settling == DAY
    assert Terms(DAY, timedelta(hours=10), DAY).settling == timedelta(hours=1)


def test_the_bundle_does_not_change_with_who_issues() -> None:
    kept = authorities()
    assert kept.next is not None
    turned = replace(kept, current=kept.next, next=None, former=(kept.current.certificate,))
    assert turned.bundle == kept.bundle


def _pem(kept: Authorities) -> bytes:
    assert kept.next is not None
    return pem_of((kept.next.certificate,))
