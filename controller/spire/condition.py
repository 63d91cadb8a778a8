"""How the SPIRE server answers, as readiness shows it. Pure."""

from dataclasses import dataclass
from typing import Final, Protocol

CAPPED: Final = (
    "spire.server is off: nobody confirms nodes beyond their SVID, every level ends at L0"
)


@dataclass(frozen=True, slots=True)
class SpireCondition:
    """Lines for people; with an error the controller is not ready."""

    error: str | None = None
    warnings: tuple[str, ...] = ()


class SpireConditions(Protocol):
    """Says at any time how it stands."""

    def condition(self, now_ns: int, /) -> SpireCondition:
        """At `now_ns` (CLOCK_BOOTTIME); must not wait."""


class NoSpireServer:
    """None is configured: not an error, but said."""

    def condition(self, now_ns: int, /) -> SpireCondition:  # noqa: ARG002 - the Protocol's
        """Always the same."""
        return SpireCondition(warnings=(CAPPED,))


NO_SPIRE_SERVER: Final = NoSpireServer()
