"""Checks of the extender's answers to requests as kube-scheduler sends them."""

from sandbox.demo.check import Check, demand
from sandbox.demo.stage import ANNOTATION, GHOST, Stage, pod
from sandbox.nodes import AMPERE, HOPPER, LEGACY


async def required_hash(stage: Stage) -> str:
    """Only the node with the required hash passes; the others are told why."""
    wanted = (await stage.node(HOPPER)).attestation_hash
    passed, failed = await stage.filter(pod({ANNOTATION: wanted}, gpus=1))
    demand(passed == [HOPPER], f"passed: {passed}, failed: {failed}")
    expected = {AMPERE: "HASH_MISMATCH", LEGACY: "HASH_MISMATCH", GHOST: "NODE_NO_EVIDENCE"}
    for name, code in expected.items():
        demand(code in failed.get(name, ""), f"{name}: {failed.get(name)!r}, expected {code}")
    return f"{HOPPER} passes; {AMPERE} and {LEGACY}: HASH_MISMATCH; {GHOST}: NODE_NO_EVIDENCE"


async def malformed_wish(stage: Stage) -> str:
    """A wish that cannot be understood fails the pod everywhere."""
    passed, failed = await stage.filter(pod({ANNOTATION: "sha256:abc"}))
    demand(passed == [], f"passed: {passed}")
    demand(
        all("REQ_INVALID" in reason for reason in failed.values()) and failed, f"failed: {failed}"
    )
    return "no node passes, each says REQ_INVALID"


async def unguarded(stage: Stage) -> str:
    """A pod that asks for nothing of ours passes untouched, unknown nodes included."""
    passed, failed = await stage.filter(pod())
    demand(passed == [*stage.nodes, GHOST] and not failed, f"passed: {passed}, failed: {failed}")
    return "every node passes, in the order asked"


async def priorities(stage: Stage) -> str:
    """Scores are integers from 0 to 10; the tighter fit wins, the unknown node gets nothing."""
    wish = {"gpuwarden.dev/gpu-selector": "architecture=hopper"}
    answer = await stage.post("prioritize", stage.arguments(pod(wish, gpus=2)))
    scores = {entry["Host"]: entry["Score"] for entry in answer}
    demand(set(scores) == {*stage.nodes, GHOST}, f"hosts: {sorted(scores)}")
    whole = all(isinstance(score, int) and 0 <= score <= 10 for score in scores.values())  # noqa: PLR2004 - extender/v1 MaxExtenderPriority
    demand(whole, f"scores: {scores}")
    demand(scores[LEGACY] > scores[HOPPER] > scores[GHOST] == 0, f"scores: {scores}")
    return ", ".join(f"{name} {score}" for name, score in scores.items())


CHECKS = (
    Check("filter", "/filter passes only nodes with the required hash", required_hash),
    Check("malformed-wish", "a malformed wish widens nothing", malformed_wish),
    Check("unguarded", "other pods are never touched", unguarded),
    Check("prioritize", "/prioritize prefers the tightest fit", priorities),
)
