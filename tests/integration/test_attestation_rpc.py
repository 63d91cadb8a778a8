"""AttestationService over real mTLS: what an honest agent sees, and what a hostile one."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
import msgspec
import pytest
from grpc import aio
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from controller.access import ALLOWED_CALLERS, LOCAL, CallerKind, Rate
from controller.fleet.view import NodeState
from controller.rpc.attestation import SessionTiming
from controller.rpc.interceptor import AuthorizationInterceptor, local_caller
from controller.rpc.server import ListenError, agents_server
from controller.verifier.context import Limits
from gpuwarden.audit.record import RecordKind
from gpuwarden.evidence.model import Challenge, FailedRead, Inventory
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import attestation_pb2 as pb
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.builders.inventory import HOST, gpu, gpu_uuid, inventory
from tests.fakes.attest_client import AttestClient
from tests.fakes.attestation_world import (
    ABSENT,
    BRISK,
    CONTROLLER,
    FAST,
    HASTY,
    NODE,
    SLOW,
    S,
    World,
    agent,
)
from tests.fakes.eventually import eventually
from tests.hang import HANG_S

DEADLINE = HANG_S


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        yield made


async def test_an_honest_agent_is_accepted_and_its_node_eligible(world: World) -> None:
    async with world.client() as client:
        challenge = await client.admitted()
        asked = msgspec.json.decode(challenge.envelope.payload, type=Challenge)
        assert (asked.controller, asked.cluster) == (CONTROLLER, "test")
        assert asked.want == ("inventory", "failures")
        assert (asked.ttl_ms, asked.interval_ms) == (15_000, 25_000)
        await client.answer(challenge)
        verdict = await client.verdict()
        assert (verdict.outcome, verdict.code) == (pb.OUTCOME_ACCEPTED, "ACCEPTED")
        assert verdict.attestation_hash.startswith("v1:sha256:")
        assert verdict.level == "L0"
        assert verdict.challenge_id.hex() == asked.challenge_id
        assert 80_000 < verdict.fresh_for_ms <= 90_000
        assert 0 < verdict.next_challenge_ms <= 25_000
        assert world.state() is NodeState.ELIGIBLE
        (record,) = world.audit.granted
        assert record.kind is RecordKind.EVIDENCE_ACCEPTED
        assert (record.actor, record.subject) == (agent(), "node/node-1")
        assert record.refs["hash"] == verdict.attestation_hash
    assert world.store.snapshot().records[NODE].instance == "1" * 32


async def test_rounds_go_on_and_unchanged_ones_are_counted_not_granted() -> None:
    async with World(BRISK) as world, world.client() as client:
        await client.accepted()
        for _ in range(3):
            await client.answer(await client.challenge())
            assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        assert len(world.audit.granted) == 1
        assert world.audit.kinds().count(RecordKind.EVIDENCE_REPEATED) == 3
        assert world.witness.challenges[:3] == ["first", "interval", "interval"]


async def test_nothing_is_granted_while_the_log_is_broken(world: World) -> None:
    world.audit.broken = True
    async with world.client() as client:
        await client.answer(await client.admitted())
        verdict = await client.verdict()
        assert (verdict.outcome, verdict.code) == (pb.OUTCOME_REFUSED, "AUDIT_UNAVAILABLE")
        assert verdict.next_challenge_ms > 0
        assert world.state() is NodeState.REFUSED


async def test_a_grant_waits_for_its_record_and_a_refusal_meanwhile_wins(world: World) -> None:
    world.audit.held = asyncio.Event()
    async with world.client() as client:
        await client.answer(await client.admitted())
        await asyncio.wait_for(world.audit.asked.wait(), DEADLINE)
        assert world.state() in {None, NodeState.UNKNOWN}
        now = world.now()
        world.registry.quarantine(
            NODE,
            code=ReasonCode.NODE_DENIED,
            reason="by hand",
            now_ns=now.boottime_ns,
            wall_ns=world.clock.wall_ns(),
        )
        world.audit.held.set()
        verdict = await client.verdict()
        assert verdict.outcome == pb.OUTCOME_REFUSED
        assert world.state() is NodeState.QUARANTINED


async def test_a_refusal_does_not_wait_for_the_log(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
    world.audit.held = asyncio.Event()
    async with world.client() as client:
        await client.answer(await client.admitted(), node_name="node-2")
        verdict = await client.verdict()
        assert verdict.code == "NODE_NAME_MISMATCH"
        assert world.state() is NodeState.REVOKED
        assert world.audit.noted[-1].codes == ("NODE_NAME_MISMATCH",)


async def test_bad_news_takes_trust_away_and_asks_again_at_once(world: World) -> None:
    async with world.client() as client:
        challenge = await client.admitted()
        await client.answer(challenge)
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        await client.send(client.failure_notice(challenge, gpu=gpu_uuid(1)))
        verdict = await client.verdict()
        assert (verdict.outcome, verdict.attestation_hash) == (pb.OUTCOME_ACCEPTED, "")
        view = world.registry.snapshot().nodes[NODE]
        assert view.acceptance is not None
        assert view.acceptance.gpus[0].unhealthy == "xid 79"
        again = await client.challenge()
        assert world.witness.challenges == ["first", "failure-notice"]
        await client.answer(again)
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        view = world.registry.snapshot().nodes[NODE]
        assert view.acceptance is not None
        assert view.acceptance.gpus[0].unhealthy == "xid 79, until the GPU is reset"


async def test_a_node_that_is_asked_is_challenged_before_its_interval_is_over(world: World) -> None:
    """And then a whole interval later: what is asked for takes an ordinary round's place."""
    async with world.client() as client:
        await client.accepted()
        assert world.table.is_connected(NODE)
        assert not world.table.is_connected("node-2")
        world.table.ask("node-2")
        asked_ns = world.boottime_ns()
        world.table.ask(NODE)
        await client.answer(await client.challenge())
        verdict = await client.verdict()
        assert verdict.outcome == pb.OUTCOME_ACCEPTED
        assert 20_000 < verdict.next_challenge_ms <= 25_000
        acceptance = world.registry.snapshot().nodes[NODE].acceptance
        assert acceptance is not None
        assert acceptance.challenge_issued_ns >= asked_ns
    assert world.witness.challenges == ["first", "release"]


