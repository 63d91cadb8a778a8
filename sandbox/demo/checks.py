"""The claims of the demo, each with the steps that show it.

Every check uses the product from outside: gRPC, HTTP, the command line, the hardware that NVML
shows, and a rogue agent with a genuine identity.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import AsyncIterable, Container
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from gpuwarden.wire.v1 import attestation_pb2 as wire
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.demo.rogue import RogueAgent
from sandbox.demo.stage import ANNOTATION, GHOST, Check, Stage, demand, pod
from sandbox.laptop import has_real_nvml
from sandbox.nodes import AMPERE, HOPPER, LEGACY, REAL, with_another_card

# --- what the fleet shows


_CLASS_TAG = b"gpuwarden.dev/class/v1\n"


def eligible(node: pb.Node) -> bool:
    """Whether the node may be chosen."""
    return node.state == "eligible"


async def inventory(stage: Stage) -> str:
    """Every GPU of the scenarios is listed with exactly its UUID and serial."""
    for name in stage.nodes:
        node = await stage.until(name, eligible, timeout_s=20)
        demand(eligible(node), f"{name} is {node.state} ({node.code} {node.detail})")
    status, output = await stage.cli("gpus", "--server", stage.laptop.server, "-o", "json")
    demand(status == 0, f"`gpuwarden gpus` ended with {status}: {output[:300]}")
    seen = {
        (gpu["node"], gpu["uuid"], gpu.get("serial", ""))
        for gpu in json.loads(output)["gpus"]
        if gpu["node"] in stage.nodes
    }
    expected = {
        (name, gpu.uuid, gpu.serial or "")
        for name, node in stage.nodes.items()
        for gpu in node.scenario.gpus
    }
    demand(seen == expected, f"GPUs differ from the hardware: {sorted(seen ^ expected)[:2]}")
    real = ", and this machine's own" if await _real_joined(stage) else ""
    return f"{len(stage.nodes)} nodes verified, {len(seen)} GPUs by UUID and serial{real}"


async def _real_joined(stage: Stage) -> bool:
    if not has_real_nvml():
        return False
    node = await stage.until(REAL, eligible, timeout_s=20)
    demand(eligible(node), f"{REAL} is {node.state} ({node.code} {node.detail})")
    return True


async def class_hash(stage: Stage) -> str:
    """A hash is SHA-256 over a document that can be read; another driver is another class."""
    nodes = {name: await stage.node(name) for name in (HOPPER, LEGACY)}
    documents = {}
    for name, node in nodes.items():
        document = await stage.document(node.attestation_hash)
        recomputed = f"v1:sha256:{hashlib.sha256(_CLASS_TAG + document).hexdigest()}"
        demand(recomputed == node.attestation_hash, f"{name}: {node.attestation_hash} is not it")
        documents[name] = json.loads(document)
    drivers = {_without_driver(document) for document in documents.values()}
    demand(len(drivers) == len(documents), f"both classes have driver {drivers}")
    demand(documents[HOPPER] == documents[LEGACY], "the classes differ in more than the driver")
    return f"{nodes[HOPPER].attestation_hash[:23]}… recomputed; {LEGACY} differs in its driver only"


def _without_driver(document: dict[str, Any]) -> str:
    """Take the driver out of a class document, and the GSP firmware that comes with it."""
    for gpu in document["gpus"]:
        del gpu["gsp"]
    return str(document["platform"].pop("driver"))


# --- what the extender answers


async def required_hash(stage: Stage) -> str:
    """Only the node with the required hash passes; the others get the reason."""
    wanted = (await stage.node(HOPPER)).attestation_hash
    passed, failed = await stage.filter(pod({ANNOTATION: wanted}, gpus=1))
    demand(passed == [HOPPER], f"passed: {passed}, failed: {failed}")
    expected = {AMPERE: "HASH_MISMATCH", LEGACY: "HASH_MISMATCH", GHOST: "NODE_NO_EVIDENCE"}
    for name, code in expected.items():
        demand(code in failed.get(name, ""), f"{name}: {failed.get(name)!r}, expected {code}")
    return f"{HOPPER} passes; {AMPERE} and {LEGACY}: HASH_MISMATCH; {GHOST}: NODE_NO_EVIDENCE"


async def malformed_requirement(stage: Stage) -> str:
    """A requirement that cannot be understood fails the pod everywhere."""
    passed, failed = await stage.filter(pod({ANNOTATION: "sha256:abc"}))
    demand(passed == [], f"passed: {passed}")
    demand(
        all("REQ_INVALID" in reason for reason in failed.values()) and failed, f"failed: {failed}"
    )
    return "no node passes; each has REQ_INVALID"


async def unmanaged(stage: Stage) -> str:
    """A pod without a GPU requirement passes to every node, unknown nodes included."""
    passed, failed = await stage.filter(pod())
    demand(passed == [*stage.nodes, GHOST] and not failed, f"passed: {passed}, failed: {failed}")
    return "every node passes, in the order asked"


async def priorities(stage: Stage) -> str:
    """Scores are integers from 0 to 10; the tighter fit wins, the unknown node gets nothing."""
    requirement = {
        "gpuwarden.dev/gpu-selector": "architecture=hopper",
        "gpuwarden.dev/min-level": "L1",
    }
    answer = await stage.post("prioritize", stage.arguments(pod(requirement, gpus=2)))
    scores = {entry["Host"]: entry["Score"] for entry in answer}
    demand(set(scores) == {*stage.nodes, GHOST}, f"hosts: {sorted(scores)}")
    whole = all(isinstance(score, int) and 0 <= score <= 10 for score in scores.values())  # noqa: PLR2004 - extender/v1 MaxExtenderPriority
    demand(whole, f"scores: {scores}")
    demand(scores[LEGACY] > scores[HOPPER] > scores[GHOST] == 0, f"scores: {scores}")
    return ", ".join(f"{name} {score}" for name, score in scores.items())


# --- tampered and replayed evidence


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
    async for change in watch:
        node = change.node
        if node.name in names and not eligible(node):
            lapses.append(f"{node.name} became {node.state} ({node.code})")


async def _next_acceptance(stage: Stage, name: str, last: str) -> str:
    node = await stage.until(name, lambda node: eligible(node) and node.evidence_digest != last)
    demand(eligible(node) and node.evidence_digest != last, f"{name} is {node.state}")
    return node.evidence_digest


async def tampered(stage: Stage) -> str:
    """Evidence with one flipped bit does not verify; the honest one does."""
    verdict = await tampered_verdict(stage)
    demand(verdict.code == "SIG_INVALID", f"flipped evidence: {verdict.code} {verdict.detail}")
    async with rogue(stage) as agent:
        verdict = await agent.verdict(await agent.evidence())
    demand(verdict.code == "ACCEPTED", f"honest evidence: {verdict.code} {verdict.detail}")
    return "one flipped bit: SIG_INVALID; untouched: ACCEPTED"


async def tampered_verdict(stage: Stage) -> wire.Verdict:
    """What the controller says to evidence with one flipped bit."""
    async with rogue(stage) as agent:
        return await agent.verdict(_flipped(await agent.evidence()))


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


# --- hardware that changes, agents that stop


async def claim(stage: Stage) -> str:
    """A node that claims a healthy node's GPU is refused until it gives the GPU up."""
    honest = stage.nodes[LEGACY].scenario
    stolen = replace(honest.gpus[1], uuid=stage.nodes[HOPPER].scenario.gpus[0].uuid)
    stage.laptop.show(LEGACY, replace(honest, gpus=(honest.gpus[0], stolen)))
    node = await stage.until(LEGACY, lambda node: node.code == "GPU_CLAIMED_TWICE")
    demand(node.code == "GPU_CLAIMED_TWICE", f"{LEGACY} is {node.state} ({node.code})")
    passed, _ = await stage.filter(pod({"gpuwarden.dev/min-level": "L0"}))
    demand(LEGACY not in passed, f"{LEGACY} still passes")
    return f"{LEGACY} claims a GPU of {HOPPER}: {node.code}, {node.state}"


