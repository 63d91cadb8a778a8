"""RFC 6902, strictly, as the API server applies it: what does not fit is an error."""

import copy
from collections.abc import Iterable
from typing import Any


class PatchError(Exception):
    """The patch does not apply."""


def applied(document: Any, patch: Iterable[dict[str, Any]]) -> Any:  # noqa: ANN401 - JSON
    """The patched document; the given one stays as it was."""
    made = {"": copy.deepcopy(document)}
    for operation in patch:
        _apply(made, operation)
    return made[""]


def _apply(made: dict[str, Any], operation: dict[str, Any]) -> None:
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in operation["path"].split("/")]
    parent: Any = made
    for token in tokens[:-1]:
        parent = _member(parent, token)
    name, op = tokens[-1], operation["op"]
    if isinstance(parent, list) and op == "add":
        index = len(parent) if name == "-" else _index(parent, name, len(parent) + 1)
        parent.insert(index, operation["value"])
    elif isinstance(parent, dict) and op == "add":
        parent[name] = operation["value"]
    else:
        found = _member(parent, name)
        key = _index(parent, name, len(parent)) if isinstance(parent, list) else name
        if op == "replace":
            parent[key] = operation["value"]
        elif op == "remove":
            del parent[key]
        elif op == "test":
            if found != operation["value"]:
                raise PatchError("the test failed")
        else:
            raise PatchError(f"no operation {op}")


def _member(parent: Any, token: str) -> Any:  # noqa: ANN401 - JSON
    if isinstance(parent, list):
        return parent[_index(parent, token, len(parent))]
    if not isinstance(parent, dict) or token not in parent:
        raise PatchError(f"nothing at {token!r}")
    return parent[token]


def _index(parent: list[Any], text: str, end: int) -> int:
    if not text.isdigit() or text != str(int(text)) or int(text) >= end:
        raise PatchError(f"no element {text!r} of {len(parent)}")
    return int(text)