async def test_while_a_challenge_is_open_those_who_ask_wait_for_the_next_one(world: World) -> None:
    """An agent reads for the newest challenge only: one that reads slowly would never answer."""
    async with world.client() as client:
        challenge = await client.admitted()
        for _ in range(3):
            world.table.ask(NODE)
            await asyncio.sleep(0.01)
        assert world.witness.challenges == ["first"]
        await client.answer(challenge)
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        await client.answer(await client.challenge())
        assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
        await asyncio.sleep(0.01)
        assert world.witness.challenges == ["first", "release"]


async def test_a_refused_answer_closes_its_challenge_too(world: World) -> None:
    async with world.client() as client:
        challenge = await client.admitted()
        world.table.ask(NODE)
        world.audit.broken = True
        await client.answer(challenge)
        assert (await client.verdict()).code == "AUDIT_UNAVAILABLE"
        await client.challenge()
    assert world.witness.challenges == ["first", "release"]


async def test_a_challenge_that_nobody_answers_is_open_for_its_time_to_live() -> None:
    settings = replace(SLOW, challenge_ttl_ns=300_000_000)
    async with World(settings) as world, world.client() as client:
        opened_ns = world.boottime_ns()
        await client.admitted()
        world.table.ask(NODE)
        await client.challenge()
        assert world.boottime_ns() - opened_ns >= settings.challenge_ttl_ns
    assert world.witness.challenges == ["first", "release"]


async def test_an_ordinary_challenge_serves_those_who_ask_as_well() -> None:
    async with World(BRISK) as world, world.client() as client:
        await client.admitted()
        world.table.ask(NODE)
        await client.answer(await client.challenge())
        await client.verdict()
        await client.challenge()
    assert world.witness.challenges[:3] == ["first", "interval", "interval"]


