"""The command line with a kubeconfig, through a fake API server, to a whole controller.

Real TLS and real gRPC from end to end; the API server forwards the port as bytes.
"""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import AUDIENCE, FakeApiServer
from tests.fakes.cluster import FakeCluster, LiveCluster
from tests.fakes.eventually import eventually
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
NAME = "gpuwarden-access.gpuwarden-system.svc"
POD = "gpuwarden-controller-0"
FLEET, PODS = "fleet", "pods"


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Workstation:
    """People with kubeconfigs for a fake API server, and a controller behind it."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.api: FakeApiServer = cluster.api
        self.folder = cluster.folder / "workstation"
        self.folder.mkdir()
        self.ca = WebCa(cluster.folder, "access-ca")
        self.secrets: set[str] = set()

    def settings(self) -> dict[str, str]:
        certificate, key = self.ca.issue("access", server=True, names=(NAME,))
        return {
            "listen__accessTokens": "127.0.0.1:0",
            "listen__accessCertificates": "127.0.0.1:0",
            "access__tls__cert": str(certificate),
            "access__tls__key": str(key),
            "access__tls__ca": str(self.ca.file),
        }

    def install(self) -> None:
        """What deploy/ and the cluster itself bring."""
        client_ca = self.api.client_ca.file.read_text()
        for namespace, name, data in (
            ("kube-system", "extension-apiserver-authentication", {"client-ca-file": client_ca}),
            ("gpuwarden-system", "gpuwarden-access", {}),
        ):
            metadata = {"namespace": namespace, "name": name}
            self.api.create("configmaps", {"metadata": metadata, "data": data})
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"namespace": "gpuwarden-system", "name": POD}
        spec = {"containers": [{"name": "controller"}]}
        self.api.create("pods", {"metadata": metadata, "spec": spec, "status": status})

    async def reachable(self, addresses: Any) -> None:
        """Wait until the controller has published how to verify it, and knows the client CA."""
        for address in (addresses.access_tokens, addresses.access_certificates):
            port = int(address.rpartition(":")[2])
            self.api.forwarded[(POD, port)] = port
        key = "gpuwarden-system/gpuwarden-access"

        async def published() -> bool | None:
            return "ca.crt" in self.api.objects.get("configmaps", key).get("data", {}) or None

        await eventually(published, "the authority is published")

    def lead_to(self, replica: Any, published: Any) -> None:
        """Forward ports to this replica; `published` are the addresses that the leader has."""
        for name in ("access_tokens", "access_certificates"):
            known, actual = (getattr(x, name).rpartition(":")[2] for x in (published, replica))
            self.api.forwarded[(POD, int(known))] = int(actual)

    # --- people

    def with_token(self, user: str, *groups: str, audience: str = AUDIENCE) -> Path:
        token = f"token-of-{user}"
        self.secrets.add(token)
        self.api.tokens.add(token)
        identity = {"username": user, "groups": list(groups), "uid": f"uid-of-{user}"}
        self.api.reviewed[token] = {"user": identity, "audiences": [audience]}
        return self._kubeconfig(user, {"token": token})

    def with_certificate(self, user: str, ca: WebCa | None = None) -> Path:
        certificate, key = (ca or self.api.client_ca).issue(user)
        return self._kubeconfig(
            user,
            {"client-certificate-data": _encoded(certificate), "client-key-data": _encoded(key)},
        )

    def with_plugin(self, user: str) -> Path:
        token = yaml.safe_load(self.with_token(user).read_text())["users"][0]["user"]["token"]
        answer = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {"token": token},
        }
        plugin = {
            "apiVersion": answer["apiVersion"],
            "command": sys.executable,
            "args": ["-c", f"print('''{json.dumps(answer)}''')"],
            "interactiveMode": "Never",
        }
        return self._kubeconfig(user, {"exec": plugin})

    def _kubeconfig(self, user: str, credentials: dict[str, Any]) -> Path:
        path = self.folder / user.replace(":", "-")
        cluster = {"server": self.api.url, "certificate-authority-data": _encoded(self.api.ca.file)}
        document = {
            "current-context": user,
            "contexts": [{"name": user, "context": {"cluster": "k", "user": user}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": user, "user": credentials}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    async def run(self, kubeconfig: Path, *arguments: str, text: str = "") -> Ran:
        """The command line as a process of its own, as on a workstation; it waits for long."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gpuwarden.cli",
            *arguments,
            f"--timeout={HANG_S:g}",
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "KUBECONFIG": str(kubeconfig),
            },
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(text.encode())
        ran = Ran(process.returncode or 0, out.decode(), err.decode())
        for secret in self.secrets:
            assert secret not in ran.out + ran.err
        return ran


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


