"""Checks of hardware that changes under a running agent, and of an agent that stops."""

from msgspec.structs import replace

from sandbox.demo.check import Check, demand
from sandbox.demo.fleet_checks import eligible
from sandbox.demo.stage import ANNOTATION, Stage, pod
from sandbox.nodes import AMPERE, HOPPER, LEGACY
from sandbox.nvml.models import made_uuid


async def claim(stage: Stage) -> str:
    """A node that claims a healthy node's GPU is refused; giving it up lets it back in."""
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
    return f"{HOPPER} was accepted anew and still passes; {LEGACY} is back without the claim"


async def swap(stage: Stage) -> str:
    """A swapped GPU quarantines its node, and putting the old one back does not help."""
    honest = stage.nodes[AMPERE].scenario
    other = replace(honest.gpus[1], uuid=made_uuid("GPU", "other", 1), serial="1659999999999")
    stage.laptop.show(AMPERE, replace(honest, gpus=(honest.gpus[0], other)))
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
    demand((await stage.node(AMPERE)).state == "quarantined", f"{AMPERE} was let back in")
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


CHECKS = (
    Check("claim", "a node cannot claim another node's GPU", claim),
    Check("owner", "the owner of a claimed GPU is unharmed", owner_unharmed),
    Check("swap", "a swapped GPU quarantines its node", swap),
    Check("way-back", "only an operator lets it back in, by what was shown", way_back),
    Check("lease", "a silent node is trusted no longer than its lease", lease),
)
