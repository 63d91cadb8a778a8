"""What is read of an object, and what is refused."""

import json
from typing import Any

import pytest

from controller.fleet.directory import KnownNode, Taint
from controller.kube.nodes import NAMESPACE_KIND, NODE_KIND, KnownNamespace
from controller.kube.pods import KnownPod, pod_kind
from controller.kube.resources import ApiError, Entry, EventKind, error_from_answer
from controller.ledger.claim import LivePod
from controller.ledger.record import PodRef
from controller.placement.texts import WishRules

METADATA = {"name": "n", "uid": "u", "resourceVersion": "v", "annotations": {"x": "y" * 9}}


def line(kind: str, body: Any) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


def test_a_node() -> None:
    body = {"metadata": METADATA, "spec": {"podCIDR": "10.0.0.0/8"}, "status": {"images": [1]}}
    assert NODE_KIND.entry(json.dumps(body).encode()) == ("n", Entry("v", "u", KnownNode("u")))


@pytest.mark.parametrize(
    ("taints", "managed"),
    [
        (None, False),
        ([{"key": "gpuwarden.dev/managed", "effect": "NoExecute", "value": "x"}], True),
        ([{"key": "gpuwarden.dev/managed", "effect": "NoSchedule"}], False),
        ([{"key": "other", "effect": "NoExecute"}, {"key": "gpuwarden.dev/managed"}], False),
    ],
)
def test_what_is_kept_of_a_node(taints: Any, *, managed: bool) -> None:
    labels = {"gpu-node-name": "node1", "other": "x"}
    body = {"metadata": {**METADATA, "labels": labels}, "spec": {"taints": taints}}
    _, entry = NODE_KIND.entry(json.dumps(body).encode())
    hard = tuple(
        Taint(x["key"], x.get("value", ""), x["effect"]) for x in taints or () if "effect" in x
    )
    assert entry.value == KnownNode("u", managed, "node1", labels=labels, taints=hard)


@pytest.mark.parametrize(
    ("phase", "has_ended"), [("Running", False), ("Failed", True), ("", False)]
)
def test_a_pod(phase: str, *, has_ended: bool) -> None:
    body = {
        "metadata": {**METADATA, "namespace": "ns"},
        "spec": {"nodeName": "gpu-1", "containers": [{}]},
        "status": {"phase": phase, "conditions": None},
    }
    pod = KnownPod("ns", "n", "u", "gpu-1", has_ended, asks=False, uses_gpus=False)
    assert pod_kind(WishRules()).entry(json.dumps(body).encode()) == ("ns/n", Entry("v", "u", pod))