async def owner_unharmed(stage: Stage) -> str:
    """The owner of the claimed GPU goes on as if nothing had happened."""
    demand((await stage.node(LEGACY)).code == "GPU_CLAIMED_TWICE", "nobody claims anything")
    digest = (await stage.node(HOPPER)).evidence_digest
    node = await stage.until(HOPPER, lambda node: node.evidence_digest != digest)
    demand(eligible(node) and node.evidence_digest != digest, f"{HOPPER}: {node.code}")
    passed, failed = await stage.filter(pod({ANNOTATION: node.attestation_hash}))
    demand(passed == [HOPPER], f"passed: {passed}, failed: {failed}")
    stage.laptop.show(LEGACY, stage.nodes[LEGACY].scenario)
    back = await stage.until(LEGACY, eligible)
    demand(eligible(back), f"{LEGACY} gave it up but is {back.state} ({back.code})")
    return f"{HOPPER} was accepted again and still passes; {LEGACY} is back without the claim"


async def swap(stage: Stage) -> str:
    """A swapped GPU quarantines its node, and putting the old one back does not help."""
    honest = stage.nodes[AMPERE].scenario
    stage.laptop.show(AMPERE, with_another_card(honest))
    node = await stage.until(AMPERE, lambda node: node.state == "quarantined")
    demand(
        (node.state, node.code) == ("quarantined", "INVENTORY_CHANGED"),
        f"{AMPERE} is {node.state} ({node.code})",
    )
    stage.laptop.show(AMPERE, honest)
    back = await stage.until(AMPERE, eligible, timeout_s=3 * stage.laptop.pace.interval_s)
    demand(back.state == "quarantined", f"{AMPERE} became {back.state} by itself")
    passed, failed = await stage.filter(pod({"gpuwarden.dev/min-level": "L0"}))
    demand(AMPERE not in passed, f"{AMPERE} still passes")
    demand("NODE_QUARANTINED" in failed[AMPERE], f"{AMPERE}: {failed[AMPERE]}")
    return f"{node.code}: quarantined, also after the old card is back"


