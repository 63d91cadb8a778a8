"""The whole product on the real node, as deploy/ installs it, with identities from a real SPIRE.

Entries as deploy/spire has them, images by digest, a device plugin, the dedicated scheduler. Only
the GPUs are made up.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from sandbox.fleet.tally import metrics_of, states_of
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import Scenario
from tests.builders.web_certificates import WebCa
from tests.contracts.pod_resources import DEVICES
from tests.e2e.lab.cluster_spire import ClusterSpire
from tests.e2e.lab.device_plugin import DevicePlugin
from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.scheduler import Scheduler
from tests.e2e.lab.waiting import until
from tests.e2e.product.deployed import REPLICAS, Changes, Deployed, Document, shipped_policy
from tests.e2e.product.entries import AGENT, CONTROLLER, shipped_entries
from tests.e2e.product.installation import DEDICATED, account, apply, scheduler_settings
from tests.e2e.product.pods import managed

START_S = 240
IMAGE = "k8s:container-image:"
TLS = "gpuwarden-extender-server"


@dataclass
class World:
    """Everything on the real node."""

    lab: Lab
    cluster: Deployed
    spire: ClusterSpire
    plugin: DevicePlugin
    images: dict[str, str]
    """ClusterSPIFFEID -> image by digest."""
    entries: dict[str, str]
    """ClusterSPIFFEID -> entry id."""

    def register(self) -> None:
        """The shipped entries, for the SPIRE agent of the Node object that there is now."""
        shipped = shipped_entries(self.lab.node.name)
        self.entries = {
            name: self.add(name, [*entry.selectors, f"{IMAGE}{self.images[name]}"])
            for name, entry in shipped.items()
        }

    def unregister(self) -> None:
        for entry in self.entries.values():
            self.spire.server.unregister(entry)

    def add(self, name: str, selectors: Sequence[str]) -> str:
        """An entry with these selectors; its id."""
        entry = shipped_entries(self.lab.node.name)[name]
        agent = self.spire.agent_id
        return self.spire.server.register(entry.spiffe_id, agent, *selectors, dns=entry.dns)

    def verified(self) -> Document:
        """Wait until both replicas have verified the node; as the last one sees it."""
        seen = [
            until(
                f"replica {replica} has verified the node",
                lambda number=replica: self.cluster.in_state(number, "eligible"),  # type: ignore[misc] # mypy cannot infer the default
                timeout_s=START_S,
            )
            for replica in range(REPLICAS)
        ]
        assert [x["level"] for x in seen] == ["L1"] * REPLICAS
        return seen[-1]

    def refused(self, code: str) -> None:
        """Wait until both replicas refuse the node with this code."""
        for replica in range(REPLICAS):
            until(
                f"replica {replica} refuses the node with {code}",
                lambda number=replica: (self.cluster.node(number) or {}).get("code") == code,  # type: ignore[misc] # same
                timeout_s=90,
            )

    def states(self) -> list[dict[str, int]]:
        """Nodes by state, per replica, from the metrics of their pods."""
        return [states_of(metrics_of(x)) for x in self.operations()]

    def operations(self) -> list[str]:
        """Where each replica shows its metrics."""
        return [f"{x['status']['podIP']}:9090" for x in self.cluster.pods("controller")]

    def wanting(self, name: str, required: str) -> Document:
        """A pod that wants one GPU of this class, on the real node."""
        document = managed(name, {"required-hash": required}, where={KIND_LABEL: "real"})
        document["spec"]["containers"][0]["args"] = ["say", "here"]
        return document

    def shown(self, replica: int) -> Document:
        """All that `gpuwarden node show` says."""
        name = self.lab.node.name
        found: Document = json.loads(
            self.cluster.gpuwarden(replica, "node", "show", name, "--output", "json")
        )
        return found


@contextmanager
def installed(lab: Lab, spire: ClusterSpire, folder: Path) -> Iterator[World]:
    """Everything applied and started, not yet verified; `folder`: an empty one for its files."""
    cluster = Deployed(lab, folder)
    agent, controller = map(lab.node.containerd.by_digest, cluster.import_images())
    cluster.furnish(scenario())
    with DevicePlugin(lab.node.capsule.path("/var/lib/kubelet/device-plugins"), DEVICES) as plugin:
        world = World(lab, cluster, spire, plugin, {AGENT: agent, CONTROLLER: controller}, {})
        world.register()
        apply(lab, "scheduler")
        scheduler = _scheduler(cluster, folder)
        cluster.apply(
            Changes(
                policy=_policy(agent),
                controller={"GPUWARDEN_SPIRE_SERVER": f"{lab.plan.inside}:{spire.server.port}"},
                images=[_by_digest(name, image) for name, image in world.images.items()],
                extender=True,
            )
        )
        scheduler.start()
        yield world
        scheduler.stop()


def scenario(*processes: int) -> Scenario:
    """Two GPUs with the ids that the device plugin offers; these processes are on the first."""
    first, second = (replace(h100_sxm(n), uuid=uuid) for n, uuid in enumerate(DEVICES))
    return Scenario(gpus=(replace(first, compute_pids=processes), second))


def _policy(image: str) -> dict[str, Any]:
    policy = shipped_policy()
    rules = policy["attestors"]["k8s_psat"]
    return {**policy, "attestors": {"k8s_psat": {**rules, "images": [image]}}}


def _by_digest(name: str, image: str) -> Document:
    repository, _, digest = image.partition("@")
    return {"name": name, "newName": repository, "digest": digest}


def _scheduler(cluster: Deployed, folder: Path) -> Scheduler:
    """The dedicated one, as a program beside the lab; and the extender's certificate."""
    ca = WebCa(folder, "extender-ca")
    certificate, key = ca.issue("extender", server=True)
    files = {"tls.crt": certificate, "tls.key": key, "ca.crt": ca.file}
    given = [f"--from-file={name}={path}" for name, path in files.items()]
    cluster.kubectl("create", "secret", "generic", TLS, *given)
    address = cluster.kubectl(
        "get", "service", "gpuwarden-extender", "-o=jsonpath={.spec.clusterIP}"
    )
    client = ca.issue("scheduler")
    settings = scheduler_settings(DEDICATED, f"https://{address}", ca.file, client)
    settings["extenders"][0]["tlsConfig"]["serverName"] = "localhost"  # what the builder issues for
    plane = cluster.lab.control_plane
    return Scheduler(
        cluster.lab.beside("with-spire"),
        plane.identities.user(account("gpuwarden-scheduler")),
        plane.serving("gpuwarden-scheduler"),
        plane.identities.pki.ca,
        name="gpuwarden-scheduler",
        settings=settings,
    )
