"""Audit records are of declared kinds, and every kind that is declared as written is written."""

import ast
from collections.abc import Iterator

from gpuwarden.audit.record import FORMER_KINDS, RecordKind
from tests.architecture.sources import tree
from tests.architecture.test_names import ROOT


def _sources() -> list[tuple[str, ast.Module]]:
    return [
        (path.relative_to(ROOT).as_posix(), tree(path))
        for path in sorted((ROOT / "controller").rglob("*.py"))
    ]


def _records() -> Iterator[tuple[str, ast.expr]]:
    """Each making of a `Record`, with its kind."""
    for name, source in _sources():
        for node in ast.walk(source):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Record"
            ):
                kinds = [one.value for one in node.keywords if one.arg == "kind"]
                yield f"{name}:{node.lineno}", (*node.args[:1], *kinds)[0]


def _named(kind: ast.expr) -> set[str]:
    """Names of the members that an expression may come to."""
    if isinstance(kind, ast.IfExp):
        return _named(kind.body) | _named(kind.orelse)
    text = ast.unparse(kind)
    return {text.removeprefix("RecordKind.")} if text.startswith("RecordKind.") else set()


def test_every_record_names_its_kind() -> None:
    assert [place for place, kind in _records() if not _named(kind)] == []


def test_a_kind_is_written_if_and_only_if_it_says_so() -> None:
    written = set().union(*(_named(kind) for _, kind in _records()))
    assert written == {kind.name for kind in RecordKind if kind.written}


def test_no_kind_has_a_name_that_another_had_before() -> None:
    assert not FORMER_KINDS.keys() & {kind.value for kind in RecordKind}


def test_what_opens_and_verifies_a_log_keeps_its_name() -> None:
    lasting = {kind.value for kind in RecordKind if kind.value.startswith(("log.", "checkpoint"))}
    assert lasting >= {"checkpoint", "log.key", "log.rotate", "log.start", "log.stop"}
    assert not any(name.startswith(("log.", "checkpoint")) for name in FORMER_KINDS)


def test_every_kind_has_a_meaning_of_its_own() -> None:
    meanings = [kind.meaning for kind in RecordKind]
    assert all(meanings)
    assert len(set(meanings)) == len(meanings)
    assert len({kind.value for kind in RecordKind}) == len(meanings)
