"""Puts the code of a changed function in place of the code that is loaded.

What holds the function (a property, a class method, a partial, a cache) does not matter: the
function object stays and gets other code. Nothing is imported again.
"""

import gc
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from tests.mutation.mutant import Mutant

_Place = tuple[str, str, int]


class Loaded:
    """The functions that are loaded from the sources below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._functions: dict[_Place, list[FunctionType]] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                code = found.__code__
                place = (code.co_filename, code.co_qualname, code.co_firstlineno)
                self._functions.setdefault(place, []).append(found)

    def swap(self, mutant: Mutant) -> bool:
        """Make the change; False if there is no such function, or its code does not fit in."""
        path = str(self._root / mutant.key.path)
        found = [
            code
            for code in _codes(compile(mutant.text, path, "exec", dont_inherit=True))
            if code.co_qualname == mutant.outermost and code.co_firstlineno == mutant.outermost_line
        ]
        functions = self._functions.get((path, mutant.outermost or "", mutant.outermost_line), [])
        if len(found) != 1 or not functions:
            return False
        try:
            for function in functions:
                function.__code__ = found[0]
        except ValueError:
            # It closes over other variables than before.
            return False
        return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
