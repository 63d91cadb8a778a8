"""Who is asked where there are several replicas, and what is told of those that do not answer."""

import socket
from collections.abc import Iterable
from typing import Any

import pytest

from gpuwarden.cli.connection.client import Client
from gpuwarden.cli.connection.every_replica import Replicas, _addresses
from gpuwarden.cli.exit_codes import CliError, ExitCode

GONE = CliError(ExitCode.NOT_REACHABLE, "gone")


def replicas(*names: str, **missed: CliError) -> Replicas:
    clients: dict[str, Any] = {name: name for name in names}
    return Replicas(clients, missed)


def answering(failing: dict[str, CliError]) -> Any:
    async def question(client: Client) -> str:
        if (error := failing.get(str(client))) is not None:
            raise error
        return f"of {client}"

    return question


async def test_one_that_does_not_answer_is_missed_and_not_asked_again() -> None:
    both = replicas("a", "b")
    assert await both.ask(answering({"a": GONE})) == {"b": "of b"}
    assert await both.ask(answering({})) == {"b": "of b"}
    assert both.missed == {"a": GONE}


async def test_without_an_answer_the_error_is_that_of_who_was_asked() -> None:
    refused = CliError(ExitCode.NOT_AUTHORISED, "refused")
    with pytest.raises(CliError, match="refused"):
        await replicas("a", z=GONE).ask(answering({"a": refused}))


async def test_a_wrong_request_is_wrong_for_all() -> None:
    with pytest.raises(CliError, match="wrong"):
        await replicas("a", "b").ask(answering({"a": CliError(ExitCode.USAGE, "wrong")}))


def missing(found: Replicas, read: Iterable[str], known: Iterable[str]) -> list[tuple[str, str]]:
    return [(x.name, x.why) for x in found.missing(read, known)]


def test_logs_that_were_not_read_have_their_reason() -> None:
    found = replicas("a", b=GONE, d=CliError(ExitCode.ERROR, "odd"))
    assert missing(found, ["lab/a"], ["lab/c", "lab/a", "lab/b"]) == [
        ("lab/b", "gone"),
        ("lab/c", "no way from here leads to its replica"),
        ("d", "odd"),
    ]
    assert missing(replicas("a"), ["lab/a"], ["lab/a"]) == []


Found = list[tuple[socket.AddressFamily, int, int, str, tuple[str, int]]]


def resolved(*addresses: str) -> Found:
    return [
        (
            socket.AF_INET6 if ":" in one else socket.AF_INET,
            socket.SOCK_STREAM,
            0,
            "",
            (one, 9443),
        )
        for one in addresses
    ]


@pytest.mark.parametrize(
    ("addresses", "dialled"),
    [
        (("10.0.0.1", "10.0.0.2", "10.0.0.1"), ["10.0.0.1", "10.0.0.2"]),
        (("fd00::1", "fd00::2", "10.0.0.1", "10.0.0.2"), ["fd00::1", "fd00::2"]),
        (("::1", "127.0.0.1"), ["name"]),
        (("10.0.0.1",), ["name"]),
    ],
)
async def test_a_name_leads_to_all_its_addresses_of_one_family(
    monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...], dialled: list[str]
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved(*addresses))
    assert await _addresses("name", 9443) == dialled


async def test_a_name_that_is_unknown_is_left_to_who_dials_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(*_: object, **__: object) -> Found:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert await _addresses("name", 9443) == ["name"]
