"""Facts of an installation of which all is well: the manifests of deploy/, and what they become."""

import asyncio
import base64
import copy
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from controller.admission.pod_webhooks import MUTATE, VALIDATE, PodWebhooks
from gpuwarden import __version__
from gpuwarden.doctor.facts import (
    COLLECTIONS,
    DEFINITIONS,
    DEPLOYMENTS,
    INSTALLING_RIGHTS,
    STATEFUL_SETS,
    Collection,
    DryRun,
    Fact,
    Facts,
    Logs,
    LogVerdict,
    Metrics,
    Replica,
    Replicas,
    read_metrics,
    reading_rights,
)
from gpuwarden.doctor.gather import ASKING, WRONG, dry_run_pod
from gpuwarden.doctor.kubernetes import NEEDED_APIS
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import documents
from tests.builders.fleet_messages import node_message
from tests.builders.web_certificates import WebCa
from tests.fakes.admission import AdmissionWorld

ROOT = Path(__file__).resolve().parents[2]
REPLICAS = ("gpuwarden-controller-0", "gpuwarden-controller-1")
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SERVICE = "gpuwarden-admission.gpuwarden-system.svc"
CONFIGURATION = "gpuwarden-scheduler-configuration"
Object = dict[str, Any]
_FOLDERS = (
    "kustomize/base",
    "kustomize/components/admission",
    "policy",
    "policy/protection",
    "scheduler",
)
METRICS = """\
# HELP gpuwarden_svid_expires_seconds Seconds until the own SVID expires; 0 while there is none.
gpuwarden_svid_expires_seconds 1800.0
gpuwarden_store_available 1.0
gpuwarden_ledger_available 1.0
gpuwarden_clock_suspect 0.0
gpuwarden_kube_age_seconds{resource="nodes"} 0.5
gpuwarden_audit_available 1.0
gpuwarden_audit_sequence 4711.0
gpuwarden_extender_requests_total{result="passed",verb="filter"} 12.0
gpuwarden_extender_requests_total{result="rejected",verb="filter"} 3.0
gpuwarden_tls_handshakes_completed_total{listener="extender"} 2.0
gpuwarden_hint_scorer_available{path="/v1/score"} 1.0
gpuwarden_hint_scorer_available{path="/v1/observe"} 1.0
gpuwarden_hint_runs_unsaved 0.0
gpuwarden_tls_handshake_failures_total{cause="closed",listener="extender"} 1.0
"""


@cache
def manifests() -> tuple[Object, ...]:
    """Every object of the files of deploy/; of patches and what they change, what is changed."""
    found: dict[tuple[str, str], Object] = {}
    for folder in _FOLDERS:
        for file in sorted((ROOT / "deploy" / folder).glob("*.yaml")):
            for one in yaml.safe_load_all(file.read_text()):
                if isinstance(one, dict) and "metadata" in one:
                    found.setdefault((one["kind"], one["metadata"]["name"]), one)
    return tuple(found.values())


def healthy(folder: Path, objects: Iterable[Object] | None = None) -> Facts:
    """Those of `objects` (by default the files of deploy/) and two GPU nodes; keys in `folder`."""
    served = WebCa(folder, "webhooks", begins=NOW - _DAY, ends=NOW + 1000 * _DAY)
    chain, _ = served.issue(
        "admission", server=True, names=(SERVICE,), begins=NOW - _DAY, ends=NOW + 90 * _DAY
    )
    found = [copy.deepcopy(x) for x in (manifests() if objects is None else objects)]
    for one in found:
        for webhook in one.get("webhooks", ()):
            webhook["clientConfig"]["caBundle"] = encoded(served)
    begin = Facts(
        version_here=__version__,
        now=Fact(NOW),
        server=Fact("v1.35.4"),
        served=Fact(frozenset(NEEDED_APIS)),
        rights={
            one: Fact(value=True)
            for one in (*reading_rights("gpuwarden-system"), *INSTALLING_RIGHTS)
        },
        objects={one: Fact(_of(one, [*found, *_made()])) for one in COLLECTIONS},
        replicas=Fact(Replicas(tuple(_replica(name, chain) for name in REPLICAS))),
        logs=Fact(Logs((LogVerdict("lab/gpuwarden-controller-0", 2000, 4711, 3),))),
        asking_pod=Fact(created(ASKING)),
        wrong_pod=Fact(created(WRONG)),
    )
    for collection, ready in ((STATEFUL_SETS, 2), (DEPLOYMENTS, 2)):
        begin = changed(begin, collection, None, _ready(ready))
    return changed(begin, DEFINITIONS, None, _establish)


