"""The libraries that a program is linked with, for images that hold nothing but it. Looks only."""

import re
import subprocess
from pathlib import Path

_LIBRARY = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x[0-9a-f]+\)$", re.MULTILINE)


def shared_objects(program: Path) -> dict[str, Path]:
    """Each library and the loader: where the program looks for it, and the file; none if static."""
    done = subprocess.run(
        ["ldd", str(program)],  # noqa: S607 - its place differs
        capture_output=True,
        text=True,
        timeout=30,
        check=False,  # it fails for static programs
    )
    return {path: Path(path).resolve() for path in _LIBRARY.findall(done.stdout)}
