"""Calls of the Kubernetes API over one connection, bounded in size and in time.

Blocking. A redirect is not followed. Must not write: what is posted are reviews and dry runs.
"""

import http.client
import json
import os
import ssl
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gpuwarden.doctor.access import Access, AccessError

MAX_BYTES: Final = 64 << 20
_CHUNK: Final = 1 << 16
_REFUSALS: Final = range(400, 500)
_AGENT: Final = "gpuwarden-doctor"
_HTTPS: Final = 443
_PROXY: Final = 3128
"""Of a proxy whose URL has none."""


class ApiError(Exception):
    """No answer, or none that can be read; the text is for people, without secrets."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server answered."""

    status: int
    document: Any
    """The JSON object of the body; empty for a refusal in plain text."""
    date: datetime | None
    """By the server's clock."""


class Api:
    """One connection to the API server; `close` it."""

    def __init__(self, access: Access, timeout_s: float) -> None:
        """Raises AccessError for a CA, certificate or key that cannot be used."""
        url = urlsplit(access.server)
        self._start = url.path
        self._timeout_s = timeout_s
        self._headers = {"Accept": "application/json", "User-Agent": _AGENT}
        if access.authorization is not None:
            self._headers["Authorization"] = access.authorization
        host, port = url.hostname or "", url.port or _HTTPS
        self._host = f"{host}:{port}"
        to_server = access.proxy is None
        proxy = urlsplit(access.proxy or "")
        self._connection = _Connection(
            host if to_server else proxy.hostname or "",
            port if to_server else proxy.port or _PROXY,
            timeout=timeout_s,
            context=_context(access),
        )
        if not to_server:
            self._connection.set_tunnel(host, port)
        self._connection.server_name = access.server_name or host

    def get(self, path: str) -> Answer:
        """Read; raises ApiError."""
        return self._call("GET", path, None)

    def post(self, path: str, body: object) -> Answer:
        """Post a review or a dry run; raises ApiError."""
        return self._call("POST", path, json.dumps(body).encode())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _call(self, method: str, path: str, body: bytes | None) -> Answer:
        until = time.monotonic() + self._timeout_s
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            self._connection.request(method, self._start + path, body, headers)
            response = self._connection.getresponse()
            content = _whole(response, until)
        except ssl.SSLCertVerificationError as error:
            raise self._error(f"its certificate is not accepted: {error.verify_message}") from None
        except TimeoutError:
            raise self._error("no answer in time; see --timeout") from None
        except (OSError, http.client.HTTPException) as error:
            text = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise self._error(f"no answer: {text}") from None
        document = _document(content)
        if document is None and response.status not in _REFUSALS:
            raise self._error(f"an answer that is no JSON (HTTP {response.status})")
        return Answer(response.status, document or {}, _date(response.headers.get("Date")))

    def _error(self, text: str) -> ApiError:
        self._connection.close()
        return ApiError(f"the API server at {self._host}: {text}")


class _Connection(http.client.HTTPSConnection):
    """To a server whose certificate may be for another name than the host."""

    server_name = ""

    def connect(self) -> None:
        """Connect, and verify the server."""
        http.client.HTTPConnection.connect(self)
        context: ssl.SSLContext = self._context  # type: ignore[attr-defined] # of the base class
        self.sock = context.wrap_socket(self.sock, server_hostname=self.server_name)


def _whole(response: http.client.HTTPResponse, until: float) -> bytes:
    content = bytearray()
    while chunk := response.read(_CHUNK):
        content += chunk
        if len(content) > MAX_BYTES:
            raise http.client.HTTPException(f"more than {MAX_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError
    return bytes(content)


def _document(content: bytes) -> Any:  # noqa: ANN401 - JSON
    """None where it is no JSON object: a path that is not served is refused in plain text."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _date(text: str | None) -> datetime | None:
    try:
        return None if text is None else parsedate_to_datetime(text)
    except ValueError:
        return None


def _context(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=access.ca)
        if access.certificate is not None and access.private_key is not None:
            _load(context, access.certificate, access.private_key)
    except (ssl.SSLError, ValueError):
        text = "the CA, client certificate or key of the kubeconfig cannot be used"
        raise AccessError(text) from None
    return context


def _load(context: ssl.SSLContext, certificate: bytes, private_key: bytes) -> None:
    """OpenSSL takes paths alone: a file that only its owner may read, for a moment."""
    descriptor, name = tempfile.mkstemp()
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + b"\n" + private_key)
        context.load_cert_chain(name)
    finally:
        Path(name).unlink()
