"""Parts travel in chunks, and only so many bundles are made at a time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.rpc import services as support_service
from controller.rpc.services import AT_ONCE, SupportService
from gpuwarden.support.part import Part, missing
from gpuwarden.wire.v1 import support_pb2 as pb


class AbortedError(Exception):
    pass


class Context:
    async def abort(self, code: object, details: str, _metadata: object = ()) -> None:
        raise AbortedError(f"{code} {details}")

    def set_trailing_metadata(self, _metadata: object) -> None:
        pass


async def collected(service: SupportService) -> list[pb.CollectResponse]:
    context: Any = Context()
    return [one async for one in service.Collect(pb.CollectRequest(), context)]


async def test_a_large_part_is_joined_from_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_service, "CHUNK_BYTES", 4)

    async def parts() -> AsyncIterator[Part]:
        yield Part("a", b"0123456789", withheld=("x",), left_out=7)
        yield missing("b", "why")
        yield Part("c", b"")

    messages = await collected(SupportService(parts))
    assert [(one.part, one.content) for one in messages] == [
        ("a", b"0123"),
        ("a", b"4567"),
        ("a", b"89"),
        ("b", b""),
        ("c", b""),
    ]
    assert (list(messages[0].withheld), messages[0].left_out) == (["x"], 7)
    assert [one.missing for one in messages] == ["", "", "", "why", ""]


async def test_a_further_bundle_waits_for_no_room() -> None:
    release = asyncio.Event()

    async def parts() -> AsyncIterator[Part]:
        await release.wait()
        yield Part("a", b"x")

    service = SupportService(parts)
    running = [asyncio.create_task(collected(service)) for _ in range(AT_ONCE)]
    await asyncio.sleep(0)
    with pytest.raises(AbortedError, match="LIMIT_STREAMS"):
        await collected(service)
    release.set()
    assert [len(messages) for messages in await asyncio.gather(*running)] == [1] * AT_ONCE
    assert len(await collected(service)) == 1
