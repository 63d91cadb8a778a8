"""The caBundle of a webhook is held against what is served, as the API server does it."""

import base64
import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.doctor.check import Outcome
from gpuwarden.doctor.facts import (
    MUTATING,
    VALIDATING,
    Fact,
    Facts,
)
from tests.builders.doctor_facts import (
    NOW,
    REPLICAS,
    SERVICE,
    Object,
    changed,
    encoded,
    on_one,
)
from tests.builders.doctor_faults import (
    DAY,
    FAILED,
    WARNING,
    bundle,
    listening,
    set_bundle,
    verdict,
)
from tests.builders.web_certificates import WebCa


def rechained(facts: Facts, folder: Path, **leaf: Any) -> Facts:
    """With another leaf, of another authority that all webhooks trust."""
    ca = WebCa(folder, "other", begins=NOW - DAY, ends=NOW + 1000 * DAY)
    dates = {"begins": NOW - DAY, "ends": NOW + 90 * DAY}
    chain, _ = ca.issue("leaf", server=True, **({"names": (SERVICE,)} | dates | leaf))
    facts = listening(certificates=chain.read_text())(facts)
    for collection in (MUTATING, VALIDATING):
        facts = changed(
            facts,
            collection,
            None,
            lambda y: [set_bundle(encoded(ca))(x) for x in y["webhooks"]],
        )
    return facts


@pytest.mark.parametrize(
    ("leaf", "seen"),
    [
        ({}, f"^for {SERVICE}$"),
        ({"names": ("*.gpuwarden-system.svc",)}, "^for "),
        (
            {"names": ("other.svc",)},
            f"it is not for {SERVICE}$",
        ),
        ({"begins": NOW + DAY}, "CN=leaf is valid from 2026-03-02 to 2026-05-30$"),
        ({"ends": NOW}, "CN=leaf is valid from 2026-02-28 to 2026-03-01$"),
    ],
)
def test_the_leaf_is_verified_as_the_api_server_does(
    sound: Facts, tmp_path: Path, leaf: dict[str, Any], seen: str
) -> None:
    found = verdict("webhooks-ca", rechained(sound, tmp_path, **leaf))
    assert re.search(seen, found.seen), found
    assert (found.outcome is Outcome.PASSED) is seen.startswith("^for ")


def test_a_webhook_with_a_url_is_verified_for_its_host(sound: Facts, tmp_path: Path) -> None:
    def reached(found: Object) -> None:
        for one in found["webhooks"]:
            text = one["clientConfig"]["caBundle"]
            one["clientConfig"] = {"url": "https://10.0.0.7:10250/mutate", "caBundle": text}

    facts = rechained(sound, tmp_path, names=(SERVICE, "10.0.0.7"))
    moved = changed(facts, VALIDATING, None, reached)
    assert verdict("webhooks-ca", moved).seen == f"for 10.0.0.7, {SERVICE}"
    lacking = changed(sound, VALIDATING, None, reached)
    found = verdict("webhooks-ca", lacking)
    assert (found.outcome, found.seen) == (
        FAILED,
        "asking.pods.gpuwarden.dev (validating): it is not for 10.0.0.7",
    )


def test_a_leaf_of_another_authority_is_not_verified(sound: Facts, tmp_path: Path) -> None:
    ca = WebCa(tmp_path, "stranger", begins=NOW - DAY, ends=NOW + DAY)
    found = verdict("webhooks-ca", bundle(encoded(ca))(sound))
    assert found.outcome is FAILED
    assert "no certificate of the bundle has issued CN=admission" in found.seen


def test_an_authority_that_has_ended_verifies_nothing(sound: Facts, tmp_path: Path) -> None:
    facts = rechained(sound, tmp_path, ends=NOW + 2000 * DAY)
    assert verdict("webhooks-ca", facts).outcome is Outcome.PASSED
    later = verdict("webhooks-ca", replace(facts, now=Fact(NOW + 1000 * DAY)))
    assert later.outcome is FAILED
    assert "no certificate of the bundle" in later.seen


