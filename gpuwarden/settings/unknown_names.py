"""Names of flags, variables and keys that nobody knows, with the nearest known one. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final

from gpuwarden.finding import Finding, near_miss, unknown
from gpuwarden.settings.keys import ENV_PREFIX

_MAX_NAME: Final = 100
_WHOLE_NAMES: Final = 0.8
"""How alike names with their sections must be: they have a beginning in common anyway."""

KeyPath = tuple[str, ...]


def unknown_key(parts: KeyPath, where: str, known: Sequence[KeyPath]) -> Finding:
    """A key of the file."""
    path = _cut(".".join(parts))
    if "." in parts[-1]:
        return unknown(path, None, where, known="sections nested, not joined by dots")
    listed = f"one of {', '.join(_siblings(parts, known))}" if parts[1:] else ""
    return unknown(path, _near_path(parts, known), where, known=listed)


def unknown_flag(name: str, typed: str, known: Sequence[KeyPath]) -> Finding:
    """A flag as it was typed, or the key after `--set`."""
    near = _near_path(tuple(name.split(".")), known)
    suggestion = None if near is None else f"{typed.removesuffix(name)}{near}"
    what = "key" if typed.startswith("--set ") else "flag"
    return unknown(_cut(typed), suggestion, "flag", what=what)


def unknown_variable(name: str, known: Iterable[str]) -> Finding:
    """A variable with the prefix of this program."""
    bare = [each.removeprefix(ENV_PREFIX) for each in known if each.startswith(ENV_PREFIX)]
    near = near_miss(name.removeprefix(ENV_PREFIX), sorted(bare), closeness=_WHOLE_NAMES)
    suggestion = None if near is None else ENV_PREFIX + near
    return unknown(_cut(name), suggestion, "environment", what="variable")


def unknown_alias(name: str, known: Iterable[str]) -> Finding:
    """A variable of another program that is like those that are taken, and not one of them."""
    near = near_miss(name, sorted(known), closeness=_WHOLE_NAMES)
    return unknown(_cut(name), near, "environment", what="variable")


def _near_path(parts: KeyPath, known: Sequence[KeyPath]) -> str | None:
    """What is most like it in its section; else the one key of its name; else a key like it."""
    near = near_miss(parts[-1], _siblings(parts, known))
    if near is not None:
        return ".".join((*parts[:-1], near))
    elsewhere = [".".join(each) for each in known if each[-1] == parts[-1]]
    if len(elsewhere) == 1:
        return elsewhere[0]
    return near_miss(".".join(parts), map(".".join, known), closeness=_WHOLE_NAMES)


def _siblings(parts: KeyPath, known: Sequence[KeyPath]) -> list[str]:
    """Keys and sections of the section that `parts` is in."""
    at = len(parts) - 1
    same = [each[at] for each in known if len(each) > at and each[:at] == parts[:at]]
    return list(dict.fromkeys(same))


def _cut(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"
