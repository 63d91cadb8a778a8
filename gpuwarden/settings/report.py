"""Settings for people and programs: effective values with sources, and the JSON Schema. Pure."""

import json
from typing import Any

from gpuwarden.settings.keys import Key, Shape
from gpuwarden.settings.loader import API_VERSION, FILE_KEY_SUFFIX, ConfigType, Loaded


def effective(loaded: Loaded[Any]) -> dict[str, dict[str, str]]:
    """Return value and source of every key, secrets redacted."""
    return {
        key.name: {
            "value": key.shown(loaded.values[key.name]),
            "source": loaded.sources[key.name],
        }
        for key in loaded.config.keys
    }


def render(loaded: Loaded[Any]) -> str:
    """Write the effective configuration as a file, with each value's source as a comment.

    The result is a valid configuration file, except that secrets are redacted.
    """
    lines = [f"apiVersion: {API_VERSION}", f"kind: {loaded.config.kind}"]
    open_sections: tuple[str, ...] = ()
    for key in loaded.config.keys:
        *sections, name = key.path
        for depth, section in enumerate(sections):
            if open_sections[: depth + 1] != tuple(sections[: depth + 1]):
                lines.append(f"{'  ' * depth}{section}:")
        open_sections = tuple(sections)
        value = _yaml(key, loaded.values[key.name])
        source = loaded.sources[key.name].replace("\n", " ")
        lines.append(f"{'  ' * len(sections)}{name}: {value}  # {source}")
    return "\n".join(lines) + "\n"


def json_schema(config: ConfigType[Any]) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file of this kind.

    Required keys are not required of the file: flags and environment may give them.
    """
    properties: dict[str, Any] = {
        "apiVersion": {"const": API_VERSION},
        "kind": {"const": config.kind},
    }
    for key in config.keys:
        node = properties
        for section in key.path[:-1]:
            node = node.setdefault(section, _object({}))["properties"]
        node[key.path[-1]] = _schema_of(key)
        if key.spec.secret:
            node[key.path[-1] + FILE_KEY_SUFFIX] = {
                "type": ["string", "null"],
                "description": f"file that holds {key.name}",
            }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": config.kind,
        **_object(properties),
        "required": ["apiVersion", "kind"],
    }


def _yaml(key: Key, value: Any) -> str:  # noqa: ANN401 -- keys have any type
    if value is None:
        return "null"
    if key.spec.secret:
        return "null" if not value else '"<redacted>"'
    shape = key.spec.kind.shape
    if shape is Shape.LIST:
        return json.dumps(key.shown(value).split(","))
    if shape in {Shape.MAP, Shape.BOOLEAN} or (
        shape is Shape.NUMBER and key.shown(value).isdigit()
    ):
        return key.shown(value)
    return json.dumps(key.shown(value))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _schema_of(key: Key) -> dict[str, Any]:
    schema = dict(key.spec.kind.schema)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    schema["type"] = [*kinds, "null"]
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    schema["description"] = f"{key.spec.help}; {key.spec.kind.expects}"
    if not key.required and not key.spec.secret and key.default is not None:
        schema["default"] = key.shown(key.default)
    return schema
