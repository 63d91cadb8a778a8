"""One line of a support bundle for each node: where it stands and by which codes. Pure."""

import re
from typing import Final

from controller.fleet.view import Acceptance, NodeView, PastRefusal
from controller.rpc.fleet_messages import rfc3339

WITHHELD: Final = ("detail", "warnings", "gpus", "instanceId", "bootId", "systemUuid")
_VERSION: Final = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,5}){1,3}(?:(?:a|b|rc|\.dev)[0-9]{1,4})?")
_NS: Final = 1_000_000_000


def node_line(node: NodeView, now_ns: int, streams: int) -> dict[str, object]:
    """What leaves of a node; `now_ns` is CLOCK_BOOTTIME."""
    accepted = node.acceptance
    return {
        "name": node.name,
        "state": node.state(now_ns).value,
        "blockedBy": None if node.blocked is None else node.blocked.code.value,
        "mode": node.mode.value,
        "streams": streams,
        "acceptance": None if accepted is None else _acceptance(accepted, now_ns),
        "refusals": [_refusal(one) for one in node.refusals],
        "waitsForOperator": node.candidate is not None,
    }


def _acceptance(accepted: Acceptance, now_ns: int) -> dict[str, object]:
    return {
        "at": rfc3339(accepted.accepted_wall_ns),
        "freshForSeconds": max(0, accepted.fresh_until_ns - now_ns) // _NS,
        "level": accepted.level.value,
        "attestationHash": accepted.attestation_hash,
        "driver": _version(accepted.host.driver),
        "agent": _version(accepted.agent_version),
        "gpus": len(accepted.gpus),
        "lost": sum(gpu.lost is not None for gpu in accepted.gpus),
        "unhealthy": sum(gpu.unhealthy is not None for gpu in accepted.gpus),
        "warnings": len(accepted.warnings),
    }


def _refusal(one: PastRefusal) -> dict[str, object]:
    return {
        "last": rfc3339(one.wall_ns),
        "code": one.code.value,
        "step": one.step,
        "effect": one.effect.value,
        "count": one.count,
    }


def _version(text: str | None) -> str | None:
    """A node may call its version anything; what does not look like one is not told."""
    return text if text is not None and _VERSION.fullmatch(text) else None
