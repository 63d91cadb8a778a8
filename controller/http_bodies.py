"""Receiving request bodies, bounded in size, in time and in sum.

What a client sends can delay or refuse only its own request.
"""

import asyncio
from typing import Final

from aiohttp import web

from controller.scheduling.body_buffer import BodyBuffer

_AT_ONCE: Final = 2
"""Bodies of full size that may be received at the same time."""


class BodyRefusedError(Exception):
    """The body was not taken: HTTP status, a word for metrics, and why, for the answer."""

    def __init__(self, status: int, result: str, text: str) -> None:
        super().__init__(text)
        self.status, self.result = status, result


class BodyReceiver:
    """One per listener."""

    def __init__(self, limit: int, key: str, *, receive_s: float) -> None:
        """At most `limit` bytes, which `key` configures, within `receive_s` from the headers on."""
        self._limit = limit
        self._key = key
        self._receive_s = receive_s
        self._receiving = 0

    async def receive(self, request: web.Request) -> bytes | bytearray | memoryview:
        """Read the body into one buffer; raises BodyRefusedError."""
        limit = self._limit
        too_large = BodyRefusedError(
            413, "too_large", f"request body is larger than {limit} bytes ({self._key})"
        )
        if (request.content_length or 0) > limit:
            raise too_large
        if request.content.is_eof() and request.content_length is not None:
            whole = request.content.read_nowait()  # it came with its headers
            self._demand_room(len(whole))
            return whole
        body = BodyBuffer(request.content_length)
        try:
            async with asyncio.timeout(self._receive_s):
                while chunk := await request.content.readany():
                    self._receiving += len(chunk)
                    body.append(chunk)
                    if len(body) > limit:
                        raise too_large
                    self._demand_room(0)
        except TimeoutError:
            text = f"request body did not arrive within {self._receive_s:g} s"
            raise BodyRefusedError(408, "slow", text) from None
        finally:
            self._receiving -= len(body)
        return body.whole()

    def _demand_room(self, more: int) -> None:
        if self._receiving + more > _AT_ONCE * self._limit:
            raise BodyRefusedError(503, "busy", "too many large requests at once")
