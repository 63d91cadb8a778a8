"""`gpuwarden doctor` against an API server and a controller: gathering, text, JSON, exit codes."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from email.utils import format_datetime
from pathlib import Path

import pytest

from gpuwarden.audit.files import file_name
from gpuwarden.cli.app import run
from gpuwarden.cli.commands.doctor import _access
from gpuwarden.cli.connection.options import Connection
from gpuwarden.cluster.access import Access, AccessError, pod_access
from gpuwarden.cluster.api import ApiError, ApiServer
from gpuwarden.doctor.catalog import INSTALLED
from gpuwarden.doctor.facts import (
    COLLECTIONS,
    DAEMON_SETS,
    DEFINITIONS,
    NAMESPACES,
    NODES,
    PODS,
    SPIFFE_IDS,
    DryRun,
    Facts,
    Right,
)
from gpuwarden.doctor.gather import ASKING, Cluster
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import audit_pb2 as audit
from gpuwarden.wire.v1 import support_pb2 as sup
from tests.builders.certified_log import CertifiedLog
from tests.builders.console_commands import typed, words
from tests.builders.doctor_facts import (
    METRICS,
    NOW,
    Object,
    denied,
    healthy,
    without,
)
from tests.builders.kube_access import kubeconfig, service_account
from tests.builders.log_keys import ORIGIN
from tests.fakes.api_server import TOKEN, FakeApiServer
from tests.fakes.fleet_server import FakeFleetServer

SECONDS = 20.0
COMMAND = "gpuwarden.cli.commands.doctor"


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def checks(self) -> dict[str, dict[str, str]]:
        """Of `-o json`, by id."""
        groups = json.loads(self.out)["groups"]
        return {one["id"]: one for group in groups for one in group["checks"]}


@dataclass
class World:
    """A cluster and a controller of which all is well."""

    api: FakeApiServer
    fleet: FakeFleetServer
    facts: Facts
    folder: Path
    capsys: pytest.CaptureFixture[str]

    def load(self, facts: Facts) -> None:
        """Have the API server hold these objects."""
        for collection in COLLECTIONS:
            for key in list(self.api.objects.all(collection.resource)):
                self.api.delete(collection.resource, key)
            for one in facts.all(collection):
                self.api.create(collection.resource, json.loads(json.dumps(one)))
        self.api.group_versions = set(facts.served.get())

    def access(self) -> Access:
        return _access(Connection(kubeconfig=kubeconfig(self.folder, self.api)))

    async def gathered(self, *, pre: bool = False, **options: int) -> Facts:
        begin = Facts(version_here="0.1.0")
        async with ApiServer(self.access(), SECONDS) as api:
            return await Cluster(api, **options).facts(begin, dry_run_namespace="", pre=pre)

    async def doctor(self, *arguments: str, server: str = "") -> Ran:
        """Run the command."""
        path = kubeconfig(self.folder, self.api)
        to = server or self.fleet.target
        line = ("doctor", "--kubeconfig", str(path), "--server", to, *arguments)
        self.capsys.readouterr()
        code = await asyncio.to_thread(run, line)
        written = self.capsys.readouterr()
        return Ran(int(code), written.out, written.err)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return healthy(tmp_path_factory.mktemp("sound"))


@pytest.fixture
async def world(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sound: Facts,
) -> AsyncIterator[World]:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "GPUWARDEN_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    facts, mutated = sound, sound.asking_pod.get()
    with FakeFleetServer().on_socket(tmp_path / "fleet.sock") as fleet:
        fleet.status.CopyFrom(facts.asked[0].status)
        fleet.status.replicas[:] = [fleet.status.replica]
        fleet.nodes = list(facts.asked[0].fleet.get())
        fleet.support = [sup.CollectResponse(part="metrics.prom", content=METRICS.encode())]
        fleet.log = log_of(CertifiedLog().records(3).checkpoint().lines)
        async with FakeApiServer(tmp_path) as api:
            made = World(api, fleet, facts, tmp_path, capsys)
            made.load(facts)
            made.api.date = format_datetime(NOW, usegmt=True)
            made.api.dry_run = lambda pod: _dry(pod, mutated)
            yield made


def log_of(lines: list[bytes], *others: str) -> list[audit.ReadRecordsResponse]:
    """The log of the one replica, which knows of others."""
    first = audit.ReadRecordsResponse(log=ORIGIN, logs=(ORIGIN, *others), newest=len(lines))
    records = [line.decode().removesuffix("\n") for line in lines]
    return [first, audit.ReadRecordsResponse(records=records)]


def _dry(pod: Object, mutated: DryRun) -> tuple[int, Object]:
    """By gpuwarden's own webhooks."""
    if pod["metadata"]["annotations"] == ASKING:
        return mutated.status, dict(mutated.answer)
    refused = denied("REQ_INVALID gpuwarden.dev/gpu-count")
    return refused.status, dict(refused.answer)