async def test_accepted_evidence_is_announced_once_the_fleet_has_it(world: World) -> None:
    states: list[tuple[str, NodeState | None]] = []
    world.service.heard = lambda node: states.append((node, world.state(node)))
    world.audit.broken = True
    async with world.client() as client:
        await client.answer(await client.admitted())
        await client.verdict()
    assert states == []
    world.audit.broken = False
    async with world.client() as client:
        await client.accepted()
    assert states == [(NODE, NodeState.ELIGIBLE)]


async def test_the_spare_nonce_serves_once(world: World) -> None:
    async with world.client() as client:
        challenge = await client.admitted()
        await client.answer(challenge)
        await client.verdict()
        news = client.failure_notice(challenge)
        await client.send(news)
        await client.verdict()
        await client.send(news)
        verdict = await client.verdict()
        assert verdict.code == "CHALLENGE_EXPIRED"


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("wrong node name", {"node_name": "node-2"}, "NODE_NAME_MISMATCH"),
    ("wrong audience", {"audience": "spiffe://example.org/x"}, "AUDIENCE_MISMATCH"),
    ("wrong inner nonce", {"nonce": "0" * 64}, "INNER_NONCE_MISMATCH"),
    ("wrong challenge digest", {"challenge_sha256": "0" * 64}, "CHALLENGE_DIGEST_MISMATCH"),
    ("seq replayed", {"seq": 0}, "SEQ_REPLAY"),
    ("seq skipped", {"seq": 7}, "SEQ_GAP"),
    ("wrong prev", {"prev": "1" * 64}, "PREV_MISMATCH"),
    ("another boot", {"boot_id": "boot-2"}, "BOOT_CHANGED"),
    ("clock far off", {"wall_ms": "1"}, "CLOCK_SKEW"),
    ("no GPUs", {"inventory": Inventory(host=HOST, gpus=(), lost=())}, "INVENTORY_EMPTY"),
    (
        "a failed read",
        {"failed_reads": (FailedRead(fact="vbios", gpu=gpu_uuid(1), call="x", error="y"),)},
        "INVENTORY_INCOMPLETE",
    ),
]


@pytest.mark.parametrize(("changes", "code"), [x[1:] for x in HOSTILE], ids=[x[0] for x in HOSTILE])
async def test_signed_evidence_that_says_the_wrong_thing(
    world: World, changes: dict[str, Any], code: str
) -> None:
    async with world.client() as client:
        await client.answer(await client.admitted(), **changes)
        verdict = await client.verdict()
        assert (verdict.outcome, verdict.code) == (pb.OUTCOME_REFUSED, code)
        assert world.state() is not NodeState.ELIGIBLE
        if verdict.next_challenge_ms == 0:
            assert (await client.ended()).reason == code


async def test_signed_with_another_key(world: World) -> None:
    async with world.client() as client:
        other = world.ca.svid(agent()).private_key
        await client.send(client.evidence(await client.admitted(), key=other))
        assert (await client.verdict()).code == "SIG_INVALID"
        assert (await client.ended()).reason == "SIG_INVALID"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda e: setattr(e, "nonce", bytes(32)), "NONCE_MISMATCH"),
        (lambda e: setattr(e, "stream_id", bytes(16)), "STREAM_MISMATCH"),
        (lambda e: setattr(e, "challenge_id", bytes(16)), "CHALLENGE_UNKNOWN"),
        (lambda e: setattr(e, "nonce", b"short"), "MSG_MALFORMED"),
        (lambda e: setattr(e.envelope, "payload_type", "text/plain"), "TYPE_UNEXPECTED"),
        (lambda e: setattr(e.envelope, "payload", b"x" * 300_000), "MSG_TOO_LARGE"),
        (lambda e: setattr(e.envelope, "payload", e.envelope.payload + b" "), "SIG_INVALID"),
    ],
)
async def test_the_envelope_is_wrong(world: World, change: Any, code: str) -> None:
    async with world.client() as client:
        request = client.evidence(await client.admitted())
        change(request.evidence)
        await client.send(request)
        assert (await client.verdict()).code == code
        assert world.state() is not NodeState.ELIGIBLE