_DAY = timedelta(days=1)
_RIGHTS = (*reading_rights("gpuwarden-system"), *INSTALLING_RIGHTS)


def encoded(ca: WebCa) -> str:
    """As in a caBundle."""
    return base64.b64encode(ca.file.read_bytes()).decode()


def _of(collection: Collection, found: Iterable[Object]) -> tuple[Object, ...]:
    return tuple(
        one
        for one in found
        if _plural(one["kind"]) == collection.resource
        and one["apiVersion"] == "/".join(filter(None, (collection.group, collection.version)))
        and (not collection.names or one["metadata"]["name"] in collection.names)
    )


def _plural(kind: str) -> str:
    low = kind.lower()
    if low.endswith("policy"):
        return f"{low[:-1]}ies"
    return f"{low}es" if low.endswith("class") else f"{low}s"


def _made() -> list[Object]:
    """What is not of the manifests."""
    found: list[Object] = [
        _namespace("kube-system"),
        _namespace("spire-server"),
        _namespace("spire-system"),
        _namespace("team-a", **{"gpuwarden.dev/enforce": "true"}),
        _namespace("team-b", **{"gpuwarden.dev/enforce": "false"}),
        _node("gpu-a1"),
        _node("gpu-a2"),
        _agent("gpu-a1"),
        _agent("gpu-a2"),
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "gpuwarden-controller", "namespace": "gpuwarden-system"},
            "spec": {
                "holderIdentity": "gpuwarden-controller-1",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-03-01T11:59:55.000000Z",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": CONFIGURATION, "namespace": "gpuwarden-system"},
            "data": {
                "configuration.yaml": (ROOT / "deploy/scheduler/configuration.yaml").read_text()
            },
        },
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "fast",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
        },
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}},
        _daemon_set(
            "spire-agent",
            "spire-system",
            "ghcr.io/spiffe/spire-agent:1.13.3",
            tolerations=[{"operator": "Exists"}],
        ),
        _daemon_set(
            "nvidia-device-plugin", "kube-system", "nvcr.io/nvidia/k8s-device-plugin:v0.18"
        ),
    ]
    return found


def _namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _node(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/os": "linux", "nvidia.com/gpu.present": "true"},
        },
        "spec": {"taints": [{"key": "gpuwarden.dev/managed", "effect": "NoExecute"}]},
        "status": {"capacity": {"cpu": "64", "nvidia.com/gpu": "8"}},
    }


def _agent(node: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"gpuwarden-agent-{node}",
            "namespace": "gpuwarden-system",
            "labels": {"app.kubernetes.io/component": "agent"},
        },
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def _daemon_set(name: str, namespace: str, image: str, **fields: Any) -> Object:
    pods = {"containers": [{"name": "main", "image": image}], **fields}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": pods}},
    }


def _ready(count: int) -> Callable[[Object], object]:
    return lambda found: found.update(status={"readyReplicas": count})


def _establish(found: Object) -> None:
    found["status"] = {"conditions": [{"type": "Established", "status": "True"}]}


def _replica(name: str, chain: Path) -> Replica:
    return Replica(_status(name, chain), Fact(tuple(_fleet())), Fact(read_metrics(METRICS)))


def _status(name: str, chain: Path) -> pb.GetStatusResponse:
    text, later = chain.read_text(), "2026-06-01T00:00:00Z"
    return pb.GetStatusResponse(
        cluster="prod",
        replica=name,
        replicas=REPLICAS,
        version=__version__,
        enforcement="namespaces",
        protection="cluster",
        agents=[pb.Count(name=__version__, count=2)],
        listeners=[
            pb.Listener(name=name, certificates=text, demands_certificate=True, client_ends=later)
            for name in ("extender", "admission")
        ],
        spire=pb.SpireServer(configured=True),
    )


def _fleet() -> list[pb.Node]:
    return [node_message(name, mode="plugin") for name in ("gpu-a1", "gpu-a2")]


def created(annotations: dict[str, str], webhooks: PodWebhooks | None = None) -> DryRun:
    """What the API server answers with gpuwarden's own webhooks."""
    return asyncio.run(_created(annotations, webhooks or AdmissionWorld({"team-a"}).webhooks()))


