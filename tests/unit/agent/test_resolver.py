import asyncio
import socket
import threading
from collections.abc import Sequence

import pytest

from agent.session.replicas import MAX_REPLICAS, ResolveError, SystemResolver
from gpuwarden.settings.values import Address

NAME = Address("controllers.test", 9443)
V4, V6 = socket.AF_INET.value, socket.AF_INET6.value


def answering(*found: tuple[int, str]) -> SystemResolver:
    return SystemResolver(lambda _host, _port: found)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_literal_addresses_are_not_looked_up(host: str) -> None:
    def refuse(_host: str, _port: int) -> Sequence[tuple[int, str]]:
        raise AssertionError

    assert await SystemResolver(refuse).resolve(Address(host, 1)) == {Address(host, 1)}


async def test_all_addresses_of_a_name() -> None:
    found = await answering((V4, "10.0.0.1"), (V4, "10.0.0.2"), (V4, "10.0.0.1")).resolve(NAME)
    assert found == {Address("10.0.0.1", 9443), Address("10.0.0.2", 9443)}


async def test_only_the_preferred_family_so_that_no_replica_is_met_twice() -> None:
    found = await answering((V6, "fd00::1"), (V4, "10.0.0.1"), (V6, "fd00::2")).resolve(NAME)
    assert found == {Address("fd00::1", 9443), Address("fd00::2", 9443)}


async def test_too_many_addresses_are_cut() -> None:
    found = await answering(*((V4, f"10.0.0.{n}") for n in range(MAX_REPLICAS + 5))).resolve(NAME)
    assert len(found) == MAX_REPLICAS


async def test_no_address_is_an_error() -> None:
    with pytest.raises(ResolveError, match="no address"):
        await answering().resolve(NAME)


@pytest.mark.parametrize(
    "error", [socket.gaierror(-2, "Name or service not known"), UnicodeError()]
)
async def test_a_name_that_does_not_resolve(error: Exception) -> None:
    def fail(_host: str, _port: int) -> Sequence[tuple[int, str]]:
        raise error

    with pytest.raises(ResolveError, match=r"controllers\.test:9443"):
        await SystemResolver(fail).resolve(NAME)


async def test_a_hanging_look_up_is_left_alone_and_not_repeated() -> None:
    go_on = threading.Event()
    asked: list[str] = []

    def hang(host: str, _port: int) -> Sequence[tuple[int, str]]:
        asked.append(host)
        go_on.wait(10)
        return [(V4, "10.0.0.1")]

    resolver = SystemResolver(hang, deadline_s=0.02)
    with pytest.raises(ResolveError, match="no answer in"):
        await resolver.resolve(NAME)
    with pytest.raises(ResolveError, match="has not returned yet"):
        await resolver.resolve(NAME)
    assert len(asked) == 1
    go_on.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await resolver.resolve(NAME) == {Address("10.0.0.1", 9443)}
            except ResolveError:
                await asyncio.sleep(0.01)
            else:
                break


async def test_the_system_s_resolver() -> None:
    found = await SystemResolver().resolve(Address("localhost", 7))
    assert found in ({Address("127.0.0.1", 7)}, {Address("::1", 7)})
