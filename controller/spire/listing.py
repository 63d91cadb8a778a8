"""Decodes what the SPIRE server answers into `snapshot` values; bounded, judges nothing.

Only what is looked at later is kept: of an agent the selectors that name its node, of the
entries those of our own SPIFFE IDs. IDs stay text: one that is malformed equals no peer's.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.fleet.directory import FOREVER_NS
from controller.spire.node_names import ATTESTORS
from controller.spire.snapshot import Entries, SpireAgent, SpireEntry
from gpuwarden.wire.spire import types_pb2 as pb

MAX_SELECTORS: Final = 256
"""Of one record; SPIRE's own attestors make a dozen and one per label."""
MAX_TEXT: Final = 2048
_NS: Final = 1_000_000_000
_NAMING: Final = tuple(
    prefix for selectors in ATTESTORS.values() for prefix in (selectors.name, selectors.uid)
)


@dataclass(frozen=True, slots=True)
class Moment:
    """Both clocks when the server was asked; turns its dates into our boot time."""

    boottime_ns: int
    wall_ns: int

    def boottime_of(self, unix_seconds: int) -> int:
        """CLOCK_BOOTTIME of a date."""
        return self.boottime_ns + unix_seconds * _NS - self.wall_ns


def spiffe_text(message: pb.SPIFFEID) -> str:
    """The SPIFFE ID as text."""
    return f"spiffe://{message.trust_domain}{message.path}"


def read_agent(message: pb.Agent, moment: Moment) -> SpireAgent:
    """One agent; too many or too long selectors name no node."""
    texts = _selectors(message.selectors)
    return SpireAgent(
        agent_id=spiffe_text(message.id),
        attestor=message.attestation_type[:MAX_TEXT],
        serial=message.x509svid_serial_number[:MAX_TEXT],
        expires_ns=moment.boottime_of(message.x509svid_expires_at),
        banned=message.banned,
        selectors=frozenset(x for x in texts if x.startswith(_NAMING)),
    )


def read_entries(messages: Iterable[pb.Entry], beginning: str, moment: Moment) -> Entries:
    """Entries by SPIFFE ID, of the SPIFFE IDs with that beginning."""
    found: dict[str, list[SpireEntry]] = defaultdict(list)
    for message in messages:
        spiffe_id = spiffe_text(message.spiffe_id)
        if spiffe_id.startswith(beginning):
            found[spiffe_id].append(_entry(message, moment))
    return {spiffe_id: tuple(entries) for spiffe_id, entries in found.items()}


def _entry(message: pb.Entry, moment: Moment) -> SpireEntry:
    expires = message.expires_at
    return SpireEntry(
        entry_id=message.id[:MAX_TEXT],
        parent_id=spiffe_text(message.parent_id),
        selectors=_selectors(message.selectors),
        admin=message.admin,
        downstream=message.downstream,
        expires_ns=moment.boottime_of(expires) if expires else FOREVER_NS,
    )


def _selectors(messages: Iterable[pb.Selector]) -> frozenset[str]:
    texts = [f"{x.type}:{x.value}" for x in messages]
    if len(texts) > MAX_SELECTORS:
        return frozenset()
    return frozenset(x for x in texts if len(x) <= MAX_TEXT)
