"""Starts the laptop cluster: a Workload API, the real controller, one real agent per node.

Everything lives below one folder and listens on loopback or unix sockets. The
programs are the ones that run in a cluster; only what surrounds them is made up.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

import yaml
from msgspec.structs import replace

from sandbox.kube.cluster import InsecureCluster
from sandbox.nodes import AMPERE, CLUSTER, REAL, ROGUE, TRUST_DOMAIN, SimulatedNode
from sandbox.nvml.build import build
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from sandbox.program import Program
from sandbox.spiffe.ca import LeafShape
from sandbox.spiffe.spire_server import READ, AgentRecord, EntryRecord, InsecureSpireServer
from sandbox.spiffe.workload_api import InsecureWorkloadApi

ROOT: Final = Path(__file__).resolve().parents[1]
API_VERSION: Final = "config.gpuwarden.dev/v1alpha1"
START_S: Final = 180.0
_POLICY: Final = {
    "apiVersion": API_VERSION,
    "kind": "Policy",
    "pools": [{"pattern": AMPERE, "mode": "env", "honoursVariable": True}],
}
"""One node where gpuwarden gives the GPUs; on the others kubelet does."""
SVID_TTL: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pace:
    """Shorter and therefore stricter than production: 2 x interval + ttl <= lease."""

    interval_s: float = 1.0
    challenge_ttl_s: float = 1.5
    lease_s: float = 4.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the controller listens."""

    agents: str
    extender: str
    ops: str
    local: str
    api: str = ""
    """Empty without the console."""
    admission: str = ""
    """Empty without a Kubernetes API."""


