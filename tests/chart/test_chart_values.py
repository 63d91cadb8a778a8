"""Every value is documented and used, and no template uses another one."""

import re

import pytest

from tests.chart.rendering import CHART
from tests.docs_pages.chart_values import UndocumentedError, Value, values

WHOLE = ("image",)
"""Groups that templates hand on as a whole, to `gpuwarden.image`."""
NAMED_BY_LISTENER = {
    f"certificates.secrets.{x}" for x in ("admission", "extender", "api", "access")
}
"""Looked up by the listener's name."""
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


def test_the_page_names_values_that_there_are() -> None:
    page = (CHART.parents[2] / "docs" / "install.md").read_text()
    page = re.sub(
        r"^\| (?:both|gpu-scheduler|scheduler-webhook) \|[^|]*\|", "", page, flags=re.MULTILINE
    )
    known = {x.name for x in values()}
    groups = {x.rpartition(".")[0] for x in known}
    named = set(re.findall(r"`([a-z][A-Za-z]*(?:\.[A-Za-z]+)+)[:=`]", page))
    assert len(named) > 15
    assert named - known - groups - {"example.org"} == set()
