"""Hostile and broken agents against the attestation side over real TLS.

What stands here is not shown elsewhere; docs/threat-model.md names the test for each threat.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from controller.access import ALLOWED_CALLERS
from controller.fleet.view import NodeState
from controller.rpc.attestation import SessionTiming
from gpuwarden.evidence.model import Challenge, MigDevice
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.error_metadata import REASON_KEY
from gpuwarden.wire.v1 import attestation_pb2 as pb
from sandbox.spiffe.ca import InsecureCa
from tests.builders.inventory import gpu, gpu_uuid, inventory
from tests.fakes.attest_client import AttestClient
from tests.fakes.attestation_world import ABSENT, CONTROLLER, NODE, SLOW, World, agent
from tests.fakes.plain_tls import ResumingContext, client_context

HEALTH = "/grpc.health.v1.Health/Check"
ATTEST = "/gpuwarden.wire.v1.AttestationService/Attest"
DEADLINE = 10.0
S = 1_000_000_000
BUSY = replace(SLOW, interval_ns=S // 10)
"""A challenge each tenth of a second; leases and answers have their usual time."""
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        yield made


async def test_a_resumed_session_may_call_nothing(world: World) -> None:
    """Its certificate was judged at an earlier handshake, against the roots of that time."""
    tunnel = Tunnel(world.ca.svid(agent()), "127.0.0.1", world.port, parse_spiffe_id(CONTROLLER))
    issued, root = world.ca.root.issue(agent()), world.ca.root.certificate
    tunnel._context = client_context(issued, root, kind=ResumingContext)
    served = [x for x in ALLOWED_CALLERS if not any(y in x for y in ABSENT)]
    async with tunnel:
        async with tunnel.channel() as first:
            assert await _reason(first, HEALTH) == ReasonCode.MSG_MALFORMED
        async with tunnel.channel() as resumed:
            found = {x: await _reason(resumed, x) for x in served}
    assert found == dict.fromkeys(served, ReasonCode.TLS_RESUMED)


async def _reason(channel: Any, method: str) -> object:
    call = channel.stream_stream(method)(iter([b"\xff"]), timeout=DEADLINE)
    await call.code()
    return dict(await call.trailing_metadata() or ()).get(REASON_KEY)


@pytest.mark.parametrize("length", [6, 18, 100])
async def test_an_overlong_chain_is_refused_before_it_is_verified(
    world: World, length: int
) -> None:
    """Verifying whatever is sent costs seconds per connection (SPIRE's x509pop, until 1.14.2)."""
    below = world.ca.root
    for _ in range(length - 1):
        below = InsecureCa("example.org", issuer=below)
    issued = below.issue(agent())
    svid = Svid(parse_spiffe_id(agent()), issued.private_key, issued.chain, world.ca.roots, 1)
    async with AttestClient(svid, world.port, node=NODE) as client:
        ended = await client.ended()
    if ended.status == "UNAVAILABLE":
        assert length > 6  # TLS itself has had enough, with a bound that is not ours
        assert world.witness.calls == []
    else:
        assert (ended.status, ended.reason) == ("UNAUTHENTICATED", "CHAIN_INVALID")
        [(_, caller, refusal)] = world.witness.calls
        assert caller is None
        assert "at most 4" in refusal.detail
    async with world.client() as honest:
        await honest.accepted()


async def test_fifty_megabytes_end_the_call_and_nothing_else(world: World) -> None:
    async with world.client() as honest, world.client("node-2", instance="2" * 32) as hostile:
        challenge = await honest.admitted()
        ended = await hostile.status_of_raw(bytes(50 * 1024 * 1024))
        assert ended.status == "RESOURCE_EXHAUSTED"
        assert "larger than max" in ended.details  # by gRPC, before it is read
        await honest.answer(challenge)
        assert (await honest.verdict()).outcome == pb.OUTCOME_ACCEPTED


def _literal(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


_DATA, _HEADERS, _SETTINGS, _END_HEADERS = 0, 1, 4, 4
_CALL = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + _frame(_SETTINGS, 0, 0, b"")
    + _frame(
        _HEADERS,
        _END_HEADERS,
        1,
        b"\x83\x87\x01" + _literal(b"controller")  # POST, https, :authority
        + b"\x04" + _literal(ATTEST.encode())  # :path
        + b"\x0f\x10" + _literal(b"application/grpc")  # content-type
        + b"\x00" + _literal(b"te") + _literal(b"trailers"),
    )
    + _frame(_DATA, 0, 1, b"\x00" + (60_000).to_bytes(4, "big"))
)  # fmt: skip
"""HTTP/2 by hand (RFC 9113): a call whose first message is announced with 60,000 bytes."""


async def test_a_message_that_comes_byte_by_byte_is_not_waited_for() -> None:
    async with World(timing=SessionTiming(hello_s=0.2)) as world:
        context = client_context(world.ca.root.issue(agent()), world.ca.root.certificate)
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port, ssl=context)
        writer.write(_CALL)
        dripping = asyncio.create_task(_drip(writer))
        async with asyncio.timeout(DEADLINE):
            await world.witness.ended_one.wait()
        assert world.witness.ends == [(None, "silent")]
        assert world.usage.open_streams == 0
        dripping.cancel()
        await _abort(writer)
        del reader