async def test_replayed_evidence_takes_trust_away(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
        await client.send(client.sent[-1])
        assert (await client.verdict()).code == "NONCE_REUSED"
        assert world.state() is NodeState.REVOKED
        assert (await client.ended()).reason == "NONCE_REUSED"


async def test_evidence_captured_on_another_stream(world: World) -> None:
    async with world.client() as first:
        await first.accepted()
        captured = first.sent[-1]
    async with world.client() as second:
        await second.admitted()
        await second.send(captured)
        assert (await second.verdict()).code == "CHALLENGE_UNKNOWN"


async def test_an_answer_that_comes_too_late() -> None:
    async with World(HASTY) as world, world.client() as client:
        late = client.evidence(await client.admitted())
        await client.challenge()
        await client.challenge()
        await client.send(late)
        assert (await client.verdict()).code == "CHALLENGE_EXPIRED"


async def test_a_changed_gpu_is_quarantined_and_stays_so_for_new_streams(world: World) -> None:
    async with world.client() as client:
        await client.accepted(inventory(gpu(0)))
    async with world.client() as client:
        await client.answer(await client.admitted(), content=inventory(gpu(0), gpu(5)))
        assert (await client.verdict()).code == "INVENTORY_CHANGED"
    assert world.state() is NodeState.QUARANTINED
    denial = world.store.snapshot().records[NODE].denial
    assert denial is not None
    assert denial.code == "INVENTORY_CHANGED"
    async with world.client() as client:
        await client.hello()
        verdict = await client.verdict()
        assert (verdict.code, verdict.next_challenge_ms) == ("NODE_DENIED", 0)
        assert (await client.ended()).reason == "NODE_DENIED"


async def test_claiming_a_gpu_of_another_node_leaves_its_owner_unharmed(world: World) -> None:
    async with world.client() as owner:
        await owner.accepted(inventory(gpu(0)))
        async with world.client("node-2", instance="2" * 32) as thief:
            await thief.answer(await thief.admitted(), content=inventory(gpu(0)))
            assert (await thief.verdict()).code == "GPU_CLAIMED_TWICE"
        assert world.state() is NodeState.ELIGIBLE
        assert world.state("node-2") is NodeState.REFUSED
        kinds = [str(change.kind) for change in world.witness.changes]
        assert "claim-repelled" in kinds


async def test_without_its_store_nothing_new_is_accepted(world: World) -> None:
    world.store.gone = True
    async with world.client() as client:
        await client.answer(await client.admitted())
        verdict = await client.verdict()
        assert (verdict.code, verdict.next_challenge_ms > 0) == ("ENROLLMENT_STALE", True)


async def test_a_quarantine_that_cannot_be_written_still_counts_here(world: World) -> None:
    async with world.client() as client:
        await client.accepted(inventory(gpu(0)))
    async with world.client() as client:
        challenge = await client.admitted()
        world.store.gone = True
        await client.answer(challenge, content=inventory(gpu(0), gpu(5)))
        assert (await client.verdict()).code == "INVENTORY_CHANGED"
    assert world.state() is NodeState.QUARANTINED


async def test_an_unknown_node(world: World) -> None:
    async with world.client("node-9") as client:
        await client.hello()
        assert (await client.verdict()).code == "NODE_UNKNOWN"
        assert (await client.ended()).reason == "NODE_UNKNOWN"
    assert world.state("node-9") is None


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": 2}, "PROTOCOL_UNSUPPORTED"),
        ({"node_name": "node-2"}, "NODE_NAME_MISMATCH"),
        ({"instance_id": "short"}, "MSG_MALFORMED"),
    ],
)
async def test_a_hello_that_is_refused(world: World, changes: dict[str, Any], code: str) -> None:
    async with world.client() as client:
        await client.hello(**changes)
        verdict = await client.verdict()
        assert (verdict.code, verdict.next_challenge_ms, verdict.challenge_id) == (code, 0, b"")
        assert (await client.ended()).reason == code


