"""The shipped admission policies on a lab, and people with few rights to try them as."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

import yaml

from tests.e2e.lab.api import Api, ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.installation import DEPLOY, apply

ENFORCE: Final = "gpuwarden.dev/enforce"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
POLICIES, POLICY_BINDINGS = (
    f"{_ADMISSION}/validatingadmissionpolicies",
    f"{_ADMISSION}/validatingadmissionpolicybindings",
)
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_TENANT, _WARDEN = "policy-tenant", "gpuwarden-enforcement-manager"
"""A role of these tests, and the one that is shipped with the policies."""
_RULES = [{"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["*"]}]
DRY: Final = "?dryRun=All"


class Outcome(Enum):
    """What came of a request."""

    PASSED = "passed"
    WARNED = "warned"
    REFUSED = "refused"


def person(lab: Lab, name: str, *groups: str) -> Api:
    """The API as somebody with a certificate."""
    pki = lab.control_plane.identities.pki
    pair = pki.issue(name.replace(":", "-"), name, groups=groups)
    return Api(lab.control_plane.url, pki.ca, pair)


@contextmanager
def people(lab: Lab) -> Iterator[tuple[Api, Api]]:
    """One who may do everything with pods and namespaces, and one who holds our role besides."""
    roles, bindings = f"{_RBAC}/clusterroles", f"{_RBAC}/clusterrolebindings"
    lab.api.post(roles, {"metadata": {"name": _TENANT}, "rules": _RULES})
    lab.api.post(bindings, _role_binding(_TENANT, ("tenant", "warden")))
    lab.api.post(bindings, _role_binding(_WARDEN, ("warden",)))
    yield person(lab, "tenant"), person(lab, "warden")
    for path in (f"{bindings}/{_TENANT}", f"{bindings}/{_WARDEN}", f"{roles}/{_TENANT}"):
        lab.api.delete(path)


@contextmanager
def may_manage(lab: Lab, user: str, namespace: str) -> Iterator[None]:
    """The right to enforce one namespace, by a role of somebody's own."""
    name = "policy-delegate"
    rule = lab.api.get(f"{_RBAC}/clusterroles/{_WARDEN}")["rules"][0]
    rules = [{**rule, "resourceNames": [namespace]}]
    lab.api.post(f"{_RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    lab.api.post(f"{_RBAC}/clusterrolebindings", _role_binding(name, (user,)))
    yield
    for kind in ("clusterrolebindings", "clusterroles"):
        lab.api.delete(f"{_RBAC}/{kind}/{name}")


class Policies:
    """All policies of deploy/, and one request for each that it refuses."""

    def __init__(self, lab: Lab, tenant: Api, plain: Namespace, enforced: Namespace) -> None:
        """A pod named `probe` waits in both namespaces."""
        self._lab = lab
        ours = {"metadata": {"annotations": {"gpuwarden.dev/probe": ""}}}
        device = {"metadata": {"annotations": {"cdi.k8s.io/probe": ""}}}
        labelled = {"metadata": {"name": "policy-probe", "labels": {ENFORCE: "true"}}}
        tolerant = pod("policy-probe", tolerations=[{"operator": "Exists"}])
        bound = binding("probe", "nowhere")
        bound["metadata"] |= ours["metadata"]
        self._probes: list[Callable[[], object]] = [
            lambda: tenant.patch(f"{plain.path}/pods/probe{DRY}", ours),
            lambda: tenant.patch(f"{enforced.path}/pods/probe{DRY}", device),
            lambda: tenant.post(f"{plain.path}/pods/probe/binding{DRY}", bound),
            lambda: tenant.post(f"/api/v1/namespaces{DRY}", labelled),
            lambda: tenant.post(f"{plain.path}/pods{DRY}", tolerant),
        ]
        self._tenant = tenant

    def deny(self) -> None:
        """Install them as shipped; in force at the end."""
        apply(self._lab, "policy")
        apply(self._lab, "policy/protection")
        self._until(Outcome.REFUSED)

    def report(self, folder: Path) -> None:
        """Install them with the component for reports; in force at the end."""
        shutil.copytree(DEPLOY / "policy", folder / "policy")
        document = {
            "resources": ["policy", "policy/protection"],
            "components": ["policy/report"],
        }
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(document))
        apply(self._lab, str(folder))
        self._until(Outcome.WARNED)

    def remove(self) -> None:
        """Take them away; not in force any more at the end."""
        for kind in (POLICY_BINDINGS, POLICIES):
            for item in self._lab.api.get(kind)["items"]:
                if item["metadata"]["name"].startswith("gpuwarden-"):
                    self._lab.api.delete(f"{kind}/{item['metadata']['name']}")
        self._until(Outcome.PASSED)

    def _until(self, wanted: Outcome) -> None:
        """Each policy on its own is in force, or not, some time after it was written."""
        for number, probe in enumerate(self._probes):
            until(
                f"probe {number} is {wanted.value}",
                lambda p=probe: outcome(self._tenant, p) is wanted,  # type: ignore[misc] # mypy cannot infer the default
            )


def outcome(api: Api, ask: Callable[[], object]) -> Outcome:
    """What comes of a request by `api`; only a policy of ours may refuse."""
    try:
        ask()
    except ApiError as error:
        if "gpuwarden: " not in error.message:
            raise
        return Outcome.REFUSED
    ours = [x for x in api.warnings if "gpuwarden: " in x]
    return Outcome.WARNED if ours else Outcome.PASSED


def binding(name: str, node: str) -> Document:
    """A v1 Binding."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def _role_binding(role: str, users: Sequence[str]) -> Document:
    about = {"apiGroup": "rbac.authorization.k8s.io"}
    return {
        "metadata": {"name": role},
        "roleRef": {**about, "kind": "ClusterRole", "name": role},
        "subjects": [{**about, "kind": "User", "name": user} for user in users],
    }
