"""`fit`, both webhooks and /filter say the same of every pod that tests on a cluster create.

Each shape is a manifest with the pods that the API server's controllers make of it, written out.
"""

import copy
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiohttp import ClientSession
from grpc import aio

from gpuwarden.wire.v1 import fleet_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2_grpc as pb_grpc
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import patch_of, review_json
from tests.builders.admitted_pods import LEVEL, UUIDS, Document, container, new_pod, variable
from tests.builders.examples import example
from tests.e2e.product.cards import greedy
from tests.e2e.product.pods import managed
from tests.e2e.product.shapes import SHAPES, PodShape
from tests.fakes.cluster import GPUS, FakeCluster, LiveCluster
from tests.fakes.eventually import eventually

NODE: Final = "node-1"
MAP: Final = "gpu-scheduling-map"
COUNT: Final = "gpuwarden.dev/gpu-count"
EARLY: Final = {COUNT: "1", "gpuwarden.dev/reserve": "admission"}
CUDA: Final = variable("CUDA_VISIBLE_DEVICES", "0")
README: Final = Path(__file__).resolve().parents[2] / "README.md"
REFUSED: Final = {
    "env": {"", "REQ_INVALID", "BYPASS_HOST_PID", "CLASS_UNKNOWN", "NODE_NO_EVIDENCE", "NODE_MODE"},
    "plugin": {"", "REQ_INVALID", "BYPASS_HOST_PID", "NODE_MODE", "EXACT_UNAVAILABLE"},
}
"""Some of the codes at creation, by the mode of all nodes."""


@dataclass(frozen=True)
class Shape:
    name: str
    manifest: Document
    pods: tuple[Document, ...]


def single(name: str, document: Document) -> Shape:
    return Shape(name, document, (document,))


def workload(kind: str, template: Document, **spec: Any) -> Document:
    return {
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {"template": template, **spec},
    }


def made(template: Document, owner: str, **metadata: Any) -> Document:
    """A pod of a controller: `metadata` is joined with the template's."""
    kind, _, name = owner.partition("/")
    reference = {"kind": kind, "name": name, "uid": "o", "controller": True}
    given = copy.deepcopy(template)
    for key in ("labels", "annotations"):
        if key in metadata:
            metadata[key] = {**given["metadata"].get(key, {}), **metadata[key]}
    given["metadata"] |= {"ownerReferences": [reference], "generateName": f"{name}-", **metadata}
    return {"kind": "Pod", **given}


