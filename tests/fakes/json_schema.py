"""Checks JSON against the part of JSON Schema that our documents use; any other keyword fails."""

import re
from typing import Any

Schema = dict[str, Any]

_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "null": type(None),
}
_PROSE = {"title", "description", "default"}
_KNOWN = _PROSE | {
    *("$ref", "anyOf", "enum", "type", "properties", "required", "additionalProperties", "items"),
    *("pattern", "maxLength", "minimum", "maximum"),
}


def faults(value: Any, schema: Schema, document: Schema, at: str = "$") -> list[str]:
    """What is wrong with a value; `document` is where `$ref` leads."""
    assert set(schema) <= _KNOWN, schema
    if reference := schema.get("$ref"):
        found = document
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]
        return faults(value, found, document, at)
    if choices := schema.get("anyOf"):
        if not any(not faults(value, x, document, at) for x in choices):
            return [f"{at}: none of {len(choices)} alternatives"]
        return []
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is not in the enum"]
    wanted = _TYPES.get(schema.get("type", ""))
    if wanted is not None and (not isinstance(value, wanted) or isinstance(value, bool)):
        return [f"{at}: {value!r} is no {schema['type']}"]
    return [*_bounds(value, schema, at), *_parts(value, schema, document, at)]


def _bounds(value: Any, schema: Schema, at: str) -> list[str]:
    if isinstance(value, int):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return [] if low <= value <= high else [f"{at}: {value} is out of bounds"]
    if isinstance(value, str):
        fits = len(value) <= schema.get("maxLength", len(value))
        fits = fits and re.search(schema.get("pattern", ""), value) is not None
        return [] if fits else [f"{at}: {value!r} does not fit"]
    return []


def _parts(value: Any, schema: Schema, document: Schema, at: str) -> list[str]:
    if isinstance(value, list):
        items = schema.get("items", {})
        return [y for i, x in enumerate(value) for y in faults(x, items, document, f"{at}[{i}]")]
    if not isinstance(value, dict):
        return []
    missing = [f"{at}.{x} is missing" for x in schema.get("required", ()) if x not in value]
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    inside = (
        fault
        for key, each in value.items()
        for fault in faults(each, properties.get(key, rest), document, f"{at}.{key}")
    )
    return [*missing, *inside]
