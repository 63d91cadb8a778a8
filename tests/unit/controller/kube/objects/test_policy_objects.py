"""The policy as custom resources: one document, faults by object, and what an object is told."""

import json
from dataclasses import replace
from typing import Any

import pytest

from controller.kube.api.resources import ApiError, Entry
from controller.kube.objects.policy_objects import (
    CLASS_KIND,
    POLICY_KIND,
    Edition,
    PolicyObjects,
    Said,
    status_patch,
    verdict,
)
from controller.policies.file import decode_policy
from gpuwarden.finding import Finding
from gpuwarden.policy.document import MAX_BYTES, PolicyInvalidError
from gpuwarden.policy.objects import CLASS, NAME, POLICY, ObjectKey

HASH = "v1:sha256:" + "a" * 64
MINE = ObjectKey(POLICY, NAME)
GOOD = Edition("u", 2)


def raw(name: str, spec: Any, *, generation: int = 1, **rest: Any) -> bytes:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "7"}
    return json.dumps(
        {"metadata": {**metadata, "generation": generation}, "spec": spec, **rest}
    ).encode()


def parts(
    policy: Any = None, classes: dict[str, Any] | None = None, *, name: str = NAME
) -> PolicyObjects:
    policies = [] if policy is None else [POLICY_KIND.entry(raw(name, policy))]
    found = [CLASS_KIND.entry(raw(key, x)) for key, x in (classes or {}).items()]
    return PolicyObjects(dict(policies), dict(found))


def faults(found: PolicyObjects) -> list[str]:
    with pytest.raises(PolicyInvalidError) as error:
        found.policy()
    return [str(x) for x in error.value.findings]


def test_together_they_say_what_the_file_says() -> None:
    spec = {"minLevel": "L1", "labels": {"big": "memory>=40Gi"}, "attestors": {"k8s_psat": {}}}
    entry = {"hashes": [{"hash": HASH, "notAfter": "2026-12-31T00:00:00Z"}], "minLevel": "L1"}
    head = {"apiVersion": "config.gpuwarden.dev/v1alpha1", "kind": "Policy"}
    file = {**head, **spec, "classes": [{"name": "h100", **entry}]}
    wanted = decode_policy(json.dumps(file).encode())
    found = parts(spec, {"h100": entry}).policy()
    assert replace(found, digest="") == replace(wanted, digest="")


def test_the_digest_is_of_what_they_say_and_not_of_how() -> None:
    one = parts({"minLevel": "L1", "defaultMode": "env"}).policy()
    other = parts({"defaultMode": "env", "minLevel": "L1"}).policy()
    assert one.digest == other.digest
    assert len(one.digest) == 64
    assert one.digest != parts({"minLevel": "L1"}).policy().digest
    classes = {"a": {"hashes": [{"hash": HASH}]}, "b": {"hashes": [{"hash": HASH}]}}
    again = dict(reversed(classes.items()))
    assert parts({}, classes).policy().digest == parts({}, again).policy().digest


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (parts(), f"{POLICY}/cluster: got nothing; expected an AttestationPolicy of that name"),
        (
            parts({}, name="other"),
            f"{POLICY}/other: metadata.name: got 'other'; expected cluster",
        ),
        (parts([]), f"{POLICY}/cluster: spec: got a list of 0; expected a mapping"),
        (
            parts({"drvers": {}}),
            f"{POLICY}/cluster: spec.drvers: unknown key; did you mean drivers?",
        ),
        (parts({"minLevel": "L9"}), f"{POLICY}/cluster: spec.minLevel: got 'L9'; expected L0 or"),
        (
            parts({"classes": []}),
            f"{POLICY}/cluster: spec.classes: got a list of 0; expected no such",
        ),
        (parts({"kind": "Policy"}), f"{POLICY}/cluster: spec.kind: got 'Policy'; expected no such"),
        (parts({"labels": {"x": "huh"}}), f"{POLICY}/cluster: spec.labels.x: got 'huh'; expected"),
        (parts({}, {"a": {"hashes": []}}), f"{CLASS}/a: spec.hashes: got a list of 0; expected"),
        (parts({}, {"a": {}}), f"{CLASS}/a: spec.hashes: is required; expected a list"),
        (
            parts({}, {"a": {"hashes": [{"hash": HASH}]}, "b": {"hashes": [{"hash": "x"}]}}),
            f"{CLASS}/b: spec.hashes[0].hash: got 'x'; expected v1:sha256:",
        ),
        (
            parts({}, {"a": {"name": "b", "hashes": [{"hash": HASH}]}}),
            f"{CLASS}/a: spec.name: got 'b'; expected no such key",
        ),
        (parts({}, {"a": None}), f"{CLASS}/a: spec: got None; expected a mapping"),
    ],
)
def test_a_fault_names_the_object_and_its_field(found: PolicyObjects, expected: str) -> None:
    assert any(x.startswith(expected) for x in faults(found)), faults(found)