async def way_back(stage: Stage) -> str:
    """An operator ends the quarantine, by a decision about what was shown, on the record."""
    shown = (await stage.enrollment(AMPERE)).version
    refused = await stage.release(AMPERE, "without looking", "v1:sha256:" + "0" * 64)
    demand(refused == "ENROLLMENT_CONFLICT", f"a decision about something else: {refused or 'OK'}")
    demand((await stage.node(AMPERE)).state == "quarantined", f"{AMPERE} was accepted again")
    answer = await stage.release(AMPERE, "the old card is back", shown)
    demand(not answer, f"release: {answer}")
    node = await stage.until(AMPERE, eligible, timeout_s=20)
    demand(eligible(node), f"{AMPERE} is {node.state} ({node.code})")
    acts = [x for x in stage.records() if x["kind"] == "node.operator"]
    decisions = [(x["decision"], x["refs"]["reason"]) for x in acts]
    demand(
        decisions == [("refused", "without looking"), ("released", "the old card is back")],
        f"in the log: {decisions}",
    )
    return f"released by {acts[-1]['actor']} with a reason; another version: {refused}"


async def lease(stage: Stage) -> str:
    """An agent that stops loses its node's trust when the lease ends, and regains it."""
    program = stage.laptop.programs[HOPPER]
    wanted = (await stage.node(HOPPER)).attestation_hash
    program.suspend()
    try:
        node = await stage.until(
            HOPPER, lambda node: node.state == "stale", timeout_s=2 * stage.laptop.pace.lease_s
        )
        passed, failed = await stage.filter(pod({ANNOTATION: wanted}))
    finally:
        program.resume()
    demand(node.state == "stale", f"{HOPPER} is {node.state} without an agent")
    demand(passed == [] and "NODE_STALE" in failed.get(HOPPER, ""), f"{passed}, {failed}")
    back = await stage.until(HOPPER, eligible, timeout_s=20)
    demand(eligible(back), f"{HOPPER} is {back.state} ({back.code}) though its agent runs")
    return f"no agent: NODE_STALE within {stage.laptop.pace.lease_s:g} s; eligible again with it"


