"""Dials controllers through the TLS tunnel, one tunnel per stream.

The signer of a line signs with the SVID that its tunnel presents, so evidence and TLS
session always carry the same leaf, whatever rotates meanwhile.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cryptography import x509

from agent.session.client import DialError, Line
from gpuwarden.evidence.envelope import sign
from gpuwarden.identity.spiffe_id import SpiffeId
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import DialFailure, Tunnel
from gpuwarden.settings.values import Address


class SvidSigner:
    """Signs with one SVID."""

    def __init__(self, svid: Svid) -> None:
        self._svid = svid

    @property
    def leaf(self) -> x509.Certificate:
        """The leaf whose key signs."""
        return self._svid.leaf

    def sign(self, payload_type: str, payload: bytes) -> bytes:
        """DSSE signature over type and payload."""
        return sign(self._svid.private_key, payload_type, payload)


class TunnelLine:
    """An open tunnel as a line."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._signer = SvidSigner(tunnel.svid)

    @property
    def target(self) -> str:
        """The tunnel's private socket."""
        return self._tunnel.target

    @property
    def signer(self) -> SvidSigner:
        """Signs with the SVID that the tunnel presents."""
        return self._signer

    def fault(self) -> str:
        """Why the tunnel's last dial failed, else empty."""
        return "" if self._tunnel.last_error is None else str(self._tunnel.last_error)


class TunnelDialer:
    """Opens tunnels to controllers, which must prove `controller`."""

    def __init__(
        self,
        controller: SpiffeId,
        on_failure: Callable[[DialFailure], None] = lambda _failure: None,
    ) -> None:
        """`on_failure` hears of every connection that fails, for metrics."""
        self._controller = controller
        self._on_failure = on_failure

    @asynccontextmanager
    async def dial(self, svid: Svid, address: Address) -> AsyncIterator[Line]:
        """A tunnel that presents `svid`; raises DialError where none can be opened."""
        try:
            tunnel = Tunnel(
                svid,
                address.host,
                address.port,
                self._controller,
                on_failure=self._on_failure,
            )
            await tunnel.__aenter__()
        except (OSError, ValueError) as error:
            raise DialError(f"no tunnel to {address}: {error}") from error
        try:
            yield TunnelLine(tunnel)
        finally:
            await tunnel.close()