# --- all of it


async def test_an_installation_of_which_all_is_well(world: World) -> None:
    ran = await world.doctor()
    assert (ran.code, ran.err) == (0, ""), ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    counts = ran.out.splitlines()[-1]
    assert counts == f"{_count()} passed, 0 warnings, 0 failed, 0 not checked"
    assert re.findall("^[A-Z].*$", ran.out, re.MULTILINE) == [one.title for one in INSTALLED]


async def test_the_commands_of_the_page(world: World) -> None:
    commands = [words(x) for x in typed("docs/doctor.md", "gpuwarden doctor")]
    codes = {" ".join(x): (await world.doctor(*x)).code for x in commands}
    assert codes == {"--pre": 3, "": 0, "--wait 5m": 0, "-o json": 0}, "installed, and sound"


def _count() -> int:
    return sum(len(group.checks) for group in INSTALLED)


async def test_a_fault_is_told_with_what_repairs_it(world: World) -> None:
    world.api.delete("pods", "gpuwarden-system/gpuwarden-agent-gpu-a2")
    ran = await world.doctor()
    assert ran.code == 3
    lines = ran.out.splitlines()
    at = lines.index("  failed       an agent is ready on every GPU node")
    assert lines[at + 1 : at + 8] == [
        "    seen      none that is ready on gpu-a2",
        "    expected  an agent that is ready on every GPU node",
        "    repair    kubectl -n gpuwarden-system get pods -l \\",
        "              app.kubernetes.io/component=agent --field-selector \\",
        "              spec.nodeName=gpu-a2",
        "    page      docs/doctor.md#agents",
        "  passed       every node's evidence is fresh: 2 nodes, for 62 s at least",
    ]
    assert max(map(len, lines)) <= 80
    assert (await world.doctor("-o", "name")).out == "agents\n"


async def test_for_programs(world: World) -> None:
    world.api.delete("pods", "gpuwarden-system/gpuwarden-agent-gpu-a2")
    ran = await world.doctor("-o", "json")
    found = json.loads(ran.out)
    assert (ran.code, found["success"]) == (3, False)
    assert found["counts"] == {"passed": 45, "warning": 0, "failed": 1, "not checked": 0}
    assert [x["name"] for x in found["groups"]] == [x.name for x in INSTALLED]
    assert ran.checks["agents"] == {
        "id": "agents",
        "title": "an agent is ready on every GPU node",
        "outcome": "failed",
        "seen": "none that is ready on gpu-a2",
        "expected": "an agent that is ready on every GPU node",
        "command": "kubectl -n gpuwarden-system get pods -l app.kubernetes.io/component=agent"
        " --field-selector spec.nodeName=gpu-a2",
        "page": "docs/doctor.md#agents",
    }
    assert "outcome: failed" in (await world.doctor("-o", "yaml")).out


async def test_nothing_is_written(world: World) -> None:
    await world.doctor()
    written = [path for verb, path in world.api.requests if verb not in {"get", "list"}]
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert set(written) == {reviews, "/api/v1/namespaces/team-a/pods?dryRun=All"}
    assert len([x for x in written if x != reviews]) == 2
    assert "doctor" not in json.dumps([*world.api.objects.all("pods")])


async def test_a_cluster_to_be_is_not_asked_for_pods_and_no_controller_is_asked(
    world: World,
) -> None:
    bare = without(without(world.facts, DAEMON_SETS, "gpuwarden-agent"), DEFINITIONS)
    world.load(bare)
    ran = await world.doctor("--pre")
    assert (ran.code, world.fleet.asked) == (0, [])
    assert ran.out.splitlines()[-1] == "11 passed, 0 warnings, 0 failed, 0 not checked"
    assert not [path for _, path in world.api.requests if "dryRun" in path]
    world.api.denied = {"create clusterroles"}
    ran = await world.doctor("--pre", "-o", "name")
    assert (ran.code, ran.out) == (3, "caller-installs\n")