@asynccontextmanager
async def working(cluster: FakeCluster) -> AsyncIterator[tuple[LiveCluster, Workstation]]:
    here = Workstation(cluster)
    here.install()
    async with cluster.live(**here.settings()) as live:
        await here.reachable(live.controller.addresses)
        yield live, here
        log = json.dumps(live.controller.records())
        assert not any(secret in log for secret in here.secrets)


async def test_people_with_roles_read_and_act_and_the_log_names_them(cluster: FakeCluster) -> None:
    async with working(cluster) as (live, here):
        here.api.may |= {
            ("jane", "inspect", FLEET, ""),
            ("on-call", "inspect", FLEET, ""),
            ("on-call", "operate", FLEET, ""),
            ("kim", "operate", FLEET, ""),
            ("kim", "inspect", FLEET, ""),
        }
        jane = here.with_token("jane")
        found = await here.run(jane, "nodes", "-o", "name")
        assert (found.code, found.out) == (0, "node-1\n"), found
        refused = await here.run(jane, "node", "quarantine", "node-1", "--reason", "test", "--yes")
        assert refused.code == 4
        assert 'needs verb "operate" on "fleet" in API group gpuwarden.dev' in refused.err
        assert "ClusterRole gpuwarden-operator" in refused.err
        joe = here.with_token("joe", "on-call")
        done = await here.run(joe, "node", "quarantine", "node-1", "--reason", "INC 1", "--yes")
        assert (done.code, done.err) == (0, ""), done
        shown = await here.run(jane, "node", "show", "node-1", "-o", "json")
        assert shown.json["enrollment"]["denial"]["actor"] == "user joe"
        kim = here.with_certificate("kim")
        done = await here.run(kim, "node", "release", "node-1", "--reason", "INC 1 over", "--yes")
        assert (done.code, done.err) == (0, ""), done
        shown = await here.run(jane, "node", "show", "node-1", "-o", "json")
        assert "denial" not in shown.json["enrollment"]
        assert shown.json["enrollment"]["previousQuarantineEndedBy"] == "user kim"
        kept = cluster.api.objects.get("nodeenrollments", "node-1")["spec"]
        assert kept["liftedBy"] == "user kim"
        done = await here.run(here.with_plugin("jane"), "nodes", "-o", "name")
        assert (done.code, done.out) == (0, "node-1\n"), done

        async def recorded() -> list[tuple[str, str]] | None:
            records = [x for x in live.controller.records() if x["kind"] == "node.operator"]
            found = [(x["actor"], x["decision"]) for x in records]
            return found if len(found) == 2 else None

        assert await eventually(recorded, "both acts are in the audit log") == [
            ("user joe", "quarantined"),
            ("user kim", "released"),
        ]
        reviews = 'gpuwarden_access_reviews_total{question="right",result="accepted"}'
        assert (await live.controller.metric(reviews) or 0) >= 3


