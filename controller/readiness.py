"""Whether this controller may decide, and why not: pure functions over its state.

After a start no node has evidence yet, so for 1.1 x interval + ttl after
listening a missing node means "not heard yet", not "untrusted": until then
guarded pods get CONTROLLER_NOT_READY. Warnings never make it unready. No IO, no
clock.
"""

from dataclasses import dataclass
from fractions import Fraction

_WINDOW_FACTOR = Fraction(11, 10)
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What readiness is decided on; collected by the shell at each question."""

    first_round: str | None
    """As `first_round` says."""
    svid_valid: bool
    svid_state: str
    audit_error: str | None
    stores_error: str | None
    directory_error: str | None
    clock_suspect: bool
    draining: bool
    insecure: tuple[str, ...] = ()
    """Warnings about insecure stand-ins in use."""
    ledger_uncertainty: str | None = None
    """What nothing is reserved before; pods without such a wish are placed meanwhile."""
    spire_error: str | None = None
    spire_warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Readiness:
    """`reasons` empty = ready. Both are lines for people, in a fixed order."""

    reasons: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether nothing stands in the way."""
        return not self.reasons


def window_ns(interval_ns: int, challenge_ttl_ns: int) -> int:
    """Time after listening in which every live agent has been heard once."""
    return int(interval_ns * _WINDOW_FACTOR) + challenge_ttl_ns


def first_round(
    listening_since_ns: int | None, interval_ns: int, challenge_ttl_ns: int, now_ns: int
) -> str | None:
    """Why nothing may be decided about guarded pods yet; None once every agent had its turn.

    All times are CLOCK_BOOTTIME; `listening_since_ns` is None before the agents' listener opens.
    """
    if listening_since_ns is None:
        return "first round: not listening for agents yet"
    end_ns = listening_since_ns + window_ns(interval_ns, challenge_ttl_ns)
    if now_ns >= end_ns:
        return None
    return f"first round: {-(-(end_ns - now_ns) // _MS)} ms left to hear from every agent"


def readiness(facts: ReadinessFacts) -> Readiness:
    """Decide."""
    reasons = (
        "draining: the process is about to end" if facts.draining else None,
        facts.first_round,
        None if facts.svid_valid else f"svid: {facts.svid_state}",
        f"audit: {facts.audit_error}" if facts.audit_error else None,
        f"stores: {facts.stores_error}" if facts.stores_error else None,
        f"directory: {facts.directory_error}" if facts.directory_error else None,
        f"spire: {facts.spire_error}" if facts.spire_error else None,
    )
    warnings = [*facts.insecure, *facts.spire_warnings]
    if facts.clock_suspect:
        warnings.append("CONTROLLER_CLOCK_SUSPECT: wall clock moved against the boot-time clock")
    if facts.ledger_uncertainty is not None:
        warnings.append(f"ledger: {facts.ledger_uncertainty}")
    return Readiness(tuple(text for text in reasons if text is not None), tuple(warnings))