class Laptop:
    """The running cluster. Start the controller before the agents; `close` ends everything."""

    def __init__(
        self,
        folder: Path,
        pace: Pace | None = None,
        *,
        otlp: str | None = None,
        confirmed: bool = False,
        evaluation: bool = False,
        console: bool = False,
        kubernetes: bool = False,
    ) -> None:
        """`otlp`: where controller and agents send traces, and the controller log records.

        `confirmed`: a SPIRE server confirms the nodes, so that they reach level L1.
        `evaluation`: agents have the NVML of the image for evaluations, which says that its GPUs
        are made up. Without it they are like real ones to the controller.
        `console`: the controller serves the web console, to this machine without a login.
        `kubernetes`: nodes and pods come from an API server, which asks the controller's webhooks.
        """
        self._has_console = console
        self.folder = folder
        self.pace = pace or Pace()
        self._otlp = otlp
        self.addresses = Addresses("", "", "", str(folder / "fleet.sock"))
        self.programs: dict[str, Program] = {}
        self._endpoints: dict[str, str] = {}
        self.evaluation = evaluation
        """Whether the controller is started with `evaluation.enabled`."""
        self.stand_in = evaluation
        """Whether agents that start from now on have the NVML of the image for evaluations."""
        for name in ("log", "audit", "config", "scenario", "spiffe"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.workload_api = InsecureWorkloadApi(folder / "spiffe", TRUST_DOMAIN, ttl=SVID_TTL)
        self.spire = _spire_server(self.workload_api) if confirmed else None
        self.cluster = InsecureCluster(folder / "kube") if kubernetes else None
        self._shown: dict[str, Scenario] = {}

    @property
    def audit_folder(self) -> Path:
        """Where the controller writes its log."""
        return self.folder / "audit"

    @property
    def server(self) -> str:
        """What to give to `gpuwarden --server`."""
        return f"unix:{self.addresses.local}"

    def name_controller(self, *dns: str) -> None:
        """Give the controller's SVIDs DNS names, as an entry of SPIRE can; before its start."""
        self._endpoints["controller"] = self.workload_api.add(
            "controller", _id("controller"), dns=dns
        )

    async def start_controller(self, nodes: tuple[str, ...]) -> None:
        """Start the controller with a directory that knows `nodes`: each NAME or NAME=UID."""
        if self.spire is not None:
            await _registers(self.spire, [node.partition("=")[0] for node in nodes])
        known = tuple(f"--node={name}" for name in nodes)
        if self.cluster is not None:
            known = ()
            await self.cluster.start(dict(_named(node) for node in nodes))
        config = self._write_config("controller", self._controller_config())
        arguments = ("-m", "sandbox.controller_main", "--config", str(config))
        controller = await self._start("controller", (*arguments, *known), {})
        event = await controller.event("controller.listening", timeout_s=START_S)
        self.addresses = Addresses(
            agents=event["agents"],
            extender=event["extender"],
            ops=event["ops"],
            local=str(self.folder / "fleet.sock"),
            api=event["api"],
            admission=event["admission"],
        )
        if self.cluster is not None:
            self.cluster.use_webhooks(self.addresses.admission)

    async def stop_controller(self) -> None:
        """End the controller; started again it listens for agents where it did before."""
        await self.programs.pop("controller").stop()

    async def stop_agent(self, node: str) -> None:
        """End the agent of a node."""
        await self.programs.pop(node).stop()

    async def start_agent(self, node: SimulatedNode) -> None:
        """Start an agent whose NVML shows the node's scenario."""
        self.show(node.name, node.scenario)
        await self.start_agent_again(node.name)

    async def start_agent_again(self, name: str) -> None:
        """Start the agent of a node, whose NVML shows what it showed last."""
        library = build(evaluation=self.stand_in)
        nvml = {"LD_LIBRARY_PATH": str(library), VARIABLE: str(self._scenario(name))}
        await self._start_agent(name, nvml)

    async def start_real_agent(self) -> None:
        """Start an agent on this machine's own NVML, which may lie where only the caller knows."""
        name = "LD_LIBRARY_PATH"
        await self._start_agent(REAL, {name: os.environ[name]} if name in os.environ else {})

    def show(self, node: str, scenario: Scenario) -> None:
        """Let the node's NVML show `scenario` from now on, with what its kubelet runs."""
        self._shown[node] = scenario
        self.show_processes(node)

    def show_processes(self, node: str) -> None:
        """Let the node's NVML show what its kubelet runs now."""
        scenario = self._shown[node]
        if self.cluster is not None:
            pids = self.cluster.kubelets[node].pids
            gpus = tuple(replace(x, compute_pids=pids.get(x.uuid, ())) for x in scenario.gpus)
            scenario = replace(scenario, gpus=gpus)
        write(self._scenario(node), scenario)

    async def close(self) -> None:
        """End agents, controller and Workload API, in this order."""
        for program in reversed(list(self.programs.values())):
            await program.stop()
        if self.cluster is not None:
            await self.cluster.close()
        if self.spire is not None:
            await self.spire.stop()
        self.workload_api.close()

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a child program sees: nothing of the caller's but where Python and tools are."""
        return {
            "PATH": os.environ.get("PATH", ""),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            **(extra or {}),
        }

    async def _start_agent(self, node: str, extra: Mapping[str, str]) -> None:
        config = self._write_config(node, self._agent_config(node))
        program: tuple[str, ...] = ("-m", "agent")
        if self.cluster is not None and node != REAL:
            program = ("-m", "sandbox.agent_main", "--proc", str(self.cluster.kubelets[node].proc))
        await self._start(node, (*program, "--config", str(config)), extra)

    async def _start(
        self, name: str, arguments: tuple[str, ...], extra: Mapping[str, str]
    ) -> Program:
        program = await Program.start(
            name,
            (sys.executable, *arguments),
            environment=self.environment(extra),
            log=self.folder / "log" / f"{name}.log",
        )
        self.programs[name] = program
        return program

    def _workload(self, name: str, path: str) -> str:
        """The Workload API's socket for a program; the same one when it starts again."""
        if name not in self._endpoints:
            self._endpoints[name] = self.workload_api.add(name, _id(path))
        return self._endpoints[name]

    def _scenario(self, node: str) -> Path:
        return self.folder / "scenario" / node

    def _write_config(self, name: str, document: dict[str, object]) -> Path:
        path = self.folder / "config" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    def _controller_config(self) -> dict[str, object]:
        endpoint = self._workload("controller", "controller")
        policy = self.folder / "config" / "policy.yaml"
        policy.write_text(yaml.safe_dump(_POLICY, sort_keys=False))
        spire = (
            {} if self.spire is None else {"spire": {"server": self.spire.address, "poll": "1s"}}
        )
        return {
            "apiVersion": API_VERSION,
            "kind": "ControllerConfig",
            "trustDomain": TRUST_DOMAIN,
            "cluster": CLUSTER,
            "workloadApi": endpoint,
            "attestation": {
                "interval": _milliseconds(self.pace.interval_s),
                "challengeTtl": _milliseconds(self.pace.challenge_ttl_s),
                "lease": _milliseconds(self.pace.lease_s),
            },
            "limits": {"rate": 600, "streamsPerPeer": 8},
            "listen": {
                "agents": self.addresses.agents or "127.0.0.1:0",
                "extender": "127.0.0.1:0",
                "ops": "127.0.0.1:0",
                "local": self.addresses.local,
                **({"api": "127.0.0.1:0"} if self._has_console else {}),
                **({} if self.cluster is None else {"admission": "127.0.0.1:0"}),
            },
            "policy": {"file": str(policy)},
            "evaluation": {"enabled": self.evaluation},
            "audit": {"dir": str(self.audit_folder)},
            "store": {"path": str(self.folder / "ledger.db")},
            "metrics": {"fleet": True},
            **self._console_config(),
            **({} if self.cluster is None else self.cluster.settings()),
            **spire,
            **({} if self._otlp is None else {"telemetry": {"otlp": self._otlp, "logs": True}}),
        }

    def _console_config(self) -> dict[str, object]:
        """With a certificate that no browser knows."""
        if not self._has_console:
            return {}
        certificate, key = self.folder / "config" / "api.crt", self.folder / "config" / "api.key"
        issued = self.workload_api.ca.issue(_id("console"), shape=LeafShape(dns=("localhost",)))
        certificate.write_bytes(issued.chain_pem)
        key.touch(mode=0o600)
        key.write_bytes(issued.key_pem)
        return {
            "api": {"tls": {"cert": str(certificate), "key": str(key)}},
            "console": {"enabled": True, "loopback": True},
        }

    def _kubelet_socket(self, node: str) -> str:
        if self.cluster is None or node == REAL:
            return "off"
        return str(self.cluster.kubelets[node].socket)

    def _agent_config(self, node: str) -> dict[str, object]:
        return {
            "apiVersion": API_VERSION,
            "kind": "AgentConfig",
            "trustDomain": TRUST_DOMAIN,
            "cluster": CLUSTER,
            "workloadApi": self._workload(node, f"agent/{node}"),
            "agent": {
                "nodeName": node,
                "controllers": [self.addresses.agents],
                "stateDir": str(self.folder / "state" / node),
                "kubeletSocket": self._kubelet_socket(node),
            },
            "listen": {"ops": "127.0.0.1:0"},
            **({} if self._otlp is None else {"telemetry": {"otlp": self._otlp}}),
        }


def _named(node: str) -> tuple[str, str]:
    """Name and UID of a node that is given as NAME=UID or NAME."""
    name, _, uid = node.partition("=")
    return name, uid or node_uid(name)


def directory_of(nodes: tuple[SimulatedNode, ...]) -> tuple[str, ...]:
    """Every node that the controller shall know."""
    real = (REAL,) if has_real_nvml() else ()
    return (*(node.name for node in nodes), ROGUE, *real)


def has_real_nvml() -> bool:
    """Whether this machine has a driver with at least one GPU (asked without pynvml)."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libnvidia-ml.so.1")
        count = ctypes.c_uint(0)
        if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0:
            return count.value > 0
    return False


def node_uid(name: str) -> str:
    """The UID of a node that the SPIRE server confirms."""
    return f"uid-{name}"


def spire_agent_path(name: str) -> str:
    """Path of the SPIFFE ID of the SPIRE agent on a node."""
    return f"/spire/agent/k8s_psat/{CLUSTER}/{node_uid(name)}"


def _spire_server(api: InsecureWorkloadApi) -> InsecureSpireServer:
    return InsecureSpireServer(api.ca, {_id("controller"): READ}, bundle=lambda: api.roots)


async def _registers(spire: InsecureSpireServer, names: Sequence[str]) -> None:
    """Start it, if it does not run, with an agent and an entry for each node."""
    if spire.agents:
        return
    own = spire_agent_path("controller")
    spire.agents.append(AgentRecord(own))
    spire.entries.append(EntryRecord("/gpuwarden/controller", own))
    for name in names:
        path = spire_agent_path(name)
        selectors = (f"agent_node_name:{name}", f"agent_node_uid:{node_uid(name)}")
        named = tuple(f"k8s_psat:{x}" for x in selectors)
        spire.agents.append(AgentRecord(path, selectors=named))
        spire.entries.append(EntryRecord(f"/gpuwarden/agent/{name}", path))
    await spire.start()


def _id(path: str) -> str:
    return f"spiffe://{TRUST_DOMAIN}/gpuwarden/{path}"


def _milliseconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