async def test_waiting_ends_when_no_check_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fleet.status.not_ready = "first round"
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        world.fleet.status.not_ready = "first round" if len(pauses) < 2 else ""

    monkeypatch.setattr(f"{COMMAND}.sleep", pause)
    assert (await world.doctor("--wait", "1h")).code == 0
    assert len(pauses) == 2


async def test_waiting_ends_when_its_time_is_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fleet.status.not_ready = "first round"
    now = [0.0]
    monkeypatch.setattr(f"{COMMAND}.monotonic", lambda: now[0])
    monkeypatch.setattr(f"{COMMAND}.sleep", lambda x: now.__setitem__(0, now[0] + x))
    ran = await world.doctor("--wait", "5s", "-o", "name")
    assert (ran.code, ran.out, now[0]) == (3, "controller-ready\n", 4.0)


async def test_a_duration_that_is_none_is_a_wrong_argument(world: World) -> None:
    ran = await world.doctor("--wait", "soon")
    assert (ran.code, ran.out) == (2, "")
    assert "--wait: expected a duration such as" in ran.err


async def test_a_controller_that_is_gone_leaves_the_checks_of_the_cluster(world: World) -> None:
    ran = await world.doctor("-o", "json", server=f"unix:{world.folder}/nowhere.sock")
    checks = ran.checks
    assert (ran.code, checks["controller-answers"]["outcome"]) == (3, "failed")
    assert "no controller listens at unix:" in checks["controller-answers"]["seen"]
    of_logs = ("log-available", "log-verifies", "log-witnesses")
    for name in ("controller-ready", "evidence", "svids", "webhooks-ca", *of_logs):
        found = (checks[name]["outcome"], checks[name]["seen"])
        assert found == ("not checked", "no controller answers you"), name
    assert checks["agents"]["outcome"] == checks["pod-refused"]["outcome"] == "passed"


async def test_a_controller_that_gives_no_metrics_leaves_the_other_checks(world: World) -> None:
    world.fleet.support = []
    checks = (await world.doctor("-o", "json")).checks
    assert checks["store"]["seen"] == "the controller does not give its metrics"
    assert checks["store"]["outcome"] == checks["svids"]["outcome"] == "not checked"
    assert checks["evidence"]["outcome"] == "passed"


# --- audit logs


async def log_check(world: World, *arguments: str) -> tuple[str, str]:
    found = (await world.doctor("-o", "json", *arguments)).checks["log-verifies"]
    return found["outcome"], found["seen"]


async def test_the_log_of_a_replica_is_verified_over_the_network(world: World) -> None:
    seen = f"{ORIGIN}: all of 5 records, 1 signed checkpoint"
    assert await log_check(world) == ("passed", seen)
    asked = [x for x in world.fleet.asked if isinstance(x, audit.ReadRecordsRequest)]
    assert [(x.last, x.follow, x.after) for x in asked] == [(1, False, 0), (2000, False, 0)]
    assert list(asked[0].kinds) == ["log.key", "log.rotate", "log.start"]
    world.fleet.log = log_of(CertifiedLog().records(3).lines, "lab/controller-1")
    seen = f"{ORIGIN}: all of 4 records, 0 signed checkpoints; not read from here: lab/controller-1"
    assert await log_check(world) == ("passed", seen)


async def test_a_log_here_is_verified_whole_instead_of_the_end_of_it(world: World) -> None:
    folder = world.folder / "audit"
    folder.mkdir()
    lines = CertifiedLog().records(9).lines
    (folder / file_name(1)).write_bytes(b"".join(lines))
    found = await log_check(world, "--audit-log", str(folder))
    assert found == ("passed", f"10 records in {folder}")
    outcome, seen = await log_check(world, "--audit-log", str(world.folder / "none"))
    assert outcome == "warning"
    assert seen.startswith(f"not read: {world.folder}/none: no such file or folder; {ORIGIN}: ")


