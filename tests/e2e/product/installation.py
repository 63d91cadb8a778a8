"""gpuwarden on a lab: the shipped objects applied, controllers, agents, schedulers started.

Files of deploy/ are used as they are; replaced are addresses, file names and images.
"""

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gpuwarden.settings.values import Address
from sandbox.laptop import Pace
from sandbox.nodes import TRUST_DOMAIN
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.builders.web_certificates import WebCa
from tests.e2e.lab.api import Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.program import READY_S
from tests.e2e.lab.scheduler import Scheduler
from tests.e2e.product.agents import Agents
from tests.e2e.product.between import Between
from tests.e2e.product.controller import FAST, ROOT, Admission, Controller, HttpApi
from tests.e2e.product.service_address import ServiceAddress

NAMESPACE = "gpuwarden-system"
ACCOUNTS = ("gpuwarden-controller", "gpuwarden-agent", "gpuwarden-scheduler")
"""Service accounts that deploy/ makes."""
DEPLOY = ROOT / "deploy"
DEDICATED = DEPLOY / "scheduler" / "configuration.yaml"
NO_PREEMPTION = DEPLOY / "scheduler" / "no-preemption.yaml"
CLUSTERS_OWN = DEPLOY / "scheduler" / "cluster-scheduler.yaml"


class Installation:
    """`replicas` controllers behind one address, one dedicated scheduler, no agents yet."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        *,
        replicas: int = 1,
        pace: Pace = FAST,
        admission: Admission | None = None,
        policy: Mapping[str, Any] | None = None,
        http_api: HttpApi | None = None,
        between: Between | None = None,
        workload_api: InsecureWorkloadApi | None = None,
    ) -> None:
        """`admission`: the webhooks of all replicas, behind its address where there are several.

        `between`: what all calls between API server and replicas pass. `workload_api`: somebody's
        own, whose CA the agents know already.
        """
        self.lab = lab
        self.site = lab.beside(name)
        self._folder = self.site.folder / "tls"
        self._folder.mkdir()
        self._ca = WebCa(self._folder, "extender-ca")
        self._client = self._ca.issue("scheduler")
        apply(lab, "kustomize/base")
        apply(lab, "scheduler")
        self.workload_api = workload_api or InsecureWorkloadApi(self._folder, TRUST_DOMAIN)
        socket = self.workload_api.add(
            "controller", f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"
        )
        server = (*self._ca.issue("extender", server=True), self._ca.file)
        self._user = lab.control_plane.identities.user(account("gpuwarden-scheduler"))
        kubeconfig = lab.control_plane.identities.user(account("gpuwarden-controller"))
        self.controllers = [
            Controller(
                self.site,
                f"controller-{number}",
                workload_api=socket,
                kubeconfig=kubeconfig
                if between is None
                else between.to_api(f"controller-{number}", kubeconfig),
                tls=server,
                pace=pace,
                admission=self._own(admission, is_alone=replicas == 1 and between is None),
                policy=self._policy(policy),
                http_api=http_api,
            )
            for number in range(replicas)
        ]
        self._webhooks = self._behind_one_address(admission, between)
        self.service = ServiceAddress([one.endpoint for one in self.controllers])
        self.agents = Agents([one.agents for one in self.controllers], self.workload_api.ca)
        self.scheduler = self.add_scheduler("gpuwarden-scheduler", DEDICATED)

    def start(self, ready_s: float = READY_S) -> None:
        """Ready at the end: managed pods can be placed."""
        for one in (*self.controllers, self.scheduler):
            one.launch()
        for one in (*self.controllers, self.scheduler):
            one.ready(ready_s)

    def rotate(self) -> None:
        """The controllers get new SVIDs; extender and scheduler new certificates in their files."""
        self.workload_api.rotate()
        self._ca.issue("extender", server=True)
        self._ca.issue("scheduler")

    def close(self) -> None:
        """End everything of ours."""
        self.agents.close()
        self.site.close()
        self.service.close()
        if self._webhooks is not None:
            self._webhooks.close()
        self.workload_api.close()

    def _own(self, admission: Admission | None, *, is_alone: bool) -> Admission | None:
        """The webhooks of one replica; `is_alone`: nothing stands before it."""
        if admission is None or is_alone:
            return admission
        host = self.site.place.address
        return replace(admission, address=Address(host, self.site.place.port(0)))

    def _behind_one_address(
        self, admission: Admission | None, between: Between | None
    ) -> ServiceAddress | None:
        endpoints = {one.name: x for one in self.controllers if (x := one.webhooks) is not None}
        if admission is None or (len(endpoints) < 2 and between is None):
            return None
        if between is not None:
            host = admission.address.host
            endpoints = {x: between.to_webhooks(x, it, host) for x, it in endpoints.items()}
        return ServiceAddress([*endpoints.values()], admission.address.host, admission.address.port)

    def _policy(self, policy: Mapping[str, Any] | None) -> Path | None:
        if policy is None:
            return None
        head = {"apiVersion": "config.gpuwarden.dev/v1alpha1", "kind": "Policy"}
        path = self.site.folder / "policy.yaml"
        path.write_text(yaml.safe_dump({**head, **policy}))
        return path

    def add_scheduler(
        self,
        name: str,
        file: Path,
        *,
        profile: str | None = None,
        extender: Mapping[str, Any] | None = None,
    ) -> Scheduler:
        """A scheduler with a shipped configuration, not started; `extender` changes its entry."""
        url = f"https://127.0.0.1:{self.service.port}"
        settings = scheduler_settings(file, url, self._ca.file, self._client)
        settings["extenders"][0] |= extender or {}
        if profile is not None:
            settings["profiles"] = [{**settings["profiles"][0], "schedulerName": profile}]
            settings["leaderElection"] = {"leaderElect": False}
        plane = self.lab.control_plane
        return Scheduler(
            self.site,
            self._user,
            plane.serving(name),
            plane.identities.pki.ca,
            name=name,
            settings=settings,
        )


def scheduler_settings(file: Path, url: str, ca: Path, client: tuple[Path, Path]) -> dict[str, Any]:
    """A shipped configuration with the extender's address and our files."""
    settings: dict[str, Any] = yaml.safe_load(file.read_text())
    certificate, key = map(str, client)
    (entry,) = settings["extenders"]
    entry["urlPrefix"] = url
    entry["tlsConfig"] = {"caFile": str(ca), "certFile": certificate, "keyFile": key}
    settings.pop("clientConnection", None)
    return settings


