"""What `names` and `score_names` of `gpuwarden.telemetry` declare is written, and nothing else is.

Metrics can be made by `Instruments` alone, from the declarations; so what is left is
that each one is moved somewhere, and that log events and spans are named by members. The
type of a logger takes no other event, and structlog is in no module but that of the logger.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gpuwarden.telemetry import names, score_names
from gpuwarden.telemetry.names import Event, Metric, Span
from tests.architecture.sources import tree

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("agent", "controller", "gpuwarden")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LIBRARY_STYLE = {"gpuwarden/identity/svid_watcher.py", "gpuwarden/identity/tunnel.py"}
"""Write plain lines through `logging`, as the libraries around them do."""


@cache
def _sources() -> list[tuple[str, ast.Module]]:
    names_of = (
        (path.relative_to(ROOT).as_posix(), path)
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    return [
        (name, tree(path))
        for name, path in names_of
        if not name.startswith("gpuwarden/telemetry/names") and not name.endswith("every_metric.py")
    ]


@cache
def _used() -> set[tuple[str, str]]:
    """Each name with an attribute that is taken of it."""
    return {
        (node.value.id, node.attr)
        for _, source in _sources()
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }


@pytest.mark.parametrize(
    ("owner", "declared"),
    [
        ("names", {name for name, value in vars(names).items() if isinstance(value, Metric)}),
        (
            "score_names",
            {name for name, value in vars(score_names).items() if isinstance(value, Metric)},
        ),
        ("Event", set(Event.__members__)),
        ("Span", set(Span.__members__)),
    ],
)
def test_every_declared_name_is_used_by_the_product(owner: str, declared: set[str]) -> None:
    assert {name for name in declared if (owner, name) not in _used()} == set()


def _log_calls() -> Iterator[tuple[str, ast.Call]]:
    for name, source in _sources():
        for node in ast.walk(source):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LEVELS
                and "log" in ast.unparse(node.func.value).lower()
            ):
                yield name, node


def _is_declared(event: ast.expr) -> bool:
    if isinstance(event, ast.IfExp):
        return _is_declared(event.body) and _is_declared(event.orelse)
    return ast.unparse(event).startswith("Event.") or ast.unparse(event) == "event"


def test_log_lines_are_named_by_declared_events() -> None:
    strays = [
        f"{name}:{call.lineno}"
        for name, call in _log_calls()
        if name not in LIBRARY_STYLE and not _is_declared(call.args[0])
    ]
    assert strays == []
    assert len(list(_log_calls())) > len(LIBRARY_STYLE)


def test_no_logger_is_made_at_import() -> None:
    """It would write as before `configure`: to standard output, where the audit log is."""
    strays = [
        f"{name}:{call.lineno}"
        for name, source in _sources()
        for statement in source.body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for call in ast.walk(statement)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"logger", "logs.logger"}
    ]
    assert strays == []


def test_only_the_named_modules_log_as_libraries_do() -> None:
    found = {
        name
        for name, source in _sources()
        for node in ast.walk(source)
        if isinstance(node, ast.Attribute) and node.attr == "getLogger"
    }
    assert found - {"gpuwarden/telemetry/logs.py"} == LIBRARY_STYLE
