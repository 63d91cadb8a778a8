"""The lab's API server as plain JSON over HTTPS: no cache, no retries.

For tests and set-up only; the product talks through its own client.
"""

import copy
import http.client
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.lab.pki import Pair

JSON, MERGE, STRATEGIC, APPLY = (
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)
Document = dict[str, Any]


class ApiError(RuntimeError):
    """The server refused; `status` is HTTP's, `reason` Kubernetes' (for example `NotFound`)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class Api:
    """A client with one identity."""

    def __init__(self, server: str, ca: Path, pair: Pair | None = None) -> None:
        self.server = server
        self.warnings: list[str] = []
        """What the last answer warned of (RFC 7234 `Warning`)."""
        self._kept: http.client.HTTPSConnection | None = None
        self._context = ssl.create_default_context(cafile=str(ca))
        if pair is not None:
            self._context.load_cert_chain(pair.certificate, pair.key)

    def get(self, path: str) -> Document:
        return self._document("GET", path)

    def post(self, path: str, body: Document) -> Document:
        return self._document("POST", path, body)

    def put(self, path: str, body: Document) -> Document:
        return self._document("PUT", path, body)

    def patch(self, path: str, body: Document, kind: str = MERGE) -> Document:
        return self._document("PATCH", path, body, kind)

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s}
        try:
            self._document("DELETE", path, None if grace_s is None else body)
        except ApiError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise

    def found(self, path: str) -> Document | None:
        """As `get`, but None where there is no such object."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def text(self, path: str) -> str:
        """An answer that is no JSON, for example a log."""
        return self._answer("GET", path, None, JSON).decode(errors="replace")

    def watched(self, path: str) -> Iterator[Document]:
        """The events of a watch as they come, until the server ends it."""
        connection = self._connection()
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status >= http.HTTPStatus.BAD_REQUEST:
                raise _refusal(answer.status, answer.read())
            while line := answer.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def answers(self, path: str = "/readyz") -> bool:
        """Whether the server is there and says that all is well."""
        try:
            self.text(path)
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True

    @contextmanager
    def kept_open(self) -> Iterator["Api"]:
        """The same client on one connection, for many requests of one thread."""
        client = copy.copy(self)
        client._kept = self._connection()
        try:
            yield client
        finally:
            client._kept.close()

    def _connection(self) -> http.client.HTTPSConnection:
        place = urlsplit(self.server).netloc
        return http.client.HTTPSConnection(place, context=self._context, timeout=30)

    def _document(
        self, method: str, path: str, body: Document | None = None, kind: str = JSON
    ) -> Document:
        document: Document = json.loads(self._answer(method, path, body, kind))
        return document

    def _answer(self, method: str, path: str, body: Document | None, kind: str) -> bytes:
        connection = self._kept or self._connection()
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, path, content, {"Content-Type": kind})
            answer = connection.getresponse()
            text = answer.read()
            self.warnings = answer.msg.get_all("Warning", [])
        except BaseException:
            connection.close()  # a kept one opens itself again
            raise
        if connection is not self._kept:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise _refusal(answer.status, text)
        return text


def _refusal(status: int, text: bytes) -> ApiError:
    try:
        document = json.loads(text)
        return ApiError(status, document.get("reason", ""), document.get("message", ""))
    except (ValueError, AttributeError):
        return ApiError(status, "", text.decode(errors="replace")[:500])
