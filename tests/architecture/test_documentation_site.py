"""The documentation site has every page, and its links lead somewhere.

`make docs` builds the site and fails on a warning. This is what needs no site to be seen.
"""

import re
from typing import Any

import pytest
import yaml

from tests.docs_pages.site import (
    OUTSIDE,
    ROOT,
    anchors,
    folded,
    links,
    pages,
    relinked,
    slug,
    source,
)

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
READ_ON_THE_FORGE = ("README.md",)


def listed(entries: list[Any]) -> list[str]:
    """Every page of the navigation, in its order."""
    found: list[str] = []
    for entry in entries:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += listed(value) if isinstance(value, list) else [value]
    return found


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(source(page) for page in listed(CONFIG["nav"])) == sorted(pages())


def test_no_readme_becomes_the_heading_of_its_section() -> None:
    """With this feature it is not listed: only the heading leads there."""
    assert "navigation.indexes" not in CONFIG["theme"]["features"]


def test_a_warning_is_an_error_and_nothing_is_fetched_from_elsewhere() -> None:
    assert CONFIG["strict"] is True
    assert set(CONFIG["validation"].values()) == {"warn"}
    assert CONFIG["theme"]["font"] is False
    assert CONFIG["plugins"] == ["search"]
    written = (ROOT / "mkdocs.yml").read_text() + (ROOT / "docs/assets/site.css").read_text()
    assert "://" not in written


def test_git_does_not_see_what_is_built() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/site/" in ignored


@pytest.mark.parametrize("page", [*pages(), *READ_ON_THE_FORGE])
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in links(text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / page).parent / path if path else ROOT / page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text()), target


def test_what_the_code_says_of_a_page_is_there() -> None:
    found = [
        (str(file.relative_to(ROOT)), page, anchor)
        for folder in ("agent", "controller", "deploy", "gpuwarden", "sandbox")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".py", ".yaml"}
        for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", file.read_text())
    ]
    assert found
    for file, page, anchor in found:
        assert (ROOT / page).is_file(), (file, page)
        assert not anchor or anchor in anchors((ROOT / page).read_text()), (file, page, anchor)


@pytest.mark.parametrize("page", pages())
def test_no_two_headings_of_a_page_have_one_anchor(page: str) -> None:
    if page == "CHANGELOG.md":
        return  # each release has the same headings, and nobody links to them
    found = anchors((ROOT / page).read_text())
    assert sorted({x for x in found if found.count(x) > 1}) == []


@pytest.mark.parametrize("page", pages())
def test_what_belongs_to_an_item_of_a_list_is_indented_by_four(page: str) -> None:
    """Forges take two or three blanks as well; MkDocs ends the list there."""
    wrong = []
    is_code, before = False, ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        text = line.lstrip(" ")
        indent = len(line) - len(text)
        is_fence = text.startswith("```")
        if not is_code or is_fence:
            begins = is_fence or not before or re.match(r"[-*] |\d+\. ", text) is not None
            if text and begins and indent % 4:
                wrong.append((number, line))
        is_code ^= is_fence
        before = text
    assert wrong == []


@pytest.mark.parametrize("page", pages())
def test_a_list_or_a_table_begins_after_an_empty_line(page: str) -> None:
    """As above: on the site it would be text of the paragraph before."""
    wrong = []
    is_code, before = False, ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        text = line.strip()
        is_code ^= text.startswith("```")
        for mark in (r"[-*] ", r"\d+\. ", r"\|"):
            starts = re.match(mark, line) is not None
            inside = re.match(rf"{mark}|    |  ", before) is not None or before.startswith("#")
            if starts and not is_code and before and not inside:
                wrong.append((number, line))
        before = line.rstrip()
    assert wrong == []


@pytest.mark.parametrize("page", pages())
def test_an_item_of_a_list_begins_after_an_empty_line_behind_one_with_paragraphs(page: str) -> None:
    """As above: on the site it would be text of that item's last paragraph."""
    wrong = []
    is_code = has_paragraphs = False
    before = ""
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if line.startswith("    ") and not before:
            has_paragraphs = True
        elif not line.startswith(" ") and line:
            is_item = re.match(r"[-*] |\d+\. ", line) is not None and not is_code
            if is_item and has_paragraphs and before:
                wrong.append((number, line))
            has_paragraphs = False
        is_code ^= line.lstrip().startswith("```")
        before = line
    assert wrong == []


def test_anchors_are_those_of_forges() -> None:
    text = "# One\n## A `b/c` & [Link](x.md), (d)!\n```sh\n# no heading\n```\n### 16. E_F ##\n"
    assert anchors(text) == ["one", "a-bc--link-d", "16-e_f"]
    assert anchors('<a id="of-old"></a>\n\n# One\n') == ["one", "of-old"]
    assert slug("Two words", "_") == "two_words"


def test_links_of_code_are_none() -> None:
    text = "[a](b.md#c) ![d](e.svg)\n\n```sh\n[f](g.md)\n```\n[h\ni](j)\n"
    assert links(text) == ["b.md#c", "e.svg", "j"]


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("docs/policies.md", "[a](ledger.md#b)", "[a](ledger.md#b)"),
        ("docs/policies.md", "[a](#b)", "[a](#b)"),
        ("docs/adr/1.md", "[a](../ledger.md)", "[a](../ledger.md)"),
        ("docs/policies.md", "[a](../deploy/README.md#b)", "[a](deploy/README.md#b)"),
        ("docs/policies.md", "[a](../deploy/spire/toleration.yaml)", "a"),
        ("deploy/spire/README.md", "[a](../../docs/policies.md#b)", "[a](../../policies.md#b)"),
        ("deploy/README.md", "[a](spire/README.md)", "[a](spire/README.md)"),
        ("CHANGELOG.md", "![a](docs/x.svg)", "![a](x.svg)"),
        ("SECURITY.md", "[a](https://example.org/b.md)", "[a](https://example.org/b.md)"),
    ],
)
def test_a_link_on_the_site(page: str, link: str, expected: str) -> None:
    assert relinked(f"x {link}.", page) == f"x {expected}."
    assert relinked(f"```\n{link}\n```\n", page) == f"```\n{link}\n```\n"


def test_a_column_of_tests_is_folded() -> None:
    one, two = "`tests/a.py::test_b`", "`tests/a.py::test_b`<br>`tests/c.py::test_d`"
    fold = "<details><summary>{}</summary>{}</details>"
    assert folded(f"| x | y | {one} |\n") == f"| x | y | {fold.format('1 test', one)} |\n"
    assert folded(f"| x | y | {two} |\n") == f"| x | y | {fold.format('2 tests', two)} |\n"
    assert folded(f"| x | {one} runs |\n") == f"| x | {one} runs |\n"
    assert folded(f"```\n| x | {one} |\n```\n") == f"```\n| x | {one} |\n```\n"


def test_pages_outside_the_folder_exist() -> None:
    assert [path for path in OUTSIDE if not (ROOT / path).is_file()] == []
