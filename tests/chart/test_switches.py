"""Every switch of the chart has a way with kustomize in deploy/README.md, or a reason."""

import re
from typing import Final

from tests.deploy.manifests import KUSTOMIZE
from tests.docs_pages.chart_values import Value, values

PAGE: Final = KUSTOMIZE.parent / "README.md"
COMPONENTS: Final = KUSTOMIZE / "components"
ROW: Final = re.compile(r"^\| (`[^|]+`) \| ([^|]+) \|$", re.MULTILINE)
NAMED: Final = re.compile(r"`([^`]+)`")
REASON: Final = re.compile(r"none: \w+( [^ ]+){3,}")
"""What else a row may say: why there is no way."""


def is_switch(value: Value) -> bool:
    """Whether it takes one of a few words, or true and false."""
    return bool(value.enum) or "boolean" in value.types


def section(title: str) -> str:
    _, _, text = PAGE.read_text().partition(f"\n## {title}\n")
    assert text
    return text.partition("\n## ")[0]


def rows() -> list[tuple[list[str], str]]:
    """Values, and what to do."""
    return [(NAMED.findall(x), way) for x, way in ROW.findall(section("Switches of the chart"))]


def test_every_switch_has_one_row_and_every_row_switches() -> None:
    named = [name for names, _ in rows() for name in names]
    assert sorted(named) == sorted(x.name for x in values() if is_switch(x))


def test_a_row_names_what_there_is_or_says_why_there_is_nothing() -> None:
    for names, way in rows():
        paths = [x for x in NAMED.findall(way) if x.startswith(("components/", "deploy/"))]
        for path in paths:
            folder = KUSTOMIZE if path.startswith("components/") else PAGE.parents[1]
            assert (folder / path).exists(), (names, path)
        assert paths or REASON.match(way) or "setting" in way or "patch" in way, names
        assert not (paths and way.startswith("none")), names


def test_every_component_is_among_the_components_of_the_page() -> None:
    listed = set(re.findall(r"`([a-z-]+)`", section("Components")))
    there = {x.name for x in COMPONENTS.iterdir()}
    assert there - listed == set()
    ways = [x for _, way in rows() for x in NAMED.findall(way)]
    linked = {x.removeprefix("components/") for x in ways if x.startswith("components/")}
    assert linked <= there
    assert there - linked == {"export", "hints", "selinux"}, "components without a switch"
