"""A trust domain of real SPIRE programs with our controller and agents on it, no Kubernetes.

Each simulated node has a SPIRE agent of its own (attested by the node's certificate) and one
of our agents, which sees the fake NVML library. Nothing is made up but nodes and GPUs.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection
from types import TracebackType
from typing import Any, Self

import grpc
import yaml

from gpuwarden.settings.values import Address
from gpuwarden.wire.v1 import fleet_pb2, fleet_pb2_grpc
from sandbox.laptop import API_VERSION, ROOT
from sandbox.nvml.build import build as build_nvml
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import VARIABLE, Scenario, write
from tests.e2e.lab.build import built
from tests.e2e.lab.claim import Claim
from tests.e2e.lab.logs import files_below, keep
from tests.e2e.lab.place import Loopback
from tests.e2e.lab.program import Program, Site
from tests.e2e.lab.spire_agent import SpireAgent
from tests.e2e.lab.spire_domain import SpireDomain
from tests.e2e.lab.spire_server import TRUST_DOMAIN
from tests.e2e.lab.waiting import until

CONTROLLER = f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"
SELECTOR = f"unix:uid:{os.geteuid()}"
WEAK_SELECTOR = f"unix:gid:{os.getegid()}"
NODES = tuple(f"gpu-{number}" for number in range(10))
HOME = "controllers"
"""Name of the node that the controller runs on."""
_ASK_S = 5.0


def agent_id(node: str) -> str:
    """SPIFFE ID of our agent on the node."""
    return f"spiffe://{TRUST_DOMAIN}/gpuwarden/agent/{node}"


class OurProgram(Program):
    """One of ours, from these sources."""

    def __init__(self, site: Site, name: str, config: Mapping[str, Any]) -> None:
        super().__init__(site, name)
        self.config = self.data / "config.yaml"
        self.config.write_text(yaml.safe_dump({"apiVersion": API_VERSION, **config}))

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "HOME": str(self.data)}


class OurController(OurProgram):
    """The controller, with a list of nodes for a directory."""

    def __init__(self, site: Site, workload_api: str, settings: Mapping[str, Any]) -> None:
        self._folder = site.folder / "controller"
        self.socket = self._folder / "fleet.sock"
        super().__init__(
            site,
            "controller",
            {
                "kind": "ControllerConfig",
                "trustDomain": TRUST_DOMAIN,
                "cluster": "lab",
                "workloadApi": workload_api,
                "attestation": {"interval": "1s", "challengeTtl": "1500ms", "lease": "4s"},
                "limits": {"rate": 600, "streamsPerPeer": 8},
                "listen": {
                    "agents": "127.0.0.1:0",
                    "extender": "127.0.0.1:0",
                    "ops": "127.0.0.1:0",
                    "local": str(self.socket),
                },
                "audit": {"dir": str(self._folder / "audit"), "reserve": 0},
                "store": {"path": str(self._folder / "ledger.db")},
                **settings,
            },
        )

    @property
    def addresses(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.data / "addresses").read_text())
        return found

    def arguments(self) -> Sequence[str]:
        (self.data / "addresses").unlink(missing_ok=True)
        nodes = (f"--node={name}={uid_of(name)}" for name in NODES)
        own = ("--config", str(self.config), "--addresses", str(self.data / "addresses"))
        return (sys.executable, "-m", "sandbox.controller_main", *own, *nodes)

    def is_ready(self) -> bool:
        """Listening; whether it may decide is `reasons`."""
        return (self.data / "addresses").exists()

    def reasons(self) -> list[str]:
        """Why it is not ready."""
        found: list[str] = self._readiness()["reasons"]
        return found

    def warnings(self) -> list[str]:
        found: list[str] = self._readiness()["warnings"]
        return found

    def metric(self, name: str) -> float:
        """The value of a sample; 0 where there is none."""
        for line in self._ask("metrics").splitlines():
            key, _, value = line.rpartition(" ")
            if key == name:
                return float(value)
        return 0.0

    def asked(self, name: str) -> fleet_pb2.GetNodeResponse:
        """All that `gpuwarden node show` gets."""
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            stub = fleet_pb2_grpc.FleetServiceStub(channel)
            return stub.GetNode(fleet_pb2.GetNodeRequest(name=name), timeout=_ASK_S)

    def node(self, name: str) -> fleet_pb2.Node:
        """As `gpuwarden nodes` sees it."""
        with grpc.insecure_channel(f"unix:{self.socket}") as channel:
            stub = fleet_pb2_grpc.FleetServiceStub(channel)
            listed = stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=_ASK_S)
        return next((x for x in listed.nodes if x.name == name), fleet_pb2.Node())

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Audit records of a kind, oldest first."""
        files = sorted((self._folder / "audit").glob("*.jsonl"))
        lines = [line for file in files for line in file.read_bytes().splitlines()]
        found = []
        for line in lines:
            with suppress(ValueError):  # the last one may be half written
                found.append(json.loads(line))
        return [record for record in found if record["kind"] == kind]

    def refusals(self, node: str) -> list[str]:
        """Reason codes with which the node was refused, each once."""
        records = [*self.records("evidence.refused"), *self.records("evidence.repeated")]
        codes = [
            code
            for record in records
            if record["subject"] == f"node/{node}"
            for code in record["codes"]
            if code != "ACCEPTED"
        ]
        return list(dict.fromkeys(codes))

    def _readiness(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask("readyz"))
        return found

    def _ask(self, path: str) -> str:
        address = Address.parse(self.addresses["ops"])
        connection = HTTPConnection(address.host, address.port, timeout=_ASK_S)
        try:
            connection.request("GET", f"/{path}")
            return connection.getresponse().read().decode()
        finally:
            connection.close()