async def test_events_name_who_acted_whichever_replica_was_asked(cluster: FakeCluster) -> None:
    """The leader writes Events about nodes, but learns of a release from the store alone."""
    here = Workstation(cluster)
    here.install()
    cluster.create_nodes("node-2")
    for name in ("joe", "kim"):
        here.api.may |= {(name, "operate", FLEET, ""), (name, "inspect", FLEET, "")}
    joe, kim = here.with_token("joe"), here.with_certificate("kim")
    second = {
        **here.settings(),
        "replica": "controller-1",
        "audit__dir": str(cluster.folder / "audit-1"),
        "listen__local": str(cluster.folder / "run-1" / "fleet.sock"),
    }
    async with cluster.controller(**here.settings()) as leader:
        await leader.metric_is("gpuwarden_leader", 1)
        await here.reachable(leader.addresses)
        async with cluster.controller(**second) as other:
            for node, asked in (("node-1", leader), ("node-2", other)):
                here.lead_to(asked.addresses, leader.addresses)
                words = ("node", "quarantine", node, "--reason", "INC 1", "--yes")
                done = await here.run(joe, *words)
                assert (done.code, done.err) == (0, ""), done
                await _told(cluster, node, "NodeQuarantined", "quarantined by user joe: INC 1")
                words = ("node", "release", node, "--reason", "INC 1 over", "--yes")
                done = await here.run(kim, *words)
                assert (done.code, done.err) == (0, ""), done
                await _told(cluster, node, "NodeReleased", "released by user kim: INC 1 over")
            assert await other.metric("gpuwarden_leader") == 0


async def _told(cluster: FakeCluster, node: str, reason: str, text: str) -> None:
    """Wait for the Event about a node; it is the only one of its reason, and says this."""

    async def there() -> list[str] | None:
        found = cluster.api.objects.all("events").values()
        about = [x for x in found if x["regarding"]["name"] == node and x["reason"] == reason]
        return [x["note"] for x in about] or None

    (note,) = await eventually(there, f"an Event {reason} about {node}")
    assert text in note


async def test_who_is_nobody_gets_in_nowhere(cluster: FakeCluster) -> None:
    async with working(cluster) as (_, here):
        for subject in ("system:anonymous", "jane", "eve", "system:authenticated"):
            here.api.may.add((subject, "inspect", FLEET, ""))
        anonymous = here.with_token("system:anonymous")
        found = await here.run(anonymous, "nodes")
        assert (found.code, "TOKEN_INVALID" in found.err) == (4, True), found
        elsewhere = here.with_token("jane", audience="vault")
        found = await here.run(elsewhere, "nodes")
        assert (found.code, "TOKEN_INVALID" in found.err) == (4, True), found
        here.api.fail_next(403, matching="create /apis/authentication.k8s.io")
        found = await here.run(here.with_token("jane2"), "nodes")
        assert (found.code, "TOKEN_REVIEW_UNAVAILABLE" in found.err) == (5, True), found
        here.api.fail_next(500, matching="create /apis/authorization.k8s.io")
        found = await here.run(here.with_token("jane3"), "nodes")
        assert (found.code, "ACCESS_REVIEW_UNAVAILABLE" in found.err) == (5, True), found


async def test_a_tenant_asks_about_the_pods_of_their_namespace_alone(cluster: FakeCluster) -> None:
    async with working(cluster) as (live, here):
        here.api.may.add(("tom", "get", PODS, "team-a"))
        tom = here.with_token("tom")
        live.create("train-0")
        await live.bound("train-0")
        manifest = json.dumps(_pod("team-a"))
        found = await here.run(tom, "fit", "-f", "-", "-n", "team-a", "-o", "json", text=manifest)
        assert found.code == 0, found
        assert [(x["node"], x.get("score", 0)) for x in found.json["fits"]] == [("node-1", 0)]
        found = await here.run(tom, "explain", "pod", "team-a/train-0", "-o", "json")
        assert found.json["namespace"] == "team-a", found
        found = await here.run(tom, "reservations", "-n", "team-a", "-o", "json")
        assert [x["pod"] for x in found.json["reservations"]] == ["train-0"]
        for arguments in (
            ("reservations", "-n", "strict"),
            ("explain", "pod", "strict/train-0"),
            ("fit", "-f", "-", "-n", "strict"),
        ):
            refused = await here.run(tom, *arguments, text=json.dumps(_pod("strict")))
            assert refused.code == 4, refused
            assert 'verb "get" on "pods" in namespace strict' in refused.err
        # The manifest's own namespace counts, whatever the request says.
        refused = await here.run(
            tom, "fit", "-f", "-", "-n", "team-a", text=json.dumps(_pod("strict"))
        )
        assert (refused.code, "namespace strict" in refused.err) == (4, True), refused
        for command in ("reservations", "nodes", "gpus", "status"):
            refused = await here.run(tom, command)
            assert (refused.code, refused.out) == (4, ""), refused


