"""Imports one module with another text than its file has."""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.get_filename(fullname), "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name, self._path, self._text = name, path, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != self._name:
            return None
        loader = _Loader(fullname, str(self._path), self._text)
        return spec_from_file_location(fullname, self._path, loader=loader)


def change(root: Path, path: str, text: str) -> None:
    """From now on in this process, the module at `path` below `root` has this text."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert name not in sys.modules, f"{name} is imported already"
    sys.meta_path.insert(0, _Finder(name, root / path, text))
