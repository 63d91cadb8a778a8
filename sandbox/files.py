"""Where the sandbox's files are: in a checkout, or beside its modules in an installed wheel.

The wheel has copies of them in `shipped` (pyproject.toml says which), a checkout no such folder.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SHIPPED: Final = Path(__file__).with_name("shipped")
IS_INSTALLED: Final = SHIPPED.is_dir()


def data(name: str) -> Path:
    """A file that both have, by its name in a checkout."""
    return (SHIPPED if IS_INSTALLED else ROOT) / name


def typed(name: str) -> str:
    """How a person writes the name of such a file where the sandbox was started."""
    return str(data(name)) if IS_INSTALLED else name


def programs() -> str:
    """The folder of the installed programs, as a person writes it."""
    return str(Path(sys.executable).parent) if IS_INSTALLED else "$PWD/.venv/bin"


def made(environ: Mapping[str, str] = os.environ) -> Path:
    """Where compiled files are kept; an installation is not written to."""
    if not IS_INSTALLED:
        return ROOT / "build"
    cache = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "gpuwarden-sandbox"
