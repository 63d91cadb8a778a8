"""What a soak runs on: the lab's control plane, two controllers, one process with all agents."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Final

from controller.kube.nodes.nodes import ENFORCE_LABEL
from sandbox.fleet.plan import Happening, Kind
from sandbox.fleet.process import Live, ShareProcess, Start, Stop
from sandbox.laptop import Pace
from sandbox.nodes import TRUST_DOMAIN
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import NeverError, until
from tests.e2e.product.controller import Admission, Controller
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace
from tests.e2e.product.pods import managed
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

NAMESPACE: Final = "soak"
REPLICAS: Final = 2
PATIENCE_S: Final = 300.0
"""For anything that comes by itself, however busy the machine is."""
_TTL_S, _LEASE_S, _LEASE_ROUNDS = 15.0, 90.0, 6
_STARTED_PER_SECOND: Final = 50.0


def pace_of(interval_s: float) -> Pace:
    """As production has it at 25 s; shorter ones are stricter."""
    return Pace(interval_s, min(_TTL_S, interval_s), min(_LEASE_S, _LEASE_ROUNDS * interval_s))


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running, with every node eligible at each replica; `running` makes one."""

    lab: Lab
    gpuwarden: Installation
    fleet: ShareProcess
    nodes: int
    served: Admission

    @property
    def controllers(self) -> list[Controller]:
        """Both replicas."""
        return self.gpuwarden.controllers

    @property
    def pods(self) -> Namespace:
        """Pods of the enforced namespace."""
        return Namespace(self.lab.api, NAMESPACE)

    def processes(self) -> dict[str, int]:
        """Our programs that run now, with their process ids."""
        running = {one.name: one.pid for one in self.controllers if one.pid}
        return {**running, "agents": self.fleet.pid}

    def missing(self) -> list[str]:
        """Why it is not whole: replicas that are not ready, and nodes that a replica misses."""
        ready = self.gpuwarden.service.ready
        found = [] if ready == REPLICAS else [f"{ready} of {REPLICAS} replicas are ready"]
        for one in self.controllers:
            try:
                seen = one.nodes("eligible")
            except (OSError, HTTPException):
                found.append(f"{one.name} {'does not answer' if one.pid else 'does not run'}")
                continue
            if seen != self.nodes:
                found.append(f"{one.name} sees {seen} of {self.nodes} nodes eligible")
        return found

    def wait_whole(self, note: Callable[[list[str]], None] = lambda _: None) -> None:
        """Some time after anything has happened; NeverError names what is missing."""
        missing: list[str] = []

        def is_whole() -> bool:
            missing[:] = self.missing()
            note(missing)
            return not missing

        try:
            until("both replicas are ready and see all nodes", is_whole, timeout_s=PATIENCE_S)
        except NeverError as error:
            raise NeverError(f"{error}: {', '.join(missing)}") from None

    def rotate(self, over_s: float) -> None:
        """All certificates change: those of listeners and clients now, SVIDs of agents in turn."""
        self.gpuwarden.rotate()
        _issue_for_webhooks(self.lab, self.served)
        pause_s = over_s / self.nodes
        turns = (Happening(n * pause_s, Kind.ROTATE, n) for n in range(self.nodes))
        self.fleet.tell(Live(tuple(turns)))


@dataclass(slots=True)
class KeptLogs:
    """Copies of what all programs have written, whatever becomes of the soak."""

    folder: Path
    lab: Lab | None = None

    def copy(self) -> None:
        """What there is now."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for log in {} if self.lab is None else self.lab.log_sizes():
            shutil.copy(log, self.folder)


def forked_fleet(nodes: int, api: InsecureWorkloadApi) -> ShareProcess:
    """The agents' process, to be forked before this one has threads."""
    return ShareProcess({n: h100_node(_name(n)) for n in range(nodes)}, api.ca, seed=1)


@contextmanager
def running(
    fleet: ShareProcess,
    api: InsecureWorkloadApi,
    nodes: int,
    pace: Pace,
    *,
    kept: KeptLogs,
    note: Callable[[list[str]], None],
) -> Iterator[Cluster]:
    """Everything is gone afterwards but copies of the logs; `note`: what it waits for."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab.control_plane_only())
        kept.lab = lab
        stack.callback(kept.copy)
        served = admission(lab, has_node=False)
        served.id_keys = lab.folder / "soak-id-keys"
        served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
        installation = Installation(
            lab,
            "soak",
            replicas=REPLICAS,
            pace=pace,
            admission=served,
            policy={"defaultMode": "env"},
            workload_api=api,
        )
        stack.callback(installation.close)
        create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
        lab.fake_nodes.add_all(map(_name, range(nodes)), gpus=0)
        installation.start(PATIENCE_S)
        made = Cluster(lab, installation, fleet, nodes, served)
        stack.callback(fleet.tell, Stop())
        addresses = tuple(one.agents for one in installation.controllers)
        fleet.tell(Start(addresses, _STARTED_PER_SECOND))
        made.wait_whole(note)
        Webhooks(lab, served, PODS, BINDINGS).register()
        until("pods are injected", lambda: _is_injected(made), timeout_s=PATIENCE_S)
        yield made


def new_workload_api(folder: Path) -> InsecureWorkloadApi:
    """For `forked_fleet` and `running`."""
    return InsecureWorkloadApi(folder, TRUST_DOMAIN)


def _issue_for_webhooks(lab: Lab, served: Admission) -> None:
    """In the files that they have."""
    pki = lab.control_plane.identities.pki
    pki.issue(served.certificate.stem, "gpuwarden-admission", names=[served.address.host])


def _is_injected(cluster: Cluster) -> bool:
    pods = cluster.pods
    made = pods.api.post(f"{pods.path}/pods?dryRun=All", managed("dry", {}, gpus=0))
    return "env" in made["spec"]["containers"][0]


def _name(number: int) -> str:
    return f"soak-{number:03d}"
