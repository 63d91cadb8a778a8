"""Walks a source and says where the operators may look, in which function. Pure.

Left out: annotations, imports, decorators, `if TYPE_CHECKING`, dunder assignments (`__all__`),
docstrings, and the texts of raised errors. Inside an f-string Python 3.11 gives no positions, so
an f-string is one thing.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tests.mutation.mutant import Key, Mutant
from tests.mutation.operators import OPERATORS, Node, is_computed_number
from tests.mutation.spans import Spans

MODULE: Final = "<module>"
_TYPE_CALLS: Final = {"cast", "TypeVar", "NewType"}
_TEXT_OPERATOR: Final = "string"


@dataclass(frozen=True, slots=True)
class _Place:
    name: tuple[str, ...] = ()
    lines: tuple[int, int] = (1, 1)
    outermost: str | None = None
    outermost_line: int = 0
    raising: bool = False


def mutants_of(path: str, source: str) -> Iterator[Mutant]:
    """Every mutant of a source, in its order."""
    spans = Spans(source)
    for node, place in _walk(ast.parse(source), _Place()):
        for name, operator in OPERATORS.items():
            if _is_out(node, place, name):
                continue
            for edit in operator(node, spans):
                before, after = spans.lines(edit)
                yield Mutant(
                    Key(path, ".".join(place.name) or MODULE, name, before, after),
                    spans.edited(edit),
                    *place.lines,
                    place.outermost,
                    place.outermost_line,
                )


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[Node, _Place]]:
    if isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
        place = replace(place, lines=_header(node), raising=isinstance(node, ast.Raise))
    closed = _is_closed(node)
    if isinstance(node, Node) and not (closed and isinstance(node, ast.stmt)):
        yield node, place
    if not closed:
        for child, at in _below(node, place):
            yield from _walk(child, at)


def _below(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    """The parts of a node that run, each with its place."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            outside = replace(place, name=(*place.name, node.name))
            yield from ((x, outside) for x in (*node.args.defaults, *node.args.kw_defaults) if x)
            inside = _inside(node, place)
            yield from ((x, inside) for x in node.body)
        case ast.ClassDef():
            inside = replace(place, name=(*place.name, node.name))
            yield from ((x, inside) for x in node.body)
        case ast.AnnAssign():
            yield from [(node.value, place)] if node.value else []
        case ast.Call(func=ast.Name(id=name)) if name in _TYPE_CALLS:
            yield from ((x, place) for x in node.args[1:])
        case ast.Call(func=ast.Name(id="zip")):
            # `strict` only says that the lengths are equal.
            yield from ((x, place) for x in node.args)
        case ast.Call(func=ast.Attribute(attr="Thread")):
            # Its name is for people.
            yield from ((x.value, place) for x in node.keywords if x.arg != "name")
        case ast.Subscript() if not place.outermost:
            # On import a subscript is a type, save where a value is computed with a slice.
            yield node.value, place
        case _:
            yield from ((x, place) for x in ast.iter_child_nodes(node))


def _is_closed(node: ast.AST) -> bool:
    """Whether nothing below the node is looked at."""
    match node:
        case ast.BinOp():
            return is_computed_number(node)
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant()):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name.startswith("__")
        case _:
            return False


def _inside(node: ast.FunctionDef | ast.AsyncFunctionDef, place: _Place) -> _Place:
    name = (*place.name, node.name)
    first = min([node.lineno, *(x.lineno for x in node.decorator_list)])
    if place.outermost is None:
        return replace(place, name=name, outermost=".".join(name), outermost_line=first)
    return replace(place, name=name)


def _header(node: ast.stmt | ast.excepthandler | ast.match_case) -> tuple[int, int]:
    """Lines of a simple statement, or of a compound one up to its body."""
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, max(node.pattern.lineno, node.body[0].lineno - 1)
    end = node.subject.end_lineno if isinstance(node, ast.Match) else node.end_lineno
    assert end is not None
    body = getattr(node, "body", None)
    return node.lineno, max(node.lineno, body[0].lineno - 1) if body else end


def _is_out(node: Node, place: _Place, operator: str) -> bool:
    if operator == _TEXT_OPERATOR and place.raising:
        return True
    # On import `A | B` is a type.
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and not place.outermost
