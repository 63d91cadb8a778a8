"""Exporter `http`: posts a JSON array of records to an endpoint.

A redirect is never followed, so that the token goes nowhere else. Of an answer only a beginning is
read. Compatible with the receivers of gpuid: same body, `X-Records-Count`, `X-Timestamp`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import aiohttp

from controller.export.exporter import Batch
from controller.export.failures import (
    Cure,
    DeliveryError,
    cure_of_status,
    is_redirect,
    retry_after_s,
)
from controller.export.records import json_array
from gpuwarden import __version__
from gpuwarden.moment import rfc3339, utc
from gpuwarden.redaction import REDACTED, without_secrets

NAME: Final = "http"
MAX_ANSWER_BYTES: Final = 64 << 10
_MAX_SHOWN: Final = 200
_MAX_HEADERS: Final = 16 << 10
_SUCCESS: Final = range(200, 300)
_REFUSED: Final = frozenset({401, 403})


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """Where to."""

    endpoint: str
    token: str | None = None
    timeout_s: float = 30.0


class HttpExporter:
    """Keeps one session, made at the first use."""

    def __init__(self, target: HttpTarget, wall_ns: Callable[[], int]) -> None:
        self._target = target
        self._wall_ns = wall_ns
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """`http`."""
        return NAME

    @property
    def keeps_batches(self) -> bool:
        """No: the receiver knows records by `key`, and a repeated request by its own key."""
        return False

    async def send(self, batch: Batch) -> None:
        """Post; raises DeliveryError."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": batch.key,
            "X-Records-Count": str(len(batch.records)),
            "X-Timestamp": rfc3339(self._wall_ns(), digits=0),
        }
        status, text, retry_after = await self._ask("POST", headers, json_array(batch.records))
        if status not in _SUCCESS:
            wait_s = retry_after_s(retry_after, utc(self._wall_ns()))
            raise DeliveryError(self._what(status, text), cure_of_status(status), wait_s)

    async def check(self) -> None:
        """Ask for the head; any answer counts that does not refuse us. Raises DeliveryError."""
        status, text, _ = await self._ask("HEAD", {}, None)
        if status in _REFUSED or is_redirect(status) or cure_of_status(status) is Cure.TIME:
            raise DeliveryError(self._what(status, text), cure_of_status(status))

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ask(
        self, method: str, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[int, str, str | None]:
        try:
            async with self._opened().request(
                method, self._target.endpoint, headers=headers, data=body, allow_redirects=False
            ) as answer:
                retry_after = answer.headers.get("Retry-After")
                is_fine = answer.status in _SUCCESS
                read = b"" if is_fine else await answer.content.read(MAX_ANSWER_BYTES)
                if not answer.content.is_eof():
                    answer.close()  # else the rest would be read, however long it is
                return answer.status, read.decode(errors="replace"), retry_after
        except TimeoutError:
            text = f"no answer within {self._target.timeout_s:g} s"
            raise DeliveryError(text, Cure.TIME) from None
        except aiohttp.ClientError as error:
            text = self._without_token(str(error) or type(error).__name__)
            raise DeliveryError(text, Cure.TIME) from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {"User-Agent": f"gpuwarden-http-exporter/{__version__}"}
            if self._target.token is not None:
                headers["Authorization"] = f"Bearer {self._target.token}"
            self._session = aiohttp.ClientSession(
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                max_field_size=_MAX_HEADERS,
                max_line_size=_MAX_HEADERS,
            )
        return self._session

    def _what(self, status: int, text: str) -> str:
        if is_redirect(status):
            expected = "expected the final URL in the settings"
            return f"HTTP {status}: the endpoint redirects; {expected}"
        shown = " ".join(self._without_token(text)[:_MAX_SHOWN].split())
        return f"HTTP {status}: {shown}" if shown else f"HTTP {status}"

    def _without_token(self, text: str) -> str:
        """Of the whole text, before anything is cut off: a part of a token is found by nothing."""
        token = self._target.token
        return without_secrets(text.replace(token, REDACTED) if token else text)