async def test_speaking_out_of_turn(world: World) -> None:
    async with world.client() as client:
        await client.send(pb.AttestRequest(evidence=pb.Evidence()))
        assert (await client.verdict()).code == "TYPE_UNEXPECTED"
        assert (await client.ended()).status == "INVALID_ARGUMENT"
    async with world.client() as client:
        await client.admitted()
        await client.hello()
        assert (await client.verdict()).code == "TYPE_UNEXPECTED"
        assert (await client.ended()).reason == "TYPE_UNEXPECTED"


async def test_a_message_that_is_no_protobuf(world: World) -> None:
    async with world.client() as client:
        assert (await client.status_of_raw(b"\xff\xff\xff")).reason == "MSG_MALFORMED"


def unknown(size: int) -> bytes:
    """Field 15 of a message, which nobody knows."""
    length = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80])
    return bytes([15 << 3 | 2]) + length + bytes([size >> 21]) + b"x" * size


@pytest.mark.parametrize(
    ("size", "status", "reason"),
    [
        (4, "INVALID_ARGUMENT", "MSG_MALFORMED"),
        (330_000, "RESOURCE_EXHAUSTED", "MSG_TOO_LARGE"),
        (15_000_000, "RESOURCE_EXHAUSTED", None),
    ],
)
async def test_unknown_fields_carry_nothing_in(
    world: World, size: int, status: str, reason: str | None
) -> None:
    """Of what is larger than any message gRPC reads nothing, and ends the stream itself."""
    async with world.client() as client:
        ended = await client.status_of_raw(unknown(size))
        assert (ended.status, ended.reason) == (status, reason)
    async with world.client() as client:
        await client.accepted()


async def test_a_message_above_the_hard_cap_ends_the_call(world: World) -> None:
    async with world.client() as client:
        ended = await client.status_of_raw(bytes(17 * 1024 * 1024))
        assert ended.status == "RESOURCE_EXHAUSTED"
        assert "larger than max" in ended.details  # by gRPC, before it is read
        await asyncio.wait_for(world.witness.ended_one.wait(), DEADLINE)
        assert list(world.table) == []


async def test_silence_instead_of_hello() -> None:
    async with World(timing=SessionTiming(hello_s=0.05)) as world, world.client() as client:
        ended = await client.ended()
        assert (ended.status, ended.details) == ("DEADLINE_EXCEEDED", "no Hello in time")
        assert world.witness.ends == [(None, "silent")]


async def test_silence_after_hello_ends_with_the_lease() -> None:
    async with World(FAST) as world, world.client() as client:
        await client.admitted()
        ended = await client.ended()
        assert ended.status == "DEADLINE_EXCEEDED"
        assert "no answer" in ended.details
        assert world.state() is None


async def test_flooding_ends_the_stream() -> None:
    """Failure notices is the one thing that an agent can send as often as it likes."""
    async with World(messages=Rate(0.001, 3)) as world, world.client() as client:
        challenge = await client.admitted()
        for _ in range(3):
            await client.send(client.failure_notice(challenge))
            assert (await client.verdict()).outcome == pb.OUTCOME_ACCEPTED
            challenge = await client.challenge()
        await client.send(client.failure_notice(challenge))
        verdict = await client.verdict()
        assert (verdict.code, verdict.next_challenge_ms) == ("LIMIT_RATE", 0)
        assert (await client.ended()).status == "RESOURCE_EXHAUSTED"


async def test_more_streams_of_one_peer_than_allowed() -> None:
    settings = replace(SLOW, limits=Limits(streams_per_peer=2))
    async with World(settings) as world, world.client() as one, world.client() as two:
        challenge = await one.admitted()
        await two.admitted()
        async with world.client() as three:
            verdict = await three.verdict()
            assert (verdict.code, verdict.next_challenge_ms) == ("LIMIT_STREAMS", 0)
            assert (await three.ended()).status == "RESOURCE_EXHAUSTED"
        await one.answer(challenge)
        assert (await one.verdict()).outcome == pb.OUTCOME_ACCEPTED


async def test_opening_streams_too_often(world: World) -> None:
    world.usage.openings = Rate(0.001, 1)
    async with world.client() as client:
        await client.admitted()
    async with world.client() as client:
        assert (await client.verdict()).code == "LIMIT_RATE"