async def test_records_of_a_newer_version_are_not_called_broken(world: World) -> None:
    lines = CertifiedLog().add("node.later").records(1).lines
    world.fleet.log = log_of(lines)
    seen = f"{ORIGIN}: all of 3 records, 0 signed checkpoints"
    assert await log_check(world) == ("passed", seen)
    lines[1] = lines[1].replace(b"/audit/v1", b"/audit/v2")
    world.fleet.log = log_of(lines)
    seen = f"not read: {ORIGIN}: 1 record that only a newer gpuwarden can read"
    assert await log_check(world) == ("warning", seen)


async def test_without_the_right_logs_are_not_checked(world: World) -> None:
    text = 'jane may not call ReadRecords: needs verb "inspect" on "fleet"'
    world.fleet.log_refusal = Refusal(ReasonCode.ROLE_DENIED, text)
    assert await log_check(world) == ("not checked", f"ROLE_DENIED: {text}")


# --- gathering


async def test_what_may_not_be_read_is_not_checked(world: World) -> None:
    body = json.dumps({"message": 'nodes is forbidden: User "jane" cannot list'}).encode()
    world.api.fail_next(403, matching="/api/v1/nodes", body=body)
    facts = await world.gathered()
    assert facts.objects[NODES].why == (
        'you may not read nodes: nodes is forbidden: User "jane" cannot list'
    )
    assert len(facts.all(PODS)) == 2


async def test_an_api_that_is_not_installed_has_no_objects(world: World) -> None:
    world.api.fail_next(404, matching="clusterspiffeids", body=b"404 page not found\n")
    assert (await world.gathered()).all(SPIFFE_IDS) == ()
    world.api.fail_next(404, matching="daemonsets")
    facts = await world.gathered()
    assert facts.objects[DAEMON_SETS].why.startswith("daemonsets: HTTP 404")


async def test_pages_are_joined_and_bounded(world: World) -> None:
    facts = await world.gathered(page=1)
    assert len(facts.all(NAMESPACES)) == len(world.facts.all(NAMESPACES)) == 6
    few = await world.gathered(page=2, most=3)
    assert few.objects[NAMESPACES].why == "more than 3 namespaces"


async def test_managed_fields_are_left_out(world: World) -> None:
    node = world.api.objects.get("nodes", "gpu-a1")
    node["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    world.api.change("nodes", node)
    (found,) = (x for x in (await world.gathered()).all(NODES) if x["metadata"]["name"] == "gpu-a1")
    assert "managedFields" not in found["metadata"]
    assert found["spec"] == node["spec"]


async def test_rights_are_asked_one_by_one(world: World) -> None:
    world.api.denied = {"list nodes"}
    facts = await world.gathered()
    denied = [str(x) for x, allowed in facts.rights.items() if not allowed.get()]
    assert denied == ["list nodes"]
    assert facts.rights[
        Right("get", "coordination.k8s.io", "leases", "gpuwarden-system", "gpuwarden-controller")
    ].get()


async def test_time_is_the_api_servers(world: World) -> None:
    assert (await world.gathered()).now.get() == NOW


async def test_a_silent_api_server_is_asked_once(world: World) -> None:
    world.api.is_stalled = True
    begin = Facts(version_here="0.1.0")
    async with ApiServer(world.access(), 0.3) as api:
        facts = await Cluster(api).facts(begin, dry_run_namespace="", pre=False)
    assert facts.api_error == (
        f"the API server at 127.0.0.1:{world.api.port}: no answer in time; see --timeout"
    )
    assert {x.why for x in facts.objects.values()} == {"the Kubernetes API does not answer"}
    assert len(world.api.requests) == 1


async def test_the_dry_run_is_where_it_may_be(world: World) -> None:
    await world.doctor("--dry-run-namespace", "team-b")
    paths = {path for _, path in world.api.requests if "dryRun" in path}
    assert paths == {"/api/v1/namespaces/team-b/pods?dryRun=All"}
    world.load(without(world.facts, NAMESPACES, "team-a"))
    world.api.requests.clear()
    await world.doctor()
    paths = {path for _, path in world.api.requests if "dryRun" in path}
    assert paths == {"/api/v1/namespaces/default/pods?dryRun=All"}


# --- ways into the API


async def version(access: Access, **options: int) -> object:
    async with ApiServer(access, SECONDS, **options) as api:
        return (await api.get("/version")).document


def logged_in(world: World, user: Object) -> Access:
    """The way of a kubeconfig with this user."""
    path = kubeconfig(world.folder, world.api)
    document = json.loads(path.read_text())
    document["users"][0]["user"] = user
    path.write_text(json.dumps(document))
    return _access(Connection(kubeconfig=path))


async def test_the_ways_to_prove_who_asks(world: World) -> None:
    certificate, key = world.api.client_ca.issue("jane")
    printed = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "status": {"token": TOKEN},
    }
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": sys.executable,
        "args": ["-c", f"print({json.dumps(printed)!r})"],
        "interactiveMode": "Never",
    }
    for user in (
        {"token": TOKEN},
        {"client-certificate": str(certificate), "client-key": str(key)},
        {"exec": plugin},
    ):
        access = logged_in(world, user)
        assert await version(access) == {"gitVersion": "v1.35.4"}, user
        assert TOKEN not in repr(access)


