"""Asks a controller one question. gRPC is loaded then, and not for help or completion."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from gpuwarden.cli.connection.options import Connection

if TYPE_CHECKING:
    from gpuwarden.cli.connection.client import Client

T = TypeVar("T")


def ask(connection: Connection, question: Callable[["Client"], Awaitable[T]]) -> T:
    """Open the connection, run `question`, close it; raises CliError."""
    from gpuwarden.cli.connection.client import connected  # noqa: PLC0415 - it loads gRPC

    async def run() -> T:
        async with connected(connection) as client:
            return await question(client)

    return asyncio.run(run())