async def test_a_renewed_stream_supersedes_the_old_one_once_accepted(world: World) -> None:
    async with world.client() as old, world.client() as new:
        await old.accepted()
        challenge = await new.admitted()
        assert world.usage.open_streams == 2
        await new.answer(challenge)
        assert (await new.verdict()).outcome == pb.OUTCOME_ACCEPTED
        assert (await old.verdict()).code == "STREAM_SUPERSEDED"
        assert (await old.ended()).reason == "STREAM_SUPERSEDED"
        assert world.state() is NodeState.ELIGIBLE
        assert len(world.audit.granted) == 1


async def test_a_stream_that_was_ended_is_freed_without_the_garbage_collector(
    world: World,
) -> None:
    gc.disable()
    try:
        async with world.client() as old, world.client() as new:
            await old.accepted()
            (session,) = map(weakref.ref, world.table)
            await new.accepted()
            assert (await old.ended()).reason == "STREAM_SUPERSEDED"

            async def is_freed() -> bool | None:
                return True if session() is None else None

            await eventually(is_freed, "the session is freed")
    finally:
        gc.enable()


async def test_the_old_stream_goes_on_while_the_new_one_is_not_accepted() -> None:
    async with World(BRISK) as world, world.client() as old, world.client() as new:
        await old.accepted()
        await new.admitted()
        await old.answer(await old.challenge())
        assert (await old.verdict()).outcome == pb.OUTCOME_ACCEPTED
        await new.challenge()


async def test_a_new_process_supersedes_the_old_and_the_old_is_a_duplicate_after(
    world: World,
) -> None:
    async with world.client() as old, world.client(instance="2" * 32) as new:
        await old.accepted()
        await new.accepted()
        assert (await old.ended()).reason == "STREAM_SUPERSEDED"
    assert world.state() is NodeState.ELIGIBLE
    async with world.client() as again:
        await again.answer(await again.admitted())
        assert (await again.verdict()).code == "DUPLICATE_AGENT"
        assert (await again.ended()).reason == "DUPLICATE_AGENT"
    assert world.state() is NodeState.QUARANTINED


async def test_a_stream_ends_at_its_age() -> None:
    timing = SessionTiming(age_s=60.0)
    async with World(BRISK, timing=timing) as world, world.client() as client:
        await client.accepted()
        world.slept_ns = 60 * S
        ended = await client.ended()
        assert (ended.status, ended.reason) == ("UNAVAILABLE", None)
        assert world.state() is NodeState.ELIGIBLE


async def test_a_stream_ends_with_its_certificate() -> None:
    async with World(BRISK) as world:
        svid = world.ca.svid(agent(), timedelta(seconds=60))
        async with AttestClient(svid, world.port, node=NODE) as client:
            await client.accepted()
            world.slept_ns, world.wall_shift = 60 * S, timedelta(seconds=60)
            assert (await client.ended()).reason == "SVID_EXPIRED"
            assert world.state() is NodeState.ELIGIBLE


async def test_a_message_after_the_roots_were_replaced(world: World) -> None:
    async with world.client() as client:
        challenge = await client.admitted()
        other = SpiffeCa()
        world.svids.svid = other.svid(CONTROLLER)
        await client.answer(challenge)
        assert (await client.verdict()).code == "CHAIN_INVALID"
        assert (await client.ended()).reason == "CHAIN_INVALID"


async def test_without_an_svid_the_controller_cannot_prove_itself() -> None:
    async with World(BRISK) as world, world.client() as client:
        await client.accepted()
        world.svids.svid = None
        ended = await client.ended()
        assert ended.status == "UNAVAILABLE"
        assert "no SVID in this test" in ended.details


async def test_draining_ends_streams_with_a_clear_status(world: World) -> None:
    async with world.client() as client, world.client("node-2", instance="2" * 32) as other:
        await client.accepted()
        await other.admitted()
        world.table.end_all()
        for one in (client, other):
            ended = await one.ended()
            assert (ended.status, ended.reason) == ("UNAVAILABLE", None)
            assert "stopping" in ended.details
        assert world.state() is NodeState.ELIGIBLE