def account(name: str) -> str:
    """The user name of a service account of ours: RBAC cannot tell a certificate of that name."""
    return f"system:serviceaccount:{NAMESPACE}:{name}"


def apply(lab: Lab, folder: str) -> None:
    """Apply a kustomization of deploy/; what would start pods is only checked by the server."""
    found = [x for x in yaml.safe_load_all(kubectl(lab, "kustomize", str(DEPLOY / folder))) if x]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    runs = [x for x in found if x["kind"] in {"Deployment", "StatefulSet", "DaemonSet"}]
    _applied(lab, [namespace, *(x for x in found if x not in runs)])
    if runs:
        _applied(lab, runs, "--dry-run=server")


def _applied(lab: Lab, documents: list[Document], *how: str) -> None:
    text = yaml.safe_dump_all(documents)
    kubectl(lab, "apply", "--server-side", "--force-conflicts", *how, "-f", "-", text=text)


def kubectl(lab: Lab, *arguments: str, text: str = "") -> str:
    """What kubectl prints for the lab's administrator; raises RuntimeError where it fails."""
    command = (
        str(lab.site.programs["kubectl"]),
        f"--kubeconfig={lab.kubeconfig}",
        f"--cache-dir={lab.folder / 'kubectl'}",
        *arguments,
    )
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"kubectl {arguments[0]}: {done.stderr}")
    return done.stdout
