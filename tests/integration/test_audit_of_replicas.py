"""`events` and `gpu show` over real TLS gRPC from two replicas, each with a log of its own."""

import asyncio
import base64
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from controller.access import Caller, CallerKind
from controller.record import Record
from controller.rpc.audit_log import AuditServicer
from controller.rpc.calls import Context
from controller.rpc.interceptor import Authenticate, AuthorizationInterceptor, tls_caller
from controller.rpc.server import RpcServer, agents_server, people_server
from gpuwarden.audit.files import log_files
from gpuwarden.audit.record import RecordKind
from gpuwarden.cli.commands.doctor import logs_of_replicas
from gpuwarden.cli.connection.options import Connection
from gpuwarden.cli.exit_codes import CliError
from gpuwarden.clock import SystemClock
from gpuwarden.doctor.check import Outcome, Verdict, passed
from gpuwarden.doctor.facts import Fact, Facts
from gpuwarden.doctor.log import log_verifies
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.wire.v1.audit_pb2_grpc import add_AuditServiceServicer_to_server
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.builders.log_keys import signer
from tests.builders.replica_log import CARD, ReplicaLog
from tests.builders.svids import FakeSvidSource
from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import TOKEN, FakeApiServer
from tests.fakes.calls import SeenCalls
from tests.hang import HANG_S

