"""Who a caller is, from what TLS proved: steps 2 to 5 for every method, not only Attest.

Pure: session facts, roots and `now` in, a caller or a refusal out. Must not know
methods; `authorization.py` decides what a caller may do.
"""

from dataclasses import dataclass
from datetime import datetime

from controller.rpc.authorization import CallerKind


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller whose identity holds at the time of asking."""

    kind: CallerKind
    name: str
    """SPIFFE ID, or `local`."""
    not_after: datetime | None
    """When the identity ends, UTC; None for the unix socket."""


LOCAL = Caller(CallerKind.LOCAL, "local", None)
