"""A control plane that serves, schedules and keeps its data. Needs no root."""

from collections.abc import Iterator

import pytest

from tests.e2e.lab.api import Api, ApiError
from tests.e2e.lab.kubelet import ready_condition
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import pod
from tests.e2e.lab.selection import chosen_kubernetes
from tests.e2e.lab.waiting import until


@pytest.fixture
def fake_node(lab: Lab) -> Iterator[str]:
    lab.fake_nodes.add("fake-0", gpus=2)
    yield "fake-0"
    lab.fake_nodes.delete("fake-0")


def test_it_serves_the_version_that_was_asked_for(lab: Lab) -> None:
    assert lab.api.get("/version")["gitVersion"] == f"v{chosen_kubernetes().version}"


def test_who_has_no_certificate_gets_nothing(lab: Lab) -> None:
    stranger = Api(lab.control_plane.url, lab.control_plane.identities.pki.ca)
    with pytest.raises(ApiError) as caught:
        stranger.get("/api/v1/nodes")
    assert caught.value.status == 403


def test_a_pod_is_bound_to_a_fake_node_with_room_for_it(lab: Lab, fake_node: str) -> None:
    gpus = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    for name in ("first", "second"):
        document = pod(name, kind="fake")
        document["spec"]["containers"][0].update(gpus)
        lab.pods.create(document)
    bound = until(
        "one of two is bound",
        lambda: [n for n in ("first", "second") if lab.pods.get(n)["spec"].get("nodeName")],
    )
    (waiting,) = {"first", "second"} - set(bound)
    conditions = until(
        "the other is told why", lambda: lab.pods.get(waiting)["status"].get("conditions")
    )
    assert "Insufficient nvidia.com/gpu" in conditions[0]["message"]
    assert lab.pods.node_of(bound[0]) == fake_node
    for name in ("first", "second"):
        lab.api.delete(f"{lab.pods.path}/pods/{name}", grace_s=0)


def test_the_api_server_keeps_its_data_over_restart_and_kill(lab: Lab) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    created = lab.api.post(path, {"metadata": {"name": "kept"}, "data": {"key": "value"}})
    server = lab.control_plane.api_server
    before = server.pid
    server.restart()
    server.kill()
    assert not server.is_running
    server.resume_service()
    assert server.pid != before
    assert lab.api.get(f"{path}/kept") == created
    lab.api.delete(f"{path}/kept")


def test_etcd_keeps_its_data_over_kill(lab: Lab) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    lab.api.post(path, {"metadata": {"name": "kept"}, "data": {"key": "value"}})
    lab.control_plane.etcd.kill()
    lab.control_plane.etcd.resume_service()
    found = until("etcd is found again", lambda: _data(lab.api, f"{path}/kept"))
    assert found == {"key": "value"}
    lab.api.delete(f"{path}/kept")


def test_a_pod_waits_for_a_scheduler_that_was_killed(lab: Lab, fake_node: str) -> None:
    lab.control_plane.scheduler.kill()
    lab.pods.create(pod("waiting", kind="fake"))
    lab.control_plane.scheduler.resume_service()
    assert lab.pods.node_of("waiting") == fake_node
    lab.api.delete(f"{lab.pods.path}/pods/waiting", grace_s=0)


@pytest.mark.long
def test_a_fake_node_without_heartbeat_is_no_longer_ready(lab: Lab) -> None:
    lab.fake_nodes.add("silent")
    lab.fake_nodes.silence("silent")
    until(
        "the controller manager notices",
        lambda: ready_condition(lab.api.get("/api/v1/nodes/silent")) == "Unknown",
        timeout_s=120,
    )
    lab.api.delete("/api/v1/nodes/silent")


def _data(api: Api, path: str) -> dict[str, str] | None:
    try:
        data: dict[str, str] = api.get(path)["data"]
    except (ApiError, OSError):
        return None
    return data