class OurAgent(OurProgram):
    """The agent of one node, on the fake NVML library."""

    def __init__(
        self,
        site: Site,
        node: str,
        workload_api: str,
        controller: str,
        *,
        trust_domain: str = TRUST_DOMAIN,
        cluster: str = "lab",
        **agent: str,
    ) -> None:
        """`agent`: keys of that section."""
        super().__init__(
            site,
            f"agent-{node}",
            {
                "kind": "AgentConfig",
                "trustDomain": trust_domain,
                "cluster": cluster,
                "workloadApi": workload_api,
                "agent": {
                    "nodeName": node,
                    "controllers": [controller],
                    "stateDir": str(site.folder / f"agent-{node}" / "state"),
                    "kubeletSocket": "off",
                    **agent,
                },
                "listen": {"ops": "127.0.0.1:0"},
            },
        )
        self._scenario = self.data / "scenario"
        self.show(Scenario(cuda=12080, gpus=(h100_sxm(0, node),)))

    def show(self, scenario: Scenario) -> None:
        """The node's hardware from now on."""
        write(self._scenario, scenario)

    def arguments(self) -> Sequence[str]:
        return (sys.executable, "-m", "agent", "--config", str(self.config))

    def environment(self) -> dict[str, str]:
        nvml = {"LD_LIBRARY_PATH": str(build_nvml()), VARIABLE: str(self._scenario)}
        return {**super().environment(), **nvml}

    def is_ready(self) -> bool:
        return self.is_running


class SpireWorld:
    """The trust domain; a context manager. Nodes are added one by one."""

    def __init__(
        self,
        name: str = "spire",
        *,
        spire: Mapping[str, Any] | None = None,
        attestors: Mapping[str, Any] | None = None,
        **server: Any,
    ) -> None:
        """`name`: of the folder of logs in build/e2e; `spire`: the controller's section;
        `server`: how the SPIRE server is to be.
        """
        self.name = name
        programs = built(["spire"])
        self._claim = Claim.take()
        self.site = Site(self._claim.folder, programs, Loopback())
        self.agents: dict[str, OurAgent] = {}
        self._spire = {"poll": "500ms", **(spire or {})}
        self._attestors = {"x509pop": {"selectors": [SELECTOR]}} if attestors is None else attestors
        try:
            self._domain = SpireDomain(self.site, **server)
            self.server = self._domain.server
            self.spire_agents = self._domain.agents
            self.parents = self._domain.parents
            self.server.start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        """The controller, and the SPIRE agent of its node."""
        spire_agent = self.attest(HOME)
        self.server.register(CONTROLLER, self.parents[HOME], SELECTOR)
        policy = self.site.folder / "policy.yaml"
        header = {"apiVersion": API_VERSION, "kind": "Policy"}
        policy.write_text(yaml.safe_dump({**header, "attestors": self._attestors}))
        self.controller = OurController(
            self.site,
            spire_agent.workload_api,
            {
                "spire": {"server": self.server.address, **self._spire},
                "policy": {"file": str(policy)},
            },
        )
        self.controller.start()

    def attest(self, node: str, *, join_token: bool = False) -> SpireAgent:
        """Start a SPIRE agent for the node; `parents` knows it afterwards."""
        return self._domain.attest(node, uid_of(node), join_token=join_token)

    def add(self, node: str, *selectors: str, join_token: bool = False) -> str:
        """A node with its SPIRE agent, its entry and our agent; returns the entry's id."""
        self.attest(node, join_token=join_token)
        entry = self.server.register(
            agent_id(node), self.parents[node], *(selectors or (SELECTOR,))
        )
        self.start_agent(node)
        return entry

    def start_agent(self, node: str) -> None:
        """Our agent of the node, with the identity that the node's SPIRE agent gives it."""
        agents = self.controller.addresses["agents"]
        agent = OurAgent(self.site, node, self.spire_agents[node].workload_api, agents)
        self.agents[node] = agent
        agent.start()

    def eligible(self, node: str, *, within_s: float = 40.0) -> fleet_pb2.Node:
        """Wait until the node may be chosen."""
        return self.in_state(node, "eligible", within_s=within_s)

    def in_state(self, node: str, state: str, *, within_s: float = 40.0) -> fleet_pb2.Node:
        def ask() -> fleet_pb2.Node | None:
            found = self.controller.node(node)
            return found if found.state == state else None

        return until(f"{node} is {state}", ask, timeout_s=within_s)

    def refused(self, node: str, code: str, *, within_s: float = 40.0) -> None:
        """Wait until the node was refused with this code."""

        def ask() -> bool:
            return code in self.controller.refusals(node)

        until(f"{node} is refused with {code}", ask, timeout_s=within_s)

    def close(self) -> None:
        """Leave nothing but the logs."""
        self.site.close()
        logs = self.site.logs
        keep(files_below(logs, ".log"), {}, logs, ROOT / "build" / "e2e" / self.name)
        self._claim.release()


def uid_of(node: str) -> str:
    """The UID that the directory has for the node."""
    return f"uid-of-{node}"
