"""Certificates as objects of the Kubernetes API."""

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from controller.certificates.material import MaterialError, leaf_entries, pem_of
from controller.certificates.plan import (
    Bundles,
    Change,
    Found,
    PutAuthorities,
    PutBundle,
    PutLeaf,
    Target,
    TargetKind,
    Unreadable,
)
from controller.kube.api.client import JSON_PATCH, MERGE_PATCH
from controller.kube.objects.certificate_objects import (
    MOST_OBJECT_BYTES,
    are_of_one_revision,
    read_authority_secret,
    read_leaf_secret,
    read_target,
    write_request,
)
from tests.builders.managed_certificates import PEOPLE, SPECS, WEBHOOKS, authorities, leaf

NAMESPACE = "gpuwarden-system"


def stored(body: Any, version: str = "7") -> bytes:
    """What was created, as the API server gives it back."""
    body["metadata"]["resourceVersion"] = version
    return json.dumps(body).encode()


class TestSecrets:
    def test_a_leaf_is_created_and_read_again(self) -> None:
        made = leaf("admission", authorities())
        request = write_request(PutLeaf(SPECS["admission"], None, made, is_new=True), NAMESPACE)
        assert (request.resource.plural, request.name) == ("secrets", "gpuwarden-webhook-tls")
        assert (request.namespace, request.is_new) == (NAMESPACE, True)
        body: Any = request.body
        assert (body["kind"], body["type"]) == ("Secret", "kubernetes.io/tls")
        assert "annotations" not in body["metadata"] or body["metadata"]["annotations"] == {}
        assert read_leaf_secret(SPECS["admission"], stored(body)) == Found("7", made)

    def test_a_change_is_a_patch_of_the_version_that_was_read(self) -> None:
        made = leaf("admission", authorities())
        request = write_request(PutLeaf(SPECS["admission"], "7", made, is_new=True), NAMESPACE)
        assert (request.is_new, request.content_type) == (False, MERGE_PATCH)
        assert request.body == {
            "metadata": {"resourceVersion": "7"},
            "data": {key: base64.b64encode(x).decode() for key, x in leaf_entries(made).items()},
        }

    def test_authorities_are_created_and_read_again(self) -> None:
        held = authorities(published=None)
        request = write_request(PutAuthorities(None, held, Change.CREATED), NAMESPACE)
        body: Any = request.body
        assert (body["type"], body["metadata"]["name"]) == ("Opaque", "gpuwarden-authority")
        assert read_authority_secret(stored(body)) == Found("7", held)

    def test_what_is_not_needed_any_more_is_taken_away(self) -> None:
        held = replace(authorities(), next=None, published=None)
        request = write_request(PutAuthorities("7", held, Change.ROTATED), NAMESPACE)
        body: Any = request.body
        assert body["metadata"] == {
            "resourceVersion": "7",
            "annotations": {"gpuwarden.dev/next-published": None},
        }
        assert body["data"]["next.key"] is None

    def test_when_it_was_published_is_an_annotation(self) -> None:
        held = authorities()
        created: Any = write_request(PutAuthorities(None, held, Change.CREATED), NAMESPACE).body
        patch: Any = write_request(PutAuthorities("7", held, Change.PUBLISHED), NAMESPACE).body
        created["metadata"]["annotations"] = patch["metadata"]["annotations"]
        assert patch["metadata"]["annotations"] == {
            "gpuwarden.dev/next-published": "2027-01-15T08:00:00Z"
        }
        assert read_authority_secret(stored(created)) == Found("7", held)

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            ({"tls.crt": "?"}, "tls.crt: expected base64"),
            ({}, "tls.crt: there is none"),
            ({"tls.crt": "AAAA"}, "tls.crt: expected a PEM certificate"),
            (None, "tls.crt: there is none"),
        ],
    )
    def test_a_malformed_secret_is_named_with_its_entry(self, data: Any, text: str) -> None:
        body = json.dumps({"metadata": {"resourceVersion": "7"}, "data": data}).encode()
        found = read_leaf_secret(SPECS["api"], body)
        assert found == Unreadable(f"Secret gpuwarden-http-api-tls: {text}")

    def test_what_is_no_secret_is_named_and_nothing_of_it_is_shown(self) -> None:
        for body in (b"[]", b"\xff", b'{"metadata": {}, "data": {"tls.key": 7}}', b"[" * 100_000):
            found = read_authority_secret(body)
            assert found == Unreadable("Secret gpuwarden-authority: an object that cannot be read")

    def test_what_is_too_large_is_not_read(self) -> None:
        body = b'{"metadata": {}}'.ljust(MOST_OBJECT_BYTES + 1)
        assert read_authority_secret(body) == Unreadable(
            f"Secret gpuwarden-authority: {len(body)} bytes, at most {MOST_OBJECT_BYTES}"
        )
        fitting = read_authority_secret(body[:-1])
        assert fitting == Unreadable("Secret gpuwarden-authority: current.crt: there is none")

    def test_no_representation_shows_a_key(self) -> None:
        made = leaf("api", authorities())
        request = write_request(PutLeaf(SPECS["api"], None, made, is_new=True), NAMESPACE)
        assert base64.b64encode(made.key).decode()[:40] not in repr(request)


