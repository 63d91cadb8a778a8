"""What checks judge: objects of the Kubernetes API, and what a controller reports. Pure.

A fact is known, or it is known why it is not; `Fact.get` ends the check that needs it then.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from shlex import quote
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from gpuwarden.telemetry.names import Metric
from gpuwarden.wire.v1 import fleet_pb2 as pb

T = TypeVar("T")

Object = Mapping[str, Any]
"""An object of the Kubernetes API, as its JSON has it."""

SYSTEM_NAMESPACE: Final = "gpuwarden-system"
GROUP: Final = "gpuwarden.dev"
CUSTOM_RESOURCES: Final = (
    "attestationclasses",
    "attestationpolicies",
    "gpureservations",
    "nodeenrollments",
)
PODS_WEBHOOKS: Final = "gpuwarden-pods"
BINDINGS_WEBHOOK: Final = "gpuwarden-bindings"
POLICIES: Final = (
    "gpuwarden-bindings",
    "gpuwarden-devices",
    "gpuwarden-enforcement",
    "gpuwarden-keys",
)
PROTECTION_POLICY: Final = "gpuwarden-protection"
LEASE: Final = "gpuwarden-controller"
AGENTS: Final = "gpuwarden-agent"
CONTROLLERS: Final = "gpuwarden-controller"
SCHEDULER: Final = "gpuwarden-scheduler"
SCORER: Final = "gpuwarden-score"

API_SILENT: Final = "the Kubernetes API does not answer"
CONTROLLER_SILENT: Final = "no controller answers you"

CHART: Final = "deploy/helm/gpuwarden"

_ADMISSION: Final = "admissionregistration.k8s.io"
_RELEASE: Final = "meta.helm.sh/release-name"
"""Helm's annotation of what it has installed."""


class UnknownError(Exception):
    """A fact that a check needs is not known; the text says why."""


@dataclass(frozen=True, slots=True)
class Fact(Generic[T]):
    """What was gathered; without a value, why not."""

    value: T | None = None
    why: str = "it was not asked for"

    def get(self) -> T:
        """The value; raises UnknownError where it is not known."""
        if self.value is None:
            raise UnknownError(self.why)
        return self.value


@dataclass(frozen=True, slots=True)
class Collection:
    """Objects that checks look at: those with these names, or all."""

    group: str
    version: str
    resource: str
    is_own: bool = False
    """Those of gpuwarden's namespace alone."""
    names: tuple[str, ...] = ()
    is_optional: bool = False
    """Of a project that need not be installed: then there are none."""

    def path(self, namespace: str, name: str = "") -> str:
        """Path of the collection or of an object in it."""
        start = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        middle = f"/namespaces/{namespace}" if self.is_own else ""
        return f"{start}{middle}/{self.resource}" + (f"/{name}" if name else "")


NODES: Final = Collection("", "v1", "nodes")
NAMESPACES: Final = Collection("", "v1", "namespaces")
PODS: Final = Collection("", "v1", "pods", is_own=True)
CONFIG_MAPS: Final = Collection("", "v1", "configmaps", is_own=True)
DAEMON_SETS: Final = Collection("apps", "v1", "daemonsets")
STATEFUL_SETS: Final = Collection("apps", "v1", "statefulsets", is_own=True)
DEPLOYMENTS: Final = Collection("apps", "v1", "deployments", is_own=True)
LEASES: Final = Collection("coordination.k8s.io", "v1", "leases", is_own=True, names=(LEASE,))
DEFINITIONS: Final = Collection(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    names=tuple(f"{name}.{GROUP}" for name in CUSTOM_RESOURCES),
)
MUTATING: Final = Collection(
    _ADMISSION, "v1", "mutatingwebhookconfigurations", names=(BINDINGS_WEBHOOK, PODS_WEBHOOKS)
)
VALIDATING: Final = Collection(
    _ADMISSION, "v1", "validatingwebhookconfigurations", names=(PODS_WEBHOOKS,)
)
ADMISSION_POLICIES: Final = Collection(
    _ADMISSION, "v1", "validatingadmissionpolicies", names=(*POLICIES, PROTECTION_POLICY)
)
POLICY_BINDINGS: Final = Collection(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", names=(*POLICIES, PROTECTION_POLICY)
)
RUNTIME_CLASSES: Final = Collection("node.k8s.io", "v1", "runtimeclasses")
STORAGE_CLASSES: Final = Collection("storage.k8s.io", "v1", "storageclasses")
SPIFFE_IDS: Final = Collection("spire.spiffe.io", "v1alpha1", "clusterspiffeids", is_optional=True)
OPERATOR_POLICIES: Final = Collection("nvidia.com", "v1", "clusterpolicies", is_optional=True)

