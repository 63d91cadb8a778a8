"""The calls of the Kubernetes API that we need, on raw JSON: bounded in size and in time.

Typed models are not used: they drop unknown fields and cost many times the decoding.
Retries are the caller's business, who knows what may be asked again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol

import msgspec

from controller.kube.api.resources import (
    AnswerTooLargeError,
    ApiError,
    Resource,
    error_from_answer,
    with_query,
)
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments

MAX_OBJECT_BYTES: Final = 24 << 20
"""The API server takes 3 MiB at most, and writes `<` as six bytes."""
MAX_PAGE_BYTES: Final = 64 << 20
_MAX_ERROR_BYTES: Final = 64 << 10
PAGE_OBJECTS: Final = 250
_PARTS: Final = 8
CALL_SECONDS: Final = 10.0
PAGE_SECONDS: Final = 60.0
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
_JSON: Final = "application/json"
_SUCCESS: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `path` has its query."""

    method: str
    path: str
    body: object = None
    content_type: str = _JSON
    total_s: float | None = CALL_SECONDS
    """From the first byte sent to the last received; None for a watch."""
    silence_s: float | None = None
    """Longest wait for the next bytes."""


class Body(Protocol):
    """A body that arrives; a Protocol for the same reason as `Exchange`."""

    async def chunk(self) -> bytes:
        """The next bytes, none at the end; raises ApiError."""

    async def line(self) -> bytes:
        """The next line with its LF, none at the end; raises ApiError."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of an answer, and its body to be read."""

    status: int
    retry_after: str | None
    body: Body


class Exchange(Protocol):
    """Carries requests to the API server.

    A Protocol, so that a controller without a cluster does not import the client library (20 MiB).
    """

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        """Send and give the answer with its body unread; raises ApiError."""

    async def close(self) -> None:
        """Close all connections."""


class Page(msgspec.Struct, gc=False):
    """meta/v1 ListMeta and the items, each as it came."""

    metadata: "ListMetadata"
    items: list[msgspec.Raw] | None = None


class ListMetadata(msgspec.Struct, rename={"resource_version": "resourceVersion"}, gc=False):
    """meta/v1 ListMeta."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


_PAGE: Final = msgspec.json.Decoder(Page)


class ApiClient:
    """One for the process."""

    def __init__(
        self,
        exchange: Exchange,
        instruments: Instruments,
        *,
        page_objects: int = PAGE_OBJECTS,
        page_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        self._exchange = exchange
        self._requests = instruments.counter(names.KUBE_REQUESTS)
        self._page_objects = page_objects
        self._page_bytes = page_bytes

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> bytes:
        """Read one object at its newest; raises ApiError."""
        return await self._call("get", Request("GET", resource.path(namespace, name)))

    async def create(self, resource: Resource, body: object, namespace: str | None = None) -> bytes:
        """Create an object and return it as stored; raises ApiError."""
        return await self._call("create", Request("POST", resource.path(namespace), body))

    async def create_below(
        self, resource: Resource, name: str, subresource: str, body: object, namespace: str
    ) -> bytes:
        """Create what an object's subresource takes, such as an eviction; raises ApiError."""
        path = f"{resource.path(namespace, name)}/{subresource}"
        return await self._call("create", Request("POST", path, body))

    async def patch(
        self,
        resource: Resource,
        name: str,
        body: object,
        namespace: str | None = None,
        *,
        content_type: str = MERGE_PATCH,
        subresource: str | None = None,
    ) -> bytes:
        """Change parts of an object and return it as stored; raises ApiError."""
        path = resource.path(namespace, name) + (f"/{subresource}" if subresource else "")
        request = Request("PATCH", path, body, content_type)
        return await self._call("patch", request)

    async def delete(
        self,
        resource: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str,
        version: str,
    ) -> bytes:
        """Delete exactly this version of an object; raises ApiError.

        The answer is a Status, or the object where a finalizer holds it.
        """
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": uid, "resourceVersion": version},
        }
        request = Request("DELETE", resource.path(namespace, name), options)
        return await self._call("delete", request)

    async def pages(self, resource: Resource) -> AsyncIterator[Page]:
        """All objects at one moment no earlier than now, page by page; raises ApiError.

        A continue token that expired on the way ends it with 410: begin again. Pages that turn out
        too large are asked for again in parts: a tenant's large objects must not blind us.
        """
        token: str | None = None
        most = self._page_objects
        while token != "":
            path = with_query(resource.path(), **{"limit": most, "continue": token})
            request = Request("GET", path, total_s=PAGE_SECONDS)
            try:
                page = _decoded(await self._call("list", request, self._page_bytes))
            except AnswerTooLargeError:
                if most == 1:
                    raise
                most = max(most // _PARTS, 1)
                continue
            yield page
            token = page.metadata.continue_
            most = min(most * 2, self._page_objects)

    async def labelled(self, resource: Resource, namespace: str, selector: str) -> Page:
        """A namespace's objects with these labels, in one answer; raises ApiError."""
        path = with_query(resource.path(namespace), labelSelector=selector)
        return _decoded(await self._call("list", Request("GET", path)))

    async def version_now(self, resource: Resource) -> str:
        """The version of a collection at a moment no earlier than now; raises ApiError.

        Asks for an object that cannot be, so no object comes back. Since Kubernetes 1.31 it
        also makes the server catch up with its store, so that open watches get a bookmark.
        """
        path = with_query(resource.path(), fieldSelector="metadata.name=-")
        page = _decoded(await self._call("list", Request("GET", path)))
        return page.metadata.resource_version

    @contextlib.asynccontextmanager
    async def watch(
        self, resource: Resource, version: str, *, seconds: int, silence_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Lines of events after `version`, for `seconds` on the server's side; raises ApiError.

        Ends with ApiError when nothing comes for `silence_s`, bookmarks included.
        """
        path = with_query(
            resource.path(),
            watch="true",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=seconds,
        )
        request = Request("GET", path, total_s=None, silence_s=silence_s)
        try:
            async with (
                asyncio.timeout(seconds + silence_s),
                self._exchange.exchange(request) as answer,
            ):
                self._count("watch", answer.status)
                if answer.status != HTTPStatus.OK:
                    raise await _refusal(answer)
                yield _lines(answer.body)
        except TimeoutError:
            raise ApiError("the API server did not end a watch that was over") from None

    async def _call(self, verb: str, request: Request, limit: int = MAX_OBJECT_BYTES) -> bytes:
        try:
            async with self._exchange.exchange(request) as answer:
                self._count(verb, answer.status)
                if answer.status not in _SUCCESS:
                    raise await _refusal(answer)
                return await _whole(answer.body, limit)
        except ApiError as error:
            if error.status == 0:
                self._count(verb, 0)
            raise

    def _count(self, verb: str, status: int) -> None:
        self._requests.labels(verb, str(status) if status else "none").inc()


async def _lines(body: Body) -> AsyncIterator[bytes]:
    while line := await body.line():
        if not line.endswith(b"\n"):
            raise ApiError("a watch ended within a line")
        yield line


async def _refusal(answer: Answer) -> ApiError:
    try:
        body = await _whole(answer.body, _MAX_ERROR_BYTES)
    except ApiError:
        body = b""
    return error_from_answer(answer.status, body, answer.retry_after)


async def _whole(body: Body, limit: int) -> bytes:
    chunks, size = [], 0
    while chunk := await body.chunk():
        size += len(chunk)
        if size > limit:
            raise AnswerTooLargeError(f"an answer of more than {limit} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _decoded(body: bytes) -> Page:
    try:
        return _PAGE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError("a list that is no list of the Kubernetes API") from None
