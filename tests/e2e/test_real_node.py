"""A real node: pods run there, are read and reached, and survive what happens to the node."""

import http.client
import json
import re
from collections.abc import Iterator

import pytest

from controller.kube.pods.pods import pod_kind
from controller.placement.keys import RequirementRules
from controller.runs.pod_run import RunEnd
from tests.e2e.lab.api import Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import pod
from tests.e2e.lab.waiting import until

pytestmark = pytest.mark.usefixtures("real_node")
_ANSWER_S = 2.0
"""What is sent before kube-proxy knows the Service is lost, and sent again in vain: try again."""


@pytest.fixture
def web(lab: Lab) -> Iterator[str]:
    """A Service with one pod behind it that answers with its name."""
    lab.pods.create(pod("web", "serve", ":8080"))
    services = f"{lab.pods.path}/services"
    ports = [{"port": 80, "targetPort": 8080}]
    lab.api.post(
        services,
        {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": ports}},
    )
    lab.pods.phase("web", "Running")
    yield "web.default.svc.cluster.local"
    lab.api.delete(f"{services}/web")
    lab.pods.delete("web")


def test_a_pod_runs_and_its_log_is_read(lab: Lab) -> None:
    name = lab.pods.create(pod("speaker", "say", "hello from a pod"))
    assert lab.pods.says(name, "hello") == "hello from a pod\n"
    assert lab.pods.get(name)["spec"]["nodeName"] == lab.node.name
    lab.pods.delete(name)


def test_a_service_is_found_by_name_and_answers(lab: Lab, web: str) -> None:
    lab.pods.create(pod("asker", "get", f"http://{web}/", restartPolicy="OnFailure"))
    assert lab.pods.says("asker", "200") == "200 web\n"
    lab.pods.delete("asker")


def test_a_name_that_does_not_exist_is_not_found(lab: Lab) -> None:
    lab.pods.create(pod("asker", "lookup", "nothing.default.svc.cluster.local"))
    assert lab.pods.phase("asker", "Succeeded", "Failed") == "Failed"
    assert "no such host" in lab.pods.log("asker")
    lab.pods.delete("asker")


def test_a_pod_that_has_ended_tells_how_long_it_ran_at_once(lab: Lab) -> None:
    """Kubelet reports the end of the pod together with the times of its containers."""
    document = pod("timed", "say", "working", activeDeadlineSeconds=3)
    document["metadata"]["labels"] |= {"app.kubernetes.io/job-type": "training"}
    document["metadata"]["annotations"] = {"gpuwarden.dev/gpu-count": "1"}
    lab.pods.create(document)

    def ended() -> Document | None:
        found = lab.pods.get("timed")
        return found if found["status"]["phase"] in {"Succeeded", "Failed"} else None

    body = json.dumps(until("it has ended", ended)).encode()
    run = pod_kind(RequirementRules()).entry(body)[1].value.run
    assert run is not None
    assert (run.job_type, run.end) == ("training", RunEnd.FAILED)
    assert 1 <= run.seconds <= 30
    assert re.fullmatch("sha256:[0-9a-f]{64}", run.image)
    lab.pods.delete("timed")


def test_pods_and_services_answer_from_outside_too(lab: Lab, web: str) -> None:
    service = lab.api.get(f"{lab.pods.path}/services/{web.partition('.')[0]}")
    addresses = (service["spec"]["clusterIP"], lab.pods.get("web")["status"]["podIP"])
    for address, port in zip(addresses, (80, 8080), strict=True):
        until(f"{address} answers", lambda a=address, p=port: _answer(a, p) == "web")  # type: ignore[misc] # mypy cannot infer the defaults


def test_a_pod_runs_on_while_containerd_and_kubelet_are_gone(lab: Lab) -> None:
    name = lab.pods.create(pod("steady", "say", "here"))
    lab.pods.says(name, "here")
    started = _started_at(lab, name)
    lab.node.kubelet.stop()
    lab.node.containerd.kill()
    lab.node.containerd.resume_service()
    lab.node.kubelet.resume_service()
    lab.pods.says(name, "here")
    assert _started_at(lab, name) == started
    lab.pods.delete(name)


def test_the_nodes_folders_are_where_daemonsets_look(lab: Lab) -> None:
    kubelet = lab.node.capsule.path("/var/lib/kubelet")
    sockets = ("device-plugins/kubelet.sock", "pod-resources/kubelet.sock")
    assert [name for name in sockets if not (kubelet / name).is_socket()] == []


def _started_at(lab: Lab, name: str) -> str:
    status = until("it has a status", lambda: lab.pods.get(name)["status"]["containerStatuses"])
    return str(status[0]["state"]["running"]["startedAt"])


def _answer(address: str, port: int) -> str:
    """Empty while nobody listens: a pod that runs may not do so yet, nor kube-proxy know of it."""
    connection = http.client.HTTPConnection(address, port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()
