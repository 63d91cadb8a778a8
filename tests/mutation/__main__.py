"""`python -m tests.mutation [PACKAGE | SOURCE …]`: mutation testing in a copy of the sources."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutation_security.copy_of_sources import copied


def main() -> int:
    """Copy the sources, and run `in_copy` there."""
    with tempfile.TemporaryDirectory(prefix="mut") as folder:
        root = copied(Path(folder).resolve())
        run = subprocess.run(
            [sys.executable, "-m", "tests.mutation.in_copy", *sys.argv[1:]],
            cwd=root,
            env={
                "PATH": os.defpath,
                "PYTHONPATH": str(root),
                "HOME": str(root),
                "GRPC_VERBOSITY": "NONE",
            },
            check=False,
        )
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
