"""Asks the scorer over HTTP (`POST /v1/score`) and tells it of runs (`POST /v1/observe`).

Both are bounded in time and size. No redirect is followed and no cookie kept: questions name job
types and tenants, and go to the one address of the settings. What an answer means is decided
elsewhere (`admission.hint_score`).
"""

from typing import Final

import aiohttp

from controller.admission.hint_score import MOST_BYTES, ScoreError, ScoreFault
from gpuwarden import __version__

SCORE_PATH: Final = "/v1/score"
OBSERVE_PATH: Final = "/v1/observe"
_CONNECTIONS: Final = 64
_OK: Final = 200
_CLIENT_ERRORS: Final = range(400, 500)
_NOT_OURS: Final = frozenset({408, 429})
"""Of them: it is overloaded."""
_MAX_HEADERS: Final = 16 << 10


class HttpScorer:
    """Keeps one session, made at the first question."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """`url` is the base, with or without a slash at its end."""
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, body: bytes) -> bytes:
        """The body of the answer to a question; raises ScoreError."""
        return await self._posted(SCORE_PATH, body)

    async def tell(self, body: bytes) -> None:
        """Report a run; raises ScoreError."""
        await self._posted(OBSERVE_PATH, body)

    async def _posted(self, path: str, body: bytes) -> bytes:
        url = self._url + path
        try:
            async with self._opened().post(url, data=body, allow_redirects=False) as answer:
                if answer.status != _OK:
                    answer.close()
                    raise ScoreError(_fault_of(answer.status), f"HTTP {answer.status}")
                read = b""
                while len(read) <= MOST_BYTES and (chunk := await answer.content.readany()):
                    read += chunk
                if not answer.content.is_eof():
                    answer.close()  # else the rest would be read, however long it is
                return read
        except TimeoutError:
            text = f"no answer within {self._timeout_s:g} s"
            raise ScoreError(ScoreFault.TIMEOUT, text) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ScoreError(ScoreFault.CONNECTION, type(error).__name__) from None

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={
                    "Content-Type": "application/json",
                    "User-Agent": f"gpuwarden-hints/{__version__}",
                },
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=_MAX_HEADERS,
                max_line_size=_MAX_HEADERS,
            )
        return self._session


def _fault_of(status: int) -> ScoreFault:
    if status in _CLIENT_ERRORS and status not in _NOT_OURS:
        return ScoreFault.REFUSED
    return ScoreFault.STATUS
