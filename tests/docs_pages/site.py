"""What the documentation site shows, and where its links lead. Pure, but for `pages`.

The pages are read on a forge as well as on the site: links are relative to the repository there. A
heading's anchor is made as forges make it, so that one link serves both.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
OUTSIDE: Final = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/README.md",
    "deploy/helm/gpuwarden/README.md",
    "deploy/scheduler/README.md",
    "deploy/spire/README.md",
)
"""Files of the repository outside docs/ that are pages of the site, under the same path."""

_FENCED: Final = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_ANCHOR: Final = re.compile(r'^<a id="([\w-]+)"></a>$', re.MULTILINE)
_TESTS: Final = re.compile(r"\| (`tests/[^|\n]*::[^|\n]*`) \|$", re.MULTILINE)
_MARKUP: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)|[`*]")


def pages() -> list[str]:
    """Every page, by its path in the repository."""
    return [*sorted(str(x.relative_to(ROOT)) for x in (ROOT / "docs").rglob("*.md")), *OUTSIDE]


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading."""
    text = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return text.replace(" ", separator)


def anchors(markdown: str) -> list[str]:
    """The anchors of a page: of its headings, then those that are written for older links."""
    prose = _prose(markdown)
    headings = [slug(_MARKUP.sub(r"\1", found)) for found in _HEADING.findall(prose)]
    return [*headings, *_ANCHOR.findall(prose)]


def links(markdown: str) -> list[str]:
    """The targets of a page's links and pictures, outside code."""
    return [found[3] for found in _LINK.finditer(_prose(markdown))]


def relinked(markdown: str, page: str) -> str:
    """The text of a page (a path of the repository), with links that hold on the site.

    A link to a file that is no page of the site becomes its text.
    """

    def replaced(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        path, hash_sign, anchor = target.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        place = _place(resolved(page, path))
        if place is None:
            return text
        own = _place(page)
        assert own is not None, page
        relative = posixpath.relpath(place, posixpath.dirname(own) or ".")
        return f"{picture}[{text}]({relative}{hash_sign}{anchor})"

    return _outside_code(markdown, lambda prose: _LINK.sub(replaced, prose))


def folded(markdown: str) -> str:
    """The text of a page whose columns of tests are shown as their number, until it is opened."""

    def replaced(found: re.Match[str]) -> str:
        count = found[1].count("::")
        return (
            f"| <details><summary>{count} test{'s' * (count > 1)}</summary>{found[1]}</details> |"
        )

    return _outside_code(markdown, lambda prose: _TESTS.sub(replaced, prose))


def resolved(page: str, target: str) -> str:
    """The path in the repository that a page's link means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def source(site_path: str) -> str:
    """The file in the repository of a page of the site."""
    return site_path if site_path in OUTSIDE else f"docs/{site_path}"


def _place(path: str) -> str | None:
    """Where the site has a file of the repository."""
    if path in OUTSIDE:
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") else None


def _prose(markdown: str) -> str:
    return "".join(text for text, is_code in _parts(markdown) if not is_code)


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """The change is made between blocks of code; code within a line is part of the prose."""
    return "".join(text if is_code else change(text) for text, is_code in _parts(markdown))


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Prose and blocks of code by turns."""
    end = 0
    for found in _FENCED.finditer(markdown):
        yield markdown[end : found.start()], False
        yield found[0], True
        end = found.end()
    yield markdown[end:], False
