"""A small Kubernetes API server: HTTPS on loopback, bearer tokens or client certificates.

Real lists with pages, watches with bookmarks, conflicts, 404 and 410, on the model in `objects`;
pods pass the webhooks before they are stored, and Bindings bind. What a real one would validate it
does not: the same contract tests run against kube-apiserver (tests/e2e).
"""

import asyncio
import base64
import contextlib
import json
import ssl
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Self

from aiohttp import web

from sandbox.kube.calls import (
    Place,
    bookmark,
    key_of,
    only,
    patched,
    place_of,
    refusal,
    verb_of,
)
from sandbox.kube.objects import ApiObjects, Object, RefusedError, version_of, wall_time
from sandbox.kube.webhooks import Webhooks

AUDIENCE: Final = "https://kubernetes.default.svc"
_STATUS_APART: Final = frozenset({"gpureservations"})
"""Collections whose status is a subresource."""
_DONE: Final = {"kind": "Status", "status": "Success"}


class ApiServer:
    """One of a cluster; entered it listens. Used from one event loop."""

    def __init__(
        self,
        tls: Callable[[], ssl.SSLContext],
        *,
        tokens: set[str],
        now: Callable[[], str] = wall_time,
        kept: int | None = None,
    ) -> None:
        """`tls` is asked at each start; so many changes are `kept` for those who watch."""
        self.objects = ApiObjects(now, kept=kept)
        self.tokens = tokens
        self.reviewed: dict[str, Object] = {}
        """User and audiences by token, of a TokenReview's status."""
        self.may: set[tuple[str, str, str, str]] = set()
        """Subject (user or group), verb, resource, and namespace or empty for all."""
        self.webhooks: Webhooks | None = None
        """Nobody is asked without them."""
        self.open_watches: Counter[str] = Counter()
        self.port = 0
        self._tls = tls
        self._now = now
        self._news = asyncio.Event()
        self._drop = asyncio.Event()
        self._progress = 0
        """How far the server knows that it is; as a real one, it does not look by itself."""
        self._runner: web.AppRunner | None = None

    # --- life ---

    async def start(self) -> None:
        """Listen, on the port of before if there was one."""
        app = web.Application(client_max_size=8 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls())
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """End the watches, then listen no more."""
        self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self.port}"

    # --- what happens to its objects without a request ---

    def create(self, collection: str, body: Object, *, uid: str | None = None) -> Object:
        """Store an object that no webhook has seen."""
        made = self.objects.create(collection, key_of(body), body, uid=uid)
        self.tell()
        return made

    def change(self, collection: str, body: Object) -> Object:
        """Put this in the place of an object, whatever its version."""
        body = {**body, "metadata": {**body["metadata"]}}
        body["metadata"].pop("resourceVersion", None)
        made = self.objects.replace(collection, key_of(body), body)
        self.tell()
        return made

    def delete(self, collection: str, key: str) -> None:
        """Delete an object, or mark it deleted where a finalizer holds it."""
        self.objects.delete(collection, key)
        self.tell()

    def tell(self) -> None:
        """Let the watches look."""
        self._news.set()
        self._news = asyncio.Event()

    def drop_watches(self) -> None:
        """Cut all their connections."""
        self._drop.set()
        self._drop = asyncio.Event()

    # --- requests ---

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except RefusedError as error:
            return web.Response(
                status=error.status,
                body=refusal(error.status, error.reason, str(error)),
                content_type="application/json",
            )

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        place = place_of(request.path)
        is_watch = request.query.get("watch") == "true"
        verb = verb_of(request.method, place, is_watch=is_watch)
        if (other := await self._begun(request, verb)) is not None:
            return other
        if verb == "watch":
            return await self._watch(request, place)
        body: Any = await request.json() if request.can_read_body else None
        uid = None
        if self.webhooks is not None and verb == "create":
            body, uid = await self.webhooks.admitted(place, body)
        answer, code = self._worked(request, place, body, uid)
        self.tell()
        return web.json_response(answer, status=code)

    async def _begun(self, request: web.Request, verb: str) -> web.StreamResponse | None:
        """Authenticate; gives an answer in the place of the usual one, if there is one."""
        del verb
        self._authenticate(request)
        return None

    def _authenticate(self, request: web.Request) -> None:
        ssl_object = request.transport.get_extra_info("ssl_object") if request.transport else None
        if ssl_object is not None and ssl_object.getpeercert():
            return
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or token not in self.tokens:
            raise RefusedError(401, "Unauthorized", "Unauthorized")

    def _worked(
        self,
        request: web.Request,
        place: Place,
        body: Any,  # noqa: ANN401 - JSON
        uid: str | None = None,
    ) -> tuple[Object, int]:
        objects, key = self.objects, place.key
        match request.method:
            case "GET" if place.name is None:
                return self._list(request, place), HTTPStatus.OK
            case "GET":
                return objects.get(place.collection, key), HTTPStatus.OK
            case "POST":
                return self._created(place, body, uid), HTTPStatus.CREATED
            case "PUT":
                return objects.replace(place.collection, key, body), HTTPStatus.OK
            case "PATCH":
                old = objects.get(place.collection, key)
                new = patched(old, body, request.content_type)
                if place.collection in _STATUS_APART:
                    new = only(old, new, "status" if place.subresource == "status" else "spec")
                return objects.replace(place.collection, key, new), HTTPStatus.OK
            case "DELETE":
                return self._deleted(place, key, body or {}), HTTPStatus.OK
        raise RefusedError(405, "MethodNotAllowed")

    def _created(self, place: Place, body: Any, uid: str | None) -> Object:  # noqa: ANN401 - JSON
        match place:
            case Place("tokenreviews"):
                return self._reviewed(body)
            case Place("subjectaccessreviews"):
                return self._allowed(body)
            case Place("pods", subresource="binding"):
                return self._bound(place, body)
            case Place("pods", subresource="eviction"):
                return self._evicted(place, body)
        metadata = body.setdefault("metadata", {})
        if place.namespace is not None:
            metadata["namespace"] = place.namespace
        if place.collection in _STATUS_APART:
            body.pop("status", None)
        return self.objects.create(place.collection, key_of(body), body, uid=uid)

    def _reviewed(self, body: Any) -> Object:  # noqa: ANN401 - JSON
        """Nothing is stored; audiences in the answer are those that were asked for, too.

        Where none are asked for, they are the API server's own.
        """
        known = self.reviewed.get(body["spec"]["token"])
        asked = body["spec"].get("audiences") or [AUDIENCE]
        audiences = [x for x in asked if known is not None and x in known["audiences"]]
        found: Object = {"user": {}, "error": "invalid bearer token"}
        if known is not None and audiences:
            found = {"authenticated": True, "user": known["user"], "audiences": audiences}
        return {**body, "status": found}

    def _allowed(self, body: Any) -> Object:  # noqa: ANN401 - JSON
        """As RBAC: nothing is denied, what nobody allows is not allowed."""
        spec, asked = body["spec"], body["spec"]["resourceAttributes"]
        allowed = any(
            (subject, asked["verb"], asked["resource"], namespace) in self.may
            for subject in (spec["user"], *spec.get("groups", ()))
            for namespace in ("", asked.get("namespace", ""))
        )
        return {**body, "status": {"allowed": allowed}}

    def _bound(self, place: Place, binding: Any) -> Object:  # noqa: ANN401 - JSON
        """Node, annotations and labels become the pod's in one step; preconditions count."""
        pod, wanted = self.objects.get(place.collection, place.key), binding["metadata"]
        found = pod["metadata"]
        for field in ("uid", "resourceVersion"):
            if wanted.get(field) not in (None, "", found[field]):
                raise RefusedError(409, "Conflict", f"Precondition failed: {field}")
        if pod["spec"].get("nodeName"):
            raise RefusedError(409, "Conflict", f"pod {place.name} is already assigned to a node")
        for field in ("annotations", "labels"):
            if wanted.get(field):
                found[field] = (found.get(field) or {}) | wanted[field]
        pod["spec"]["nodeName"] = binding["target"]["name"]
        scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": self._now()}
        pod["status"] = (pod.get("status") or {}) | {"conditions": [scheduled]}
        self.objects.replace(place.collection, place.key, pod)
        return _DONE

    def _evicted(self, place: Place, body: Any) -> Object:  # noqa: ANN401 - JSON
        """The pod is deleted at once."""
        uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid", "")
        self.objects.delete(place.collection, place.key, uid=uid, version="")
        return _DONE

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
        return last if is_held else _DONE

    # --- lists ---

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
        if selector := request.query.get("labelSelector"):
            wanted = {tuple(x.split("=", 1)) for x in selector.split(",")}
            found = {
                k: x for k, x in found.items() if wanted <= x["metadata"].get("labels", {}).items()
            }
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

    # --- watches ---

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        number = self.objects.number_of(request.query["resourceVersion"])
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        drop, sent = self._drop, [number]
        self.open_watches[place.collection] += 1
        try:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(self._watch_s(float(request.query["timeoutSeconds"]))):
                    await self._stream(response, place, sent, drop)
                    return response
            if self._progress > sent[0]:
                await self._write(response, bookmark(self._progress))
        finally:
            self.open_watches[place.collection] -= 1
            if drop.is_set() and request.transport is not None:
                request.transport.abort()
        return response

    def _watch_s(self, asked_s: float) -> float | None:
        """How long a watch may last."""
        return asked_s

    async def _write(self, response: web.StreamResponse, line: bytes) -> None:
        await response.write(line)

    def _last_line(self) -> bytes | None:
        """With which all watches end now; None as long as they go on."""
        return None

    async def _stream(
        self, response: web.StreamResponse, place: Place, sent: list[int], drop: asyncio.Event
    ) -> None:
        while not drop.is_set():
            news = self._news
            for happening in self.objects.after(place.collection, sent[0]):
                sent[0] = happening.number
                line = {"type": happening.type, "object": happening.object}
                await self._write(response, json.dumps(line).encode() + b"\n")
            if (last := self._last_line()) is not None:
                await response.write(last)
                return
            waiting = [asyncio.ensure_future(x.wait()) for x in (news, drop)]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
