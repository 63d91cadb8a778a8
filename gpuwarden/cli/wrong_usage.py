"""What is said of a wrong command line: the option, what was given, what was expected.

The only place that knows the parser's own errors; their texts are for developers. Pure.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Literal, get_args, get_origin

from cyclopts import ArgumentCollection, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from gpuwarden.finding import near_miss, quoted

_KINDS: Final[Mapping[object, str]] = {float: "a number", int: "a whole number", bool: "no value"}
_ALIKE: Final = 0.6
"""How alike short names are whose letters changed places: `pdo` and `pod`."""


def wrong_usage(error: CycloptsError, program: str) -> str:
    """What is wrong, and the command whose help says how it is right."""
    command = " ".join((program, *(error.command_chain or ())))
    return f"{_fault(error)}\nSee {command} --help."


def _fault(error: CycloptsError) -> str:
    text = str(error)
    match error:
        case UnusedCliTokensError(unused_tokens=[first, *_], app=app) if app is not None:
            taken = _taken(app.assemble_argument_collection())
            text = f"unexpected argument {quoted(first)}; expected {taken}"
        case UnknownOptionError(token=token, argument_collection=arguments):
            known = (name for one in arguments if one.parse for name in one.names)
            text = _unknown("option", token.keyword or token.value, known)
        case UnknownCommandError(unused_tokens=[first, *_], app=app) if app is not None:
            text = _unknown("command", first, (x for x in app if not x.startswith("-")))
        case CoercionError(token=token, argument=argument) if token is not None and argument:
            name = token.keyword or _name(argument.name, argument.index)
            text = f"{name}: expected {_expected(error.target_type)}, got {quoted(token.value)}"
        case MissingArgumentError(argument=argument) if argument is not None:
            name = _name(argument.name, argument.index)
            is_there = not set(argument.names).isdisjoint(error.unused_tokens or ())
            text = f"{name}: expected a value" if is_there else f"{name} is required"
        case RepeatArgumentError(token=token):
            text = f"{token.keyword}: expected once, got more"
    return text


def _taken(arguments: ArgumentCollection) -> str:
    """Arguments and options of a command, without those that reach a controller."""
    own = [x for x in arguments if not x.keys and x.name.strip("*")]
    positional = [_name(x.name, x.index) for x in own if x.index is not None]
    options = [x.name for x in own if x.index is None]
    before = f"only {', '.join(positional)} and options" if positional else "only options"
    return f"{before} such as {', '.join(options)}" if options else before


def _name(name: str, index: int | None) -> str:
    """Of an option as it is typed, of an argument as help shows it."""
    return name if index is None else name.lstrip("-").upper()


def _expected(kind: Any) -> str:  # noqa: ANN401 - any type that a parameter has
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(x.value) for x in kind)}"
    return _KINDS.get(kind, "another value")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    near = near_miss(name, known, closeness=_ALIKE)
    return f"unknown {what} {quoted(name)}" + (f"; did you mean {near}?" if near else "")
