"""What every Kubernetes API server must do for us. A test module subclasses this and gives `api`.

Run against the fake in tests/contracts/test_fake_api_server.py and against a real
kube-apiserver in tests/e2e. Names are drawn, so that tests of one server do not meet.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest

from controller.kube.access.token_review import KubeTokenReviewer, reviewed_identity
from controller.kube.api.client import JSON_PATCH, ApiClient
from controller.kube.api.resources import LEASES, NAMESPACES, TOKEN_REVIEWS, ApiError, Resource

NAMESPACE = "default"


def fresh_name(prefix: str = "contract") -> str:
    return f"{prefix}-{secrets.token_hex(4)}"


def lease(name: str, holder: str) -> dict[str, Any]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
    }


def namespace(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def version(body: bytes) -> str:
    found: str = json.loads(body)["metadata"]["resourceVersion"]
    return found


class KubernetesApiContract:
    @pytest.fixture
    def api(self) -> ApiClient:
        """Two objects to a page."""
        raise NotImplementedError

    async def test_an_object_that_is_not_there(self, api: ApiClient) -> None:
        with pytest.raises(ApiError, match="answered 404 NotFound") as found:
            await api.get(LEASES, fresh_name(), NAMESPACE)
        assert found.value.is_not_found

    async def test_created_read_and_created_again(self, api: ApiClient) -> None:
        name = fresh_name()
        made = await api.create(LEASES, lease(name, "me"), NAMESPACE)
        read = json.loads(await api.get(LEASES, name, NAMESPACE))
        assert datetime.fromisoformat(read["metadata"]["creationTimestamp"]).tzinfo is not None
        assert read["metadata"]["resourceVersion"] == version(made)
        assert read["spec"]["holderIdentity"] == "me"
        with pytest.raises(ApiError) as found:
            await api.create(LEASES, lease(name, "you"), NAMESPACE)
        assert found.value.is_conflict
        assert found.value.reason == "AlreadyExists"

    async def test_a_merge_patch_with_a_version_wants_the_present_one(self, api: ApiClient) -> None:
        name = fresh_name()
        first = version(await api.create(LEASES, lease(name, "me"), NAMESPACE))

        def patch(holder: str) -> dict[str, Any]:
            return {"metadata": {"resourceVersion": first}, "spec": {"holderIdentity": holder}}

        second = version(await api.patch(LEASES, name, patch("you"), NAMESPACE))
        assert second != first
        with pytest.raises(ApiError) as found:
            await api.patch(LEASES, name, patch("them"), NAMESPACE)
        assert found.value.is_conflict
        assert found.value.reason == "Conflict"
        read = json.loads(await api.get(LEASES, name, NAMESPACE))
        assert read["spec"] == {"holderIdentity": "you", "leaseDurationSeconds": 15}

    async def test_a_json_patch_with_a_version_wants_the_present_one(self, api: ApiClient) -> None:
        name = fresh_name()
        first = version(await api.create(LEASES, lease(name, "me"), NAMESPACE))

        def patch(holder: str) -> list[dict[str, Any]]:
            return [
                {"op": "replace", "path": "/metadata/resourceVersion", "value": first},
                {"op": "replace", "path": "/spec/holderIdentity", "value": holder},
            ]

        await api.patch(LEASES, name, patch("you"), NAMESPACE, content_type=JSON_PATCH)
        with pytest.raises(ApiError) as found:
            await api.patch(LEASES, name, patch("them"), NAMESPACE, content_type=JSON_PATCH)
        assert found.value.is_conflict
        read = json.loads(await api.get(LEASES, name, NAMESPACE))
        assert read["spec"]["holderIdentity"] == "you"

    async def test_all_pages_of_a_list_are_of_one_moment(self, api: ApiClient) -> None:
        names = {fresh_name() for _ in range(5)}
        for name in names:
            await api.create(NAMESPACES, namespace(name))
        found, versions = set[str](), set[str]()
        async for page in api.pages(NAMESPACES):
            assert len(page.items or ()) <= 2
            found |= {json.loads(bytes(x))["metadata"]["name"] for x in page.items or ()}
            versions.add(page.metadata.resource_version)
        assert names <= found
        assert len(versions) == 1

    async def test_a_watch_tells_what_follows_in_order(self, api: ApiClient) -> None:
        name = fresh_name()
        start = await _version_of(api, NAMESPACES)
        async with api.watch(NAMESPACES, start, seconds=20, silence_s=20) as lines:
            await api.create(NAMESPACES, namespace(name))
            await api.patch(NAMESPACES, name, {"metadata": {"labels": {"a": "b"}}})
            seen = []
            async for line in lines:
                event = json.loads(line)
                if event["object"]["metadata"].get("name") == name:
                    seen.append((event["type"], event["object"]["metadata"].get("labels", {})))
                if len(seen) == 2:
                    break
        assert seen[0][0] == "ADDED"
        assert seen[1][0] == "MODIFIED"
        assert seen[1][1]["a"] == "b"

    async def test_a_quiet_watch_says_how_far_it_is_once_somebody_asks(
        self, api: ApiClient
    ) -> None:
        """A change elsewhere moves the version; to ask for the newest makes the server look."""
        start = await _version_of(api, NAMESPACES)
        async with api.watch(NAMESPACES, start, seconds=5, silence_s=10) as lines:
            await api.create(LEASES, lease(fresh_name(), "me"), NAMESPACE)
            asked = await api.version_now(NAMESPACES)
            events = [json.loads(line) async for line in lines]
        assert asked not in {"", start}
        assert events[-1]["type"] == "BOOKMARK"
        assert events[-1]["object"]["metadata"]["resourceVersion"]

    async def test_calls_at_the_same_time(self, api: ApiClient) -> None:
        names = [fresh_name() for _ in range(20)]
        await asyncio.gather(*(api.create(LEASES, lease(x, "me"), NAMESPACE) for x in names))
        read = await asyncio.gather(*(api.get(LEASES, x, NAMESPACE) for x in names))
        assert [json.loads(x)["metadata"]["name"] for x in read] == names

    async def test_a_deletion_is_of_one_version_of_one_object(self, api: ApiClient) -> None:
        name = fresh_name()
        made = json.loads(await api.create(LEASES, lease(name, "me"), NAMESPACE))["metadata"]
        uid, first = made["uid"], made["resourceVersion"]
        body = {"spec": {"holderIdentity": "you"}}
        now = version(await api.patch(LEASES, name, body, NAMESPACE))
        other = f"{'1' if uid[0] == '0' else '0'}{uid[1:]}"
        for wrong in ({"uid": uid, "version": first}, {"uid": other, "version": now}):
            with pytest.raises(ApiError) as found:
                await api.delete(LEASES, name, NAMESPACE, **wrong)
            assert found.value.is_conflict
        await api.delete(LEASES, name, NAMESPACE, uid=uid, version=now)
        with pytest.raises(ApiError) as found:
            await api.delete(LEASES, name, NAMESPACE, uid=uid, version=now)
        assert found.value.is_not_found

    async def test_an_invented_token_counts_for_nothing_and_nothing_is_stored(
        self, api: ApiClient
    ) -> None:
        assert await KubeTokenReviewer(api, "gpuwarden").review("invented") is None
        spec = {"token": "invented", "audiences": ["gpuwarden"]}
        kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview"}
        answer = await api.create(TOKEN_REVIEWS, {**kind, "spec": spec})
        assert reviewed_identity(answer, "gpuwarden") is None
        assert "resourceVersion" not in json.loads(answer).get("metadata", {})

    async def test_a_finalizer_holds_what_is_deleted_and_its_end_removes_it(
        self, api: ApiClient
    ) -> None:
        name, mine = fresh_name(), "gpuwarden.dev/contract"
        held = lease(name, "me")
        held["metadata"]["finalizers"] = [mine]
        made = json.loads(await api.create(LEASES, held, NAMESPACE))["metadata"]
        answer = await api.delete(
            LEASES, name, NAMESPACE, uid=made["uid"], version=made["resourceVersion"]
        )
        assert json.loads(answer)["metadata"]["deletionTimestamp"]
        with pytest.raises(ApiError) as found:
            await api.create(LEASES, lease(name, "you"), NAMESPACE)
        assert found.value.is_conflict
        changed = await api.patch(LEASES, name, {"spec": {"holderIdentity": "you"}}, NAMESPACE)
        assert json.loads(changed)["spec"]["holderIdentity"] == "you"
        more = {"metadata": {"finalizers": [mine, "gpuwarden.dev/more"]}}
        with pytest.raises(ApiError, match="answered 422"):
            await api.patch(LEASES, name, more, NAMESPACE)
        await api.patch(LEASES, name, {"metadata": {"finalizers": None}}, NAMESPACE)
        with pytest.raises(ApiError) as found:
            await api.get(LEASES, name, NAMESPACE)
        assert found.value.is_not_found

    async def test_the_change_that_lets_a_deleted_object_go_is_shown_to_nobody(
        self, api: ApiClient
    ) -> None:
        """Its DELETED event has the object as it was before."""
        name = fresh_name()
        held = lease(name, "me")
        held["metadata"]["finalizers"] = ["gpuwarden.dev/contract"]
        made = json.loads(await api.create(LEASES, held, NAMESPACE))["metadata"]
        found = {"uid": made["uid"], "version": made["resourceVersion"]}
        await api.delete(LEASES, name, NAMESPACE, **found)
        start = made["resourceVersion"]
        async with api.watch(LEASES, start, seconds=5, silence_s=10) as lines:
            last = {"metadata": {"finalizers": None}, "spec": {"holderIdentity": "you"}}
            await api.patch(LEASES, name, last, NAMESPACE)
            events = [x async for x in _of(name, lines, until="DELETED")]
        assert events[-1]["object"]["spec"]["holderIdentity"] == "me"


async def _of(
    name: str, lines: AsyncIterator[bytes], *, until: str
) -> AsyncIterator[dict[str, Any]]:
    """Events of one object, up to the first of type `until`."""
    async for line in lines:
        event = json.loads(line)
        if event["object"]["metadata"].get("name") == name:
            yield event
            if event["type"] == until:
                return


async def _version_of(api: ApiClient, resource: Resource) -> str:
    found = ""
    async for page in api.pages(resource):
        found = page.metadata.resource_version
    return found
