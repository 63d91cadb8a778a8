"""Renders pages from templates, and holds the files that they load.

Every value is escaped. Must not know who looks, nor ask for anything.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2

from gpuwarden.counted import counted
from gpuwarden.moment import rfc3339

_TYPES: Final = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
_DIGITS: Final = 12
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load."""

    content: bytes
    media: str
    digest: str


def _assets() -> Mapping[str, Asset]:
    found = {}
    for file in files("controller.console").joinpath("static").iterdir():
        kind = file.name.rpartition(".")[2]
        if kind in _TYPES:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
            found[file.name] = Asset(content, _TYPES[kind], digest)
    return found


class Pages:
    """One for the process."""

    def __init__(self) -> None:
        self.assets = _assets()
        self._environment = jinja2.Environment(
            loader=jinja2.PackageLoader("controller.console"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals["asset"] = self.path_of
        self._environment.globals["at"] = address
        self._environment.filters["short"] = short
        self._environment.filters["counted"] = counted
        self._environment.filters["part"] = part

    def path_of(self, name: str) -> str:
        """Where a file is; another path when its content is another."""
        return f"/ui/static/{self.assets[name].digest}/{name}"

    def render(self, template: str, **values: Any) -> str:  # noqa: ANN401 -- what a template names
        """The page."""
        return self._environment.get_template(f"{template}.html").render(values)


def address(path: str, query: Mapping[str, str] | None = None, **changes: str) -> str:
    """A path with its query, in which some parameters are others, and empty ones are left out."""
    found = {**(query or {}), **{x.replace("_", "-"): value for x, value in changes.items()}}
    text = urlencode({key: value for key, value in found.items() if value})
    return f"{path}?{text}" if text else path


def part(text: str) -> str:
    """A part of a path."""
    return quote(text, safe="")


def short(digest: str) -> str:
    """The beginning of a digest, as people compare them."""
    head, _, tail = digest.rpartition(":")
    shown = tail if len(tail) <= _SHOWN else f"{tail[:_SHOWN]}…"
    return f"{head}:{shown}" if head else shown


def as_of(wall_ns: int) -> str:
    """When a page was made, RFC 3339."""
    return rfc3339(wall_ns)
