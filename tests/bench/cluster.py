"""A trust domain with real controllers, the Go floor beside them, and Go agents for either."""

import json
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.model import PROTOCOL, Evidence, Hello
from sandbox.fleet.hardware import fleet_hardware, reading_of
from sandbox.fleet.run import ELIGIBLE
from sandbox.fleet.tally import metrics_of, states_of
from sandbox.laptop import API_VERSION, Pace
from sandbox.nodes import CLUSTER, TRUST_DOMAIN
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.bench.child import LOAD_CORE, Child

CONTROLLER = f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"
_START_S = 40
_SEQ = 987654321
"""Stands for the sequence number in the template: JSON has no quotes around it."""


@dataclass
class Controller:
    """A running controller and where it listens."""

    child: Child
    agents: str
    ops: str

    def eligible(self) -> int:
        """How many nodes it holds as eligible; 0 where it does not answer."""
        try:
            return states_of(metrics_of(self.ops)).get(ELIGIBLE, 0)
        except OSError:
            return 0


class NotHeldError(RuntimeError):
    """Not all agents were accepted in time."""


class Cluster:
    """Everything below one folder; `close` ends the Workload API."""

    def __init__(self, folder: Path, pace: Pace) -> None:
        self.folder = folder
        self.pace = pace
        for name in ("spiffe", "config"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.workload_api = InsecureWorkloadApi(
            folder / "spiffe", TRUST_DOMAIN, ttl=timedelta(hours=2)
        )
        self._endpoints: dict[str, str] = {}
        self._templates()

    def close(self) -> None:
        """End the Workload API."""
        self.workload_api.close()

    def workload(self, name: str, path: str) -> str:
        """The Workload API endpoint of a workload, made at the first call."""
        if name not in self._endpoints:
            spiffe_id = f"spiffe://{TRUST_DOMAIN}/gpuwarden/{path}"
            self._endpoints[name] = self.workload_api.add(name, spiffe_id)
        return self._endpoints[name]

    def controller(
        self,
        stack: ExitStack,
        name: str = "c0",
        *,
        agents: str = "127.0.0.1:0",
        core: int | None = None,
    ) -> Controller:
        """Start a controller and wait until it listens."""
        addresses = self.folder / f"{name}.addresses"
        addresses.unlink(missing_ok=True)
        config = self._config(name, agents)
        child = stack.enter_context(
            Child.python(
                "sandbox.controller_main",
                *("--config", config, "--addresses", addresses, "--node=*"),
                core=core,
                silent=True,
            )
        )
        end = time.monotonic() + _START_S
        while not addresses.exists():
            if child.has_ended or time.monotonic() > end:
                raise RuntimeError(child.fault())
            time.sleep(0.02)
        found = json.loads(addresses.read_text())
        return Controller(child, found["agents"], found["ops"])

    def floor(self, stack: ExitStack, peers: Path, *, core: int) -> tuple[Child, str]:
        """Start the Go floor with the controller's identity; its address."""
        issued = self.workload_api.ca.issue(CONTROLLER, ttl=timedelta(hours=2))
        cert, key = self.folder / "floor.crt", self.folder / "floor.key"
        cert.write_bytes(issued.chain_pem)
        key.write_bytes(issued.key_pem)
        child = Child(
            [
                *(peers, "ingest", "--cert", cert, "--key", key, "--ca", self._ca),
                *("--audience", CONTROLLER, "--trust-domain", TRUST_DOMAIN, "--cluster", CLUSTER),
                *(
                    "--interval",
                    f"{self.pace.interval_s}s",
                    "--ttl",
                    f"{self.pace.challenge_ttl_s}s",
                ),
            ],
            core=core,
            environment={"GOMAXPROCS": "1"},
        )
        stack.enter_context(child)
        return child, child.event("listening")["address"]

    def agents(
        self, stack: ExitStack, peers: Path, address: str, count: int, *, rate: float
    ) -> "Agents":
        """Make Go agents, not started yet."""
        child = Child(
            [
                *(peers, "load", "--address", address, "--agents", str(count)),
                *("--rate", str(rate), "--ca", self._ca, "--ca-key", self._ca_key),
                *("--trust-domain", TRUST_DOMAIN, "--hello", self._hello),
                *("--evidence", self._evidence),
            ],
            core=LOAD_CORE,
        )
        stack.enter_context(child)
        child.event("made")
        return Agents(child, count)

    @property
    def evidence_bytes(self) -> int:
        """Size of one evidence document."""
        return len(self._evidence.read_bytes())

    def _config(self, name: str, agents: str) -> Path:
        path = self.folder / "config" / f"{name}.yaml"
        pace = self.pace
        document = {
            "apiVersion": API_VERSION,
            "kind": "ControllerConfig",
            "trustDomain": TRUST_DOMAIN,
            "cluster": CLUSTER,
            "workloadApi": self.workload(name, "controller"),
            "replica": name,
            "attestation": {
                "interval": f"{pace.interval_s * 1000:.0f}ms",
                "challengeTtl": f"{pace.challenge_ttl_s * 1000:.0f}ms",
                "lease": f"{pace.lease_s * 1000:.0f}ms",
            },
            "listen": {
                "agents": agents,
                "extender": "127.0.0.1:0",
                "ops": "127.0.0.1:0",
                "local": str(self.folder / f"{name}.sock"),
            },
            "audit": {"dir": str(self.folder / name / "audit"), "reserve": "1Mi"},
            "store": {"path": str(self.folder / name / "ledger.db")},
        }
        (self.folder / name).mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(document))
        return path

    def _templates(self) -> None:
        """What the Go agents say, with @PLACES@ for what differs; RFC 8785 in any case."""
        ca = self.workload_api.ca
        self._ca, self._ca_key = self.folder / "ca.pem", self.folder / "ca.key"
        self._ca.write_bytes(ca.certificate.public_bytes(Encoding.PEM))
        self._ca_key.write_bytes(
            ca._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        self._hello, self._evidence = self.folder / "hello.json", self.folder / "evidence.json"
        self._hello.write_bytes(canonical_json(_hello()))
        self._evidence.write_bytes(canonical_json(_evidence()))


class Agents:
    """Go agents of one load process."""

    def __init__(self, child: Child, count: int) -> None:
        self.child = child
        self._count = count

    def start(self) -> None:
        """Let them connect."""
        self.child.ask("start")

    def report(self) -> dict[str, Any]:
        """How they stand; latencies are since the last report."""
        self.child.ask()
        return self.child.event("report")

    def until_accepted(self, seconds: float) -> dict[str, Any]:
        """Wait until each has been accepted once."""
        end = time.monotonic() + seconds
        while (report := self.report())["nodes"] < self._count:
            if time.monotonic() > end:
                raise NotHeldError(f"not all agents were accepted in {seconds} s: {report}")
            time.sleep(0.1)
        return report


def _hello() -> Hello:
    return Hello(
        protocol=PROTOCOL,
        agent_version="bench",
        instance_id="@INSTANCE@",
        boot_id="00000000-0000-4000-8000-000000000001",
        node_name="@NODE@",
        checkpoints=(),
    )


def _evidence() -> Evidence:
    """An eight-GPU node; `@HEX@` and `@DEC@` become the agent's number."""
    hardware = next(x for x in fleet_hardware(1, 50) if len(x.scenario.gpus) == 8)
    inventory = reading_of(hardware.scenario, hardware.host).inventory
    gpus = tuple(
        msgspec.structs.replace(
            gpu, uuid=f"GPU-@HEX@-0000-4000-8000-{gpu.index:012x}", serial=f"165@DEC@{gpu.index}"
        )
        for gpu in inventory.gpus
    )
    host = msgspec.structs.replace(inventory.host, system_uuid="@HEX@-0000-4000-8000-000000000000")
    facts: dict[str, Any] = {
        "protocol": PROTOCOL,
        "audience": CONTROLLER,
        "trust_domain": TRUST_DOMAIN,
        "node_name": "@NODE@",
        "stream_id": "@STREAM@",
        "challenge_id": "@CHALLENGE@",
        "nonce": "@NONCE@",
        "challenge_sha256": "@DIGEST@",
        "seq": _SEQ,
        "prev": "@PREV@",
        "instance_id": "@INSTANCE@",
        "boot_id": "00000000-0000-4000-8000-000000000001",
        "wall_ms": "@WALL@",
        "boottime_ms": "@BOOT@",
        "checkpoints": (),
        "inventory": msgspec.structs.replace(inventory, host=host, gpus=gpus),
        "allocations": None,
        "processes": (),
        "hardware_reports": (),
        "failed_reads": (),
        "log_alarms": (),
    }
    return Evidence(**facts)
