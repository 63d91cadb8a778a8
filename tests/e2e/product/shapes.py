"""Requests about pods, Bindings and namespaces that gpuwarden judges, one table for both modes.

Each is refused with its code where decisions are carried out, and let through with a warning
where they are only reported. A shape prepares what it needs, and asks.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from controller.placement.keys import MAP, ORDINAL_KEYS
from tests.builders.admitted_pods import LEVEL, UUIDS, container, new_pod
from tests.builders.hostile_pods import ALL, HOSTILE
from tests.e2e.lab.api import STRATEGIC, Api, Document
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.product.pods import managed
from tests.e2e.product.policies import ENFORCE, binding

ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"
RESULT: Final = "gpuwarden.dev/reservation-id"
DRY: Final = "?dryRun=All"
NODE, SILENT, KUBELETS = "report-env", "report-silent", "report-plugin"
"""A node with evidence whose GPUs we give, one without an agent, and one where kubelet gives."""
_NOWHERE: Final = {"report": "nowhere"}
_REQUIREMENT: Final = {"gpu-selector": "memory>=1Gi"}
_EARLY: Final = {"gpuwarden.dev/gpu-count": "1", "gpuwarden.dev/reserve": "admission"}
_CDI: Final = "cdi.k8s.io/gpu"


@dataclass(frozen=True, slots=True)
class Scene:
    """Where shapes are asked."""

    api: Api
    """Of an administrator."""
    tenant: Api
    """Of somebody who may do everything with pods and namespaces, and nothing else."""
    warden: Api
    """Of somebody who may enforce namespaces besides."""
    enforced: Namespace
    plain: Namespace


class Shape(Protocol):
    """One request."""

    @property
    def name(self) -> str:
        """Of the shape, and of its pod where it is about one of its own."""

    @property
    def codes(self) -> frozenset[str]:
        """Some of those that it is refused with; none where it is welcome."""

    def prepare(self, scene: Scene) -> None:
        """Make what is asked about."""

    def ask(self, scene: Scene, how: str) -> Api:
        """Ask, with a query; the client that did. Raises ApiError."""


@dataclass(frozen=True, slots=True)
class PodShape:
    """A pod at its creation."""

    name: str
    codes: frozenset[str]
    document: Document
    is_enforced: bool = True

    def prepare(self, scene: Scene) -> None:
        pass

    def ask(self, scene: Scene, how: str) -> Api:
        where = scene.enforced if self.is_enforced else scene.plain
        made = scene.api.post(f"{where.path}/pods{how}", self.named())
        if not how:
            assert _given(made) == _given(self.named())  # nothing is patched
        return scene.api

    def named(self) -> Document:
        """The pod under the shape's name; no scheduler takes it."""
        made = copy.deepcopy(self.document)
        made["metadata"] = {
            key: value
            for key, value in made["metadata"].items()
            if key not in {"generateName", "namespace"}
        } | {"name": self.name}
        made["spec"].setdefault("nodeSelector", _NOWHERE)
        return made


def _given(document: Document) -> list[Any]:
    """What the mutating webhook would touch."""
    spec = document["spec"]
    containers = [*spec["containers"], *spec.get("initContainers", [])]
    names = [[entry["name"] for entry in x.get("env", [])] for x in containers]
    values = [[entry.get("value", "") for entry in x.get("env", [])] for x in containers]
    return [names, values, spec["schedulerName"]]


@dataclass(frozen=True, slots=True)
class EphemeralShape:
    """A container that is added to a pod that waits."""

    name: str
    codes: frozenset[str]
    fields: Mapping[str, Any]

    def prepare(self, scene: Scene) -> None:
        base = new_pod(container(gpus=1), nodeSelector=_NOWHERE)
        scene.api.post(f"{scene.enforced.path}/pods", PodShape(self.name, self.codes, base).named())

    def ask(self, scene: Scene, how: str) -> Api:
        path = f"{scene.enforced.path}/pods/{self.name}/ephemeralcontainers{how}"
        own = {**container("late", **self.fields), "targetContainerName": "main"}
        scene.api.patch(path, {"spec": {"ephemeralContainers": [own]}}, STRATEGIC)
        return scene.api


@dataclass(frozen=True, slots=True)
class BindingShape:
    """A Binding, made by hand, of a managed pod that waits."""

    name: str
    codes: frozenset[str]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    node: str = NODE
    old: bool = False
    """Whether to the old resource `bindings`."""
    is_enforced: bool = True
    exists: bool = True

    def prepare(self, scene: Scene) -> None:
        if self.exists:
            document = managed(self.name, _REQUIREMENT, gpus=0, where=_NOWHERE)
            self._where(scene).create(document)

    def ask(self, scene: Scene, how: str) -> Api:
        document = binding(self.name, self.node)
        document["metadata"] |= self.metadata
        resource = "bindings" if self.old else f"pods/{self.name}/binding"
        scene.api.post(f"{self._where(scene).path}/{resource}{how}", document)
        return scene.api

    def _where(self, scene: Scene) -> Namespace:
        return scene.enforced if self.is_enforced else scene.plain


@dataclass(frozen=True, slots=True)
class ChangeShape:
    """A change of a pod of a tenant that nobody schedules."""

    name: str
    codes: frozenset[str]
    kind: str
    """annotations or labels."""
    key: str
    resource: str = ""
    is_enforced: bool = False

    def prepare(self, scene: Scene) -> None:
        self._where(scene).create(pod(self.name, kind="fake", schedulerName="nobody"))

    def ask(self, scene: Scene, how: str) -> Api:
        path = f"{self._where(scene).path}/pods/{self.name}{self.resource}{how}"
        scene.tenant.patch(path, {"metadata": {self.kind: {self.key: "1"}}})
        return scene.tenant

    def _where(self, scene: Scene) -> Namespace:
        return scene.enforced if self.is_enforced else scene.plain