async def test_an_operator_can_end_the_streams_of_one_node(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
        refusal = Refusal(ReasonCode.NODE_DENIED, "by hand")
        world.table.end_node(NODE, refusal)
        world.table.end_node(NODE, refusal)
        assert (await client.verdict()).code == "NODE_DENIED"
        assert (await client.ended()).reason == "NODE_DENIED"


async def test_an_agent_that_goes_away_leaves_nothing_behind(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
    await asyncio.wait_for(world.witness.ended_one.wait(), DEADLINE)
    assert list(world.table) == []
    assert world.usage.open_streams == 0
    assert world.state() is NodeState.ELIGIBLE


async def test_an_agent_that_says_goodbye(world: World) -> None:
    async with world.client() as client:
        await client.accepted()
        await client.done_writing()
        assert (await client.ended()).status == "OK"
    assert world.witness.ends == [(NODE, "peer")]


def _svid(ca: SpiffeCa, roots: SpiffeCa, spiffe_id: str, **shape: Any) -> Svid:
    key, chain = ca.issue(spiffe_id, **shape)
    return Svid(parse_spiffe_id(spiffe_id), key, chain, roots.roots, 1)


async def test_two_uri_names_are_refused_with_a_reason(world: World) -> None:
    svid = _svid(world.ca, world.ca, agent(), uris=(agent(), agent("node-2")))
    async with AttestClient(svid, world.port, node=NODE) as client:
        ended = await client.ended()
        assert (ended.status, ended.reason) == ("UNAUTHENTICATED", "PEER_ID_INVALID")


async def test_a_foreign_name_from_our_own_authority(world: World) -> None:
    foreign = "spiffe://evil.org/gpuwarden/agent/node-1"
    svid = _svid(world.ca, world.ca, agent(), uris=(foreign,))
    async with AttestClient(svid, world.port, node=NODE) as client:
        ended = await client.ended()
        assert (ended.status, ended.reason) == ("UNAUTHENTICATED", "PEER_FOREIGN_DOMAIN")


async def test_a_foreign_authority_does_not_pass_the_handshake(world: World) -> None:
    svid = _svid(SpiffeCa("evil.org"), world.ca, agent())
    async with AttestClient(svid, world.port, node=NODE) as client:
        assert (await client.ended()).status == "UNAVAILABLE"
    assert world.witness.calls == []


CALLERS = {
    CallerKind.AGENT: agent(),
    CallerKind.CONTROLLER: CONTROLLER,
    CallerKind.INSPECTOR: f"spiffe://{TRUST_DOMAIN}/gpuwarden/inspector/ops",
    CallerKind.OPERATOR: f"spiffe://{TRUST_DOMAIN}/gpuwarden/operator/ops",
    CallerKind.NONE: f"spiffe://{TRUST_DOMAIN}/somebody/else",
}


@pytest.mark.parametrize("kind", list(CALLERS))
async def test_the_matrix_over_tls(world: World, kind: CallerKind) -> None:
    """Every method of the listener for every role: refused exactly where the table says so."""
    async with AttestClient(world.ca.svid(CALLERS[kind]), world.port, node=NODE) as client:
        for method, allowed in ALLOWED_CALLERS.items():
            call: Any = client.channel.unary_unary(method)
            with pytest.raises(aio.AioRpcError) as caught:
                await call(b"\xff", timeout=DEADLINE)
            denied = caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert denied == (kind not in allowed and _is_served(method)), (method, caught.value)
            if denied:
                reason = dict(caught.value.trailing_metadata() or ()).get("gpuwarden-reason")
                assert reason == ("PEER_ROLE_UNKNOWN" if kind is CallerKind.NONE else "ROLE_DENIED")


def _is_served(method: str) -> bool:
    return not any(x in method for x in ABSENT)


async def test_reflection_lists_services_to_inspectors(world: World) -> None:
    svid = world.ca.svid(CALLERS[CallerKind.INSPECTOR])
    async with AttestClient(svid, world.port, node=NODE) as client:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(client.channel)
        call = stub.ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=DEADLINE
        )
        answer = await call.read()
        names = [service.name for service in answer.list_services_response.service]
        assert "gpuwarden.wire.v1.FleetService" in names
        call.cancel()


async def test_reflection_ends_with_the_callers_certificate(world: World) -> None:
    lifetime = timedelta(seconds=0.6)

    async def ended_after_an_answer() -> aio.AioRpcError | None:
        """One that lasts longer each time: a busy machine answers late."""
        nonlocal lifetime
        lifetime *= 2
        svid = world.ca.svid(CALLERS[CallerKind.INSPECTOR], lifetime)
        async with AttestClient(svid, world.port, node=NODE) as client:
            stub: Any = reflection_pb2_grpc.ServerReflectionStub(client.channel)
            call = stub.ServerReflectionInfo(timeout=DEADLINE)
            try:
                await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
                assert await call.read() is not aio.EOF
            except (aio.AioRpcError, asyncio.InvalidStateError):
                return None
            with pytest.raises(aio.AioRpcError) as caught:
                await asyncio.wait_for(call.read(), DEADLINE)
        return caught.value

    error = await eventually(ended_after_an_answer, "an answer, then the end")
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    reason = dict(error.trailing_metadata() or ()).get("gpuwarden-reason")
    assert reason == "SVID_EXPIRED"


async def test_an_address_that_is_taken_names_the_setting(world: World) -> None:
    with pytest.raises(ListenError, match=r"listen\.agents: cannot bind"):
        agents_server(
            address=world.server.address,
            credentials=server_credentials(world.svids, world.tls_errors.append),
            interceptor=AuthorizationInterceptor(
                authenticate=local_caller(LOCAL), observer=world.witness, clock=world.clock
            ),
            services=(),
            max_calls=1,
        )


async def test_a_challenge_relayed_to_another_node_proves_nothing(world: World) -> None:
    """A node without GPUs lets a genuine one answer for it."""
    async with world.client() as genuine, world.client("node-2", instance="2" * 32) as relay:
        await genuine.accepted()
        challenge = await relay.admitted()
        lent = AttestClient(genuine.svid, world.port, node=NODE)
        await relay.send(lent.evidence(challenge))
        assert (await relay.verdict()).code == "SIG_INVALID"
        assert world.state("node-2") is NodeState.REFUSED
        assert world.state() is NodeState.ELIGIBLE


async def test_bad_news_on_one_stream_outdates_evidence_that_waits_on_another(
    world: World,
) -> None:
    async with world.client() as old, world.client() as new:
        challenge = await old.admitted()
        await old.answer(challenge)
        assert (await old.verdict()).outcome == pb.OUTCOME_ACCEPTED
        world.audit.held, world.audit.asked = asyncio.Event(), asyncio.Event()
        changed = inventory(msgspec.structs.replace(gpu(), persistence_mode=False))
        await new.answer(await new.admitted(), content=changed)
        await asyncio.wait_for(world.audit.asked.wait(), DEADLINE)
        await old.send(old.failure_notice(challenge, "driver-reload", xid=None))
        assert (await old.verdict()).detail == "failure notice taken"
        world.audit.held.set()
        assert (await new.verdict()).outcome == pb.OUTCOME_REFUSED
        assert world.state() is NodeState.REVOKED
        granted, last = world.audit.granted[-1], world.audit.noted[-1]
        assert last.kind is RecordKind.EVIDENCE_REFUSED
        assert last.refs["evidence"] == granted.refs["evidence"]
        assert last.archived_evidence is not None


async def test_an_unknown_caller_holds_no_call_open(world: World) -> None:
    """A workload of our trust domain without a role that never says what it wants."""
    svid = world.ca.svid(CALLERS[CallerKind.NONE])
    async with AttestClient(svid, world.port, node=NODE) as client:
        for method in ALLOWED_CALLERS:
            call: Any = client.channel.stream_stream(method)()
            async with asyncio.timeout(DEADLINE):
                refused = grpc.StatusCode.PERMISSION_DENIED
                missing = grpc.StatusCode.UNIMPLEMENTED
                assert await call.code() is (refused if _is_served(method) else missing)