COLLECTIONS: Final = (
    NODES,
    NAMESPACES,
    PODS,
    CONFIG_MAPS,
    DAEMON_SETS,
    STATEFUL_SETS,
    DEPLOYMENTS,
    LEASES,
    DEFINITIONS,
    MUTATING,
    VALIDATING,
    ADMISSION_POLICIES,
    POLICY_BINDINGS,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    SPIFFE_IDS,
    OPERATOR_POLICIES,
)
"""All that is read; the roles in deploy/doctor have no more."""


@dataclass(frozen=True, slots=True)
class Right:
    """A right that is asked about by a SelfSubjectAccessReview."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}.{self.group}" if self.group else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {resource}" + (f"/{self.name}" if self.name else "") + where


def reading_rights(namespace: str) -> tuple[Right, ...]:
    """What it takes to read all collections."""
    rights: list[Right] = []
    for one in COLLECTIONS:
        where = namespace if one.is_own else ""
        if one.names:
            names = (Right("get", one.group, one.resource, where, name) for name in one.names)
            rights.extend(names)
        else:
            rights.append(Right("list", one.group, one.resource, where))
    return tuple(rights)


INSTALLING_RIGHTS: Final = (
    Right("create", "", "namespaces"),
    Right("create", "apps", "daemonsets", SYSTEM_NAMESPACE),
    Right("create", "apps", "statefulsets", SYSTEM_NAMESPACE),
    Right("create", "apps", "deployments", SYSTEM_NAMESPACE),
    Right("create", "", "secrets", SYSTEM_NAMESPACE),
    Right("create", "", "services", SYSTEM_NAMESPACE),
    Right("create", "", "configmaps", SYSTEM_NAMESPACE),
    Right("create", "networking.k8s.io", "networkpolicies", SYSTEM_NAMESPACE),
    Right("create", "apiextensions.k8s.io", "customresourcedefinitions"),
    Right("create", "rbac.authorization.k8s.io", "clusterroles"),
    Right("escalate", "rbac.authorization.k8s.io", "clusterroles"),
    Right("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    Right("create", "rbac.authorization.k8s.io", "rolebindings", "kube-system"),
    Right("create", _ADMISSION, "mutatingwebhookconfigurations"),
    Right("create", _ADMISSION, "validatingwebhookconfigurations"),
    Right("create", _ADMISSION, "validatingadmissionpolicies"),
    Right("create", _ADMISSION, "validatingadmissionpolicybindings"),
)
"""What whoever applies the manifests has to be allowed."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The API server's answer to a pod that is created with `dryRun=All`."""

    status: int
    answer: Object
    """The pod as it would be stored, or a Status."""

    @property
    def message(self) -> str:
        """What a Status says."""
        return str(self.answer.get("message", ""))


@dataclass(frozen=True, slots=True)
class Metrics:
    """Samples of a controller."""

    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    def value(self, metric: Metric, **labels: str) -> float | None:
        """One sample; None where there is none."""
        return self.samples.get((metric.name, frozenset(labels.items())))

    def total(self, metric: Metric, **labels: str) -> float:
        """Sum of all samples that have these labels."""
        wanted = set(labels.items())
        return sum(
            x for (name, of), x in self.samples.items() if name == metric.name and wanted <= of
        )