@pytest.mark.parametrize(
    ("annotations", "limits", "asks", "uses_gpus"),
    [
        ({}, {}, False, False),
        ({}, {"nvidia.com/gpu": "1"}, False, True),
        ({"gpuwarden.dev/min-level": "L1"}, {}, True, True),
        ({"gpuwarden.dev/min-level": "none of them"}, {}, True, True),
    ],
)
def test_the_wishes_of_a_pod(
    annotations: dict[str, str], limits: dict[str, str], *, asks: bool, uses_gpus: bool
) -> None:
    body = {
        "metadata": {**METADATA, "annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }
    _, entry = pod_kind(WishRules()).entry(json.dumps(body).encode())
    assert (entry.value.asks, entry.value.uses_gpus) == (asks, uses_gpus)


def pod_of(annotations: dict[str, str], **more: Any) -> KnownPod:
    spec = {"containers": [{"name": "c", "env": [{"name": "A", "value": "b"}]}], **more}
    owner = {"kind": "Job", "name": "j", "uid": "job-1", "controller": True}
    metadata = {
        **METADATA,
        "namespace": "ns",
        "annotations": annotations,
        "ownerReferences": [owner],
    }
    status = {"phase": "Failed" if more.get("ended") else "Pending"}
    body = json.dumps({"metadata": metadata, "spec": spec, "status": status})
    return pod_kind(WishRules()).entry(body.encode())[1].value


def test_a_pod_that_waits_is_kept_whole() -> None:
    found = pod_of({"example.org/a": "b"})
    assert found.waiting is not None
    assert [x.name for x in found.waiting.spec.containers or ()] == ["c"]
    assert found.held is None
    assert pod_of({}, nodeName="gpu-1").waiting is None
    assert pod_of({}, ended=True).waiting is None


def test_what_a_bound_pod_was_told_that_it_holds() -> None:
    told = {
        "gpuwarden.dev/reservation-id": "v1.k.x",
        "gpuwarden.dev/gpu-uuids-assigned": "GPU-b,GPU-a",
    }
    pod = PodRef("ns", "n", "u", "job-1")
    assert pod_of(told, nodeName="gpu-1").held == LivePod(
        pod, "gpu-1", "v1.k.x", ("GPU-a", "GPU-b")
    )
    assert pod_of(told).held is None
    assert pod_of({}, nodeName="gpu-1").held is None


@pytest.mark.parametrize(
    ("labels", "enforced"),
    [
        ({"gpuwarden.dev/enforce": "true"}, True),
        ({"gpuwarden.dev/enforce": "no"}, False),
        (None, False),
    ],
)
def test_a_namespace(labels: dict[str, str] | None, *, enforced: bool) -> None:
    body = {"metadata": {**METADATA, "labels": labels}}
    _, entry = NAMESPACE_KIND.entry(json.dumps(body).encode())
    assert entry.value == KnownNamespace(enforced)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"metadata": {}},
        {"metadata": {**METADATA, "uid": ""}},
        {"metadata": {**METADATA, "name": 7}},
        {"metadata": {"name": "n", "uid": "u"}},
        [],
    ],
)
def test_an_object_that_cannot_be_known_is_an_error(body: Any) -> None:
    with pytest.raises(ApiError, match="nodes: an object"):
        NODE_KIND.entry(json.dumps(body).encode())


class TestEvents:
    def test_applied_and_deleted(self) -> None:
        for kind in ("ADDED", "MODIFIED"):
            event = NODE_KIND.event(line(kind, {"metadata": METADATA}))
            assert (event.kind, event.key, event.version) == (EventKind.APPLIED, "n", "v")
        event = NODE_KIND.event(line("DELETED", {"metadata": METADATA}))
        assert event.kind is EventKind.DELETED

    def test_a_bookmark_has_only_a_version(self) -> None:
        event = NODE_KIND.event(line("BOOKMARK", {"metadata": {"resourceVersion": "b"}}))
        assert (event.kind, event.version, event.entry) == (EventKind.BOOKMARK, "b", None)

    def test_an_error_is_raised_as_what_it_says(self) -> None:
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        with pytest.raises(ApiError, match="410 Expired: too old") as found:
            NODE_KIND.event(line("ERROR", status))
        assert found.value.is_gone

    def test_an_error_without_a_code_is_the_servers(self) -> None:
        with pytest.raises(ApiError) as found:
            NODE_KIND.event(line("ERROR", {"kind": "Status"}))
        assert found.value.status == 500

    @pytest.mark.parametrize(
        "garbage", [b"\n", b"null\n", b'{"type":"ADDED"}\n', line("LOUD", {}), line("BOOKMARK", 1)]
    )
    def test_garbage_is_no_event(self, garbage: bytes) -> None:
        with pytest.raises(ApiError) as found:
            NODE_KIND.event(garbage)
        assert not found.value.says_wait


class TestErrors:
    def test_retry_after_of_the_body_counts_where_the_header_is_missing(self) -> None:
        body = b'{"kind":"Status","details":{"retryAfterSeconds":3}}'
        assert error_from_answer(429, body).retry_after_s == 3.0
        assert error_from_answer(429, body, "9").retry_after_s == 9.0
        assert error_from_answer(429, body, "86400").retry_after_s == 60.0
        assert error_from_answer(429, b"", "tomorrow").retry_after_s == 0.0

    def test_texts_are_short_clean_and_without_secrets(self) -> None:
        message = "a\x1b[31m" + " bearer abcdefghijklmnop" + "é" * 1000
        body = json.dumps({"kind": "Status", "message": message}).encode()
        text = str(error_from_answer(403, body))
        assert "abcdefgh" not in text
        assert text.isascii()
        assert text.isprintable()
        assert len(text) < 350