class TestBundles:
    def test_bundles_of_webhooks_are_read_one_by_one(self) -> None:
        good = pem_of((authorities().current.certificate,))
        webhooks = [
            {"name": "a", "clientConfig": {"caBundle": base64.b64encode(good).decode()}},
            {"name": "b", "clientConfig": {"service": {}}},
            {"name": "c", "clientConfig": {"caBundle": "!"}},
        ]
        body = stored({"metadata": {}, "webhooks": webhooks})
        assert read_target(WEBHOOKS, body) == Found("7", Bundles((good, b"", b"")))
        assert read_target(WEBHOOKS, stored({"metadata": {}})) == Found("7", Bundles(()))
        assert read_target(WEBHOOKS, b"{}") == Unreadable(
            "MutatingWebhookConfiguration gpuwarden-pods: an object that cannot be read"
        )

    def test_a_patch_of_webhooks_changes_nothing_else(self) -> None:
        request = write_request(PutBundle(WEBHOOKS, "7", b"pem", 2), NAMESPACE)
        assert (request.content_type, request.namespace, request.is_new) == (
            JSON_PATCH,
            None,
            False,
        )
        text = base64.b64encode(b"pem").decode()
        assert request.body == [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": text},
            {"op": "add", "path": "/webhooks/1/clientConfig/caBundle", "value": text},
        ]
        assert request.shown == "MutatingWebhookConfiguration gpuwarden-pods"
        other = Target(TargetKind.VALIDATING, "gpuwarden-pods")
        named = write_request(PutBundle(other, "7", b"pem", 1), NAMESPACE)
        assert named.resource.plural == "validatingwebhookconfigurations"

    def test_the_trust_bundle_is_text_in_a_config_map(self) -> None:
        request = write_request(PutBundle(PEOPLE, None, b"pem", 1), NAMESPACE)
        body: Any = request.body
        assert (body["kind"], body["data"]) == ("ConfigMap", {"ca.crt": "pem"})
        assert read_target(PEOPLE, stored(body)) == Found("7", Bundles((b"pem",)))
        patch = write_request(PutBundle(PEOPLE, "7", b"pem", 1), NAMESPACE)
        assert patch.body == {"metadata": {"resourceVersion": "7"}, "data": {"ca.crt": "pem"}}
        empty = stored({"metadata": {}})
        assert read_target(PEOPLE, empty) == Found("7", Bundles((b"",)))


class TestRevisions:
    @staticmethod
    def pod(revision: str | None, phase: str = "Running") -> bytes:
        labels = {} if revision is None else {"controller-revision-hash": revision}
        return json.dumps({"metadata": {"labels": labels}, "status": {"phase": phase}}).encode()

    @pytest.mark.parametrize(
        ("pods", "is_one"),
        [
            ([], True),
            ([("a", "Running")], True),
            ([("a", "Running"), ("a", "Pending")], True),
            ([("a", "Running"), ("b", "Pending")], False),
            ([("a", "Running"), ("b", "Succeeded"), ("c", "Failed")], True),
            ([("a", "Running"), ("b", "Unknown")], False),
            ([("a", "Running"), (None, "Running")], False),
        ],
    )
    def test_pods_that_run_count(self, pods: list[tuple[str | None, str]], *, is_one: bool) -> None:
        assert are_of_one_revision(self.pod(*x) for x in pods) is is_one

    @pytest.mark.parametrize("body", [b"[]", b"{}", b'{"metadata":{"labels":[]},"status":{}}'])
    def test_what_is_no_pod_is_an_error(self, body: bytes) -> None:
        with pytest.raises(MaterialError, match="an object that cannot be read"):
            are_of_one_revision([self.pod("a"), body])
