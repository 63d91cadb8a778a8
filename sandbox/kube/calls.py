"""What a request to the API server asks for, and what patches and answers look like. No IO."""

import json
from dataclasses import dataclass
from typing import Any, Final

from sandbox.kube.json_patch import PatchError, applied
from sandbox.kube.objects import Object, RefusedError, version_of

_VERBS: Final = {"POST": "create", "PUT": "update"}
_BELOW_A_NAMESPACE: Final = 2


@dataclass(frozen=True, slots=True)
class Place:
    """What a path names."""

    collection: str
    namespace: str | None
    name: str | None
    subresource: str | None = None

    @property
    def key(self) -> str:
        """Of the object that is named."""
        return "/".join(x for x in (self.namespace, self.name) if x)


def place_of(path: str) -> Place:
    """What a path without its query names."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if parts[0] == "namespaces" and len(parts) > _BELOW_A_NAMESPACE:
        namespace, parts = parts[1], parts[2:]
    return (
        Place(parts[0], namespace, *parts[1:3])
        if len(parts) > 1
        else Place(parts[0], namespace, None)
    )


def verb_of(method: str, place: Place, *, is_watch: bool) -> str:
    """The verb as RBAC calls it."""
    if method != "GET":
        return _VERBS.get(method, method.lower())
    if place.name is not None:
        return "get"
    return "watch" if is_watch else "list"


def key_of(body: Object) -> str:
    """The key of an object."""
    metadata = body["metadata"]
    return "/".join(x for x in (metadata.get("namespace"), metadata["name"]) if x)


# --- patches


def patched(old: Object, patch: Any, content_type: str) -> Object:  # noqa: ANN401 - JSON
    """The object after a patch; raises RefusedError."""
    if content_type == "application/merge-patch+json":
        result: Object = merged(old, patch)
        return result
    if content_type != "application/json-patch+json":
        raise RefusedError(415, "UnsupportedMediaType")
    try:
        result = applied(old, patch)
    except PatchError as error:
        raise RefusedError(422, "Invalid", str(error)) from None
    return result


def merged(old: Any, patch: Any) -> Any:  # noqa: ANN401 - JSON
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def only(old: Object, new: Object, part: str) -> Object:
    """The change as far as it is about `part`: the status does not touch the rest, nor it that."""
    version = new["metadata"].get("resourceVersion")
    if part == "status":
        kept = {**old, "metadata": {**old["metadata"], "resourceVersion": version}}
        return {**kept, "status": new["status"]} if "status" in new else kept
    status = {"status": old["status"]} if "status" in old else {}
    return {**{key: x for key, x in new.items() if key != "status"}, **status}


# --- answers


def refusal(code: int, reason: str, message: str) -> bytes:
    """A Status that says no."""
    return json.dumps(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message,
        }
    ).encode()


def bookmark(number: int) -> bytes:
    """The line of a watch that says only how far it is."""
    event = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version_of(number)}}}
    return json.dumps(event).encode() + b"\n"