def _pod(namespace: str) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": namespace,
            "name": "next",
            "annotations": {"gpuwarden.dev/gpu-selector": "memory>=1Gi"},
        },
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }


async def test_what_is_not_verified_gets_no_token(cluster: FakeCluster) -> None:
    async with working(cluster) as (live, here):
        here.api.may |= {("jane", "inspect", FLEET, ""), ("eve", "inspect", FLEET, "")}
        jane = here.with_token("jane")
        reviews = 'gpuwarden_access_reviews_total{question="token",result="accepted"}'
        stranger = WebCa(cluster.folder, "stranger").file.read_text()
        key = "gpuwarden-system/gpuwarden-access"
        published = here.api.objects.get("configmaps", key)
        here.api.change(
            "configmaps", {**published, "data": {**published["data"], "ca.crt": stranger}}
        )
        found = await here.run(jane, "nodes")
        assert found.code == 5, found
        assert "no TLS session with the controller" in found.err
        assert await live.controller.metric(reviews) is None
        here.api.change("configmaps", {**published, "metadata": {**published["metadata"]}})
        other = here.with_certificate("eve", WebCa(cluster.folder, "other-client-ca"))
        found = await here.run(other, "nodes")
        assert (found.code, found.out) == (5, ""), found
        here.api.forbidden.add("portforward")
        found = await here.run(jane, "nodes")
        assert (found.code, "Role gpuwarden-access" in found.err) == (4, True), found
        here.api.forbidden = {"get /api/v1/namespaces/gpuwarden-system/configmaps"}
        found = await here.run(jane, "nodes")
        assert (found.code, "configmaps/gpuwarden-access" in found.err) == (4, True), found
        here.api.forbidden = set()
        here.api.forwarded.clear()
        found = await here.run(jane, "nodes")
        assert (found.code, "error forwarding port" in found.err) == (5, True), found
        here.api.delete("pods", f"gpuwarden-system/{POD}")
        found = await here.run(jane, "nodes")
        assert (found.code, "no pod gpuwarden-controller-N runs" in found.err) == (5, True), found


async def test_people_verify_the_certificate_that_a_controller_makes_itself(
    cluster: FakeCluster,
) -> None:
    here = Workstation(cluster)
    here.install()
    here.api.may.add(("jane", "inspect", FLEET, ""))
    folder = cluster.folder / "certificates"
    managed = {
        "certificates__selfManaged__enabled": "true",
        "certificates__selfManaged__folder": str(folder),
        "access__tls__cert": str(folder / "access" / "tls.crt"),
        "access__tls__key": str(folder / "access" / "tls.key"),
        "access__tls__ca": str(folder / "access" / "ca.crt"),
    }
    async with cluster.controller(**{**here.settings(), **managed}) as running:
        await here.reachable(running.addresses)
        found = await here.run(here.with_token("jane"), "status", "-o", "name")
        assert (found.code, found.out) == (3, "controller-0\n"), found  # it has no policy
        found = await here.run(here.with_token("jane"), "status", "-o", "json")
        served = {x["name"]: x["certificates"] for x in found.json["listeners"]}
        assert served["access"] == (folder / "access" / "tls.crt").read_text()
        left = 'gpuwarden_serving_certificate_expires_seconds{listener="access"}'
        assert (await running.metric(left) or 0) > 0
        assert not [x for x in await running.warnings() if x.startswith("access: the serving")]


async def test_without_certificates_nobody_comes_with_a_kubeconfig(cluster: FakeCluster) -> None:
    async with cluster.controller() as here:
        assert (here.addresses.access_tokens, here.addresses.access_certificates) == ("", "")
