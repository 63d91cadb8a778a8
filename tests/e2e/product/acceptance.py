"""What every way to install must pass on a cluster: a verified node, a set of pods, doctor."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tests.contracts.pod_resources import DEVICES, RESOURCE
from tests.e2e.lab.api import Document
from tests.e2e.lab.device_plugin import VARIABLE
from tests.e2e.lab.pods import PROBE, Namespace
from tests.e2e.lab.waiting import NeverError, until
from tests.e2e.product.deployed import REPLICAS, Deployed
from tests.e2e.product.workstation import Workstation
from tests.e2e.run_record import KEPT

START_S: Final = 600
"""Images are unpacked, and the machine does much else."""
_SETTLED_S: Final = 90


@dataclass
class Steps:
    """What was done, and when."""

    began: float = field(default_factory=time.monotonic)
    done: list[str] = field(default_factory=list)

    def reached(self, what: str) -> None:
        self.done.append(f"{time.monotonic() - self.began:5.0f} s  {what}")


@contextmanager
def explained_failures(cluster: Deployed, name: str) -> Iterator[None]:
    """Keep what pods say where the body fails: nobody has them after the lab."""
    try:
        yield
    except BaseException:
        folder = KEPT / name
        cluster.lab.keep_logs(folder, {})
        (folder / "described.txt").write_text(
            cluster.kubectl("get", "pods,jobs", "--all-namespaces", "-o=wide")
            + cluster.kubectl("describe", "pods")
            + cluster.kubectl("get", "events", "--all-namespaces")
        )
        raise


def enforced(cluster: Deployed, name: str) -> Namespace:
    """A new namespace whose pods gpuwarden admits."""
    metadata = {"name": name, "labels": {"gpuwarden.dev/enforce": "true"}}
    cluster.lab.api.post("/api/v1/namespaces", {"metadata": metadata})
    return Namespace(cluster.lab.api, name)


def verified(cluster: Deployed, level: str) -> Document:
    """Wait until both replicas have verified the node at this level; as the last one sees it."""
    seen = [
        until(
            f"replica {replica} has verified the node",
            lambda number=replica: cluster.in_state(number, "eligible"),  # type: ignore[misc] # mypy cannot infer the default
            timeout_s=START_S,
        )
        for replica in range(REPLICAS)
    ]
    assert [x["level"] for x in seen] == [level] * REPLICAS
    return seen[-1]


def never_restarted(cluster: Deployed, *components: str) -> None:
    """No container of these has ended so far."""
    for component in components:
        for one in cluster.pods(component):
            counts = [x["restartCount"] for x in one["status"]["containerStatuses"]]
            assert counts == [0] * len(counts), (component, counts)


def run_a_managed_set(cluster: Deployed, pods: Namespace) -> None:
    """Its pod `train-0` requires the class of this node, and has the GPU that kubelet says."""
    node = cluster.node(0)
    assert node is not None
    template = {
        "metadata": {
            "labels": {"app": "train"},
            "annotations": {"gpuwarden.dev/required-hash": node["attestationHash"]},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": PROBE,
                    "imagePullPolicy": "Never",
                    "args": ["env", VARIABLE],
                    "resources": {"limits": {RESOURCE: "1"}},
                }
            ]
        },
    }
    spec = {
        "serviceName": "train",
        "selector": {"matchLabels": {"app": "train"}},
        "template": template,
    }
    path = f"/apis/apps/v1/namespaces/{pods.name}/statefulsets"
    cluster.lab.api.post(path, {"metadata": {"name": "train"}, "spec": spec})
    until("its pod runs", lambda: phase(pods, "train-0") == "Running", timeout_s=START_S)
    found = pods.get("train-0")
    assert found["spec"]["schedulerName"] == "gpuwarden"
    assert found["metadata"]["annotations"]["gpuwarden.dev/node"] == cluster.lab.node.name
    (card,) = (x for x in DEVICES if x in pods.says("train-0", f"{VARIABLE}="))
    until("kubelet's allocation is known", lambda: given(cluster, pods.name) == [card])


def phase(pods: Namespace, name: str) -> str:
    """Empty while there is no such pod."""
    found = pods.api.found(f"{pods.path}/pods/{name}")
    return "" if found is None else str(found["status"].get("phase", ""))


def given(cluster: Deployed, namespace: str) -> list[str]:
    """GPUs that verified evidence says the pod was given."""
    told: Document = json.loads(
        cluster.gpuwarden(0, "explain", "pod", f"{namespace}/train-0", "-o", "json")
    )
    (stage,) = (x for x in told["stages"] if x["name"] == "kubelet")
    return list(stage.get("gpus", []))


def examined(person: Workstation) -> dict[str, Document]:
    """By an administrator with nothing but the kubeconfig; no check fails. The checks, by id."""
    status = person.run("status")
    assert status.returncode == 0, status
    doctor = person.run("doctor", "-o", "json")
    found = {x["id"]: x for group in json.loads(doctor.stdout)["groups"] for x in group["checks"]}
    bad = {x: y for x, y in found.items() if y["outcome"] == "failed"}
    assert (doctor.returncode, bad) == (0, {}), bad
    for name in ("controller-answers", "pod-mutated", "pod-refused"):
        assert found[name]["outcome"] == "passed", found[name]
    return found


def settled(look: Callable[[], set[str]], wanted: set[str]) -> set[str]:
    """What is left, once it is what is wanted, or after a while whatever it is."""
    with suppress(NeverError):
        until("it is as wanted", lambda: look() == wanted, timeout_s=_SETTLED_S, poll_s=1)
    return look()
