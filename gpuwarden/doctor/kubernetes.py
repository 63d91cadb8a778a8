"""Checks of the Kubernetes API and of the caller's rights. Pure."""

import re
from typing import Final

from gpuwarden.doctor.check import Check, Group, Verdict, failed, passed, warned
from gpuwarden.doctor.facts import (
    AGENTS,
    CHART,
    CONTROLLERS,
    DAEMON_SETS,
    DEFINITIONS,
    INSTALLING_RIGHTS,
    NAMESPACES,
    STORAGE_CLASSES,
    Fact,
    Facts,
    Right,
    name_of,
    reading_rights,
    some,
)

OLDEST_MINOR: Final = 33
NEEDED_APIS: Final = (
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "apps/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "coordination.k8s.io/v1",
    "events.k8s.io/v1",
    "flowcontrol.apiserver.k8s.io/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "storage.k8s.io/v1",
)
_VERSION: Final = re.compile(r"v?1\.(\d+)")
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"


def api_answers(facts: Facts) -> Verdict:
    """Whether there is an API server at all."""
    if facts.server.value is None or facts.api_error:
        command = "kubectl version"
        return failed(facts.api_error or facts.server.why, "an API server that answers", command)
    return passed(f"version {facts.server.value}")


def version_is_supported(facts: Facts) -> Verdict:
    """Whether the API server is new enough."""
    version = facts.server.get()
    found = _VERSION.match(version)
    if found is not None and int(found[1]) >= OLDEST_MINOR:
        return passed(version)
    return failed(version, f"1.{OLDEST_MINOR} or newer", "kubectl version")


def apis_are_served(facts: Facts) -> Verdict:
    """Whether everything that is installed and called has its API."""
    served = facts.served.get()
    missing = [one for one in NEEDED_APIS if one not in served]
    if missing:
        return failed(f"not served: {', '.join(missing)}", "all of them", "kubectl api-versions")
    return passed(f"{len(NEEDED_APIS)} API groups")


def caller_may_read(facts: Facts) -> Verdict:
    """Whether the other checks can be made."""
    missing = _denied(facts, reading_rights(facts.namespace))
    if not missing:
        return passed("all that the checks read")
    command = "kubectl create clusterrolebinding gpuwarden-doctor-USER --clusterrole"
    if all(one.namespace for one in missing):
        command = f"kubectl -n {facts.namespace} create rolebinding gpuwarden-doctor-USER --role"
    return warned(
        f"not allowed: {some(map(str, missing))}",
        "the ClusterRole and the Role gpuwarden-doctor of deploy/doctor",
        f"{command}=gpuwarden-doctor --user=USER",
    )


def caller_may_install(facts: Facts) -> Verdict:
    """Whether the manifests can be applied."""
    missing = _denied(facts, INSTALLING_RIGHTS)
    if not missing:
        return passed("all that the manifests need")
    return failed(
        f"not allowed: {some(map(str, missing))}",
        "the rights of cluster-admin",
        "kubectl create clusterrolebinding USER-admin --clusterrole=cluster-admin --user=USER",
    )


def _denied(facts: Facts, rights: tuple[Right, ...]) -> list[Right]:
    unasked: Fact[bool] = Fact()
    return [one for one in rights if not facts.rights.get(one, unasked).get()]


def nothing_is_installed(facts: Facts) -> Verdict:
    """Whether a second installation would meet a first one."""
    namespaces = {name_of(one): one for one in facts.all(NAMESPACES)}
    own = namespaces.get(facts.namespace)
    if own is not None and own["metadata"].get("deletionTimestamp"):
        return failed(
            f"the namespace {facts.namespace} is being deleted",
            "no namespace, or one that stays",
            f"kubectl get namespace {facts.namespace} -o yaml",
        )
    elsewhere = {
        one["metadata"].get("namespace", "")
        for one in facts.all(DAEMON_SETS)
        if name_of(one) in {AGENTS, CONTROLLERS}
    }
    if elsewhere:
        return failed(
            f"gpuwarden is installed in {some(elsewhere)}",
            "one installation in a cluster",
            "gpuwarden doctor",
        )
    left = [name_of(one) for one in facts.all(DEFINITIONS)]
    if left:
        return warned(
            f"left from an earlier installation: {some(left)}",
            "none, or objects whose enrollments you know and want",
            "kubectl get nodeenrollments,gpureservations",
        )
    return passed("nothing of gpuwarden is there")