def test_an_intermediate_certificate_leads_to_the_authority(sound: Facts, tmp_path: Path) -> None:
    root = WebCa(tmp_path, "root", begins=NOW - DAY, ends=NOW + 99 * DAY)
    middle = WebCa(tmp_path, "middle", issuer=root, begins=NOW - DAY, ends=NOW + 99 * DAY)
    leaf, _ = middle.issue(
        "leaf", server=True, names=(SERVICE,), begins=NOW - DAY, ends=NOW + 90 * DAY
    )
    facts = changed(
        changed(
            sound,
            VALIDATING,
            None,
            lambda y: [set_bundle(encoded(root))(x) for x in y["webhooks"]],
        ),
        MUTATING,
        None,
        lambda y: [set_bundle(encoded(root))(x) for x in y["webhooks"]],
    )
    whole = listening(certificates=leaf.read_text() + middle.file.read_text())(facts)
    assert verdict("webhooks-ca", whole).outcome is Outcome.PASSED
    assert verdict("webhooks-ca", listening(certificates=leaf.read_text())(facts)).outcome is FAILED


def test_a_bundle_of_old_and_new_authority_verifies_both(sound: Facts, tmp_path: Path) -> None:
    stranger = WebCa(tmp_path, "stranger", begins=NOW - DAY, ends=NOW + DAY)
    (one, *_) = sound.all(MUTATING)
    own = base64.b64decode(one["webhooks"][0]["clientConfig"]["caBundle"])
    both = base64.b64encode(stranger.file.read_bytes() + own).decode()
    assert verdict("webhooks-ca", bundle(both)(sound)).outcome is Outcome.PASSED


def test_a_replica_that_serves_what_the_bundle_does_not_verify_is_named(
    sound: Facts, tmp_path: Path
) -> None:
    stranger = WebCa(tmp_path, "stranger", begins=NOW - DAY, ends=NOW + 99 * DAY)
    leaf, _ = stranger.issue(
        "leaf", server=True, names=(SERVICE,), begins=NOW - DAY, ends=NOW + 90 * DAY
    )
    found = verdict("webhooks-ca", on_one(listening(certificates=leaf.read_text()))(sound))
    seen = "asking.pods.gpuwarden.dev (mutating): no certificate of the bundle has issued CN=leaf"
    assert (found.outcome, found.seen) == (FAILED, f"{REPLICAS[1]}: {seen}")


@pytest.mark.parametrize(
    ("ends", "outcome", "seen"),
    [
        (NOW, FAILED, f"(extender|admission) on {REPLICAS[1]} serves: it ends at 2026-03-01T12"),
        (
            NOW + DAY / 5,
            WARNING,
            f"not renewed: admission on {REPLICAS[1]} serves, extender on {REPLICAS[1]} serves; ",
        ),
    ],
)
def test_a_certificate_that_ends_on_one_replica_is_named(
    sound: Facts, tmp_path: Path, ends: datetime, outcome: Outcome, seen: str
) -> None:
    """Where it is not renewed: files that were mounted before, or a replica that read none."""
    ca = WebCa(tmp_path, "own", begins=NOW - DAY, ends=NOW + 99 * DAY)
    leaf, _ = ca.issue("leaf", server=True, names=(SERVICE,), begins=NOW - DAY, ends=ends)
    found = verdict("certificates", on_one(listening(certificates=leaf.read_text()))(sound))
    assert found.outcome is outcome
    assert re.match(seen, found.seen), found.seen


def test_certificates_are_looked_for_where_there_are_any(sound: Facts) -> None:
    """kubectl refuses all of a list in which it does not know one kind."""
    ended = replace(sound, now=Fact(NOW + 90 * DAY))
    served = replace(ended, served=Fact(sound.served.get() | {"cert-manager.io/v1"}))
    secrets = "kubectl -n gpuwarden-system get secrets"
    assert verdict("certificates", ended).command == secrets
    assert verdict("certificates", served).command == f"{secrets},certificates"
