"""Sources as Python reads them: each is parsed once, for all tests of a process."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree(path: Path) -> ast.Module:
    """Nobody changes it."""
    return ast.parse(path.read_text(), path)
