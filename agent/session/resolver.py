"""From a controller's name to the addresses of all its replicas.

A headless Service gives one address per replica and family. Of a name with both
families only one is used: every replica has an address in each, and two streams to
the same replica would replace each other forever. Each look-up runs on a daemon
thread, because a hung resolver must delay neither other names nor the process's end.
"""

import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Final, Protocol

from agent.detached import detached
from gpuwarden.settings.values import Address

RESOLVE_S: Final = 5.0
MAX_REPLICAS: Final = 32
"""Of one name; more is taken for a mistake and the rest is left out."""

LookUp = Callable[[str, int], Sequence[tuple[int, str]]]
"""Host and port to (address family, address), best first; blocks; raises OSError."""


class ResolveError(Exception):
    """The name has no addresses now, or nobody could say in time."""


class Resolver(Protocol):
    """Says where a controller's replicas are."""

    async def resolve(self, controller: Address) -> frozenset[Address]:
        """Addresses of all replicas, at least one; raises ResolveError."""


def system_look_up(host: str, port: int) -> Sequence[tuple[int, str]]:
    """Ask the system's resolver."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family.value, str(address[0])) for family, _, _, _, address in found]


class SystemResolver:
    """The system's resolver with a deadline; literal addresses need none."""

    def __init__(self, look_up: LookUp = system_look_up, *, deadline_s: float = RESOLVE_S) -> None:
        self._look_up = look_up
        self._deadline_s = deadline_s
        self._running: set[Address] = set()

    async def resolve(self, controller: Address) -> frozenset[Address]:
        """See `Resolver`; a name whose last look-up still hangs is not asked about again."""
        if _is_literal(controller.host):
            return frozenset({controller})
        if controller in self._running:
            raise ResolveError(f"{controller}: the last look-up has not returned yet")
        self._running.add(controller)
        try:
            found = await detached(
                lambda: self._ask(controller), deadline_s=self._deadline_s, name="resolver"
            )
        except TimeoutError:
            raise ResolveError(f"{controller}: no answer in {self._deadline_s:.0f} s") from None
        except (OSError, UnicodeError) as error:
            raise ResolveError(f"{controller}: {error}") from error
        return _one_family(controller, found)

    def _ask(self, controller: Address) -> Sequence[tuple[int, str]]:
        try:
            return self._look_up(controller.host, controller.port)
        finally:
            self._running.discard(controller)


def _is_literal(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _one_family(controller: Address, found: Sequence[tuple[int, str]]) -> frozenset[Address]:
    if not found:
        raise ResolveError(f"{controller}: no address")
    best, _ = found[0]
    hosts = dict.fromkeys(host for family, host in found if family == best)
    return frozenset(Address(host, controller.port) for host in list(hosts)[:MAX_REPLICAS])
