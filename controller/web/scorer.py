"""Asks the scorer over HTTP (`POST /v1/score`) and tells it of runs (`POST /v1/observe`).

Both are bounded in time and size. No redirect is followed and no cookie kept: questions name job
types and tenants, and go to the one address of the settings. What an answer means is decided
elsewhere (`admission.hint_score`).
"""

import ssl
from pathlib import Path
from typing import Final

import aiohttp

from controller.admission.hints.score import MOST_BYTES, ScoreError, ScoreFault
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
    """Keeps one session, made at the first question, and after a certificate was refused."""

    def __init__(
        self, url: str, timeout_s: float, *, ca: Path | None = None, token: str | None = None
    ) -> None:
        """`url` is the base, with or without a slash at its end; `ca` proves it, else the system's.

        The file is read with each session, so a new one counts as soon as it is needed.
        """
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._ca = ca
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, body: bytes) -> bytes:
        """The body of the answer to a question; raises ScoreError."""
        return await self._posted(SCORE_PATH, body)

    async def tell(self, body: bytes) -> bytes:
        """The body of the answer to the report of a run; raises ScoreError."""
        return await self._posted(OBSERVE_PATH, body)

    async def _posted(self, path: str, body: bytes) -> bytes:
        url, session = self._url + path, self._opened()
        try:
            async with session.post(url, data=body, allow_redirects=False) as answer:
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
        except aiohttp.ClientConnectorCertificateError as error:
            if self._session is session:
                await self.close()
            raise ScoreError(ScoreFault.CONNECTION, _refused(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ScoreError(ScoreFault.CONNECTION, type(error).__name__) from None

    async def close(self) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {
                "Content-Type": "application/json",
                "User-Agent": f"gpuwarden-hints/{__version__}",
            }
            if self._token is not None:
                headers["Authorization"] = f"Bearer {self._token}"
            trust: ssl.SSLContext | bool = True if self._ca is None else _trusting(self._ca)
            self._session = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ssl=trust),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=_MAX_HEADERS,
                max_line_size=_MAX_HEADERS,
            )
        return self._session


def _trusting(ca: Path) -> ssl.SSLContext:
    """Believes these authorities and no others; raises ScoreError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        said = error.strerror if not isinstance(error, ssl.SSLError) else "no PEM certificates"
        raise ScoreError(ScoreFault.CONNECTION, f"hints.ca: {ca}: {said}") from None


def _refused(error: aiohttp.ClientConnectorCertificateError) -> str:
    cause = error.certificate_error
    said = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else str(cause)
    return f"certificate of {error.host}: {said}"


def _fault_of(status: int) -> ScoreFault:
    if status in _CLIENT_ERRORS and status not in _NOT_OURS:
        return ScoreFault.REFUSED
    return ScoreFault.STATUS
