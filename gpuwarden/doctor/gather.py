"""Gathers facts from the Kubernetes API; what cannot be read is a fact that says why.

Only reads, reviews of the caller's own rights, and dry runs. After a call without an answer nothing
more is asked.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gpuwarden.audit.files import log_files, verify_files
from gpuwarden.cluster.api import Answer, ApiError, ApiServer
from gpuwarden.doctor.admission import ENFORCE
from gpuwarden.doctor.facts import (
    API_SILENT,
    COLLECTIONS,
    INSTALLING_RIGHTS,
    NAMESPACES,
    Collection,
    DryRun,
    Fact,
    Facts,
    LogVerdict,
    Object,
    Right,
    labels_of,
    name_of,
    reading_rights,
)
from gpuwarden.doctor.log import verdict_of

T = TypeVar("T")

PAGE: Final = 250
MAX_OBJECTS: Final = 20_000
MAX_LOG_BYTES: Final = 256 << 20
_OK: Final = 200
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_REFUSALS: Final = range(400, 500)
_DROPPED: Final = ("managedFields",)
_REVIEW: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_ELSEWHERE: Final = "default"


class Cluster:
    """Questions to one API server; none is asked again after one had no answer."""

    def __init__(self, api: ApiServer, *, page: int = PAGE, most: int = MAX_OBJECTS) -> None:
        self._api = api
        self._page = page
        self._most = most
        self._silent = ""
        """Why the last call had no answer."""
        self._now: datetime | None = None

    async def facts(self, before: Facts, *, dry_run_namespace: str, pre: bool) -> Facts:
        """`before`, and what this cluster tells; of a cluster to be (`pre`) no dry runs."""
        server = await self._fact(self._version)
        served = await self._fact(self._served)
        rights = INSTALLING_RIGHTS if pre else reading_rights(before.namespace)
        found = {one: await self._fact(self._objects, one, before.namespace) for one in COLLECTIONS}
        place = dry_run_namespace or _enforced(found[NAMESPACES]) or _ELSEWHERE
        told = replace(
            before,
            server=server,
            served=served,
            rights={one: await self._fact(self._allowed, one) for one in rights},
            objects=found,
        )
        if not pre:
            told = replace(
                told,
                asking_pod=await self._fact(self._dry_run, place, ASKING),
                wrong_pod=await self._fact(self._dry_run, place, WRONG),
            )
        now: Fact[datetime] = Fact(self._now, "the API server does not tell the time")
        return replace(told, now=now, api_error=self._silent)

    async def _fact(self, ask: Callable[..., Awaitable[T]], *arguments: object) -> Fact[T]:
        if self._silent:
            return Fact(why=API_SILENT)
        try:
            return Fact(await ask(*arguments))
        except _RefusedError as error:
            return Fact(why=str(error))
        except ApiError as error:
            self._silent = f"the API server at {self._api.host}: {error}"
            return Fact(why=API_SILENT)

    async def _version(self) -> str:
        answer = await self._get("/version")
        self._now = answer.date
        return str(_read(answer, "/version")["gitVersion"])

    async def _served(self) -> frozenset[str]:
        groups = _read(await self._get("/apis"), "/apis")["groups"]
        return frozenset(x["groupVersion"] for group in groups for x in group["versions"])

    async def _allowed(self, right: Right) -> bool:
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "namespace": right.namespace,
            "name": right.name,
        }
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = _answered(await self._api.post(_REVIEW, body))
        return bool(_read(answer, "access review")["status"]["allowed"])

    async def _objects(self, collection: Collection, namespace: str) -> tuple[Object, ...]:
        if collection.names:
            named = [await self._named(collection, namespace, name) for name in collection.names]
            return tuple(one for one in named if one is not None)
        return tuple([one async for one in self._listed(collection, namespace)])

    async def _named(self, collection: Collection, namespace: str, name: str) -> Object | None:
        answer = await self._get(collection.path(namespace, name))
        if answer.status == _NOT_FOUND:
            return None
        return _trimmed(_read(answer, f"{collection.resource}/{name}"))

    async def _listed(self, collection: Collection, namespace: str) -> AsyncIterator[Object]:
        token, count = "", 0
        while True:
            path = f"{collection.path(namespace)}?limit={self._page}"
            answer = await self._get(path + (f"&continue={quote(token)}" if token else ""))
            if answer.status == _NOT_FOUND and collection.is_optional:
                return
            page = _read(answer, collection.resource)
            items = page.get("items") or ()
            count += len(items)
            if count > self._most:
                raise _RefusedError(f"more than {self._most} {collection.resource}")
            for one in items:
                yield _trimmed(one)
            token = page["metadata"].get("continue", "")
            if not token:
                return

    async def _dry_run(self, namespace: str, annotations: Mapping[str, str]) -> DryRun:
        path = f"/api/v1/namespaces/{quote(namespace)}/pods?dryRun=All"
        answer = _answered(await self._api.post(path, dry_run_pod(annotations)))
        return DryRun(answer.status, answer.document)

    async def _get(self, path: str) -> Answer:
        return _answered(await self._api.get(path))


def unreachable(before: Facts, why: str) -> Facts:
    """`before`, of a cluster that cannot be asked."""
    silent: Fact[Any] = Fact(why=API_SILENT)
    return replace(
        before,
        api_error=why,
        now=silent,
        server=silent,
        served=silent,
        rights=dict.fromkeys((*INSTALLING_RIGHTS, *reading_rights(before.namespace)), silent),
        objects=dict.fromkeys(COLLECTIONS, silent),
        asking_pod=silent,
        wrong_pod=silent,
    )


class _RefusedError(Exception):
    """The API server answered, and not with what was asked for."""


def _answered(answer: Answer) -> Answer:
    """What does not speak JSON is no API server, but for refusals; raises ApiError."""
    if answer.document is not None:
        return answer
    if answer.status not in _REFUSALS:
        raise ApiError(f"an answer that is no JSON (HTTP {answer.status})")
    return replace(answer, document={})


def _read(answer: Answer, what: str) -> Mapping[str, Any]:
    if answer.status == _FORBIDDEN:
        raise _RefusedError(f"you may not read {what}: {answer.document.get('message', '')}")
    if not _OK <= answer.status < _OK + 100:
        text = answer.document.get("message", "")
        raise _RefusedError(f"{what}: HTTP {answer.status} {text}".rstrip())
    found: Mapping[str, Any] = answer.document
    return found


def _trimmed(found: Mapping[str, Any]) -> Object:
    """Without what no check looks at and is large."""
    metadata = {key: x for key, x in found["metadata"].items() if key not in _DROPPED}
    return {**found, "metadata": metadata}


def _enforced(namespaces: Fact[tuple[Object, ...]]) -> str:
    """The first enforced namespace; empty where none is known."""
    found = (name_of(x) for x in namespaces.value or () if labels_of(x).get(ENFORCE) == "true")
    return min(found, default="")


ASKING: Final = {"gpuwarden.dev/min-level": "L0"}
WRONG: Final = {"gpuwarden.dev/gpu-count": "none"}


def dry_run_pod(annotations: Mapping[str, str]) -> Object:
    """As the restricted profile and quotas want it; it is never stored."""
    resources = {"cpu": "1m", "memory": "1Mi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "gpuwarden-doctor-", "annotations": dict(annotations)},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "doctor",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {"requests": resources, "limits": resources},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


# --- the log of this machine


def local_log(folder: Path) -> Fact[LogVerdict]:
    """Whether the log in a folder verifies; one that is too long for a check is not read."""
    try:
        files = log_files(folder)
        size = sum(one.stat().st_size for one in files)
        if size > MAX_LOG_BYTES:
            text = f"the log has {size >> 20} MiB; gpuwarden audit verify {folder} takes its time"
            return Fact(why=text)
        report = verify_files(files)
    except OSError as error:
        return Fact(why=f"{folder}: {error.strerror}" if error.strerror else str(error))
    return Fact(verdict_of(report.result, folder=str(folder)))