async def _drip(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(_frame(_DATA, 0, 1, b"x"))
        await writer.drain()
        await asyncio.sleep(0.02)


async def test_connections_that_never_shake_hands_leave_the_fleet_room(world: World) -> None:
    opened = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(150)]
    try:
        for _, writer in opened:
            writer.write(b"\x16")  # the first byte of a handshake, and no more
        async with world.client() as honest:
            await honest.accepted()
    finally:
        for _, writer in opened:
            await _abort(writer)


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def test_a_malleated_signature_is_the_same_evidence() -> None:
    """(r, n-s) verifies wherever (r, s) does: it is judged equal, and is no second answer."""
    async with World(BUSY) as world, world.client() as client:
        request = client.evidence(await client.admitted())
        twin = pb.AttestRequest()
        twin.CopyFrom(request)
        r, s = decode_dss_signature(request.evidence.envelope.signature)
        twin.evidence.envelope.signature = encode_dss_signature(r, P256_ORDER - s)
        await client.send(twin)
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        await client.answer(await client.challenge())  # its prev is the digest of what was signed
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        await client.send(request)
        assert (await client.verdict()).code == "NONCE_REUSED"
        assert world.state() is NodeState.REVOKED


async def test_messages_out_of_order_are_refused(world: World) -> None:
    async with world.client() as client:
        challenge = await client.admitted()
        client.failure_notice(challenge)  # takes seq 1, and is held back
        later = client.evidence(challenge)
        await client.send(later)
        assert (await client.verdict()).code == "SEQ_GAP"
        assert (await client.ended()).reason == "SEQ_GAP"
        assert world.state() is not NodeState.ELIGIBLE


async def test_bad_news_signed_in_advance_is_no_weapon(world: World) -> None:
    """Neither for who has captured it nor for the node itself on a later stream."""
    async with world.client() as owner:
        presigned = owner.failure_notice(await owner.admitted())
    async with world.client() as owner:
        await owner.accepted()
        async with world.client("node-2", instance="2" * 32) as thief:
            await thief.admitted()
            await thief.send(presigned)
            assert (await thief.verdict()).code == "CHALLENGE_UNKNOWN"
        assert world.state() is NodeState.ELIGIBLE
        await owner.send(presigned)
        assert (await owner.verdict()).code == "CHALLENGE_UNKNOWN"
        assert world.state() is NodeState.ELIGIBLE
    assert [x.kind for x in world.witness.changes if x.kind == "failure-notice"] == []


async def test_no_nonce_ever_comes_twice() -> None:
    """NVIDIA's samples ship one constant nonce, which makes every report replayable."""
    drawn: list[str] = []
    async with World(BUSY) as world:
        for _ in range(3):
            async with world.client() as client:
                challenge = await client.admitted()
                for _ in range(3):
                    asked = msgspec.json.decode(challenge.envelope.payload, type=Challenge)
                    drawn += asked.nonce, asked.spare_nonce
                    await client.answer(challenge)
                    assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
                    challenge = await client.challenge()
    assert len(set(drawn)) == len(drawn) == 18
    assert all(len(set(bytes.fromhex(x))) > 16 for x in drawn)


async def test_a_crash_loop_only_moves_forward(world: World) -> None:
    """More processes than superseded ones are remembered, each new, none a duplicate."""
    for number in range(20):
        async with world.client(instance=f"{number:032x}") as client:
            await client.accepted()
            assert world.state() is NodeState.ELIGIBLE
    assert world.store.snapshot().records[NODE].denial is None


async def test_claiming_another_nodes_mig_device_harms_only_the_claimant() -> None:
    mig = MigDevice(uuid=f"MIG-{gpu_uuid(9).removeprefix('GPU-')}", profile="1g.10gb", memory_mib=1)
    mine, stolen = (gpu(i, mig=True, mig_devices=(mig,)) for i in (0, 1))
    async with (
        World(nodes=("owner", "thief")) as world,
        world.client("owner", instance="1" * 32) as owner,
        world.client("thief", instance="f" * 32) as thief,
    ):
        await owner.accepted(inventory(mine))
        claims = world.store.snapshot().claims
        await thief.answer(await thief.admitted(), content=inventory(stolen))
        assert (await thief.verdict()).code == "GPU_CLAIMED_TWICE"
        assert world.state("thief") is NodeState.REFUSED
        assert world.state("owner") is NodeState.ELIGIBLE
        assert world.store.snapshot().claims == claims


async def test_claiming_the_whole_fleet_harms_nobody_else() -> None:
    owners = tuple(f"owner-{n}" for n in range(4))
    async with World(nodes=(*owners, "thief")) as world:
        for n, name in enumerate(owners):
            async with world.client(name, instance=f"{n:032x}") as client:
                await client.accepted(inventory(*(gpu(4 * n + i) for i in range(4))))
        enrolled_gpus = world.store.snapshot().claims
        async with world.client("thief", instance="f" * 32) as thief:
            await thief.answer(
                await thief.admitted(), content=inventory(*(gpu(i) for i in range(16)))
            )
            assert (await thief.verdict()).code == "GPU_CLAIMED_TWICE"
        assert world.state("thief") is NodeState.REFUSED
        assert world.store.snapshot().claims == enrolled_gpus
        for n, name in enumerate(owners):
            assert world.state(name) is NodeState.ELIGIBLE
            async with world.client(name, instance=f"{n:032x}") as client:
                await client.accepted(inventory(*(gpu(4 * n + i) for i in range(4))))