def test_every_fault_of_every_object_is_named() -> None:
    wrong = {"a": {"hashes": [{"hash": "x"}, {"hash": "y"}]}, "b": {"hashes": [{"hash": "z"}]}}
    assert len(faults(parts({"allowedHashes": ["q"]}, wrong))) == 4


def test_all_objects_together_are_bounded() -> None:
    text = ["x" * 250] * (MAX_BYTES // 250)
    (fault,) = faults(parts({"deniedKeys": text}))
    assert fault.startswith("all objects together: ")


def test_opaque_hashes_only_where_the_installation_says_so() -> None:
    found = parts({"allowedHashes": ["abc"]})
    assert found.policy(opaque_hashes=True).allowed_hashes == frozenset({"abc"})
    assert faults(found)


def test_editions_are_distinguished_by_object_and_generation() -> None:
    found = dict([POLICY_KIND.entry(raw(NAME, {}, generation=3))])
    assert PolicyObjects(found, {}).editions() == {MINE: Edition("uid-cluster", 3)}


def test_what_nests_too_deeply_is_no_mapping() -> None:
    deep = b'{"a":' * 50_000 + b"1" + b"}" * 50_000
    entry = Entry("1", "u", replace(POLICY_KIND.entry(raw(NAME, {}))[1].value, spec=deep))
    assert faults(PolicyObjects({NAME: entry}, {})) == [
        f"{POLICY}/cluster: spec: got None; expected a mapping"
    ]


def test_an_object_without_what_the_server_gives_is_an_error() -> None:
    with pytest.raises(ApiError):
        POLICY_KIND.entry(b'{"metadata":{"name":"cluster"},"spec":{}}')


class TestVerdict:
    def test_in_force(self) -> None:
        said = verdict(MINE, GOOD, in_force={MINE: GOOD}, findings=(), digest="d")
        assert said == Said(True, "InForce", "in force", 2, "d")

    def test_what_did_not_change_stays_in_force_while_others_are_refused(self) -> None:
        key = ObjectKey(CLASS, "a")
        fault = Finding(f"{POLICY}/cluster: spec.x", "1", "2")
        said = verdict(key, GOOD, in_force={key: GOOD}, findings=(fault,), digest="d")
        assert (said.is_accepted, said.digest) == (True, "")

    def test_refused_with_the_own_fault_first_and_the_policy_that_counts(self) -> None:
        faults = (
            Finding(f"{CLASS}/a: spec.x", "1", "2"),
            Finding(f"{POLICY}/cluster: spec.y", "3", "4"),
        )
        said = verdict(MINE, GOOD, in_force={}, findings=faults, digest="d")
        assert (said.is_accepted, said.reason, said.generation) == (False, "Refused", 2)
        assert said.digest == "d"
        assert said.message.startswith(f"{POLICY}/cluster: spec.y: got 3; expected 4; {CLASS}/a")

    def test_a_message_is_bounded(self) -> None:
        faults = [Finding("k", "v" * 80, "e")] * 100
        said = verdict(MINE, GOOD, in_force={}, findings=faults, digest="")
        assert len(said.message) == 1024


class TestStatus:
    WANTED = Said(True, "InForce", "in force", 2, "d")

    def written(self, said: Said, wall_ns: int, before: Said | None = None) -> Said:
        """As the server would give it back."""
        patch = status_patch(said, before, wall_ns)
        assert patch is not None
        _, entry = POLICY_KIND.entry(raw(NAME, {}, **patch))
        assert entry.value.said is not None
        return entry.value.said

    def test_what_was_written_is_read_and_not_written_again(self) -> None:
        said = self.written(self.WANTED, 1_800_000_000_123_456_789)
        assert said == replace(self.WANTED, since="2027-01-15T08:00:00Z")
        assert status_patch(self.WANTED, said, 1_900_000_000_000_000_000) is None

    def test_the_time_is_of_the_last_turn(self) -> None:
        first = self.written(self.WANTED, 1_800_000_000_000_000_000)
        later = replace(self.WANTED, generation=3)
        second = self.written(later, 1_800_000_100_000_000_000, first)
        assert (second.generation, second.since) == (3, first.since)
        refused = Said(False, "Refused", "why", 4)
        third = self.written(refused, 1_800_000_200_000_000_000, second)
        assert third.since == "2027-01-15T08:03:20Z"

    def test_conditions_of_others_are_not_ours(self) -> None:
        other = {"conditions": [{"type": "Else", "status": "True"}]}
        _, entry = POLICY_KIND.entry(raw(NAME, {}, status=other))
        assert entry.value.said is None
