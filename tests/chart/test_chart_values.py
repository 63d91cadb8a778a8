"""Every value is documented and used, and no template uses another one."""

import re

import pytest

from tests.chart.rendering import CHART
from tests.docs_pages.chart_values import UndocumentedError, Value, values
from tests.docs_pages.site import ROOT, pages

WHOLE = ("image",)
"""Groups that templates hand on as a whole, to `gpuwarden.image`."""
NAMED_BY_LISTENER = {
    f"certificates.secrets.{x}" for x in ("admission", "extender", "api", "access")
}
"""Looked up by the listener's name."""
FILES = (".yaml", ".py", ".conf")
OF_OTHER_NAMES = ("docs/adr/", "docs/migrate.md", "CHANGELOG.md")
"""Pages that name modules, values of other charts, and what had another name."""
SET_BY_OLD_NAMES = {"certificates", "controller", "hints", "scheduler", "webhooks"}
"""Groups into which `gpuwarden.aliases` puts a value."""


def used() -> set[str]:
    files = sorted((CHART / "templates").iterdir())
    texts = [re.sub(r"\{\{/\*.*?\*/\}\}", "", x.read_text(), flags=re.DOTALL) for x in files]
    return {
        path
        for text in texts
        for path in re.findall(r"\.Values\.([A-Za-z][A-Za-z0-9]*(?:\.[A-Za-z][A-Za-z0-9]*)*)", text)
    }


def test_every_value_is_used_by_a_template() -> None:
    found = used()
    assert {"trustDomain", "agent.image"} <= found
    unused = {x.name for x in values() if x.name not in found and group(x) not in found}
    assert unused - NAMED_BY_LISTENER == set()
    assert "certificates.secrets" in found


def group(value: Value) -> str:
    """The group of an image's part; else nothing."""
    return ".".join(value.path[:-1]) if value.path[-2:-1] == WHOLE else ""


def test_templates_use_no_other_value() -> None:
    known = {x.name for x in values()}
    groups = {group(x) for x in values()} - {""}
    assert used() - known - groups == {"certificates.secrets", *SET_BY_OLD_NAMES}


def test_a_value_without_a_description_is_an_error() -> None:
    with pytest.raises(UndocumentedError, match=r"above agent\.new"):
        values("agent:\n  # -- One\n  old: 1\n  new: 2\n")


def test_descriptions_belong_to_the_key_below_them() -> None:
    text = (
        "# -- A map of any keys\nfree: {a: 1}\ngroup:\n  # -- Of two\n  # @enum x, y\n  one: x\n"
        "  # -- Text or number\n  # @type string, integer\n  two: 1\n"
    )
    found = {x.name: x for x in values(text)}
    assert list(found) == ["free", "group.one", "group.two"]
    assert (found["free"].types, found["free"].default) == (("object",), {"a": 1})
    assert (found["group.one"].about, found["group.one"].enum) == ("Of two", ("x", "y"))
    assert found["group.two"].types == ("string", "integer")


def named(page: str) -> set[str]:
    """What a page writes as a value of the chart: below one of its groups, or after `--set`."""
    text = (ROOT / page).read_text()
    written = re.findall(r"`([a-z][A-Za-z]*(?:\.[A-Za-z]+)+)(?:[:=][^`]*)?`", text)
    groups = {x.path[0] for x in values()}
    found = {x for x in written if x.partition(".")[0] in groups and not x.endswith(FILES)}
    return found | set(re.findall(r"(?:--set |,)([a-z][A-Za-z]*(?:\.[A-Za-z]+)*)=", commands(text)))


def commands(text: str) -> str:
    """Blocks of a page, and what stands in a line as typed, where it has `--set`."""
    blocks = re.findall(r"^ *```.*?^ *```|`[^`\n]+`", text, re.MULTILINE | re.DOTALL)
    return "\n".join(x for x in blocks if "--set " in x)


def other_names() -> set[str]:
    """Settings, events and others that generated pages have by the same groups."""
    pages = (ROOT / "docs/reference").glob("*.md")
    return {x for page in pages for x in re.findall(r"`([\w.]+)`", page.read_text())}


def test_pages_name_values_that_there_are() -> None:
    known = {x.name for x in values()}
    groups = {".".join(x.path[:n]) for x in values() for n in range(1, len(x.path))}
    free = tuple(f"{x.name}." for x in values() if x.types == ("object",))
    assert len(named("docs/install.md")) > 15
    assert len(named("docs/platforms.md")) > 15
    for page in (x for x in pages() if not x.startswith(OF_OTHER_NAMES)):
        wrong = named(page) - known - groups - other_names()
        assert {x for x in wrong if not x.startswith(free)} == set(), page
