"""A small Kubernetes API server: HTTPS on loopback, bearer tokens or client certificates.

Real lists with pages, watches with bookmarks, conflicts, 404, 410 and 429, on the model in
`api_objects`. What a real one would validate it does not: the same contract tests run
against kube-apiserver (tests/e2e).
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from aiohttp import web

from controller.kube.client import Answer, Request
from tests.builders.web_certificates import WebCa
from tests.fakes.api_objects import ApiObjects, Object, RefusedError, version_of

TOKEN = "token-of-the-first-hour"  # noqa: S105 - of a fake


AUDIENCE = "https://kubernetes.default.svc"
_STATUS_APART = {"gpureservations"}
"""Collections whose status is a subresource."""


@dataclass(frozen=True)
class Place:
    """What a path names."""

    collection: str
    namespace: str | None
    name: str | None
    subresource: str | None = None


@dataclass
class Fault:
    """An answer in the place of the real one."""

    status: int
    headers: dict[str, str]
    body: bytes
    matching: str
    """Part of `verb path?query`."""


class FakeApiServer:
    def __init__(self, folder: Path) -> None:
        self.objects = ApiObjects()
        self.tokens = {TOKEN}
        self.reviewed: dict[str, Object] = {}
        """User and audiences by token, of a TokenReview's status."""
        self.may: set[tuple[str, str, str, str]] = set()
        """Subject (user or group), verb, resource, and namespace or empty for all."""
        self.forwarded: dict[tuple[str, int], int] = {}
        """Ports of this machine, by pod and its port."""
        self.forbidden: set[str] = set()
        """Parts of `verb path?query` that nobody may do."""
        self.version = "v1.35.4"
        self.date: str | None = None
        """Of discovery, where it is not this machine's time."""
        self.group_versions: set[str] = set()
        """What discovery names, `GROUP/VERSION`."""
        self.denied: set[str] = set()
        """`VERB RESOURCE` that SelfSubjectAccessReviews deny."""
        self.dry_run: Callable[[Object], tuple[int, Object]] = lambda pod: (201, pod)
        """Answer to a pod that is created with `dryRun=All`; nothing is stored."""
        self.disruption_budgets: set[str] = set()
        """Names of pods whose eviction a budget is against."""
        self.requests: list[tuple[str, str]] = []
        """Verb and path with query, in order."""
        self.open_watches: Counter[str] = Counter()
        self.are_watches_silent = False
        self.do_watches_outstay = False
        """They go on beyond timeoutSeconds."""
        self.is_stalled = False
        """Takes requests and never answers."""
        self._folder = folder
        self.ca = WebCa(folder, "api-ca")
        self.client_ca = WebCa(folder, "api-client-ca")
        self._faults: list[Fault] = []
        self._news = asyncio.Event()
        self._drop = asyncio.Event()
        self._error: bytes | None = None
        self._progress = 0
        """How far the server knows that it is; as a real one, it does not look by itself."""
        self._runner: web.AppRunner | None = None
        self.port = 0

    # --- life ---

    async def start(self) -> None:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.ca.issue("api", server=True))
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(self.client_ca.file)
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def restart_with_another_ca(self) -> None:
        """On the same port."""
        await self.stop()
        self.ca = WebCa(self._folder, "api-ca-2")
        await self.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    # --- what tests do to it ---

    def create(self, collection: str, body: Object) -> Object:
        made = self.objects.create(collection, _key(body), body)
        self.tell()
        return made

    def change(self, collection: str, body: Object) -> Object:
        body = {**body, "metadata": {**body["metadata"]}}
        body["metadata"].pop("resourceVersion", None)
        made = self.objects.replace(collection, _key(body), body)
        self.tell()
        return made

    def delete(self, collection: str, key: str) -> None:
        self.objects.delete(collection, key)
        self.tell()

    def tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def drop_watches(self) -> None:
        self._drop.set()
        self._drop = asyncio.Event()

    def end_watches_with(self, status: int, reason: str) -> None:
        """Send an ERROR event to all watches."""
        self._error = _status(status, reason, "made by the test")
        self.tell()

    def end_watches_with_line(self, line: bytes) -> None:
        self._error = line
        self.tell()

    def fail_next(
        self, status: int, *, matching: str = "", body: bytes | None = None, **headers: str
    ) -> None:
        names = {key.replace("_", "-"): value for key, value in headers.items()}
        content = _status(status, "Fault", "made by the test") if body is None else body
        self._faults.append(Fault(status, names, content, matching))

    # --- requests ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except RefusedError as error:
            return web.Response(
                status=error.status,
                body=_status(error.status, error.reason, str(error)),
                content_type="application/json",
            )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in {"/version", "/apis"}:
            return await self._begun(request, "get") or self._discovered(request.path)
        place = place_of(request.path)
        verb = _verb(request, place)
        if (refused := await self._begun(request, verb)) is not None:
            return refused
        if any(x in f"{verb} {request.rel_url}" for x in self.forbidden):
            raise RefusedError(403, "Forbidden", "made by the test")
        if place.subresource == "portforward":
            return await self._forward(request, place)
        if request.method == "GET" and request.query.get("watch") == "true":
            return await self._watch(request, place)
        body = await request.json() if request.can_read_body else None
        answer, status = self._worked(request, place, body)
        self.tell()
        return web.json_response(answer, status=status)

    async def _begun(self, request: web.Request, verb: str) -> web.Response | None:
        """Note it and authenticate; gives the fault that a test wants, if any."""
        self.requests.append((verb, str(request.rel_url)))
        if self.is_stalled:
            await asyncio.sleep(3600)
        self._authenticate(request)
        for fault in self._faults:
            if fault.matching in f"{verb} {request.rel_url}":
                self._faults.remove(fault)
                return web.Response(status=fault.status, headers=fault.headers, body=fault.body)
        return None

    def _discovered(self, path: str) -> web.Response:
        headers = {} if self.date is None else {"Date": self.date}
        if path == "/version":
            return web.json_response({"gitVersion": self.version}, headers=headers)
        groups = [{"versions": [{"groupVersion": x}]} for x in sorted(self.group_versions)]
        answer = {"kind": "APIGroupList", "groups": groups}
        return web.json_response(answer, headers=headers)

    def _worked(self, request: web.Request, place: Place, body: Any) -> tuple[Object, int]:
        objects, key = self.objects, "/".join(x for x in (place.namespace, place.name) if x)
        match request.method:
            case "GET" if place.name is None:
                return self._list(request, place), HTTPStatus.OK
            case "GET":
                return objects.get(place.collection, key), HTTPStatus.OK
            case "POST":
                return self._posted(request, place, body)
            case "PUT":
                return objects.replace(place.collection, key, body), HTTPStatus.OK
            case "PATCH":
                old = objects.get(place.collection, key)
                new = _patched(old, body, request.content_type)
                if place.collection in _STATUS_APART:
                    new = _only(old, new, "status" if place.subresource == "status" else "spec")
                return objects.replace(place.collection, key, new), HTTPStatus.OK
            case "DELETE":
                return self._deleted(place, key, body or {}), HTTPStatus.OK
        raise RefusedError(405, "MethodNotAllowed")

    def _posted(self, request: web.Request, place: Place, body: Any) -> tuple[Object, int]:
        if request.query.get("dryRun") == "All":
            status, answer = self.dry_run(body)
            return answer, status
        return self._created(place, body), HTTPStatus.CREATED

    def _created(self, place: Place, body: Any) -> Object:
        if place.collection == "tokenreviews":
            return self._reviewed(body)
        if place.collection == "subjectaccessreviews":
            return self._allowed(body)
        if place.collection == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            allowed = f"{asked['verb']} {asked['resource']}" not in self.denied
            return {**body, "status": {"allowed": allowed}}
        if place.subresource == "eviction":
            return self._evicted(place, body)
        metadata = body.setdefault("metadata", {})
        if place.namespace is not None:
            metadata["namespace"] = place.namespace
        if place.collection in _STATUS_APART:
            body.pop("status", None)
        return self.objects.create(place.collection, _key(body), body)

    def _reviewed(self, body: Any) -> Object:
        """Nothing is stored; audiences in the answer are those that were asked for, too.

        Where none are asked for, they are the API server's own.
        """
        known = self.reviewed.get(body["spec"]["token"])
        asked = body["spec"].get("audiences") or [AUDIENCE]
        audiences = [x for x in asked if known is not None and x in known["audiences"]]
        status: Object = {"user": {}, "error": "invalid bearer token"}
        if known is not None and audiences:
            status = {"authenticated": True, "user": known["user"], "audiences": audiences}
        return {**body, "status": status}

    async def _forward(self, request: web.Request, place: Place) -> web.StreamResponse:
        """As kubelet's legacy WebSocket: a data and an error channel for each port, port first."""
        if request.headers.get("Accept", "*/*") != "*/*":
            raise RefusedError(406, "NotAcceptable", "only the following media types are accepted")
        self.objects.get(place.collection, f"{place.namespace}/{place.name}")
        port = int(request.query["ports"])
        near = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await near.prepare(request)
        for channel in (0, 1):
            await near.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        there = self.forwarded.get((str(place.name), port))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", there or 1)
        except OSError:
            await near.send_bytes(b"\x01" + f"error forwarding port {port}: refused".encode())
            await near.close()
            return near

        async def back() -> None:
            while chunk := await reader.read(1 << 16):
                await near.send_bytes(b"\0" + chunk)
            await near.close()

        task = asyncio.create_task(back())
        try:
            async for message in near:
                if message.data[:1] == b"\0":
                    writer.write(message.data[1:])
        finally:
            task.cancel()
            writer.close()
        return near

    def _allowed(self, body: Any) -> Object:
        """As RBAC: nothing is denied, what nobody allows is not allowed."""
        spec, asked = body["spec"], body["spec"]["resourceAttributes"]
        allowed = any(
            (subject, asked["verb"], asked["resource"], namespace) in self.may
            for subject in (spec["user"], *spec.get("groups", ()))
            for namespace in ("", asked.get("namespace", ""))
        )
        return {**body, "status": {"allowed": allowed}}

    def _evicted(self, place: Place, body: Any) -> Object:
        """The pod is deleted at once, unless a budget is against it."""
        if place.name in self.disruption_budgets:
            text = "Cannot evict pod as it would violate the pod's disruption budget."
            raise RefusedError(429, "TooManyRequests", text)
        uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid", "")
        self.objects.delete(
            place.collection, f"{place.namespace}/{place.name}", uid=uid, version=""
        )
        return {"kind": "Status", "status": "Success"}

    def _deleted(self, place: Place, key: str, options: Object) -> Object:
        """The object while a finalizer holds it, else a Status."""
        wanted = options.get("preconditions", {})
        last = self.objects.delete(
            place.collection,
            key,
            uid=wanted.get("uid", ""),
            version=wanted.get("resourceVersion", ""),
        )
        is_held = "deletionTimestamp" in last["metadata"]
        return last if is_held else {"kind": "Status", "status": "Success"}

    def _list(self, request: web.Request, place: Place) -> Object:
        objects = self.objects
        at, start = objects.number, ""
        if token := request.query.get("continue"):
            at, start = json.loads(base64.b64decode(token))
            if at < objects.oldest:
                raise RefusedError(410, "Expired", "the continue token is too old")
        found = self._as_of(place.collection, at)
        if selector := request.query.get("fieldSelector"):
            found = {k: x for k, x in found.items() if selector == f"metadata.name={k}"}
            self._progress = at
        within = f"{place.namespace}/" if place.namespace else ""
        keys = sorted(k for k in found if k > start and k.startswith(within))
        limit = int(request.query.get("limit") or len(keys) or 1)
        metadata: Object = {"resourceVersion": version_of(at)}
        if len(keys) > limit:
            token = base64.b64encode(json.dumps([at, keys[limit - 1]]).encode()).decode()
            metadata["continue"] = token
        return {"kind": "List", "metadata": metadata, "items": [found[k] for k in keys[:limit]]}

    def _as_of(self, collection: str, number: int) -> dict[str, Object]:
        """Undo what happened later."""
        found = self.objects.all(collection)
        later = self.objects.after(collection, number)
        for key in {x.key for x in later}:
            found.pop(key, None)
            before = [
                x
                for x in self.objects.history
                if x.collection == collection and x.key == key and x.number <= number
            ]
            if before and before[-1].type != "DELETED":
                found[key] = before[-1].object
        return found

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        number = self.objects.number_of(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        drop, self._error, sent = self._drop, None, [number]
        self.open_watches[place.collection] += 1
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                seconds = float(request.query["timeoutSeconds"])
                async with asyncio.timeout(None if self.do_watches_outstay else seconds):
                    await self._stream(response, place, sent, drop)
                    return response
            if not self.are_watches_silent and self._progress > sent[0]:
                await response.write(_bookmark(self._progress))
        finally:
            self.open_watches[place.collection] -= 1
            if drop.is_set() and request.transport is not None:
                request.transport.abort()
        return response

    async def _stream(
        self, response: web.StreamResponse, place: Place, sent: list[int], drop: asyncio.Event
    ) -> None:
        while not drop.is_set():
            news = self._news
            for happening in self.objects.after(place.collection, sent[0]):
                sent[0] = happening.number
                if not self.are_watches_silent:
                    line = {"type": happening.type, "object": happening.object}
                    await response.write(json.dumps(line).encode() + b"\n")
            if self._error is not None:
                await response.write(
                    self._error
                    if self._error.endswith(b"\n")
                    else (b'{"type":"ERROR","object":' + self._error + b"}\n")
                )
                return
            waiting = [asyncio.ensure_future(x.wait()) for x in (news, drop)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()

    def _authenticate(self, request: web.Request) -> None:
        ssl_object = request.transport.get_extra_info("ssl_object") if request.transport else None
        if ssl_object is not None and ssl_object.getpeercert():
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or token not in self.tokens:
            raise RefusedError(401, "Unauthorized", "Unauthorized")


class DirectExchange:
    """An `Exchange` with the server's objects, without a connection: for many calls by name."""

    def __init__(self, server: FakeApiServer) -> None:
        self._server = server

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        try:
            content, status = self._answer(request)
        except RefusedError as error:
            content, status = _status(error.status, error.reason, str(error)), error.status
        await asyncio.sleep(0)
        yield Answer(status, None, _Whole(content))

    def _answer(self, request: Request) -> tuple[bytes, int]:
        place = place_of(request.path)
        if request.method == "GET":
            key = "/".join(x for x in (place.namespace, place.name) if x)
            return self._server.objects.text(place.collection, key).encode(), HTTPStatus.OK
        asked: Any = SimpleNamespace(
            method=request.method, content_type=request.content_type, query={}
        )
        found, status = self._server._worked(asked, place, request.body)
        return json.dumps(found).encode(), status

    async def close(self) -> None:
        pass


class _Whole:
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def chunk(self) -> bytes:
        content, self._content = self._content, b""
        return content

    async def line(self) -> bytes:
        raise NotImplementedError


def place_of(path: str) -> Place:
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    return (
        Place(parts[0], namespace, *parts[1:3])
        if len(parts) > 1
        else Place(parts[0], namespace, None)
    )


def _verb(request: web.Request, place: Place) -> str:
    if request.method != "GET":
        return {"POST": "create", "PUT": "update"}.get(request.method, request.method.lower())
    if place.name is not None:
        return "get"
    return "watch" if request.query.get("watch") == "true" else "list"


def _key(body: Object) -> str:
    metadata = body["metadata"]
    return "/".join(x for x in (metadata.get("namespace"), metadata["name"]) if x)


def _patched(old: Object, patch: Any, content_type: str) -> Object:
    if content_type == "application/merge-patch+json":
        merged: Object = _merged(old, patch)
        return merged
    if content_type != "application/json-patch+json":
        raise RefusedError(415, "UnsupportedMediaType")
    new = json.loads(json.dumps(old))
    for step in patch:
        *path, last = step["path"].strip("/").split("/")
        target = new
        for part in path:
            target = target[int(part) if isinstance(target, list) else part]
        if step["op"] == "test" and target.get(last) != step["value"]:
            raise RefusedError(422, "Invalid", "the test failed")
        if step["op"] in {"add", "replace"}:
            target[last] = step["value"]
    return new  # type: ignore[no-any-return] # an object, as `old` is


def _only(old: Object, new: Object, part: str) -> Object:
    """The change as far as it is about `part`: the status does not touch the rest, nor it that."""
    version = new["metadata"].get("resourceVersion")
    if part == "status":
        kept = {**old, "metadata": {**old["metadata"], "resourceVersion": version}}
        return {**kept, "status": new["status"]} if "status" in new else kept
    return {**{k: x for k, x in new.items() if k != "status"}, **_picked(old, "status")}


def _picked(body: Object, key: str) -> Object:
    return {key: body[key]} if key in body else {}


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _status(status: int, reason: str, message: str) -> bytes:
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": status,
            "reason": reason,
            "message": message,
        }
    ).encode()


def _bookmark(number: int) -> bytes:
    event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version_of(number)}}}
    return json.dumps(event).encode() + b"\n"
