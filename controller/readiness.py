"""Whether this controller may decide, and why not: one pure function over its state.

After a start no node has evidence yet, so for 1.1 x interval + ttl after
listening a missing node means "not heard yet", not "untrusted": until then
guarded pods get CONTROLLER_NOT_READY. Warnings never make it unready. No IO, no
clock.
"""

from dataclasses import dataclass
from fractions import Fraction

_WINDOW_FACTOR = Fraction(11, 10)


@dataclass(frozen=True, slots=True)
class ReadinessFacts:
    """What readiness is decided on; collected by the shell at each question."""

    listening_since_ns: int | None
    """CLOCK_BOOTTIME at which the agents' listener opened; None before."""
    interval_ns: int
    challenge_ttl_ns: int
    svid_valid: bool
    svid_state: str
    audit_error: str | None
    stores_error: str | None
    directory_error: str | None
    clock_suspect: bool
    draining: bool
    insecure: tuple[str, ...] = ()
    """Names of insecure stand-ins in use."""


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


def readiness(facts: ReadinessFacts, now_ns: int) -> Readiness:
    """Decide at `now_ns` (CLOCK_BOOTTIME)."""
    reasons = [
        reason
        for reason in (
            "draining: the process is about to end" if facts.draining else None,
            _first_round(facts, now_ns),
            None if facts.svid_valid else f"svid: {facts.svid_state}",
            f"audit: {facts.audit_error}" if facts.audit_error else None,
            f"stores: {facts.stores_error}" if facts.stores_error else None,
            f"directory: {facts.directory_error}" if facts.directory_error else None,
        )
        if reason is not None
    ]
    warnings = [f"insecure stand-in in use: {name}" for name in facts.insecure]
    if facts.clock_suspect:
        warnings.append("CONTROLLER_CLOCK_SUSPECT: wall clock moved against the boot-time clock")
    return Readiness(tuple(reasons), tuple(warnings))


def _first_round(facts: ReadinessFacts, now_ns: int) -> str | None:
    if facts.listening_since_ns is None:
        return "first round: not listening for agents yet"
    end_ns = facts.listening_since_ns + window_ns(facts.interval_ns, facts.challenge_ttl_ns)
    if now_ns >= end_ns:
        return None
    return f"first round: {(end_ns - now_ns) // 1_000_000} ms left to hear from every agent"
