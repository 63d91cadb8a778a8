"""What leaves the processes beside the protocol carries no secret, whatever comes in.

Both programs run as processes at the most talkative log level, through acceptances,
refusals and nonsense. Everything that they write or answer is then searched for the
private keys, nonces, tokens and signed bodies that went through them.
"""

import asyncio
import base64
import json
import re
import shutil
import stat
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
import pytest

from agent.challenge import SignedChallenge
from gpuwarden.audit.archived_evidence import FOLDER
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import Challenge
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.wire.v1 import attestation_pb2 as pb
from gpuwarden.wire.v1 import fleet_pb2
from gpuwarden.wire.v1.fleet_pb2_grpc import FleetServiceStub
from sandbox.demo.stage import Stage, pod
from sandbox.laptop import Laptop, Pace
from sandbox.nodes import LEGACY, ROGUE, TRUST_DOMAIN, simulated_nodes
from sandbox.spiffe.ca import InsecureCa
from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.agent_process import AgentWorld, agent_world
from tests.fakes.attest_client import AttestClient
from tests.fakes.eventually import eventually
from tests.fakes.fake_controller import FakeStream
from tests.fakes.secret_search import SecretSearch
from tests.hang import HANG_S

COLLECTOR_TOKEN = "otlp-4b1d7e0c9a63f852"  # noqa: S105 -- made up, to be looked for
CALLER_TOKEN = "caller-9f27c1d48e6b3a50"  # noqa: S105 -- made up, to be looked for
POD_PASSWORD = "pod-c3a96e1f7b2d8045"  # noqa: S105 -- made up, to be looked for
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJzcGlmZmUtbGVhayJ9.bm90LXJlYWxseS1zaWduZWQ"
TALKATIVE = {
    "GPUWARDEN_LOG_LEVEL": "debug",
    "GPUWARDEN_TELEMETRY_OTLP": "http://127.0.0.1:9",
    "GPUWARDEN_TELEMETRY_OTLP_HEADERS": f"authorization=Bearer {COLLECTOR_TOKEN}",
}


class TalkativeLaptop(Laptop):
    """Programs that log what they can."""

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        return super().environment({**TALKATIVE, **(extra or {})})


def search_for_tokens() -> SecretSearch:
    search = SecretSearch()
    for token in (COLLECTOR_TOKEN, CALLER_TOKEN, POD_PASSWORD, JWT):
        search.add_text("token", token)
    return search


def add_keys(search: SecretSearch, api: InsecureWorkloadApi) -> None:
    """The keys that workloads hold at this moment."""
    for name, socket in api._sockets.items():
        for svid in socket.workload.response().svids:
            search.add_key(f"key of {name}", svid.x509_svid_key)


def add_challenge(search: SecretSearch, document: Challenge) -> None:
    search.add_bytes("nonce", bytes.fromhex(document.nonce))
    search.add_bytes("spare nonce", bytes.fromhex(document.spare_nonce))


def add_evidence(search: SecretSearch, request: pb.AttestRequest, around: bytes) -> None:
    envelope = request.evidence.envelope
    if around in envelope.payload:
        search.add_body("evidence", envelope.payload, around)
    search.add_bytes("signature", envelope.signature)


