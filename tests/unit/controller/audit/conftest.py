import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where that is possible: these tests sync thousands of times."""
    shared = Path("/dev/shm")  # noqa: S108 -- mkdtemp makes a private folder in it
    with TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as made:
        yield Path(made) / "audit"
