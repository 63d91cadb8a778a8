"""values.schema.json and the README of the Helm chart, from the comments of values.yaml.

Every value has a line `# --` above it. A value whose default is a map with keys that have such
lines is a group; any other map is free.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from tests.docs_pages.chart_templates import DEPLOY

CHART: Final = DEPLOY / "helm" / "gpuwarden"
_KEY: Final = re.compile(r"^( *)([A-Za-z][A-Za-z0-9]*):")
_ABOUT: Final = re.compile(r"^ *# -- (.*)$")
_TYPE: Final = re.compile(r"^ *# @type (.*)$")
_ENUM: Final = re.compile(r"^ *# @enum (.*)$")
_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "integer",
    str: "string",
    list: "array",
    dict: "object",
}
_LEAST: Final = {
    "controller.replicas": 1,
    "replicaCount": 1,
    "webhook.timeoutSeconds": 1,
    "controller.drainSeconds": 1,
    "scheduler.replicas": 1,
    "webhooks.timeoutSeconds": 1,
    "webhooks.bindingTimeoutSeconds": 1,
}
_LEAST_ITEMS: Final = {"scheduler.names": 1, "webhooks.runtimeClasses": 1}


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value."""

    path: tuple[str, ...]
    about: str
    default: Any
    types: tuple[str, ...]
    enum: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """As `--set` takes it."""
        return ".".join(self.path)


class UndocumentedError(ValueError):
    """A value has no line `# --`."""


@dataclass
class _Notes:
    about: str = ""
    types: tuple[str, ...] = ()
    enum: tuple[str, ...] = ()


@dataclass
class _Place:
    """Where in the file the reader is."""

    path: list[str] = field(default_factory=list)
    indents: list[int] = field(default_factory=list)

    def enter(self, indent: int, key: str) -> tuple[str, ...]:
        while self.indents and self.indents[-1] >= indent:
            self.indents.pop()
            self.path.pop()
        self.indents.append(indent)
        self.path.append(key)
        return tuple(self.path)


def values(text: str | None = None) -> list[Value]:
    """Every value, in the order of the file; UndocumentedError where one is not described."""
    text = (CHART / "values.yaml").read_text() if text is None else text
    notes = dict(_noted(text))
    found = list(_leaves((), yaml.safe_load(text), notes))
    if missing := [x.name for x in found if not x.about]:
        raise UndocumentedError(f"values.yaml: no line `# --` above {', '.join(missing)}")
    return found


def _noted(text: str) -> Iterator[tuple[tuple[str, ...], _Notes]]:
    place, notes = _Place(), _Notes()
    for line in text.splitlines():
        if found := _ABOUT.match(line):
            notes.about = found[1]
        elif found := _TYPE.match(line):
            notes.types = tuple(x.strip() for x in found[1].split(","))
        elif found := _ENUM.match(line):
            notes.enum = tuple(x.strip() for x in found[1].split(","))
        elif found := _KEY.match(line):
            yield place.enter(len(found[1]), found[2]), notes
            notes = _Notes()


def _leaves(
    path: tuple[str, ...], default: Any, notes: Mapping[tuple[str, ...], _Notes]
) -> Iterator[Value]:
    own = notes.get(path, _Notes())
    if isinstance(default, dict) and default and not own.about:
        for key, below in default.items():
            yield from _leaves((*path, key), below, notes)
        return
    types = own.types or (_TYPES[type(default)],)
    yield Value(path, own.about, default, types, own.enum)


def schema() -> str:
    """JSON schema; a key that values.yaml does not have is refused."""
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "Generated from values.yaml (`make docs`).",
        **_group(),
    }
    # What Helm gives every chart that is somebody's dependency.
    root["properties"]["global"] = {"type": "object"}
    for value in values():
        place = root
        for key in value.path[:-1]:
            place = _required(place, key)["properties"].setdefault(key, _group())
        # Helm leaves out what is null.
        if value.default is not None:
            _required(place, value.path[-1])
        place["properties"][value.path[-1]] = _node(value)
    return json.dumps(root, indent=2, ensure_ascii=False) + "\n"


def _required(place: dict[str, Any], key: str) -> dict[str, Any]:
    """Every key has a default: one that lacks is of an older chart (`--reuse-values`), or null."""
    required = place.setdefault("required", [])
    if key not in required:
        required.append(key)
    return place


def _group() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _node(value: Value) -> dict[str, Any]:
    types = value.types
    node: dict[str, Any] = {
        "description": value.about,
        "type": types[0] if len(types) == 1 else list(types),
    }
    if value.enum:
        node["enum"] = [*value.enum, *((None,) if "null" in types else ())]
    if (least := _LEAST.get(value.name)) is not None:
        node["minimum"] = least
    if (least := _LEAST_ITEMS.get(value.name)) is not None:
        node["minItems"] = least
    return node


def readme() -> str:
    """What the chart installs, and the table of values."""
    rows = "\n".join(
        f"| `{x.name}` | `{json.dumps(x.default, ensure_ascii=False)}` | {_about(x)} |"
        for x in values()
    )
    return _README.replace("ROWS", rows)


def _about(value: Value) -> str:
    return value.about + (f" ({', '.join(f'`{x}`' for x in value.enum)})" if value.enum else "")


_README: Final = """\
# Helm chart of gpuwarden

Generated from `values.yaml` (`make docs`); a test fails when it is out of date. How to install,
upgrade and remove: [docs/install.md](../../../docs/install.md).

```sh
helm install gpuwarden deploy/helm/gpuwarden --namespace gpuwarden-system --create-namespace \\
  --set trustDomain=prod.acme.io --set clusterName=berlin-1
```

Names of objects do not depend on the release: there is one gpuwarden for a cluster, and a second
release is refused. `files/spire/crds` are those of the SPIRE controller manager 0.6.3
(Apache-2.0), for `spire.mode: bundled`.

## Values

Keys that are not in this table are refused. `extraObjects`, annotations, labels, volumes,
tolerations and affinities are Kubernetes' own.

| value | default | meaning |
|---|---|---|
ROWS
"""
