"""What is changed in a program to see whether a test notices. Pure.

Each operator looks at one syntax node and gives the texts that could stand in its place.
Where it may look is `places.py`'s matter.
"""

import ast
from collections.abc import Callable, Iterator
from typing import Final

from tests.mutation.spans import Edit, Spans

Node = ast.expr | ast.stmt | ast.excepthandler | ast.match_case
Operator = Callable[[Node, Spans], Iterator[Edit]]

_COMPARED: Final[dict[type[ast.cmpop], tuple[str, str]]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_COMPUTED: Final[dict[type[ast.operator], tuple[str, str]]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitOr: ("|", "&"),
    ast.BitAnd: ("&", "|"),
    ast.BitXor: ("^", "|"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_OTHER_ERROR: Final = "ArithmeticError"
"""Raised by nothing here and expected by nobody."""


def compare(node: Node, spans: Spans) -> Iterator[Edit]:
    """`<` to `<=`, `==` to `!=`, `in` to `not in`, `is` to `is not`, and back."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, right, op in zip(operands, operands[1:], node.ops, strict=False):
            edit = spans.between(left, right, *_COMPARED[type(op)])
            yield from [edit] if edit else []


def boolean(node: Node, spans: Spans) -> Iterator[Edit]:
    """`and` to `or` and back."""
    if isinstance(node, ast.BoolOp):
        before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            edit = spans.between(left, right, before, after)
            yield from [edit] if edit else []


def negation(node: Node, spans: Spans) -> Iterator[Edit]:
    """`not x` to `x`, `-x` to `x`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield spans.instead(node, f"({spans.text(node.operand)})")


def condition(node: Node, spans: Spans) -> Iterator[Edit]:
    """What decides becomes True or False (a loop only False, or it would not end)."""
    tests: list[ast.expr] = []
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        tests = [node.test]
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        tests = [test for part in node.generators for test in part.ifs]
    elif isinstance(node, ast.match_case) and node.guard is not None:
        tests = [node.guard]
    for test in tests:
        if not isinstance(test, ast.Constant):
            yield spans.instead(test, "False")
            if not isinstance(node, ast.While):
                yield spans.instead(test, "True")


def number(node: Node, spans: Spans) -> Iterator[Edit]:
    """A number, one more and one less; so is a product like `64 * 1024`."""
    if is_computed_number(node):
        assert isinstance(node, ast.BinOp)
        for change in ("+ 1", "- 1"):
            yield spans.instead(node, f"(({spans.text(node)}) {change})")
    elif isinstance(node, ast.Constant) and type(node.value) in {int, float}:
        assert isinstance(node.value, int | float)
        for value in (node.value + 1, node.value - 1):
            yield spans.instead(node, str(value) if value >= 0 else f"({value})")


def truth(node: Node, spans: Spans) -> Iterator[Edit]:
    """True to False and back."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield spans.instead(node, str(not node.value))


def string(node: Node, spans: Spans) -> Iterator[Edit]:
    """A text or bytes that are data get one more character; texts for people are left alone."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        yield spans.instead(node, repr("X" + node.value))
    elif isinstance(node, ast.Constant) and isinstance(node.value, bytes):
        yield spans.instead(node, repr(b"X" + node.value))
    elif isinstance(node, ast.JoinedStr) and not _for_people(node):
        yield spans.instead(node, f'("X" + {spans.text(node)})')


def arithmetic(node: Node, spans: Spans) -> Iterator[Edit]:
    """Another operator between two values."""
    if isinstance(node, ast.BinOp) and not is_computed_number(node):
        edit = spans.between(node.left, node.right, *_COMPUTED[type(node.op)])
        yield from [edit] if edit else []
    elif isinstance(node, ast.AugAssign):
        before, after = _COMPUTED[type(node.op)]
        edit = spans.between(node.target, node.value, f"{before}=", f"{after}=")
        yield from [edit] if edit else []


def returned(node: Node, spans: Spans) -> Iterator[Edit]:
    """A returned condition is negated, another value becomes None."""
    if not isinstance(node, ast.Return) or node.value is None:
        return
    value = node.value
    if isinstance(value, ast.Compare | ast.BoolOp):
        yield spans.instead(value, f"not ({spans.text(value)})")
    elif not isinstance(value, ast.Constant) or value.value not in {None, True, False}:
        yield spans.instead(value, "None")


def deletion(node: Node, spans: Spans) -> Iterator[Edit]:
    """A statement that only has an effect is left out."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield spans.instead(node, "pass")
        case ast.Raise() | ast.Delete() | ast.Continue() | ast.Break() | ast.Return(value=None):
            yield spans.instead(node, "pass")
        case ast.Assign(targets=[*targets]) if any(_is_effect(x) for x in targets):
            yield spans.instead(node, "pass")
        case ast.AugAssign():
            yield spans.instead(node, "pass")
        case ast.AnnAssign(target=target, value=ast.expr()) if _is_effect(target):
            yield spans.instead(node, "pass")
        case _:
            return


def caught(node: Node, spans: Spans) -> Iterator[Edit]:
    """An `except` catches one kind less."""
    if isinstance(node, ast.ExceptHandler) and node.type is not None:
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        for kind in kinds:
            yield spans.instead(kind, "()")


def raised(node: Node, spans: Spans) -> Iterator[Edit]:
    """Another exception is raised."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield spans.instead(node.exc.func, _OTHER_ERROR)


def slicing(node: Node, spans: Spans) -> Iterator[Edit]:
    """A slice without one of its ends."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for end in (node.slice.lower, node.slice.upper):
            if end is not None:
                yield spans.instead(end, "")


OPERATORS: Final[dict[str, Operator]] = {
    "compare": compare,
    "boolean": boolean,
    "negation": negation,
    "condition": condition,
    "number": number,
    "truth": truth,
    "string": string,
    "arithmetic": arithmetic,
    "return": returned,
    "delete": deletion,
    "except": caught,
    "raise": raised,
    "slice": slicing,
}


def is_computed_number(node: ast.AST) -> bool:
    """Whether it is an operation on numbers that are written out."""
    parts = (node.left, node.right) if isinstance(node, ast.BinOp) else ()
    return bool(parts) and all(
        (isinstance(x, ast.Constant) and type(x.value) is int) or is_computed_number(x)
        for x in parts
    )


def _is_effect(target: ast.expr) -> bool:
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return any(isinstance(part, ast.Attribute | ast.Subscript) for part in parts)


def _for_people(node: ast.JoinedStr) -> bool:
    return any(isinstance(x, ast.Constant) and " " in str(x.value) for x in node.values)