async def test_a_pods_service_account_is_used_where_there_is_no_kubeconfig(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = service_account(world.folder / "account", world.api)
    port = str(world.api.port)
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
    assert await version(pod_access(environ, account)) == {"gitVersion": "v1.35.4"}
    monkeypatch.setattr("gpuwarden.cluster.access.SERVICE_ACCOUNT", account)
    with pytest.raises(AccessError, match=r"^no kubeconfig"):
        _access(Connection())


async def test_a_kubeconfig_that_cannot_be_used_is_the_fault_that_is_found(world: World) -> None:
    path = kubeconfig(world.folder, world.api, **{"insecure-skip-tls-verify": True})
    line = ("doctor", "--kubeconfig", str(path), "--server", world.fleet.target, "-o", "json")
    world.capsys.readouterr()
    code = await asyncio.to_thread(run, line)
    ran = Ran(int(code), world.capsys.readouterr().out, "")
    assert ran.code == 3
    assert "insecure-skip-tls-verify" in ran.checks["kubernetes-api"]["seen"]
    assert ran.checks["agents"]["seen"] == "the Kubernetes API does not answer"
    assert ran.checks["controller-ready"]["outcome"] != "not checked", "it was asked all the same"


async def test_a_proxy_is_asked_for_a_way_to_the_server(world: World) -> None:
    heads: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", world.api.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def carried(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while chunk := await source.read(1 << 16):
                target.write(chunk)
            target.close()

        await asyncio.gather(carried(reader, far_writer), carried(far_reader, writer))

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        access = replace(world.access(), proxy=f"http://127.0.0.1:{port}")
        assert await version(access) == {"gitVersion": "v1.35.4"}
    assert heads[0].startswith(f"CONNECT 127.0.0.1:{world.api.port} ".encode())


async def test_a_server_that_is_not_the_one_is_not_asked(world: World) -> None:
    access = world.access()
    stranger = world.api.client_ca.file.read_text()
    wrong = Access(
        access.server, stranger, access.authorization, access.certificate, access.private_key
    )
    with pytest.raises(ApiError, match=r"its certificate is not accepted"):
        await version(wrong)
    named = Access(
        access.server.replace("127.0.0.1", "localhost"),
        access.ca,
        f"Bearer {TOKEN}",
        server_name="h",
    )
    with pytest.raises(ApiError, match=r"its certificate is not accepted"):
        await version(named)
    with pytest.raises(AccessError, match="cannot be used"):
        ApiServer(Access(access.server, "no pem"), SECONDS)


async def test_an_answer_that_is_no_json_is_no_answer(world: World) -> None:
    world.api.fail_next(200, matching="/version", body=b"<html>")
    facts = await world.gathered()
    server = f"the API server at 127.0.0.1:{world.api.port}"
    assert facts.api_error == f"{server}: an answer that is no JSON (HTTP 200)"


async def test_an_answer_that_is_too_large_is_no_answer(world: World) -> None:
    with pytest.raises(ApiError, match="more than 10 bytes"):
        await version(world.access(), max_bytes=10)


async def test_the_path_of_a_server_stays_before_the_calls(world: World) -> None:
    access = world.access()
    below = Access(f"{access.server}/k8s/c1", access.ca, f"Bearer {TOKEN}")
    async with ApiServer(below, SECONDS) as api:
        assert (await api.get("/apis/a")).status == 200
    assert world.api.requests[-1][1] == "/k8s/c1/apis/a"