@dataclass(frozen=True, slots=True)
class LabelShape:
    """The enforcement label on a namespace; never carried out."""

    name: str
    codes: frozenset[str]
    value: str
    resource: str = ""
    namespace: str = ""
    """The plain one where none is named; else it is asked by who may."""

    def prepare(self, scene: Scene) -> None:
        pass

    def ask(self, scene: Scene, how: str) -> Api:
        del how
        name = self.namespace or scene.plain.name
        path = f"/api/v1/namespaces/{name}{self.resource}{DRY}"
        who = scene.warden if self.namespace else scene.tenant
        who.patch(path, {"metadata": {"labels": {ENFORCE: self.value}}})
        return who


def _pods() -> Iterator[Shape]:
    for number, (code, document) in enumerate(HOSTILE):
        yield PodShape(f"hostile-{number}", frozenset({code}), document)
    for where in (True, False):
        end = "enforced" if where else "plain"
        for place in ("annotations", "labels"):
            forged = new_pod(**{place: {RESULT: "x"}})
            yield PodShape(f"forged-{place}-{end}", frozenset({"BYPASS_ANNOTATION"}), forged, where)
        for number, bad in enumerate(({MAP: "0=a:0\nx=b:1\n"}, {"gpuwarden.dev/min-level": "L9"})):
            document = new_pod(annotations=bad)
            yield PodShape(f"malformed-{number}-{end}", frozenset({"REQ_INVALID"}), document, where)
    managed_pod = new_pod(annotations=LEVEL, hostPID=True)
    yield PodShape("managed-plain", frozenset({"BYPASS_HOST_PID"}), managed_pod, is_enforced=False)
    welcome = {
        "nothing": new_pod(),
        "request": new_pod(container(gpus=1)),
        "uuids": new_pod(annotations=UUIDS),
        "replaced": new_pod(container(env=[ALL]), annotations=UUIDS),
        "level": new_pod(annotations=LEVEL),
        "map": new_pod(annotations={MAP: "0=a:0"}, labels={"apps.kubernetes.io/pod-index": "0"}),
        "early": new_pod(annotations=_EARLY, nodeSelector={"report": NODE}),
        "sidecar": new_pod(
            container(gpus=1), initContainers=[container("s", restartPolicy="Always")]
        ),
    }
    for name, document in welcome.items():
        yield PodShape(f"welcome-{name}", frozenset(), document)
    for name in ("nothing", "request", "level"):
        yield PodShape(f"plain-{name}", frozenset(), welcome[name], is_enforced=False)
    nowhere = new_pod(annotations=_EARLY, nodeName=SILENT)
    yield PodShape("early-nowhere", frozenset({"BYPASS_NODE_NAME"}), nowhere)
    late: dict[str, dict[str, Any]] = {
        "env": {"env": [ALL]},
        "privileged": {"securityContext": {"privileged": True}},
        "nothing": {},
    }
    for name, fields in late.items():
        codes = frozenset({"BYPASS_EPHEMERAL"} if fields else ())
        yield EphemeralShape(f"ephemeral-{name}", codes, fields)


def _bindings() -> Iterator[Shape]:
    forged = frozenset({"BINDING_FORGED"})
    for old in (False, True):
        end = "old" if old else "new"
        for place in ("annotations", "labels"):
            for number, key in enumerate((ASSIGNED, MAP, *ORDINAL_KEYS, _CDI)):
                if place == "labels" and key == _CDI:
                    continue
                name = f"bind-{place}-{number}-{end}"
                yield BindingShape(name, forged, {place: {key: "x"}}, old=old)
        away = {SILENT: "NODE_NO_EVIDENCE", KUBELETS: "NODE_MODE"}
        for node, code in away.items():
            yield BindingShape(f"bind-to-{node}-{end}", frozenset({code}), node=node, old=old)
        yield BindingShape(f"bind-nobody-{end}", frozenset({"POD_UNKNOWN"}), old=old, exists=False)
        yield BindingShape(f"bind-well-{end}", frozenset(), old=old)
        yield BindingShape(
            f"bind-plain-{end}",
            forged,
            {"annotations": {ASSIGNED: "x"}},
            old=old,
            is_enforced=False,
        )
    yield BindingShape("bind-another", frozenset({"BINDING_STALE"}), {"uid": "another"})


def _policies() -> Iterator[Shape]:
    ours = frozenset({"BYPASS_ANNOTATION"})
    for resource in ("", "/status"):
        end = resource.strip("/") or "pod"
        for kind in ("annotations", "labels"):
            yield ChangeShape(f"change-{kind}-{end}", ours, kind, "gpuwarden.dev/x", resource)
        devices = frozenset({"BYPASS_CDI"})
        yield ChangeShape(f"change-cdi-{end}", devices, "annotations", _CDI, resource, True)
        yield ChangeShape(f"change-{end}", frozenset(), "annotations", "example.org/x", resource)
        yield LabelShape(f"label-{end}", frozenset({"ROLE_DENIED"}), "true", resource)
    yield LabelShape("label-system", frozenset({"REQ_INVALID"}), "true", namespace="kube-system")
    protected: dict[str, Document] = {
        "BYPASS_TOLERATION": {"tolerations": [{"operator": "Exists"}]},
        "BYPASS_NODE_NAME": {"nodeName": SILENT},
    }
    for code, spec in protected.items():
        name = f"protected-{code.lower().replace('_', '-')}"
        document = pod(name, kind="fake", schedulerName="nobody", **spec)
        yield PodShape(name, frozenset({code}), document, is_enforced=False)


SHAPES: Final = (*_pods(), *_bindings(), *_policies())
