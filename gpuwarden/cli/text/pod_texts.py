"""What is said of a pod without a node, alike in `why`, `explain pod` and `fit`. Pure."""

import re
from typing import Final

from gpuwarden.cli.text.terminal import joined
from gpuwarden.counted import counted
from gpuwarden.reason_texts import EXPLANATIONS, Explanation
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import placement_pb2 as pb

_NODE: Final = re.compile(r"\bNODE\b")


def refused(code: str, detail: str, *, report_only: bool = False) -> str:
    """That the pod itself is refused, as what follows its name."""
    would = "would be" if report_only else "is"
    return f"{would} refused: {code} {detail}".rstrip()


def would_pass(found: pb.ExplainPodResponse) -> str:
    """How many nodes, and which."""
    some = f": {joined(found.passing_nodes)}" if found.passing_nodes else ""
    return f"{counted(found.passing, 'node')} would pass now{some}"


def of_first(rejection: pb.Rejection) -> str:
    """The detail of the first node, with its name once: controllers name it in some details."""
    first = "".join(rejection.nodes[:1])
    if not first or rejection.detail.startswith(f"{first}: "):
        return rejection.detail
    return f"{first}: {rejection.detail}" if rejection.detail else first


def remedy(code: str, node: str = "") -> str:
    """What repairs it, with the node's own name in its commands; empty where nothing is known."""
    reason = explanation(code)
    if reason is None:
        return ""
    return named(reason.remedy, node) if node else reason.remedy


def named(text: str, node: str) -> str:
    """A remedy with the node's own name in its commands."""
    return _NODE.sub(lambda _: node, text)


def explanation(code: str) -> Explanation | None:
    """None for no code, and for one that only a newer controller knows."""
    return EXPLANATIONS[ReasonCode(code)] if code in set(ReasonCode) else None
