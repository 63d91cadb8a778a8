"""Our controller as a program beside the lab: the real process, on the lab's API server."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpuwarden.settings.values import Address
from sandbox.fleet.tally import metrics_of, states_of
from sandbox.laptop import Pace
from sandbox.nodes import CLUSTER, TRUST_DOMAIN
from tests.builders.allocator import environment_as_in
from tests.e2e.lab.program import Program, Site
from tests.e2e.product.service_address import Endpoint

ROOT = Path(__file__).resolve().parents[3]
FAST = Pace(interval_s=2, challenge_ttl_s=2, lease_s=6)
"""Shorter and therefore stricter than production."""


@dataclass(slots=True)
class Admission:
    """A controller's webhooks."""

    address: Address
    certificate: Path
    key: Path
    client_ca: Path
    enforcement: str = "namespaces"
    """Takes effect at the next start."""
    id_keys: Path | None = None
    """Keys of reservation ids; without them nothing is reserved."""
    settings: dict[str, object] = field(default_factory=dict)
    """More of the controller's settings, or others than ours; take effect at its next start."""

    def document(self) -> dict[str, object]:
        """Section `admission`."""
        files = {"cert": self.certificate, "key": self.key, "clientCa": self.client_ca}
        keys = {} if self.id_keys is None else {"idKeys": str(self.id_keys)}
        return {"tls": {name: str(path) for name, path in files.items()}, **keys}


@dataclass(frozen=True, slots=True)
class HttpApi:
    """A controller's HTTP API, at a port of its own."""

    certificate: Path
    key: Path
    readers: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        """Section `api`."""
        tls = {"cert": str(self.certificate), "key": str(self.key)}
        return {"tls": tls, "readers": list(self.readers)}


class Controller(Program):
    """One replica; ports stay what they are over restarts."""

    def __init__(
        self,
        site: Site,
        name: str,
        *,
        workload_api: str,
        kubeconfig: Path,
        tls: Sequence[Path],
        pace: Pace,
        admission: Admission | None = None,
        policy: Path | None = None,
        http_api: HttpApi | None = None,
    ) -> None:
        """`tls`: certificate, key and client CA of the extender."""
        super().__init__(site, name)
        self._workload_api = workload_api
        self._kubeconfig = kubeconfig
        self._tls = tls
        self._pace = pace
        self._admission = admission
        self._policy = policy
        self._http_api = http_api
        host = site.place.address
        self.agents, self._extender, self._ops, self.api = (
            Address(host, site.place.port(0)) for _ in range(4)
        )

    @property
    def local(self) -> Path:
        """Its socket for the CLI."""
        return self.data / "fleet.sock"

    @property
    def endpoint(self) -> Endpoint:
        """Where its extender is."""
        return Endpoint(self._extender.host, self._extender.port, str(self._ops))

    @property
    def webhooks(self) -> Endpoint | None:
        """Where its webhooks are."""
        if self._admission is None:
            return None
        address = self._admission.address
        return Endpoint(address.host, address.port, str(self._ops))

    def nodes(self, state: str) -> int:
        """How many nodes it sees in this state."""
        return states_of(metrics_of(str(self._ops))).get(state, 0)

    def metric(self, series: str) -> float | None:
        """The value of one series, as `/metrics` writes its name and labels."""
        lines = (line.rpartition(" ") for line in metrics_of(str(self._ops)).splitlines())
        return next((float(value) for name, _, value in lines if name == series), None)

    def records(self) -> list[dict[str, Any]]:
        """What stands in its audit log, oldest first; the last line may be half written."""
        files = sorted((self.data / "audit").glob("audit-*.jsonl"))
        lines = [line for file in files for line in file.read_bytes().splitlines(keepends=True)]
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def arguments(self) -> Sequence[str]:
        path = self.data / "controller.yaml"
        path.write_text(yaml.safe_dump(self._document()))
        return (sys.executable, "-m", "controller", "--config", str(path))

    def environment(self) -> dict[str, str]:
        own = {"PYTHONPATH": str(ROOT), "HOME": str(self.data), "LANG": "C.UTF-8"}
        return environment_as_in("controller", own)

    def is_ready(self) -> bool:
        return self.endpoint.is_ready()

    def _document(self) -> dict[str, object]:
        certificate, key, client_ca = map(str, self._tls)
        webhooks = self._admission
        own = {} if webhooks is None else {"admission": str(webhooks.address)}
        more: dict[str, object] = {}
        if webhooks is not None:
            more = {"admission": webhooks.document(), "enforcement": webhooks.enforcement}
            more |= webhooks.settings
        if self._policy is not None:
            more = more | {"policy": {"file": str(self._policy)}}
        if self._http_api is not None:
            more = more | {"api": self._http_api.document()}
        return {
            "apiVersion": "config.gpuwarden.dev/v1alpha1",
            "kind": "ControllerConfig",
            "trustDomain": TRUST_DOMAIN,
            "cluster": CLUSTER,
            "replica": self.name,
            "workloadApi": self._workload_api,
            "attestation": {
                "interval": _duration(self._pace.interval_s),
                "challengeTtl": _duration(self._pace.challenge_ttl_s),
                "lease": _duration(self._pace.lease_s),
            },
            "limits": {"rate": 600, "streamsPerPeer": 8},
            "listen": {
                "agents": str(self.agents),
                "extender": str(self._extender),
                "ops": str(self._ops),
                "api": str(self.api),
                "local": str(self.local),
                **own,
            },
            "extender": {"tls": {"cert": certificate, "key": key, "clientCa": client_ca}},
            "kubernetes": {"api": "kubeconfig", "kubeconfig": str(self._kubeconfig)},
            "audit": {"dir": str(self.data / "audit")},
            **more,
        }


def _duration(seconds: float) -> str:
    """As settings have it: in whole units."""
    return f"{seconds * 1000:.0f}ms"
