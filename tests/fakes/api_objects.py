"""What a Kubernetes API server keeps: objects with versions, and the history that watches read.

A model, without HTTP: one total order of changes over all collections, as etcd has. Versions
are opaque texts that do not sort like the order they stand for, so that whoever compares
them is found out.
"""

import copy
import json
import uuid
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


class RefusedError(Exception):
    """An answer that is a Status."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(message or reason)
        self.status = status
        self.reason = reason


CREATED = "2026-11-27T20:00:00Z"
"""When everything was made."""
_FUTURE = 10**12


@dataclass(frozen=True)
class Happening:
    number: int
    collection: str
    key: str
    type: str
    object: Object


def version_of(number: int) -> str:
    """Different for each number, in no order."""
    return f"{number * 2654435761 % 2**32:08x}"


class ApiObjects:
    def __init__(self) -> None:
        self.number = 1
        self.oldest = 0
        """Watches and lists from before this are too old."""
        self.is_restored = False
        """From a backup: versions that it does not know are of a future, where watches wait."""
        self.history: list[Happening] = []
        self._objects: dict[tuple[str, str], Object] = {}
        self._numbers = {version_of(0): 0, version_of(1): 1}

    def get(self, collection: str, key: str) -> Object:
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
        return {
            key: copy.deepcopy(x) for (kind, key), x in self._objects.items() if kind == collection
        }

    def create(self, collection: str, key: str, body: Object) -> Object:
        if (collection, key) in self._objects:
            raise RefusedError(409, "AlreadyExists", f"{collection} {key} already exists")
        body = copy.deepcopy(body)
        body.setdefault("metadata", {})["uid"] = str(uuid.uuid4())
        body["metadata"]["creationTimestamp"] = CREATED
        return self._stored(collection, key, "ADDED", body)

    def replace(self, collection: str, key: str, body: Object) -> Object:
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
        found["deletionTimestamp"] = "2027-01-15T08:00:00Z"
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
        found = self._numbers.get(version)
        if found is None and self.is_restored:
            return _FUTURE
        if found is None or found < self.oldest:
            raise RefusedError(410, "Expired", f"too old resource version: {version}")
        return found

    def after(self, collection: str, number: int) -> list[Happening]:
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