def template(annotations: Mapping[str, str], *containers: Document, **spec: Any) -> Document:
    return {
        "metadata": {"annotations": dict(annotations), "labels": {"app": "web"}},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def _of_controllers() -> Iterator[Shape]:
    for name, annotations in (("uuids", {"gpuwarden.dev/gpu-uuids": GPUS[0]}), ("level", LEVEL)):
        own = template(annotations)
        for kind, owner in (
            ("Deployment", "ReplicaSet/web-7d9f5"),
            ("DaemonSet", "DaemonSet/web"),
            ("Job", "Job/web"),
        ):
            labels = {"pod-template-hash": "7d9f5"} if kind == "Deployment" else {}
            pod = made(own, owner, labels=labels)
            yield Shape(f"{kind}-{name}", workload(kind, own), (pod,))
    index, completion = "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"
    for name, text in {
        "well": f"0={NODE}:0\n1={NODE}:1",
        "shared": f"0={NODE}:0\n1={NODE}:0",
        "short": f"0={NODE}:0",
        "elsewhere": f"0={NODE}:0\n1=node-9:1",
        "wrong": f"0={NODE}:0\n1={NODE}",
    }.items():
        own = template({MAP: text})
        pods = (
            made(own, "StatefulSet/web", name=f"web-{x}", labels={index: str(x)}) for x in (0, 1)
        )
        yield Shape(f"StatefulSet-{name}", workload("StatefulSet", own, replicas=2), (*pods,))
        pods = (
            made(
                own,
                "Job/web",
                generateName=f"web-{x}-",
                labels={completion: str(x)},
                annotations={completion: str(x)},
            )
            for x in (0, 1)
        )
        job = workload("Job", own, completionMode="Indexed", completions=2)
        yield Shape(f"Job-{name}", job, (*pods,))
        pod = made(own, "ReplicaSet/web-7d9f5", labels={"pod-template-hash": "7d9f5"})
        yield Shape(f"Deployment-{name}", workload("Deployment", own, replicas=2), (pod,))


def _of_pods() -> Iterator[Shape]:
    seen = [x for x in SHAPES if isinstance(x, PodShape)]
    yield from (single(f"shape-{x.name}", x.named()) for x in seen)
    for name, requirements in {
        "nothing": {},
        "level": {"min-level": "L0"},
        "count": {"gpu-count": "2"},
        "too-many": {"gpu-count": "9"},
        "uuids": {"gpu-uuids": GPUS[1]},
        "missing": {"gpu-uuids": "GPU-00000000-0000-4000-8000-000000000000"},
        "hash": {"required-hash": f"v1:sha256:{'0' * 64}"},
        "class": {"attestation-class": "gold"},
        "selector": {"gpu-selector": "memory>=1Gi"},
        "big": {"gpu-selector": "memory>=900Gi"},
        "high": {"min-level": "L2"},
        "less": {"gpu-uuids": GPUS[1], "guarantee": "node"},
    }.items():
        yield single(f"greedy-{name}", greedy(f"greedy-{name}", requirements))
        for gpus in (0, 1, 2):
            pod = managed(f"managed-{name}", requirements, gpus=gpus)
            yield single(f"managed-{name}-{gpus}", pod)
    labels = {"assign": {"fudo.org/gpu.assign": "true"}, "unknown": {"fudo.org/gpu.x": "true"}}
    for name, each in labels.items():
        yield single(f"label-{name}", new_pod(labels=each))
        yield single(f"label-{name}-request", new_pod(container(gpus=2), labels=each))
    yield single("other", managed("other", {"min-level": "L0"}, scheduler="other"))
    yield single("early", new_pod(annotations=EARLY))
    yield single("early-hostile", new_pod(annotations=EARLY, hostPID=True))
    yield single("early-selected", new_pod(annotations=EARLY, nodeSelector={"a": "b"}))
    yield single("early-by-name", new_pod(annotations=EARLY, nodeName=NODE))
    yield single("early-nowhere", new_pod(annotations=EARLY, nodeName="node-9"))
    yield single("flood", new_pod(container(env=[CUDA] * 100), annotations=UUIDS))
    yield single("replaced", new_pod(container(env=[CUDA]), annotations={COUNT: "1"}))
    for name, line in {"named": "train-1", "zeros": "train-01", "none": "train"}.items():
        pod = new_pod(annotations={MAP: f"1={NODE}:1"})
        pod["metadata"] = {"annotations": pod["metadata"]["annotations"], "name": line}
        yield single(f"bare-{name}", pod)
        pod = copy.deepcopy(pod)
        pod["metadata"]["labels"] = {"apps.kubernetes.io/pod-index": "0"}
        yield single(f"against-{name}", pod)
    first, more = re.findall(r"(?ms)^```yaml\n(.*?)^```", README.read_text())[:2]
    shown = yaml.safe_load(first)
    del shown["metadata"]["namespace"]
    yield single("readme", shown)
    shown = copy.deepcopy(shown)
    shown["metadata"]["annotations"] |= yaml.safe_load(more)
    del shown["spec"]["containers"][0]["resources"]
    yield single("readme-env", shown)


def _of_examples() -> Iterator[Shape]:
    for name in ("pod", "reservation"):
        yield single(f"example-{name}", example(name, NODE))
    index, completion = "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index"
    found = example("statefulset", NODE)
    own = found["spec"]["template"]
    pods = (
        made(own, "StatefulSet/shard", name=f"shard-{x}", labels={index: str(x)}) for x in (0, 1)
    )
    yield Shape("example-statefulset", found, (*pods,))
    found = example("deployment", NODE)
    own = found["spec"]["template"]
    pod = made(own, "ReplicaSet/inference-7d9f5", labels={"pod-template-hash": "7d9f5"})
    yield Shape("example-deployment", found, (pod,))
    found = example("job", NODE)
    own = found["spec"]["template"]
    number = {completion: "0"}
    pod = made(own, "Job/sweep", generateName="sweep-0-", labels=number, annotations=dict(number))
    yield Shape("example-job", found, (pod,))


EXAMPLES: Final = {
    "env": {"example-reservation"},
    "plugin": {f"example-{x}" for x in ("pod", "statefulset", "deployment", "job")},
}
"""Those that fit where all nodes are of this mode."""
TABLE: Final = (*_of_examples(), *_of_pods(), *_of_controllers())


@dataclass(frozen=True)
class Answer:
    """What becomes of one pod."""

    code: str
    """Of its refusal; empty where it is created."""
    nodes: Mapping[str, str]
    """Code by node, empty where it passes; of a managed pod that is created."""
    warnings: frozenset[str]


def joined(answers: Iterable[Answer]) -> tuple[bool, str, frozenset[str]]:
    """Whether each pod has a node, the first refusal, all warnings."""
    found = list(answers)
    refused = [x.code for x in found if x.code]
    is_yes = not refused and all("" in x.nodes.values() for x in found if x.nodes)
    return is_yes, refused[0] if refused else "", frozenset().union(*(x.warnings for x in found))


async def created(
    here: LiveCluster, session: ClientSession, document: Document, namespace: str
) -> Answer:
    """By both webhooks, as a dry run, and /filter."""
    pod = copy.deepcopy(document)
    pod["metadata"]["namespace"] = namespace
    warnings: set[str] = set()
    for step in ("mutate", "validate"):
        review = review_json(pod, namespace=namespace, dry_run=True)
        answer = await here.webhooks.post_in(session, f"/{step}/pods", review)
        response = answer["response"]
        warnings |= {*response.get("warnings", ())}
        if not response["allowed"]:
            (code,) = re.findall(r"^gpuwarden: ([A-Z_]+) ", response["status"]["message"])
            return Answer(code, {}, frozenset())
        if step == "mutate":
            pod = applied(pod, patch_of(answer))
            generated = pod["metadata"].get("generateName", "")
            pod["metadata"] |= {"uid": "u", "name": pod["metadata"].get("name", f"{generated}x7k")}
    found = await here.controller.filtered(pod)
    if found["Error"]:
        return Answer(found["Error"].split()[1], {}, frozenset(warnings))
    rejected = found["FailedAndUnresolvableNodes"]
    if "node-2" in found["NodeNames"]:
        return Answer("", {}, frozenset(warnings))  # unmanaged: nobody knows node-2
    code = "" if NODE in found["NodeNames"] else rejected[NODE].split()[1]
    return Answer("", {NODE: code}, frozenset(warnings))


def fitted(found: pb.FitPodResponse) -> Iterator[Answer]:
    """The same by `fit`."""
    warnings = frozenset(found.warnings)
    if found.code:
        yield Answer(found.code, {}, warnings)
        return
    assert bool(found.fits) is found.managed
    for pod in {x.pod: None for x in found.fits} or [""]:
        yield Answer("", {x.node: x.code for x in found.fits if x.pod == pod}, warnings)


@pytest.mark.parametrize("mode", REFUSED)
async def test_all_three_say_the_same(cluster: FakeCluster, mode: str) -> None:
    policy = cluster.folder / "mode.yaml"
    head = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: Policy\n"
    policy.write_text(f"{head}defaultMode: {mode}\n")
    differing: dict[str, object] = {}
    fitting: set[str] = set()
    said: set[tuple[bool, str]] = set()
    async with (
        cluster.live(policy__file=str(policy), attestation__lease="60s") as here,
        aio.insecure_channel(f"unix:{here.controller.addresses.local}") as channel,
        here.webhooks.session() as session,
    ):
        await here.webhooks.know_namespaces()
        await _ready(here, session)
        stub: Any = pb_grpc.FleetServiceStub(channel)
        for shape in TABLE:
            for namespace in ("strict", "plain"):
                request = pb.FitPodRequest(
                    pod_json=_manifest(shape.manifest, namespace), namespace=namespace
                )
                fit = joined(fitted(await stub.FitPod(request)))
                real = joined([await created(here, session, x, namespace) for x in shape.pods])
                said.add(real[:2])
                if fit[0] and namespace == "strict":
                    fitting.add(shape.name)
                if fit != real:
                    differing[f"{shape.name} in {namespace}"] = {"fit": fit, "real": real}
    assert differing == {}
    assert {x for x in fitting if x.startswith("example-")} == EXAMPLES[mode]
    assert {is_yes for is_yes, _ in said} == {True, False}
    assert REFUSED[mode] <= {code for _, code in said}


def _manifest(document: Document, namespace: str) -> bytes:
    found = copy.deepcopy(document)
    found["metadata"]["namespace"] = namespace
    return json.dumps(found).encode()


async def _ready(here: LiveCluster, session: ClientSession) -> None:
    """Node, ledger and policy are known."""

    async def placed() -> bool | None:
        answer = await created(here, session, new_pod(annotations=LEVEL), "strict")
        return answer.nodes == {NODE: ""} or None

    async def reserving() -> bool | None:
        answer = await created(here, session, new_pod(annotations=EARLY), "strict")
        return answer.code not in {"CONTROLLER_NOT_READY", "LEDGER_UNAVAILABLE"} or None

    await eventually(placed, "the node passes")
    await eventually(reserving, "the ledger is known")