ROOT = Path(__file__).resolve().parents[2]
PREFIX = f"spiffe://{TRUST_DOMAIN}/gpuwarden"
PODS = ("gpuwarden-controller-0", "gpuwarden-controller-1")
HOSTS = ("127.0.0.1", "127.0.0.2")
NAME = "replicas.test"
RESOLVING = f"""
import socket, sys
before = socket.getaddrinfo
def resolved(host, port, *args, **more):
    if host != "{NAME}":
        return before(host, port, *args, **more)
    return [x for one in {HOSTS} for x in before(one, port, *args, **more)]
socket.getaddrinfo = resolved
from gpuwarden.cli.__main__ import main
main()
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


class Pair:
    """Two replicas in this process, and people who ask them by the command line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = [ReplicaLog(folder / pod, pod) for pod in PODS]
        self.ca = SpiffeCa()
        self.servers: list[RpcServer] = []
        self.port = 0
        self.calls = SeenCalls()
        self.kind = CallerKind.INSPECTOR
        """Of people with a kubeconfig."""

    def service(self, number: int) -> AuditServicer:
        known = [f"lab/{pod}" for pod in PODS]
        return AuditServicer(
            self.logs[number].folder,
            known[number],
            logs=lambda: known,
            with_serial_now=lambda _: (),
            poll_s=0.01,
        )

    async def start_for_svids(self) -> None:
        svids = FakeSvidSource(self.ca.svid(f"{PREFIX}/controller"))
        for number, host in enumerate(HOSTS):
            service = self.service(number)
            authenticate = tls_caller(
                lambda: self.ca.roots, trust_domain=TRUST_DOMAIN, path_prefix="/gpuwarden"
            )
            self.servers.append(
                agents_server(
                    address=f"{host}:{self.port}",
                    credentials=server_credentials(svids, lambda _: None),
                    interceptor=self._interceptor(authenticate),
                    services=(partial(add_AuditServiceServicer_to_server, service),),
                    max_calls=100,
                )
            )
            await self.servers[-1].start()
            self.port = int(self.servers[-1].address.rpartition(":")[2])

    async def start_for_people(self, api: FakeApiServer) -> None:
        authority = WebCa(self.folder, "access-ca")
        name = "gpuwarden-access.gpuwarden-system.svc"
        certificate, key = authority.issue("access", server=True, names=(name,))
        credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
        namespace = {"namespace": "gpuwarden-system"}
        data = {"ca.crt": authority.file.read_text()}
        api.create(
            "configmaps", {"metadata": {**namespace, "name": "gpuwarden-access"}, "data": data}
        )

        async def authenticate(_context: Context, _method: str, _now: datetime) -> Caller:
            return Caller(self.kind, "user jane", None)

        for number, pod in enumerate(PODS):
            service = self.service(number)
            self.servers.append(
                people_server(
                    listener="listen.accessTokens",
                    address="127.0.0.1:0",
                    credentials=credentials,
                    interceptor=self._interceptor(authenticate),
                    services=(partial(add_AuditServiceServicer_to_server, service),),
                )
            )
            await self.servers[-1].start()
            port = int(self.servers[-1].address.rpartition(":")[2])
            api.forwarded[(pod, 9444)] = port
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            spec = {"containers": [{"name": "controller"}]}
            metadata = {**namespace, "name": pod}
            api.create("pods", {"metadata": metadata, "spec": spec, "status": status})

    def _interceptor(self, authenticate: Authenticate) -> AuthorizationInterceptor:
        return AuthorizationInterceptor(
            authenticate=authenticate, observer=self.calls, clock=SystemClock()
        )

    def as_(self, role: str) -> list[str]:
        """Options of somebody with an SVID, to both replicas."""
        key, chain = self.ca.issue(f"{PREFIX}/{role}/alice")
        paths = {name: self.folder / f"{role}-{name}" for name in ("svid", "key", "bundle")}
        paths["svid"].write_bytes(b"".join(x.public_bytes(Encoding.PEM) for x in chain))
        paths["key"].touch(0o600)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        paths["key"].write_bytes(pem)
        roots = (x.public_bytes(Encoding.PEM) for x in self.ca.roots)
        paths["bundle"].write_bytes(b"".join(roots))
        files = [x for name, path in paths.items() for x in (f"--{name}", str(path))]
        return ["--server", f"{NAME}:{self.port}", *files]

    async def begun(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            RESOLVING,
            *arguments,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: str) -> Ran:
        process = await self.begun(*arguments)
        out, err = await process.communicate()
        return Ran(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def stopping(pair: Pair) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for server in pair.servers:
            await server.stop(0)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """The GPU was on gpu-1 by the first log, which alone has evidence, then on gpu-2."""
    made = Pair(tmp_path)
    first, second = made.logs
    first.accept("gpu-1", 10)
    first.reserve(30, RecordKind.RESERVATION_RESERVED)
    second.accept("gpu-2", 20, keeps=False)
    second.reserve(40, RecordKind.RESERVATION_RELEASED)
    async with stopping(made):
        yield made


def stays(ran: Ran) -> list[tuple[str, str | None]]:
    (found,) = json.loads(ran.out)["gpus"]
    return [(x["node"], x["until"]) for x in found["stays"]]


async def test_a_history_is_merged_from_both_and_says_what_it_lacks(pair: Pair) -> None:
    await pair.start_for_svids()
    reader = pair.as_("inspector")
    for wanted in (CARD.uuid, str(CARD.serial)):
        ran = await pair.run("gpu", "show", wanted, "-o", "json", *reader)
        assert (ran.code, ran.err) == (0, "")
        found = json.loads(ran.out)
        assert stays(ran) == [("gpu-1", "1970-01-01T00:00:20.000Z"), ("gpu-2", None)]
        (card,) = found["gpus"]
        assert (card["uuid"], card["serial"]) == (CARD.uuid, CARD.serial)
        assert [(x["pod"], x["state"]) for x in card["holds"]] == [("train-0", "released")]
        assert [x["log"] for x in found["logs"]] == [f"lab/{pod}" for pod in PODS]
        assert found["missing"] == []
    refused = await pair.run("gpu", "show", CARD.uuid, *pair.as_("agent"))
    assert refused.code == 4
    assert "may not call" in refused.err

    await pair.servers.pop().stop(0)
    ran = await pair.run("gpu", "show", CARD.uuid, "-o", "json", *reader)
    assert stays(ran) == [("gpu-1", None)]
    missing = {x["log"]: x["why"] for x in json.loads(ran.out)["missing"]}
    assert missing.keys() == {f"lab/{PODS[1]}", f"127.0.0.2:{pair.port}"}
    assert "UNREACHABLE" in missing[f"127.0.0.2:{pair.port}"].upper()
    ran = await pair.run("gpu", "show", "GPU-none", *reader)
    assert ran.code == 5
    assert f"not read: lab/{PODS[1]}" in ran.err


async def test_events_of_both_are_followed_and_a_lost_one_is_told(pair: Pair) -> None:
    await pair.start_for_svids()
    process = await pair.begun("events", "--follow", "-o", "name", *pair.as_("inspector"))
    assert process.stdout
    assert process.stderr
    async with asyncio.timeout(HANG_S), AsyncExitStack() as stack:
        stack.callback(process.kill)
        lines = [(await process.stdout.readline()).decode() for _ in range(4)]
        before = [(PODS[0], 1), (PODS[1], 1), (PODS[0], 2), (PODS[1], 2)]
        assert lines == [f"lab/{pod}:{number}\n" for pod, number in before]
        for number, pod in ((1, PODS[1]), (0, PODS[0])):
            pair.logs[number].state("gpu-1", 50)
            assert (await process.stdout.readline()).decode() == f"lab/{pod}:3\n"
        await pair.servers.pop().stop(0)
        told = ""
        while not told.startswith("gpuwarden: "):  # behind what the tunnel logs
            told = (await process.stderr.readline()).decode()
        assert told.startswith(f"gpuwarden: lab/{PODS[1]}: its events are missing from now on")
        pair.logs[0].state("gpu-1", 60)
        assert (await process.stdout.readline()).decode() == f"lab/{PODS[0]}:4\n"
    await process.wait()


def written_kubeconfig(folder: Path, api: FakeApiServer) -> Path:
    authority = base64.b64encode(api.ca.file.read_bytes()).decode()
    cluster = {"server": api.url, "certificate-authority-data": authority}
    document = {
        "current-context": "home",
        "contexts": [{"name": "home", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


async def test_a_kubeconfig_leads_to_every_replica(pair: Pair, tmp_path: Path) -> None:
    async with FakeApiServer(tmp_path) as api:
        await pair.start_for_people(api)
        path = written_kubeconfig(tmp_path, api)
        ran = await pair.run("gpu", "show", CARD.uuid, "-o", "json", "--kubeconfig", str(path))
        assert [node for node, _ in stays(ran)] == ["gpu-1", "gpu-2"]
        assert json.loads(ran.out)["missing"] == []
        del api.forwarded[(PODS[0], 9444)]
        ran = await pair.run("events", "-o", "name", "--kubeconfig", str(path))
        assert (ran.code, ran.out) == (0, f"lab/{PODS[1]}:1\nlab/{PODS[1]}:2\n")
        assert ran.err.startswith(f"gpuwarden: not read: lab/{PODS[0]}: ")


async def test_the_doctor_verifies_the_log_of_every_replica(pair: Pair, tmp_path: Path) -> None:
    pair.logs[1].note(Record(RecordKind.EVIDENCE_REPEATED, "c", "node/gpu-2", "x"), 50)
    pair.logs[1].state("gpu-2", 60)
    for log in pair.logs:
        key = {"key": str(signer().key)}
        log.note(Record(RecordKind.LOG_START, "c", "log", "started", refs=key), 70)
    async with FakeApiServer(tmp_path) as api:
        await pair.start_for_people(api)
        connection = Connection(kubeconfig=written_kubeconfig(tmp_path, api))

        async def checked() -> Verdict:
            logs = await logs_of_replicas(connection)
            return log_verifies(Facts(version_here="1", logs=Fact(logs)))

        first, second = (f"lab/{pod}" for pod in PODS)
        assert await checked() == passed(
            f"{first}: all of 3 records, 0 signed checkpoints;"
            f" {second}: all of 5 records, 0 signed checkpoints"
        )
        (file,) = log_files(pair.logs[1].folder)
        written = file.read_bytes()
        file.write_bytes(written.replace(b"pod/team-a/train-0", b"pod/team-b/train-0"))
        found = await checked()
        assert (found.outcome, found.seen) == (
            Outcome.FAILED,
            f"{second}: record 2: changed after it was written",
        )
        assert found.command.startswith(f"kubectl -n gpuwarden-system exec {PODS[1]} -- ")
        file.write_bytes(written)
        port = api.forwarded.pop((PODS[0], 9444))
        found = await checked()
        assert found.outcome is Outcome.WARNING
        assert found.seen.startswith(f"not read: {first}: ")
        assert found.seen.endswith(f"; {second}: all of 5 records, 0 signed checkpoints")
        api.forwarded[(PODS[0], 9444)] = port
        pair.kind = CallerKind.TENANT
        with pytest.raises(CliError, match=r"may not call .*/ReadRecords"):
            await checked()
