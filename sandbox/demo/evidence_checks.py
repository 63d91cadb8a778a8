"""Checks of the stream: rotation goes unnoticed, tampered and replayed evidence is refused."""

import asyncio
from collections.abc import AsyncIterable, Container

from gpuwarden.wire.v1 import attestation_pb2 as wire
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.demo.check import Check, demand
from sandbox.demo.fleet_checks import eligible
from sandbox.demo.rogue import RogueAgent
from sandbox.demo.stage import Stage
from sandbox.nodes import HOPPER


def rogue(stage: Stage, *, node_name: str | None = None) -> RogueAgent:
    """The rogue agent on this cluster."""
    api = stage.laptop.workload_api
    named = {"node_name": node_name} if node_name else {}
    return RogueAgent(stage.laptop.addresses.agents, api.ca, api.roots, **named)


async def rotation(stage: Stage) -> str:
    """Every SVID and then the CA itself changes; no node leaves the eligible state.

    Once the old CA is out of the bundle, what was signed under it counts for nothing:
    an agent that had not followed would be stale a lease later.
    """
    watch = stage.watch()
    lapses: list[str] = []
    observer = asyncio.create_task(_observe(watch, lapses, stage.nodes))
    try:
        await _rotate_everything(stage)
    finally:
        watch.cancel()
        await asyncio.wait([observer])
    demand(not lapses, "; ".join(lapses))
    return "every SVID changed three times, the CA once; no node lapsed"


async def _rotate_everything(stage: Stage) -> None:
    before = {name: (await stage.node(name)).evidence_digest for name in stage.nodes}
    api = stage.laptop.workload_api
    for change in (api.rotate, api.rotate_ca, api.retire_ca):
        change()
        await asyncio.sleep(stage.laptop.pace.lease_s if change == api.retire_ca else 0)
        for name in stage.nodes:
            before[name] = await _next_acceptance(stage, name, before[name])


async def _observe(
    watch: AsyncIterable[pb.WatchNodesResponse], lapses: list[str], names: Container[str]
) -> None:
    async for news in watch:
        node = news.node
        if node.name in names and not eligible(node):
            lapses.append(f"{node.name} became {node.state} ({node.code})")


async def _next_acceptance(stage: Stage, name: str, last: str) -> str:
    node = await stage.until(name, lambda node: eligible(node) and node.evidence_digest != last)
    demand(eligible(node) and node.evidence_digest != last, f"{name} is {node.state}")
    return node.evidence_digest


async def tampered(stage: Stage) -> str:
    """Evidence with one flipped bit does not verify; the honest one does."""
    async with rogue(stage) as agent:
        verdict = await agent.verdict(_flipped(await agent.evidence()))
    demand(verdict.code == "SIG_INVALID", f"flipped evidence: {verdict.code} {verdict.detail}")
    async with rogue(stage) as agent:
        verdict = await agent.verdict(await agent.evidence())
    demand(verdict.code == "ACCEPTED", f"honest evidence: {verdict.code} {verdict.detail}")
    return "one flipped bit: SIG_INVALID; untouched: ACCEPTED"


def _flipped(request: wire.AttestRequest) -> wire.AttestRequest:
    payload = bytearray(request.evidence.envelope.payload)
    payload[len(payload) // 2] ^= 1
    request.evidence.envelope.payload = bytes(payload)
    return request


async def replayed(stage: Stage) -> str:
    """Captured evidence is worth nothing the second time, on its own stream and on another."""
    async with rogue(stage) as agent:
        captured = await agent.evidence()
        first = await agent.verdict(captured)
        demand(first.code == "ACCEPTED", f"the first time: {first.code} {first.detail}")
        again = await agent.verdict(captured)
    demand(again.code == "NONCE_REUSED", f"on the same stream: {again.code} {again.detail}")
    async with rogue(stage) as agent:
        await agent.evidence()
        elsewhere = await agent.verdict(captured)
    refused = elsewhere.outcome == wire.OUTCOME_REFUSED
    demand(refused, f"on another stream: {elsewhere.code} {elsewhere.detail}")
    return f"same stream: {again.code}; other stream: {elsewhere.code}"


async def impersonated(stage: Stage) -> str:
    """An agent that speaks for another node is refused, and that node does not notice."""
    async with rogue(stage, node_name=HOPPER) as agent:
        code = (await agent.greeting()).code
    demand(code == "NODE_NAME_MISMATCH", f"speaking for {HOPPER}: {code}")
    node = await stage.node(HOPPER)
    demand(eligible(node), f"{HOPPER} became {node.state} ({node.code})")
    return f"speaking for {HOPPER}: {code}; {HOPPER} stays eligible"


CHECKS = (
    Check("rotation", "rotation of SVIDs and CA goes unnoticed", rotation),
    Check("tampered", "one flipped bit is refused", tampered),
    Check("replay", "captured evidence cannot be replayed", replayed),
    Check("impersonation", "an agent can speak only for its own node", impersonated),
)