_SAMPLE: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_metrics(text: str) -> Metrics:
    """Prometheus' text format; lines that are none, and values that are no number, are left out."""
    samples = {}
    for line in text.splitlines():
        found = _SAMPLE.fullmatch(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        if not math.isnan(value):
            samples[found[1], frozenset(_LABEL.findall(found[2] or ""))] = value
    return Metrics(MappingProxyType(samples))


@dataclass(frozen=True, slots=True)
class Replica:
    """What one replica of the controller reports."""

    status: pb.GetStatusResponse
    fleet: Fact[tuple[pb.Node, ...]] = field(default_factory=Fact)
    metrics: Fact[Metrics] = field(default_factory=Fact)

    @property
    def name(self) -> str:
        """Its own, which is that of its pod."""
        return self.status.replica


@dataclass(frozen=True, slots=True)
class Replicas:
    """All replicas that are known of."""

    asked: tuple[Replica, ...]
    """Those that have answered: one or more, by name."""
    silent: tuple[tuple[str, str], ...] = ()
    """Those that have not: name, or where it was looked for, and why."""
    elsewhere: tuple[str, ...] = ()
    """Names of further ones, to which no way leads from here."""

    @property
    def unheard(self) -> tuple[str, ...]:
        """Names of all that have not answered."""
        return (*(name for name, _ in self.silent), *self.elsewhere)


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What verifying an audit log, or its end, found."""

    log: str
    """Origin; empty where it is not known."""
    records: int = 0
    """That were verified."""
    last: int = 0
    """Number of the last of them."""
    checkpoints: int = 0
    """Those whose signatures hold."""
    broken: str = ""
    """Where and how; empty where it is whole."""
    folder: str = ""
    """On this machine; empty for the log of a replica that was asked."""
    has_key: bool = True
    """Whether what was read names the key of checkpoints; without it none was verified."""

    @property
    def name(self) -> str:
        """What people know it by."""
        return self.folder or self.log


@dataclass(frozen=True, slots=True)
class Logs:
    """The audit logs that were to be verified."""

    verdicts: tuple[LogVerdict, ...] = ()
    unread: tuple[str, ...] = ()
    """Those that could not be read, each with the reason."""
    elsewhere: tuple[str, ...] = ()
    """Origins of further logs, to whose replicas no way leads from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it."""

    namespace: str = SYSTEM_NAMESPACE
    version_here: str
    """Of this program."""
    api_error: str = ""
    """Why the Kubernetes API does not answer; empty while it does."""
    controller_error: str = ""
    """Why no controller answers; empty while one does."""
    now: Fact[datetime] = field(default_factory=Fact)
    """By the API server's clock."""
    server: Fact[str] = field(default_factory=Fact)
    """Version of the API server."""
    served: Fact[frozenset[str]] = field(default_factory=Fact)
    """`GROUP/VERSION` of every API that it serves."""
    rights: Mapping[Right, Fact[bool]] = field(default_factory=lambda: MappingProxyType({}))
    objects: Mapping[Collection, Fact[tuple[Object, ...]]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    asking_pod: Fact[DryRun] = field(default_factory=Fact)
    """A pod with a requirement."""
    wrong_pod: Fact[DryRun] = field(default_factory=Fact)
    """A pod with a requirement that cannot be read."""
    replicas: Fact[Replicas] = field(default_factory=Fact)
    logs: Fact[Logs] = field(default_factory=Fact)

    def all(self, collection: Collection) -> tuple[Object, ...]:
        """The objects of a collection; raises UnknownError."""
        return self.objects.get(collection, _UNREAD).get()

    def named(self, collection: Collection, name: str) -> Object | None:
        """One object; of several namespaces that of gpuwarden's. Raises UnknownError."""
        for one in self.all(collection):
            if name_of(one) == name and one["metadata"].get("namespace") in {None, self.namespace}:
                return one
        return None

    @property
    def asked(self) -> tuple[Replica, ...]:
        """The replicas that have answered; raises UnknownError."""
        return self.replicas.get().asked

    def in_pod(self, pod: str, command: str) -> str:
        """`command`, run in a pod of gpuwarden's."""
        return f"kubectl -n {self.namespace} exec {quote(pod)} -- {command}"

    def log_of(self, pod: str) -> str:
        """The command that shows what a pod of gpuwarden's has logged."""
        return f"kubectl -n {self.namespace} logs {quote(pod)} --tail=100"

    @property
    def release(self) -> str:
        """Name of the Helm release; empty where something else has installed gpuwarden."""
        for collection, name in _WORKLOADS:
            if self.objects.get(collection, _UNREAD).value is None:
                continue
            one = self.named(collection, name)
            if one is not None:
                return str((one["metadata"].get("annotations") or {}).get(_RELEASE, ""))
        return ""

    def reapply(self, command: str, *values: str) -> str:
        """`command`, which applies gpuwarden's objects again; Helm's where Helm has installed them.

        `values`: what the chart needs for it, as `--set` takes them.
        """
        if not self.release:
            return command
        upgrade = f"helm upgrade {self.release} {CHART} --namespace {self.namespace}"
        return " --set ".join((f"{upgrade} --reset-then-reuse-values", *values))


_UNREAD: Final[Fact[tuple[Object, ...]]] = Fact()
_WORKLOADS: Final = (
    (STATEFUL_SETS, CONTROLLERS),
    (DAEMON_SETS, AGENTS),
    (DEPLOYMENTS, SCHEDULER),
)


def name_of(found: Object) -> str:
    """Its name."""
    return str(found["metadata"]["name"])


def labels_of(found: Object) -> Mapping[str, str]:
    """Its labels."""
    labels: Mapping[str, str] = found["metadata"].get("labels") or {}
    return labels


def pod_spec(workload: Object) -> Object:
    """Of the pods that it makes."""
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def some(names: Iterable[str], most: int = 3) -> str:
    """A few of these names, and how many more there are."""
    found = sorted(names)
    rest = len(found) - most
    return ", ".join(found[:most]) + (f" and {rest} more" if rest > 0 else "")
