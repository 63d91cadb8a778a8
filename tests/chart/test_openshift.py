"""deploy/openshift.yaml gives each service account the constraints that its pods need."""

from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml

from tests.chart.comparing import DEPLOY
from tests.chart.pod_security import violations
from tests.chart.rendering import NAMESPACE, REQUIRED, Object, objects, one, pods, render
from tests.deploy.manifests import one as one_of
from tests.deploy.manifests import rendered

FILE: Final = DEPLOY / "openshift.yaml"
SPC: Final = {"seLinuxOptions": {"type": "spc_t"}}
PREFIX: Final = "system:openshift:scc:"
SHIPPED: Final[dict[str, Object]] = {
    "nonroot-v2": {
        "volumes": [
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "ephemeral",
            "image",
            "persistentVolumeClaim",
            "projected",
            "secret",
        ],
        "runAsUser": {"type": "MustRunAsNonRoot"},
        "seLinuxContext": {"type": "MustRunAs"},
        "requiredDropCapabilities": ["ALL"],
        "seccompProfiles": ["runtime/default"],
        "readOnlyRootFilesystem": False,
    },
    "privileged": {
        "allowHostDirVolumePlugin": True,
        "allowHostIPC": True,
        "allowHostNetwork": True,
        "allowHostPID": True,
        "allowPrivilegeEscalation": True,
        "allowPrivilegedContainer": True,
        "allowedCapabilities": ["*"],
        "volumes": ["*"],
        "runAsUser": {"type": "RunAsAny"},
        "seLinuxContext": {"type": "RunAsAny"},
        "seccompProfiles": ["*"],
        "readOnlyRootFilesystem": False,
    },
}
"""As openshift/cluster-kube-apiserver-operator has them in bindata/bootkube/scc-manifests."""


@pytest.fixture(scope="module")
def shipped() -> list[Object]:
    return list(yaml.safe_load_all(FILE.read_text()))


@pytest.fixture(scope="module")
def installed() -> list[Object]:
    """With everything that has pods."""
    return render(
        {
            **REQUIRED,
            "agent": SPC,
            "controller": SPC,
            "spire": {"mode": "bundled", "people": True, "bundled": {"agent": SPC}},
            "hints": {"scorer": {"enabled": True}},
        }
    )


def constraints(shipped: list[Object]) -> dict[str, Object]:
    """Service account -> the constraints that it may use; each has one."""
    own = {x["metadata"]["name"]: x for x in objects(shipped, "SecurityContextConstraints")}
    found: dict[str, Object] = {}
    for binding in objects(shipped, "RoleBinding"):
        name = binding["roleRef"]["name"]
        if binding["roleRef"]["kind"] == "ClusterRole":
            scc = SHIPPED[name.removeprefix(PREFIX)]
        else:
            (rule,) = one(shipped, "Role", name)["rules"]
            assert (rule["apiGroups"], rule["verbs"]) == (["security.openshift.io"], ["use"])
            (scc,) = (own[x] for x in rule["resourceNames"])
        for subject in binding["subjects"]:
            assert subject["kind"] == "ServiceAccount"
            assert subject["name"] not in found
            found[subject["name"]] = scc
    return found


def refused(scc: Object, spec: Object) -> Iterator[str]:
    """What of a pod these constraints forbid."""
    for field, allows in (
        ("hostPID", "allowHostPID"),
        ("hostIPC", "allowHostIPC"),
        ("hostNetwork", "allowHostNetwork"),
    ):
        if spec.get(field) and not scc.get(allows):
            yield field
    for volume in spec.get("volumes", ()):
        (kind,) = set(volume) - {"name"}
        is_host = kind == "hostPath" and not scc.get("allowHostDirVolumePlugin")
        if is_host or not {kind, "*"} & set(scc["volumes"]):
            yield f"volume {volume['name']}: {kind}"
    pod = spec.get("securityContext", {})
    for container in spec["containers"]:
        own = {**pod, **container["securityContext"]}
        for what in _container(scc, own):
            yield f"container {container['name']}: {what}"


def _container(scc: Object, own: dict[str, Any]) -> Iterator[str]:
    if own.get("privileged") and not scc.get("allowPrivilegedContainer"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation", True) and not scc.get("allowPrivilegeEscalation"):
        yield "allowPrivilegeEscalation"
    if scc["runAsUser"]["type"] == "MustRunAsNonRoot" and not own.get("runAsUser"):
        yield "runAsUser"
    if own.get("seLinuxOptions") and scc["seLinuxContext"]["type"] != "RunAsAny":
        yield "seLinuxOptions"
    if scc["readOnlyRootFilesystem"] and not own.get("readOnlyRootFilesystem"):
        yield "readOnlyRootFilesystem"
    capabilities = own.get("capabilities", {})
    if not set(scc.get("requiredDropCapabilities") or ()) <= set(capabilities.get("drop", ())):
        yield "drop"
    allowed = scc.get("allowedCapabilities") or ()
    yield from (x for x in capabilities.get("add", ()) if not {x, "*"} & set(allowed))
    profile = own["seccompProfile"]["type"]
    if profile != "RuntimeDefault" or not {"runtime/default", "*"} & set(scc["seccompProfiles"]):
        yield f"seccompProfile {profile}"


def test_each_account_with_pods_has_constraints_and_no_other(
    shipped: list[Object], installed: list[Object]
) -> None:
    assert sorted(constraints(shipped)) == sorted(
        {x["serviceAccountName"] for x in pods(installed).values()}
    )
    for x in shipped:
        assert x["metadata"].get("namespace", NAMESPACE) == NAMESPACE
        assert {y["namespace"] for y in x.get("subjects", ())} <= {NAMESPACE}


def test_its_pods_are_allowed_what_they_need(
    shipped: list[Object], installed: list[Object]
) -> None:
    given = constraints(shipped)
    found = pods(installed)
    assert len(found) >= len(given)
    assert {
        where: what
        for where, spec in found.items()
        if (what := [*refused(given[spec["serviceAccountName"]], spec)])
    } == {}


def test_only_who_needs_the_host_may_more_than_nonroot(
    shipped: list[Object], installed: list[Object]
) -> None:
    given = constraints(shipped)
    needy = {spec["serviceAccountName"] for spec in pods(installed).values() if [*violations(spec)]}
    assert {x for x, scc in given.items() if scc is not SHIPPED["nonroot-v2"]} == needy
    (own,) = objects(shipped, "SecurityContextConstraints")
    allowed = {x for x, y in own.items() if x.startswith("allow") and y}
    assert allowed == {"allowHostDirVolumePlugin"}


def test_the_namespace_is_the_one_of_kustomize(shipped: list[Object]) -> None:
    namespace = one(shipped, "Namespace", NAMESPACE)
    labels = dict(namespace["metadata"]["labels"])
    assert labels.pop("security.openshift.io/scc.podSecurityLabelSync") == "false"
    base = one_of(rendered(DEPLOY / "kustomize/base"), "Namespace", NAMESPACE)
    assert labels == base["metadata"]["labels"]
