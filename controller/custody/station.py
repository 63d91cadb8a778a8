"""A station on a pod's way to its GPUs, and all that it is judged by. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.custody.pod_document import PodDocument
from controller.fleet.view import NodeMode, NodeView
from controller.ledger.record import Holder, key_of
from controller.ledger.store import Entry, LedgerSnapshot
from controller.scheduling.requirements import Requirements, RequirementsInvalid
from gpuwarden.audit.record import LogRecord

LISTED: Final = 8
"""Of what can be many, so many are named."""
_MAX_CHARS: Final = 400


class Name(StrEnum):
    """Of a station, in their order."""

    WISHED = "wished"
    RESERVED = "reserved"
    BOUND = "bound"
    KUBELET = "kubelet"
    NVML = "nvml"


class State(StrEnum):
    """Where the pod stands with a station."""

    REACHED = "reached"
    WAITING = "waiting"
    """Not yet."""
    UNNEEDED = "unneeded"
    """This pod, or this kind of node, has no such station."""
    OVER = "over"
    """It was here, or may have been; nothing of it is left."""
    MISSING = "missing"
    """It ought to be there."""
    MISMATCH = "mismatch"
    """It is there, and does not agree with the stations before."""
    UNKNOWN = "unknown"
    """Nobody can say now."""


WRONG: Final = frozenset({State.MISSING, State.MISMATCH})


@dataclass(frozen=True, slots=True)
class Station:
    """One station; times are RFC 3339 and empty where nobody says."""

    name: Name
    state: State
    at: str = ""
    source: str = ""
    evidence: str = ""
    """Digest of the signed evidence that says it; empty where it is not from evidence."""
    gpus: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    """Lines for people, with text that others wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that is known of one pod at one moment."""

    namespace: str
    name: str
    uid: str
    """Empty where nothing knows one."""
    pod: PodDocument | None
    """None where the API server has no such pod."""
    needs: Requirements | RequirementsInvalid | None
    parts: tuple[tuple[Entry, Holder], ...]
    """What the ledger holds for it."""
    ledger: LedgerSnapshot | None
    """None where it says nothing."""
    ledger_unknown: str
    """Why the ledger says nothing; empty where it does."""
    is_authentic: bool | None
    """Whether the reservation id on the pod is ours, for this pod, node and GPUs; None where it
    has none, or there are no keys."""
    node: NodeView | None
    """Where it is bound, or else reserved."""
    allowed: LogRecord | None = None
    """The gate's answer that let it on its node, where this replica gave it."""
    now_ns: int
    """CLOCK_BOOTTIME."""

    @property
    def is_over(self) -> bool:
        """Whether the pod has ended."""
        return self.pod is None or self.pod.has_ended

    @property
    def guarded(self) -> bool:
        """Whether it asks for something of ours."""
        needs = self.needs
        return isinstance(needs, RequirementsInvalid) or (needs is not None and needs.guarded)

    @property
    def mode(self) -> NodeMode | None:
        """Of the node."""
        return None if self.node is None else self.node.mode

    @property
    def reserved(self) -> tuple[str, ...]:
        """UUIDs that the ledger holds for it."""
        return tuple(entry.record.gpu for entry, _ in self.parts)

    @property
    def told(self) -> tuple[str, ...]:
        """UUIDs that stand on the pod."""
        return () if self.pod is None else self.pod.told


def keys_of(gpus: Iterable[str]) -> frozenset[str]:
    """Names of records, so that spelling does not matter."""
    return frozenset(map(key_of, gpus))


def listed(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def cut(text: str) -> tuple[str, ...]:
    """One line of others' text, bounded."""
    return (text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…",)