# --- the audit log


_FINDING = 3


async def log_verifies(stage: Stage) -> str:
    """The log that is being written verifies and names every node that was accepted."""
    status, output = await stage.cli("audit", "verify", str(stage.audit_folder))
    demand(status == 0, f"`gpuwarden audit verify` ended with {status}: {output[-300:]}")
    records = [json.loads(line) for line in _lines(stage.audit_folder)]
    accepted = {
        record["subject"].removeprefix("node/")
        for record in records
        if record["kind"] == "evidence.accepted"
    }
    demand(accepted.issuperset(stage.nodes), f"accepted according to the log: {sorted(accepted)}")
    return f"{len(records)} records, {len(accepted)} nodes accepted in them"


async def flip_found(stage: Stage) -> str:
    """One flipped byte in a copy is found, with the number of its record."""
    copy = stage.laptop.folder / "audit-copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(stage.audit_folder, copy)
    seq = flip_one_byte(copy)
    status, output = await stage.cli("audit", "verify", str(copy), "-o", "json")
    demand(status == _FINDING, f"ended with {status}: {output[-300:]}")
    (found,) = json.loads(output)
    # The flipped record still stands where it should; its successor no longer names its digest.
    demand(found["record"] in {seq, seq + 1}, f"record {seq} was changed, found: {found}")
    return f"record {seq} changed; found: record {found['record']}, {found['what'][:60]}"


def flip_one_byte(folder: Path) -> int:
    """Change the subject of a record in the middle of a log, also one that is written to.

    Returns the record's number.
    """
    path = _log_files(folder)[0]
    lines = path.read_bytes().splitlines(keepends=True)
    number = len(lines) // 2
    at = lines[number].index(_SUBJECT) + len(_SUBJECT)
    with path.open("r+b") as file:
        file.seek(len(b"".join(lines[:number])) + at)
        file.write(bytes([lines[number][at] ^ _CASE]))
    return int(json.loads(lines[number])["seq"])


_SUBJECT: Final = b'"subject":"'
_CASE: Final = 0x20
"""The bit between a letter and its capital: the line stays JSON."""


def _log_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.jsonl"))


def _lines(folder: Path) -> list[str]:
    return [line for path in _log_files(folder) for line in path.read_text().splitlines() if line]


CHECKS: Final[tuple[Check, ...]] = (
    Check("inventory", "three agents prove their GPUs", inventory),
    Check("class-hash", "a class hash can be recomputed by anybody", class_hash),
    Check("filter", "/filter passes only nodes with the required hash", required_hash),
    Check("malformed-requirement", "a malformed requirement widens nothing", malformed_requirement),
    Check("unmanaged", "other pods are never touched", unmanaged),
    Check("prioritize", "/prioritize prefers the tightest fit", priorities),
    Check("rotation", "rotation of SVIDs and CA goes unnoticed", rotation),
    Check("tampered", "one flipped bit is refused", tampered),
    Check("replay", "captured evidence cannot be replayed", replayed),
    Check("impersonation", "an agent can speak only for its own node", impersonated),
    Check("claim", "a node cannot claim another node's GPU", claim),
    Check("owner", "the owner of a claimed GPU is unharmed", owner_unharmed),
    Check("swap", "a swapped GPU quarantines its node", swap),
    Check("way-back", "only an operator releases it, by the version that was shown", way_back),
    Check("lease", "a silent node is trusted no longer than its lease", lease),
    Check("log", "the audit log verifies", log_verifies),
    Check("flip", "a flipped byte in a copy of the log is found", flip_found),
)
"""In the order in which they run: some build on what the one before left."""