class NotedChallenges(AttestClient):
    """A client that remembers every challenge it gets."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.challenges: list[Challenge] = []

    async def read(self) -> Any:
        message = await super().read()
        if isinstance(message, pb.AttestResponse) and message.HasField("challenge"):
            payload = message.challenge.envelope.payload
            self.challenges.append(msgspec.json.decode(payload, type=Challenge))
        return message


@dataclass
class Cluster:
    """The laptop cluster, and what was sent to it and came back."""

    laptop: Laptop
    stage: Stage
    search: SecretSearch = field(default_factory=search_for_tokens)
    answers: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def hostile(self) -> AsyncIterator[NotedChallenges]:
        """A stream of a node that misbehaves; what it knows becomes what is looked for."""
        api = self.laptop.workload_api
        name = f"spiffe://{TRUST_DOMAIN}/gpuwarden/agent/{ROGUE}"
        issued = api.ca.issue(name)
        roots = tuple(ca.certificate for ca in api.roots)
        svid = Svid(parse_spiffe_id(name), issued.private_key, issued.chain, roots, 1)
        self.search.add_key("key of the hostile node", issued.key_pkcs8)
        port = int(self.laptop.addresses.agents.rpartition(":")[2])
        controller = f"spiffe://{TRUST_DOMAIN}/gpuwarden/controller"
        async with NotedChallenges(svid, port, node=ROGUE, controller=controller) as client:
            yield client
        for challenge in client.challenges:
            add_challenge(self.search, challenge)
        for request in client.sent:
            if request.HasField("evidence"):
                add_evidence(self.search, request, b'"inventory":')

    async def ask(self, address: str, path: str, body: bytes | None = None) -> str:
        """An HTTP request with a token in it; returns the whole answer."""
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        method = "GET" if body is None else "POST"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {CALLER_TOKEN}\r\nContent-Length: {len(body or b'')}\r\n\r\n"
        )
        writer.write(head.encode() + (body or b""))
        async with asyncio.timeout(HANG_S):
            answer = (await reader.read()).decode()
        writer.close()
        return answer

    def log(self, program: str) -> str:
        return (self.laptop.folder / "log" / f"{program}.log").read_text()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    laptop = TalkativeLaptop(tmp_path, Pace(interval_s=0.5, challenge_ttl_s=3.0, lease_s=10.0))
    try:
        await laptop.start_controller((LEGACY, ROGUE))
        [node] = (node for node in simulated_nodes() if node.name == LEGACY)
        await laptop.start_agent(node)
        stage = Stage(laptop)
        try:
            yield Cluster(laptop, stage)
        finally:
            await stage.close()
    finally:
        await laptop.close()


async def refused(client: NotedChallenges, code: str, **changes: Any) -> None:
    """One stream, one wrong answer, one refusal."""
    challenge = await client.admitted()
    await client.answer(challenge, **changes)
    verdict = await client.verdict()
    assert verdict.code == code, verdict


async def misbehave(cluster: Cluster) -> None:
    """Every kind of refusal that has something secret at hand."""
    async with cluster.hostile() as client:
        challenge = await client.admitted()
        await client.answer(challenge)
        assert (await client.verdict()).code == "ACCEPTED"
        await client.send(client.sent[-1])
        assert (await client.verdict()).code == "NONCE_REUSED"
    spare = "0f" * 32
    cluster.search.add_bytes("made-up nonce", bytes.fromhex(spare))
    async with cluster.hostile() as client:
        await refused(client, "INNER_NONCE_MISMATCH", nonce=spare)
    async with cluster.hostile() as client:
        await refused(client, "AUDIENCE_MISMATCH", audience=f"spiffe://{TRUST_DOMAIN}/{JWT}")
    for spoil, code in (
        (_no_json, "MSG_MALFORMED"),
        (_other_nonce, "NONCE_MISMATCH"),
        (_flipped, "SIG_INVALID"),
    ):
        async with cluster.hostile() as client:
            request = client.evidence(await client.admitted())
            add_evidence(cluster.search, request, b'"inventory":')
            spoil(request, client)
            await client.send(request)
            verdict = await client.verdict()
            assert verdict.code == code, verdict
    async with cluster.hostile() as client:
        challenge = await client.admitted()
        await client.send(client.failure_notice(challenge, detail=f"Bearer {CALLER_TOKEN} {JWT}"))
        assert (await client.verdict()).detail == "failure notice taken"
    pem = "-----BEGIN PRIVATE KEY-----\n" + base64.b64encode(JWT.encode()).decode()
    for changes in ({"agent_version": JWT}, {"instance_id": pem}, {"node_name": pem}):
        async with cluster.hostile() as client:
            await client.hello(**changes)
            answer = await client.read()
            if isinstance(answer, pb.AttestResponse) and answer.HasField("verdict"):
                cluster.answers.append(str(answer))
    async with cluster.hostile() as client:
        await client.status_of_raw(f"\xff{JWT}".encode())


def _no_json(request: pb.AttestRequest, client: AttestClient) -> None:
    envelope = request.evidence.envelope
    envelope.payload = envelope.payload[:-1] + f',"token":"{JWT}"'.encode()
    key = client.svid.private_key
    envelope.signature = sign(key, envelope.payload_type, envelope.payload)


def _other_nonce(request: pb.AttestRequest, _client: AttestClient) -> None:
    request.evidence.nonce = bytes(32)


def _flipped(request: pb.AttestRequest, _client: AttestClient) -> None:
    payload = bytearray(request.evidence.envelope.payload)
    payload[len(payload) // 2] ^= 1
    request.evidence.envelope.payload = bytes(payload)


async def schedule(cluster: Cluster) -> None:
    """The scheduler's side, with pods that carry secrets, good and bad."""
    with_secret = pod({"gpuwarden.dev/min-level": "L0"}, gpus=1)
    with_secret["spec"]["containers"][0]["env"] = [{"name": "PASSWORD", "value": POD_PASSWORD}]
    extender, ops = cluster.laptop.addresses.extender, cluster.laptop.addresses.ops
    for annotations in (
        {},
        {"gpuwarden.dev/required-hash": f"v1:sha256:{'0' * 64}"},
        {"gpuwarden.dev/gpu-selector": f"architecture={JWT}"},
        {"gpuwarden.dev/max-age": JWT},
    ):
        with_secret["metadata"]["annotations"] |= annotations
        body = json.dumps(cluster.stage.arguments(with_secret)).encode()
        for verb in ("/filter", "/prioritize", "/preempt"):
            answer = await cluster.ask(extender, verb, body)
            assert " 200 " in answer
            # Who puts a token into a requirement is told which requirement was wrong, and nobody
            # else.
            cluster.answers.append(answer.replace(JWT, ""))
    cluster.answers += [
        await cluster.ask(extender, "/filter", f'{{"Pod": "{POD_PASSWORD}'.encode()),
        await cluster.ask(extender, f"/nowhere?token={CALLER_TOKEN}"),
        *[await cluster.ask(ops, path) for path in ("/metrics", "/readyz", "/healthz")],
    ]
    async with grpc.aio.insecure_channel(cluster.laptop.server) as channel:
        stub: Any = FleetServiceStub(channel)
        for manifest in (json.dumps(with_secret), f"{{{POD_PASSWORD}"):
            request = fleet_pb2.FitPodRequest(pod_json=manifest.encode())
            try:
                cluster.answers.append(
                    str(await stub.FitPod(request, timeout=HANG_S)).replace(JWT, "")
                )
            except grpc.aio.AioRpcError as error:
                cluster.answers.append(f"{error.code()} {error.details()}")


