"""Each command on a page is typed by a test, or the page says that none does, and why.

A test that takes commands from a page calls `typed(PAGE, BEGINNING)`, or walks sections of the page
with a `Reader`; both are seen in its source, so a test that no longer does so holds nothing.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.builders.console_commands import PageCommand, page_commands, words
from tests.docs_pages.site import ROOT, pages

PAGES = ("README.md", *(x for x in pages() if x != "CHANGELOG.md"))
RUN_BY = {
    "CONTRIBUTING.md": (".ci/run", "tests/architecture/test_make_help.py"),
    "README.md": ("tests/integration/test_demo_to_try.py",),
    "deploy/helm/gpuwarden/README.md": (),
    "docs/backup.md": (),
    "docs/certificates.md": ("tests/e2e/test_chart.py",),
    "docs/demo.md": (
        "tests/architecture/test_make_help.py",
        "tests/integration/test_demo_to_try.py",
    ),
    "docs/doctor.md": ("tests/integration/test_doctor.py",),
    "docs/index.md": (),
    "docs/inspect-grpc.md": (
        "tests/integration/test_inspect_grpc.py",
        "tests/e2e/test_daemonset_spire.py",
        "tests/e2e/test_spire_trust.py",
    ),
    "docs/install.md": ("tests/e2e/product/helm_release.py",),
    "docs/kind.md": ("tests/e2e/test_dev_overlay_and_evaluation.py",),
    "docs/operations-rma.md": ("tests/integration/test_rma.py",),
    "docs/reference/cli.md": ("tests/unit/gpuwarden/cli/test_app.py",),
    "docs/tutorial-cluster.md": ("tests/e2e/test_chart_bundled_spire.py",),
    "docs/uninstall.md": ("tests/e2e/test_uninstall.py", "tests/e2e/test_chart.py"),
}
"""Pages whose commands are typed by these files; with none, all of them are on another page too."""
WHOLE = r"(?:(?:the commands?|a command) of )?th(?:is page|ese commands|is command)\b[^.:]*: \w"
PART = r"((?:`[^`]+`(?:, | and )?)+)[^.:]*: \w"


def read_by(file: Path, page: str) -> tuple[set[str], tuple[str, ...]]:
    """With which words commands begin that this source types, and what sections it walks."""
    beginnings, sections = set(), list[str]()
    tree = ast.parse(file.read_text())
    named: dict[str, object] = {}
    for node in ast.walk(tree):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value))
            ):
                named[name] = value

    def texts(arguments: Iterable[ast.expr]) -> list[str]:
        values = [
            x.value if isinstance(x, ast.Constant) else named.get(x.id, "")
            for x in arguments
            if isinstance(x, ast.Constant | ast.Name)
        ]
        return [x for x in values if isinstance(x, str)]

    for call in (x for x in ast.walk(tree) if isinstance(x, ast.Call)):
        match call.func:
            case ast.Name(id="typed"):
                of, *beginning = texts(call.args)
                beginnings |= {x for x in beginning if x and of == page}
            case ast.Attribute(attr="walk" | "commands" | "answers"):
                sections += texts(call.args)
    reads = page in {x.value for x in ast.walk(tree) if isinstance(x, ast.Constant)}
    return beginnings, tuple(sections) if reads else ()


def run(page: str) -> Iterator[str]:
    """Commands of the page that its tests type."""
    for file in RUN_BY[page]:
        if not file.endswith(".py"):
            yield from re.findall(r"^(?:nice -n \d+ )?(make [\w-]+)", read(file), re.MULTILINE)
            continue
        beginnings, sections = read_by(ROOT / file, page)
        for command in page_commands(page):
            is_walked = f"{command.section}\n".startswith(sections) and not command.is_of_a_list
            if is_walked or any(f"{command.text} ".startswith(f"{x} ") for x in beginnings):
                yield command.text


def read(path: str) -> str:
    return (ROOT / path).read_text()


def marked(page: str) -> tuple[bool, Sequence[str]]:
    """Whether the page says that no test runs its commands; and which ones, if not all."""
    text = " ".join(read(page).split())
    said = re.findall(rf"No test runs {PART}", text)
    named = [x for part in said for x in re.findall(r"`([^`]+)`", part)]
    return re.search(rf"No test runs {WHOLE}", text) is not None, named


ALL_RUN = [words(command) for page in RUN_BY for command in run(page)]


def is_run(command: str) -> bool:
    """Whether a test types this command, on whatever page; it may go on there."""
    own = words(command)
    return any(x[: len(own)] == own for x in ALL_RUN)


def left(page: str, commands: Iterable[PageCommand]) -> list[str]:
    """Commands that nothing is said of."""
    is_whole, named = marked(page)
    return [
        x.text
        for x in commands
        if not is_whole and not x.text.startswith(tuple(named)) and not is_run(x.text)
    ]


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_run_by_a_test_or_say_why_not(page: str) -> None:
    assert left(page, page_commands(page)) == []


@pytest.mark.parametrize("page", RUN_BY)
def test_a_file_that_is_named_types_commands_of_the_page(page: str) -> None:
    for file in RUN_BY[page]:
        if file.endswith(".py"):
            assert any(read_by(ROOT / file, page)), file


@pytest.mark.parametrize("page", [x for x in PAGES if not x.startswith("docs/reference/")])
def test_what_is_typed_at_a_console_is_after_a_prompt(page: str) -> None:
    """Else it is taken for output. Generated pages show each command's usage there."""
    blocks = re.findall(r"^ *```(?:console|bash|shell)\n *(..)", read(page), re.MULTILINE)
    assert [x for x in blocks if x not in ("$ ", "# ")] == []


@pytest.mark.parametrize("page", PAGES)
def test_a_target_of_make_is_there_and_its_variables_are_read(page: str) -> None:
    makefile = read("Makefile")
    for command in page_commands(page):
        if command.text.startswith("make "):
            _, target, *variables = words(command.text)
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), command.text
            for name in (x.partition("=")[0] for x in variables if "=" in x):
                assert re.search(rf"\b{name}\b", makefile), command.text


def test_a_command_is_read_whole() -> None:
    found = {x.text.partition(" ")[0]: x for x in page_commands("docs/kind.md")}
    assert found["helm"].text.endswith(" --set spire.mode=bundled")
    assert found["alias"].section == "Look"
    (pod,) = (x.text for x in page_commands("docs/kind.md") if "<<" in x.text)
    assert pod.endswith("pause:3.10\nPOD")
    loops = [x.text for x in page_commands("docs/uninstall.md") if x.text.startswith("for ")]
    assert loops
    assert all(x.endswith("\ndone") for x in loops)


def test_a_new_command_of_a_page_is_seen() -> None:
    """On pages whose commands are all typed by tests, or are said not to be, one by one."""
    for page in RUN_BY:
        added = PageCommand("helm rollback gpuwarden", "Before", is_of_a_list=True)
        assert left(page, [added]) == [added.text]


def test_each_example_is_applied_by_a_test_on_a_cluster() -> None:
    sources = [x.read_text() for x in (ROOT / "tests/e2e").glob("test_*.py")]
    named = {
        x.value
        for source in sources
        if "tests.builders.examples" in source
        for x in ast.walk(ast.parse(source))
        if isinstance(x, ast.Constant)
    }
    typed_by_tests = {Path(x).stem for command in ALL_RUN for x in command if "examples/" in x}
    examples = {x.stem for x in (ROOT / "examples").glob("*.yaml")}
    assert examples
    assert examples - named - typed_by_tests == set()