def there_is_storage(facts: Facts) -> Verdict:
    """Whether the controllers' volumes will come about."""
    classes = facts.all(STORAGE_CLASSES)
    default = [
        name_of(one)
        for one in classes
        if (one["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    if default:
        return passed(f"StorageClass {default[0]}")
    names = [name_of(one) for one in classes]
    if not names:
        return failed(
            "no StorageClass", "volumes for the controllers' logs", "kubectl get storageclass"
        )
    return warned(
        f"no default among {some(names)}",
        "a default StorageClass, or one that your overlay names",
        f"kubectl annotate storageclass {min(names)} {_DEFAULT_CLASS}=true",
    )


def namespace_is_there(facts: Facts) -> Verdict:
    """Whether there is a place for all of it."""
    for one in facts.all(NAMESPACES):
        if name_of(one) == facts.namespace:
            if one["metadata"].get("deletionTimestamp"):
                command = f"kubectl get namespace {facts.namespace} -o yaml"
                return failed("it is being deleted", "a namespace that stays", command)
            return passed(facts.namespace)
    return failed(
        f"no namespace {facts.namespace}",
        "gpuwarden's namespace",
        f"helm install gpuwarden {CHART} --namespace {facts.namespace} --create-namespace"
        " --set trustDomain=TRUST_DOMAIN --set clusterName=CLUSTER_NAME",
    )


def definitions_are_established(facts: Facts) -> Verdict:
    """Whether the custom resources can be stored, in the version that the controller writes."""
    found = {name_of(one): one for one in facts.all(DEFINITIONS)}
    wrong = []
    for name in DEFINITIONS.names:
        one = found.get(name)
        if one is None:
            wrong.append(f"{name} is missing")
            continue
        conditions = (one.get("status") or {}).get("conditions") or ()
        if not any(x["type"] == "Established" and x["status"] == "True" for x in conditions):
            wrong.append(f"{name} is not established")
        versions = one["spec"]["versions"]
        if not any(x["name"] == "v1alpha1" and x["served"] and x["storage"] for x in versions):
            wrong.append(f"{name} is not stored as v1alpha1")
    if wrong:
        expected = "four, established, stored as v1alpha1"
        return failed("; ".join(wrong), expected, facts.reapply("kubectl apply -k OVERLAY"))
    return passed(f"{len(found)} in version v1alpha1")


API: Final = Check(
    "kubernetes-api",
    "the Kubernetes API answers",
    "",
    api_answers,
)
VERSION: Final = Check(
    "kubernetes-version",
    "Kubernetes is new enough",
    f"1.{OLDEST_MINOR} or newer.",
    version_is_supported,
    "compatibility.md",
)
APIS: Final = Check(
    "kubernetes-apis",
    "the API groups that gpuwarden uses are served",
    "",
    apis_are_served,
)
READS: Final = Check(
    "caller-reads",
    "you may read what is checked",
    "`deploy/doctor` has exactly these rights.",
    caller_may_read,
)

KUBERNETES: Final = Group("kubernetes", "Kubernetes", (API, VERSION, APIS, READS))
BEFORE: Final = Group(
    "before",
    "Before the installation",
    (
        Check(
            "caller-installs",
            "you may install gpuwarden",
            "To create roles you need what they grant, or the right `escalate`.",
            caller_may_install,
        ),
        Check(
            "not-installed",
            "gpuwarden is not installed yet",
            "A cluster has one installation. Enrollments of an earlier one count again.",
            nothing_is_installed,
            "uninstall.md#installing-again",
        ),
        Check(
            "storage",
            "the controllers' volumes can be made",
            "Each controller keeps its audit log on a PersistentVolume of 10 GiB.",
            there_is_storage,
        ),
    ),
)
NAMESPACE: Final = Check(
    "namespace",
    "gpuwarden's namespace exists",
    "",
    namespace_is_there,
)
CUSTOM_RESOURCES_CHECK: Final = Check(
    "custom-resources",
    "the custom resources are defined",
    "",
    definitions_are_established,
    "kubernetes-api.md",
)
