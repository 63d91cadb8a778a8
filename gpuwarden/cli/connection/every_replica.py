"""Asks every replica of the controller that the given way leads to, and tells of the others.

Each replica has an audit log, certificates and evidence of its own. The socket leads to one; a name
to all its addresses (of one family, as agents dial it); a kubeconfig to every pod. What is not
reached is part of the answer.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gpuwarden.cli.connection.client import (
    Client,
    address_of,
    address_text,
    connected,
    over_mtls,
    over_way,
    own_svid,
)
from gpuwarden.cli.connection.options import Connection, chosen_server
from gpuwarden.cli.exit_codes import CliError, ExitCode

T = TypeVar("T")
_NOT_ASKED: Final = "no way from here leads to its replica"


@dataclass(frozen=True, slots=True)
class Missing:
    """A replica, or its audit log, of which there is no answer."""

    name: str
    """Origin of the log, or name of the replica, or where it was looked for."""
    why: str

    @property
    def was_tried(self) -> bool:
        """Whether the replica was asked, or should have been."""
        return self.why != _NOT_ASKED


@dataclass(slots=True)
class Replicas:
    """The replicas that the way leads to."""

    reached: dict[str, Client]
    missed: dict[str, CliError] = field(default_factory=dict)
    """What was wrong with the others."""

    async def ask(self, question: Callable[[Client], Awaitable[T]]) -> dict[str, T]:
        """The answers of those that answer; raises CliError where none does."""
        asked = dict(self.reached)
        found = await asyncio.gather(*(_answer(question(x)) for x in asked.values()))
        answers = dict[str, T]()
        for name, one in zip(asked, found, strict=True):
            if isinstance(one, CliError):
                self.missed[name] = one
                del self.reached[name]
            else:
                answers[name] = one[0]
        if not answers:
            raise next(x for x in found if isinstance(x, CliError))
        return answers

    def missing(self, read: Iterable[str], known: Iterable[str]) -> list[Missing]:
        """What a replica knows of and is not among `read`, and replicas that did not answer.

        Both are names of replicas, or origins of their logs.
        """
        missed = {name: str(error) for name, error in self.missed.items()}
        names = sorted(set(known) - set(read))
        found = [Missing(x, missed.pop(x.rpartition("/")[2], _NOT_ASKED)) for x in names]
        return found + [Missing(*one) for one in sorted(missed.items())]


async def _answer(answer: Awaitable[T]) -> tuple[T] | CliError:
    try:
        return (await answer,)
    except CliError as error:
        if error.code is ExitCode.USAGE:
            raise  # all would say so
        return error


@asynccontextmanager
async def every_replica(connection: Connection) -> AsyncIterator[Replicas]:
    """All replicas that the way leads to; raises CliError where it leads nowhere."""
    server, noticed = chosen_server(connection), set[str]()
    async with AsyncExitStack() as stack:
        if server.startswith("unix:"):
            yield Replicas({server: await stack.enter_async_context(connected(connection))})
        elif server:
            host, port = address_of(server)
            svid = own_svid(connection)
            clients = {
                address_text(one, port): await stack.enter_async_context(
                    over_mtls(connection, svid, one, port, noticed)
                )
                for one in await _addresses(host, port)
            }
            yield Replicas(clients)
        else:
            # Imported here: who asks a socket need not wait for it.
            from gpuwarden.cli.connection.cluster_connection import open_ways  # noqa: PLC0415 - see above

            ways, missed = await stack.enter_async_context(open_ways(connection))
            clients = {
                pod: await stack.enter_async_context(over_way(connection, way, noticed))
                for pod, way in ways.items()
            }
            yield Replicas(clients, missed)


async def _addresses(host: str, port: int) -> list[str]:
    """All addresses of one family; a name that has one, or none, stays as it is."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return [host]  # whoever dials it says why
    addresses = dict.fromkeys(str(x[4][0]) for x in found if x[0] == found[0][0])
    return list(addresses) if len(addresses) > 1 else [host]