async def disturb_identity(
    search: SecretSearch,
    api: InsecureWorkloadApi,
    workload: str,
    metrics: Callable[[], Awaitable[str]],
) -> None:
    """Keys that rotate, and updates that are wrong while there are keys in them."""
    add_keys(search, api)
    for fault in (Fault.KEY_MISMATCH, Fault.MALFORMED, Fault.UNCHAINED):
        before = _failed_updates(await metrics())
        api.fault(workload, fault)
        add_keys(search, api)

        async def noticed(before: float = before) -> bool | None:
            return True if _failed_updates(await metrics()) > before else None

        await eventually(noticed, f"an update with {fault}")
    api.fault(workload, Fault.NONE)
    api.rotate()
    add_keys(search, api)


def _failed_updates(metrics: str) -> float:
    pattern = r'^gpuwarden_svid_updates_total\{result="failed"\} (\S+)'
    found = re.search(pattern, metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_controller_and_agent_let_no_secret_out(cluster: Cluster) -> None:
    add_keys(cluster.search, cluster.laptop.workload_api)
    node = await cluster.stage.until(
        LEGACY, lambda node: node.state == "eligible", timeout_s=HANG_S
    )
    assert node.state == "eligible"
    await misbehave(cluster)
    await schedule(cluster)
    ops = cluster.laptop.addresses.ops
    await disturb_identity(
        cluster.search,
        cluster.laptop.workload_api,
        "controller",
        lambda: cluster.ask(ops, "/metrics"),
    )
    for arguments in (("nodes",), ("gpus",), ("explain", "node", ROGUE)):
        _, shown = await cluster.stage.cli(*arguments, "--server", cluster.laptop.server)
        cluster.answers.append(shown)
    status, shown = await cluster.stage.cli("audit", "verify", str(cluster.laptop.audit_folder))
    assert status == 0, shown
    bundle = await _support_bundle(cluster)
    assert await cluster.laptop.programs[LEGACY].stop() == 0
    assert await cluster.laptop.programs["controller"].stop() == 0

    log_key = cluster.laptop.audit_folder / "log-key.pem"
    assert stat.S_IMODE(log_key.stat().st_mode) == stat.S_IRUSR | stat.S_IWUSR
    cluster.search.add_pem_key("key of the audit log", log_key.read_bytes())
    log_key.unlink()
    _look_through(cluster.search, cluster.laptop.audit_folder / FOLDER)
    written = [cluster.laptop.folder / name for name in ("log", "audit", "state")]
    assert cluster.search.found_below(written) == {}
    assert cluster.search.found_in("\n".join(cluster.answers).encode()) == set()
    for name, content in bundle.items():
        assert cluster.search.found_in(content) == set(), name
    refused = json.loads(bundle["controller/refusals.json"])
    assert {"SIG_INVALID", "NONCE_REUSED"} <= {one["code"] for one in refused}
    # The search saw what it was meant to see.
    audit = "".join(path.read_text() for path in (cluster.laptop.audit_folder).rglob("*.jsonl"))
    for code in ("ACCEPTED", "NONCE_REUSED", "SIG_INVALID", "INNER_NONCE_MISMATCH"):
        assert code in audit
    assert "stream.opened" in cluster.log("controller")
    assert "stream.opened" in cluster.log(LEGACY)
    assert "nonce" in set(cluster.search.needles.values())


async def _support_bundle(cluster: Cluster) -> dict[str, bytes]:
    """What the whole controller tells for a bug report, through its own socket."""
    path = cluster.laptop.folder / "bundle.tar.gz"
    arguments = ("--server", cluster.laptop.server, "--output", str(path))
    status, shown = await cluster.stage.cli("support-bundle", *arguments)
    assert status == 0, shown
    with tarfile.open(path) as archive:
        files = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {name.partition("/")[2]: file.read() for name, file in files.items() if file}


def _look_through(search: SecretSearch, archived_evidence: Path) -> None:
    """Kept evidence is what a node signed, a token in its text too; then it is out of the way."""
    found = set().union(*search.found_below([archived_evidence]).values())
    assert {"evidence", "signature"} <= found
    assert found <= {"evidence", "signature", "nonce", "spare nonce", "token"}
    shutil.rmtree(archived_evidence)


@dataclass
class Spoiling:
    """What a controller does wrong, and the reason why the agent ends the stream."""

    alter: Callable[[Challenge], Challenge] = lambda document: document
    forge: Callable[[SignedChallenge], SignedChallenge] = lambda message: message
    judge: Callable[[Any], dict[str, Any]] = lambda _evidence: {}


SPOILINGS = {
    "another audience": Spoiling(
        alter=lambda asked: msgspec.structs.replace(asked, leaf_sha256="0" * 64)
    ),
    "a nonce that is none": Spoiling(
        alter=lambda asked: msgspec.structs.replace(asked, nonce=asked.nonce[:63] + "\n")
    ),
    "a signature of nobody": Spoiling(
        forge=lambda message: SignedChallenge(
            message.payload, message.payload_type, bytes(64), message.chain_der
        )
    ),
    "a refusal with secrets in it": Spoiling(
        judge=lambda _evidence: {
            "outcome": pb.OUTCOME_REFUSED,
            "code": JWT,
            "detail": f"-----BEGIN EC PRIVATE KEY-----\n{CALLER_TOKEN}\n Bearer {CALLER_TOKEN}",
            "next_challenge_ms": 0,
        }
    ),
}


async def _metrics(world: AgentWorld) -> str:
    return (await world.get("/metrics"))[1]


def _is_on(stream: FakeStream) -> bool:
    return stream.accepted and not stream.ended


async def end_a_stream(world: AgentWorld, spoiling: Spoiling) -> None:
    """The accepted stream ends for what the controller does; the next one is accepted again."""
    controller = world.controller
    stream = controller.streams[-1]
    controller.alter, controller.forge = spoiling.alter, spoiling.forge
    controller.judge = spoiling.judge
    await controller.challenge(stream)
    await controller.until(lambda: stream.ended, 20)
    honest = Spoiling()
    controller.alter, controller.forge, controller.judge = honest.alter, honest.forge, honest.judge
    await controller.until(lambda: _is_on(controller.streams[-1]), 20)


async def test_an_agent_lets_no_secret_out_whatever_its_controller_does() -> None:
    search = search_for_tokens()
    async with agent_world() as world:
        world.environment = TALKATIVE
        add_keys(search, world.workloads)
        program = await world.start()
        answers = [str(await world.until_ready(200))]
        for spoiling in SPOILINGS.values():
            await end_a_stream(world, spoiling)
        honest = Spoiling()
        world.controller.alter, world.controller.forge = honest.alter, honest.forge
        world.controller.judge = honest.judge
        answers.append(str(await world.until_ready(200)))
        await disturb_identity(search, world.workloads, "node", lambda: _metrics(world))
        answers += [(await world.get(path))[1] for path in ("/metrics", "/readyz")]
        assert await program.stop() == 0
        challenges = [one for stream in world.controller.streams for one in stream.challenges]
        for challenge in challenges:
            search.add_bytes("nonce", challenge.nonce.encode()[:63])
            search.add_bytes("spare nonce", bytes.fromhex(challenge.spare_nonce))
        for evidence in world.controller.all_evidence:
            body = msgspec.json.encode(evidence)
            search.add_body("evidence", body, b'"inventory":')
        assert len(challenges) >= len(SPOILINGS)
        assert world.controller.all_evidence
        causes = {entry["cause"] for entry in world.log() if "cause" in entry}
        assert {"unproven", "refused"} <= causes
        paths = [path for path in world.folder.iterdir() if path.name in {"state", "agent.log"}]
        for path in paths:
            assert search.found_in(path.read_bytes() if path.is_file() else b"") == set()
        assert search.found_below(path for path in paths if path.is_dir()) == {}
        assert search.found_in("\n".join(answers).encode()) == set()


def test_the_search_finds_every_spelling() -> None:
    search = search_for_tokens()
    nonce, body = bytes(range(200, 232)), b'{"a":1,"inventory":{"gpus":["' + b"x" * 100 + b'"]}}'
    key = InsecureCa(TRUST_DOMAIN).issue(f"spiffe://{TRUST_DOMAIN}/x").key_pkcs8
    search.add_bytes("nonce", nonce)
    search.add_body("evidence", body, b'"inventory":')
    search.add_key("key", key)
    for text in (
        nonce,
        f"nonce={nonce.hex()}".encode(),
        nonce.hex().upper().encode(),
        base64.b64encode(b"..." + nonce + b"...")[4:48],
        repr(nonce).encode(),
        json.dumps({"nonce": base64.b64encode(nonce).decode()}).encode(),
    ):
        assert search.found_in(text) == {"nonce"}, text
    for text in (body, json.dumps({"body": body.decode()}).encode(), base64.b64encode(body)):
        assert search.found_in(text) == {"evidence"}, text
    for text in (base64.b64encode(key), base64.encodebytes(key).replace(b"\n", b"")):
        assert search.found_in(text) == {"key"}, text
    assert search.found_in(b"-----BEGIN CERTIFICATE-----") == {"PEM"}
    assert search.found_in(f"Bearer {CALLER_TOKEN}".encode()) == {"token"}
    assert search.found_in(b"nothing of that") == set()
