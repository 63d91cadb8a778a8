"""Who may hold a GPU UUID when more than one node names it.

UUIDs are public, so a claim must not be a weapon: the owner keeps its GPU and only
the claimant is refused. What an operator enrolled beats what was pinned at first use;
between equals nobody has it. Refused evidence makes no claim, so claims are pins.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """A pin of one GPU, seen from the GPU; `enrolled` if an operator listed it."""

    node: str
    enrolled: bool


@dataclass(frozen=True, slots=True)
class ContestedClaim:
    """A refused claim: `owner` keeps the GPU and gets an event about `claimant`."""

    uuid: str
    claimant: str
    owner: str
    """Node name, or `pool PATTERN` where policy enrolled the UUID for other nodes."""


def rival(node: str, claims: Iterable[Claim], *, enrolled: bool) -> Claim | None:
    """The claim because of which `node` may not have the GPU, or None.

    `enrolled` says whether an operator listed the GPU for `node`.
    """
    others = sorted(x for x in claims if x.node != node)
    return next((x for x in others if x.enrolled or not enrolled), None)