async def _created(annotations: dict[str, str], webhooks: PodWebhooks) -> DryRun:
    pod: Object = copy.deepcopy(dict(dry_run_pod(annotations)))
    for path in (MUTATE, VALIDATE):
        review = review_json(pod, dry_run=True)
        verdict = await webhooks.handlers()[path](request_of(review))
        if verdict.refusals:
            return denied("; ".join(f"{x.code} {x.detail}" for x in verdict.refusals))
        if verdict.patch:
            pod = applied(pod, documents(verdict.patch))
    return DryRun(201, pod)


def denied(text: str) -> DryRun:
    """A webhook of gpuwarden has refused it."""
    message = f'admission webhook "asking.pods.gpuwarden.dev" denied the request: gpuwarden: {text}'
    return DryRun(403, {"kind": "Status", "message": message})


# --- faults


def changed(
    facts: Facts, collection: Collection, name: str | None, change: Callable[[Object], object]
) -> Facts:
    """With one object (or each) changed."""
    found = [copy.deepcopy(dict(x)) for x in facts.all(collection)]
    touched = [x for x in found if name in {None, x["metadata"]["name"]}]
    assert touched, name
    for one in touched:
        change(one)
    return replace(facts, objects={**facts.objects, collection: Fact(tuple(found))})


def without(facts: Facts, collection: Collection, *names: str) -> Facts:
    """Without these objects of a collection; without names, without any."""
    found = tuple(x for x in facts.all(collection) if names and x["metadata"]["name"] not in names)
    assert len(found) < len(facts.all(collection))
    return replace(facts, objects={**facts.objects, collection: Fact(found)})


def added(facts: Facts, collection: Collection, *objects: Object) -> Facts:
    """With more objects."""
    found = (*facts.all(collection), *objects)
    return replace(facts, objects={**facts.objects, collection: Fact(found)})


Change = Callable[[Replica], Replica]


def reported(facts: Facts, change: Change) -> Facts:
    """Where all replicas report otherwise."""
    found = facts.replicas.get()
    asked = tuple(map(change, found.asked))
    assert asked != found.asked
    return replace(facts, replicas=Fact(replace(found, asked=asked)))


def on_one(inject: Callable[[Facts], Facts], name: str = REPLICAS[-1]) -> Callable[[Facts], Facts]:
    """What `inject` changes in all replicas, in this one alone."""

    def only(facts: Facts) -> Facts:
        found, after = facts.replicas.get(), {x.name: x for x in inject(facts).asked}
        asked = tuple(after[x.name] if x.name == name else x for x in found.asked)
        assert asked != found.asked
        return replace(facts, replicas=Fact(replace(found, asked=asked)))

    return only


def measured(facts: Facts, sample: str, value: float | None) -> Facts:
    """With another value of a metric; None: without it."""

    def change(replica: Replica) -> Replica:
        samples = {
            (one, labels): x
            for (one, labels), x in replica.metrics.get().samples.items()
            if one != name or (of and labels != of)
        }
        if value is not None:
            samples[name, of] = value
        return replace(replica, metrics=Fact(Metrics(samples)))

    ((name, of),) = read_metrics(f"{sample} 0").samples
    return reported(facts, change)


def told(facts: Facts, **fields: Any) -> Facts:
    """With other fields of the controller's status."""

    def change(replica: Replica) -> Replica:
        status = pb.GetStatusResponse()
        status.CopyFrom(replica.status)
        for name in fields:
            status.ClearField(name)  # type: ignore[arg-type] # a name of a field
        status.MergeFrom(pb.GetStatusResponse(**fields))
        return replace(replica, status=status)

    return reported(facts, change)


def standing(facts: Facts, **fields: Any) -> Facts:
    """With one node that is otherwise."""

    def change(replica: Replica) -> Replica:
        first, *rest = replica.fleet.get()
        node = node_message(first.name, **{"mode": "plugin", **fields})
        return replace(replica, fleet=Fact((node, *rest)))

    return reported(facts, change)


def showing(facts: Facts, *nodes: pb.Node) -> Facts:
    """With these nodes alone."""
    return reported(facts, lambda x: replace(x, fleet=Fact(nodes)))


def unheard(facts: Facts, *, silent: str = "", elsewhere: bool = False) -> Facts:
    """Where the last replica has not answered: why, or because no way leads to it."""
    *asked, last = facts.asked
    unasked = ((last.name, silent),) if silent else ()
    found = Replicas(tuple(asked), unasked, (last.name,) if elsewhere else ())
    return replace(facts, replicas=Fact(found))
