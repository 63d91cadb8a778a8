"""Gathers facts from the Kubernetes API; what cannot be read is a fact that says why.

Only reads, reviews of the caller's own rights, and dry runs. After a call without an answer nothing
more is asked.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from gpuwarden.audit.chain import Broken
from gpuwarden.audit.files import log_files, verify_files
from gpuwarden.doctor.admission import ENFORCE
from gpuwarden.doctor.api import Answer, Api, ApiError
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

T = TypeVar("T")

PAGE: Final = 250
MAX_OBJECTS: Final = 20_000
MAX_LOG_BYTES: Final = 256 << 20
_OK: Final = 200
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_DROPPED: Final = ("managedFields",)
_REVIEW: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_ELSEWHERE: Final = "default"


class Cluster:
    """Questions to one API server; none is asked again after one had no answer."""

    def __init__(self, api: Api, *, page: int = PAGE, most: int = MAX_OBJECTS) -> None:
        self._api = api
        self._page = page
        self._most = most
        self._silent = ""
        """Why the last call had no answer."""
        self._now: datetime | None = None

    def facts(self, before: Facts, *, dry_run_namespace: str, pre: bool) -> Facts:
        """`before`, and what this cluster tells; of a cluster to be (`pre`) no dry runs."""
        server = self._fact(self._version)
        served = self._fact(self._served)
        rights = INSTALLING_RIGHTS if pre else reading_rights(before.namespace)
        found = {one: self._fact(self._objects, one, before.namespace) for one in COLLECTIONS}
        place = dry_run_namespace or _enforced(found[NAMESPACES]) or _ELSEWHERE
        told = replace(
            before,
            server=server,
            served=served,
            rights={one: self._fact(self._allowed, one) for one in rights},
            objects=found,
        )
        if not pre:
            told = replace(
                told,
                asking_pod=self._fact(self._dry_run, place, ASKING),
                wrong_pod=self._fact(self._dry_run, place, WRONG),
            )
        now: Fact[datetime] = Fact(self._now, "the API server does not tell the time")
        return replace(told, now=now, api_error=self._silent)

    def _fact(self, ask: Callable[..., T], *arguments: object) -> Fact[T]:
        if self._silent:
            return Fact(why=API_SILENT)
        try:
            return Fact(ask(*arguments))
        except _RefusedError as error:
            return Fact(why=str(error))
        except ApiError as error:
            self._silent = str(error)
            return Fact(why=API_SILENT)

    def _version(self) -> str:
        answer = self._api.get("/version")
        self._now = answer.date
        return str(_read(answer, "/version")["gitVersion"])

    def _served(self) -> frozenset[str]:
        groups = _read(self._api.get("/apis"), "/apis")["groups"]
        return frozenset(x["groupVersion"] for group in groups for x in group["versions"])

    def _allowed(self, right: Right) -> bool:
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
        return bool(_read(self._api.post(_REVIEW, body), "access review")["status"]["allowed"])

    def _objects(self, collection: Collection, namespace: str) -> tuple[Object, ...]:
        if collection.names:
            named = (self._named(collection, namespace, name) for name in collection.names)
            return tuple(one for one in named if one is not None)
        return tuple(self._listed(collection, namespace))

    def _named(self, collection: Collection, namespace: str, name: str) -> Object | None:
        answer = self._api.get(collection.path(namespace, name))
        if answer.status == _NOT_FOUND:
            return None
        return _trimmed(_read(answer, f"{collection.resource}/{name}"))

    def _listed(self, collection: Collection, namespace: str) -> Iterator[Object]:
        token, count = "", 0
        while True:
            path = f"{collection.path(namespace)}?limit={self._page}"
            answer = self._api.get(path + (f"&continue={quote(token)}" if token else ""))
            if answer.status == _NOT_FOUND and collection.is_optional:
                return
            page = _read(answer, collection.resource)
            items = page.get("items") or ()
            count += len(items)
            if count > self._most:
                raise _RefusedError(f"more than {self._most} {collection.resource}")
            yield from map(_trimmed, items)
            token = page["metadata"].get("continue", "")
            if not token:
                return

    def _dry_run(self, namespace: str, annotations: Mapping[str, str]) -> DryRun:
        path = f"/api/v1/namespaces/{quote(namespace)}/pods?dryRun=All"
        answer = self._api.post(path, dry_run_pod(annotations))
        return DryRun(answer.status, answer.document)


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
    result = report.result
    if isinstance(result, Broken):
        return Fact(LogVerdict(str(folder), 0, f"record {result.seq}: {result.what}"))
    appended = result.order.appended
    broken = f"records behind its end: {appended}" if appended.count else ""
    return Fact(LogVerdict(str(folder), result.records, broken))
