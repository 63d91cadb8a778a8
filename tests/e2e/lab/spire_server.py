"""SPIRE server: real, with sqlite, keys on disk, and the authorization policy of deploy/spire."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.lab.program import Program, Site

TRUST_DOMAIN = "example.org"
_DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "spire"
_CLI_S = 30


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kubernetes cluster whose nodes may attest (`k8s_psat`)."""

    name: str
    kubeconfig: Path
    """Of a user that may create TokenReviews and get pods and nodes."""
    account: str
    """The SPIRE agents' service account, `namespace:name`."""


class SpireServer(Program):
    """One server. Whatever administers it goes through its private socket, as its CLI does."""

    def __init__(
        self,
        site: Site,
        *,
        node_ca: Path | None = None,
        cluster: Cluster | None = None,
        svid_ttl: str = "1h",
        agent_ttl: str = "1h",
        ca_ttl: str = "24h",
        policy: bool = True,
        admin_ids: Sequence[str] = (),
        trust_domain: str = TRUST_DOMAIN,
        name: str = "spire-server",
    ) -> None:
        """Nodes may attest with certificates of `node_ca` (a PEM file), as the cluster's, or by
        join token.
        """
        super().__init__(site, name, usual_port=8081)
        self.socket = self.data / "api.sock"
        self._node_ca = node_ca
        self._cluster = cluster
        self._ttls = svid_ttl, agent_ttl, ca_ttl
        self._policy = policy
        self._admin_ids = admin_ids
        self._trust_domain = trust_domain

    @property
    def address(self) -> str:
        """Where agents and the controller dial."""
        return f"{self.site.place.address}:{self.port}"

    def arguments(self) -> Sequence[str]:
        config = self.data / "server.conf"
        config.write_text(self._config())
        return (str(self.site.programs["spire-server"]), "run", "-config", str(config))

    def is_ready(self) -> bool:
        done = subprocess.run(
            [self.site.programs["spire-server"], "healthcheck", "-socketPath", self.socket],
            capture_output=True,
            timeout=_CLI_S,
            check=False,
        )
        return done.returncode == 0

    def cli(self, *arguments: str) -> str:
        """What the server's own command line answers; raises CalledProcessError."""
        done = subprocess.run(
            [self.site.programs["spire-server"], *arguments, "-socketPath", str(self.socket)],
            capture_output=True,
            text=True,
            timeout=_CLI_S,
            check=True,
        )
        return done.stdout

    def asked(self, *arguments: str) -> Any:
        """The same, as JSON."""
        return json.loads(self.cli(*arguments, "-output", "json"))

    def bundle(self) -> str:
        """The trust bundle, PEM."""
        return self.cli("bundle", "show", "-format", "pem")

    def agents(self) -> list[str]:
        """SPIFFE IDs of the attested agents."""
        return [_id(agent["id"]) for agent in self.asked("agent", "list")["agents"]]

    def ban(self, agent_id: str) -> None:
        self.cli("agent", "ban", "-spiffeID", agent_id)

    def evict(self, agent_id: str) -> None:
        self.cli("agent", "evict", "-spiffeID", agent_id)

    def register(
        self,
        spiffe_id: str,
        parent_id: str,
        *selectors: str,
        admin: bool = False,
        dns: Sequence[str] = (),
    ) -> str:
        """Create a registration entry; returns its id."""
        arguments = ["entry", "create", "-spiffeID", spiffe_id, "-parentID", parent_id]
        for selector in selectors:
            arguments += ["-selector", selector]
        for name in dns:
            arguments += ["-dns", name]
        if admin:
            arguments.append("-admin")
        results = self.asked(*arguments)["results"]
        created: str = results[0]["entry"]["id"]
        return created

    def unregister(self, entry_id: str) -> None:
        self.cli("entry", "delete", "-entryID", entry_id)

    def join_token(self) -> str:
        """A token that one agent may attest with."""
        token: str = self.asked("token", "generate")["value"]
        return token

    def agent_serials(self) -> dict[str, str]:
        """Serial numbers of the agents' own SVIDs, by SPIFFE ID."""
        agents = self.asked("agent", "list")["agents"]
        return {_id(agent["id"]): agent["x509svid_serial_number"] for agent in agents}

    def authority(self, state: str) -> str:
        """Id of the X.509 authority that is `active`, `prepared` or `old`."""
        found: str = self.asked("localauthority", "x509", "show")[state]["authority_id"]
        return found

    def prepare_ca(self) -> str:
        """A new X.509 authority in the bundle, which signs nothing yet; returns its id."""
        prepared = self.asked("localauthority", "x509", "prepare")
        new: str = prepared["prepared_authority"]["authority_id"]
        return new

    def activate_ca(self, authority: str) -> None:
        """It signs from now on; the one before stays in the bundle."""
        self.cli("localauthority", "x509", "activate", "-authorityID", authority)

    def taint_ca(self, authority: str) -> None:
        """Whoever has an SVID of it renews, once the SPIRE agents have heard of it."""
        self.cli("localauthority", "x509", "taint", "-authorityID", authority)

    def revoke_ca(self, authority: str) -> None:
        """Out of the bundle: an SVID of it counts for nobody any more."""
        self.cli("localauthority", "x509", "revoke", "-authorityID", authority)

    def _config(self) -> str:
        svid_ttl, agent_ttl, ca_ttl = self._ttls
        return f"""
server {{
  bind_address = "{self.site.place.address}"
  bind_port = "{self.port}"
  socket_path = "{self.socket}"
  trust_domain = "{self._trust_domain}"
  data_dir = "{self.data}"
  log_level = "INFO"
  default_x509_svid_ttl = "{svid_ttl}"
  agent_ttl = "{agent_ttl}"
  ca_ttl = "{ca_ttl}"
  admin_ids = {json.dumps(list(self._admin_ids))}
  experimental {{
    cache_reload_interval = "1s"
    {self._engine() if self._policy else ""}
  }}
}}
plugins {{
  DataStore "sql" {{
    plugin_data {{
      database_type = "sqlite3"
      connection_string = "{self.data}/datastore.sqlite3"
    }}
  }}
  KeyManager "disk" {{
    plugin_data {{ keys_path = "{self.data}/keys.json" }}
  }}
  {self._by_certificate()}
  {self._by_cluster()}
  NodeAttestor "join_token" {{
    plugin_data {{}}
  }}
}}
"""

    def _by_certificate(self) -> str:
        if self._node_ca is None:
            return ""
        return f"""
  NodeAttestor "x509pop" {{
    plugin_data {{ ca_bundle_path = "{self._node_ca}" }}
  }}"""

    def _by_cluster(self) -> str:
        if self._cluster is None:
            return ""
        return f"""
  NodeAttestor "k8s_psat" {{
    plugin_data {{
      clusters = {{
        "{self._cluster.name}" = {{
          service_account_allow_list = ["{self._cluster.account}"]
          kube_config_file = "{self._cluster.kubeconfig}"
        }}
      }}
    }}
  }}"""

    def _engine(self) -> str:
        shipped = (_DEPLOY / "authorization.json").read_text()
        data = self.data / "authorization.json"
        data.write_text(shipped.replace(f"://{TRUST_DOMAIN}/", f"://{self._trust_domain}/"))
        return f"""
    auth_opa_policy_engine {{
      local {{
        rego_path = "{_DEPLOY}/authorization.rego"
        policy_data_path = "{data}"
      }}
    }}"""


def _id(message: dict[str, str]) -> str:
    return f"spiffe://{message['trust_domain']}{message['path']}"
