"""What a Kubernetes API server keeps: objects with versions, and the history that watches read.

A model, without HTTP: one total order of changes over all collections, as etcd has. Versions
are opaque texts that do not sort like the order they stand for, so that whoever compares
them is found out.
"""

import copy
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

Object = dict[str, Any]


class RefusedError(Exception):
    """An answer that is a Status."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason


_FUTURE: Final = 10**12


@dataclass(frozen=True, slots=True)
class Happening:
    """One change of one object."""

    number: int
    collection: str
    key: str
    type: str
    object: Object


def version_of(number: int) -> str:
    """Different for each number, in no order."""
    return f"{number * 2654435761 % 2**32:08x}"


def wall_time() -> str:
    """This machine's, as the API writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ApiObjects:
    """All objects of one API server, by collection and key (`NAMESPACE/NAME` or `NAME`)."""

    def __init__(self, now: Callable[[], str] = wall_time, *, kept: int | None = None) -> None:
        """Of what happened, at most `kept` changes are remembered; None: all."""
        self._now = now
        self._kept = kept
        self.number = 1
        self.oldest = 0
        """Watches and lists from before this are too old."""
        self.is_restored = False
        """From a backup: versions that it does not know are of a future, where watches wait."""
        self.history: list[Happening] = []
        self._objects: dict[tuple[str, str], Object] = {}
        self._numbers = {version_of(0): 0, version_of(1): 1}

    def get(self, collection: str, key: str) -> Object:
        """A copy of an object; raises RefusedError."""
        found = self._objects.get((collection, key))
        if found is None:
            raise RefusedError(404, "NotFound", f"{collection} {key} not found")
        return copy.deepcopy(found)

    def text(self, collection: str, key: str) -> str:
        """The same as JSON, for many reads."""
        found = self._objects.get((collection, key))
        if found is None:
            raise RefusedError(404, "NotFound", f"{collection} {key} not found")
        return json.dumps(found)

    def all(self, collection: str) -> dict[str, Object]:
        """Copies of a collection's objects by key."""
        return {
            key: copy.deepcopy(x) for (kind, key), x in self._objects.items() if kind == collection
        }

    def create(self, collection: str, key: str, body: Object, *, uid: str | None = None) -> Object:
        """The object as it is stored, with this UID or one of its own; raises RefusedError."""
        if (collection, key) in self._objects:
            raise RefusedError(409, "AlreadyExists", f"{collection} {key} already exists")
        body = copy.deepcopy(body)
        body.setdefault("metadata", {})["uid"] = uid or str(uuid.uuid4())
        body["metadata"]["creationTimestamp"] = self._now()
        return self._stored(collection, key, "ADDED", body)

    def replace(self, collection: str, key: str, body: Object) -> Object:
        """The object as it is now; its version, if it has one, must be the last; RefusedError."""
        old = self.get(collection, key)
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        body = copy.deepcopy(body)
        for kept in ("uid", "creationTimestamp"):
            body["metadata"][kept] = old["metadata"][kept]
        body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if body == old:
            return old
        if deleted := old["metadata"].get("deletionTimestamp"):
            body["metadata"]["deletionTimestamp"] = deleted
            before = set(old["metadata"].get("finalizers") or ())
            if set(body["metadata"].get("finalizers") or ()) - before:
                raise RefusedError(422, "Invalid", "no new finalizers can be added")
            if not body["metadata"].get("finalizers"):
                # As the real one: the change that lets it go is never stored itself.
                self._removed(collection, key, old)
                return body
        return self._stored(collection, key, "MODIFIED", body)

    def delete(self, collection: str, key: str, *, uid: str = "", version: str = "") -> Object:
        """The object as it is now or was last; `uid` and `version` are preconditions."""
        old = self.get(collection, key)
        found = old["metadata"]
        if (uid or found["uid"], version or found["resourceVersion"]) != (
            found["uid"],
            found["resourceVersion"],
        ):
            raise RefusedError(409, "Conflict", "Precondition failed")
        if not found.get("finalizers"):
            return self._removed(collection, key, old)
        if found.get("deletionTimestamp"):
            return old
        found["deletionTimestamp"] = self._now()
        return self._stored(collection, key, "MODIFIED", old)

    def _removed(self, collection: str, key: str, last: Object) -> Object:
        del self._objects[collection, key]
        self._happened(collection, key, "DELETED", last)
        return last

    def compact(self) -> None:
        """Forget what happened; what is now stays."""
        self.oldest = self.number
        self.history.clear()

    def restart_elsewhere(self) -> None:
        """Versions from before mean nothing any more."""
        self._numbers = {}
        self.number += 1_000
        self._numbers[version_of(self.number)] = self.number
        self.compact()

    def number_of(self, version: str) -> int:
        """The place of a version in the order; raises RefusedError where it is too old."""
        found = self._numbers.get(version)
        if found is None and self.is_restored:
            return _FUTURE
        if found is None or found < self.oldest:
            raise RefusedError(410, "Expired", f"too old resource version: {version}")
        return found

    def after(self, collection: str, number: int) -> list[Happening]:
        """What happened to a collection later."""
        return [x for x in self.history if x.number > number and x.collection == collection]

    def _stored(self, collection: str, key: str, kind: str, body: Object) -> Object:
        self._objects[collection, key] = body
        self._happened(collection, key, kind, body)
        return copy.deepcopy(body)

    def _happened(self, collection: str, key: str, kind: str, body: Object) -> None:
        self.number += 1
        version = version_of(self.number)
        self._numbers[version] = self.number
        body["metadata"]["resourceVersion"] = version
        self.history.append(Happening(self.number, collection, key, kind, copy.deepcopy(body)))
        if self._kept is not None and len(self.history) > self._kept:
            self._forget(len(self.history) // 2)

    def _forget(self, count: int) -> None:
        """The oldest changes; whoever is that far behind has to list again."""
        self.oldest = self.history[count - 1].number
        del self.history[:count]
        self._numbers = {x: number for x, number in self._numbers.items() if number >= self.oldest}
