"""How large an installation of the command line is, and what its start costs.

`python -m tests.cli_size` prints what docs/workstation.md says: bytes on disk by package, and the
least processor time of some starts of some commands, which a busy machine changes little.
"""

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_STARTS: Final = 7
_LISTED: Final = 6
_MB: Final = 10**6
_COMMANDS: Final = {
    "Python itself": ("-c", "pass"),
    "gpuwarden version": ("-m", "gpuwarden.cli", "version"),
    "gpuwarden nodes, by the socket": (
        "-c",
        "import gpuwarden.cli.commands.nodes, gpuwarden.cli.connection.client",
    ),
    "gpuwarden nodes, by a kubeconfig": (
        "-c",
        (
            "from gpuwarden.cli.connection import client, cluster_connection;"
            "import gpuwarden.cli.commands.nodes"
        ),
    ),
}


def main() -> None:
    """Measure and print."""
    sizes = {name: _size(name) for name in _packages()}
    own = sum(x.stat().st_size for x in (ROOT / "gpuwarden").rglob("*.py"))
    whole = sum(sizes.values()) + own
    print(f"{len(sizes)} packages and gpuwarden: {whole / _MB:.0f} MB")  # noqa: T201 -- a program
    for name, size in sorted(sizes.items(), key=lambda x: -x[1])[:_LISTED]:
        print(f"  {name}: {size / _MB:.1f} MB")  # noqa: T201 -- a program
    for name, arguments in _COMMANDS.items():
        seconds = min(_seconds(arguments) for _ in range(_STARTS))
        print(f"{name}: {seconds:.2f} s")  # noqa: T201 -- a program


def _packages() -> list[str]:
    text = (ROOT / "requirements" / "cli.txt").read_text()
    return [line.partition("==")[0] for line in text.splitlines() if "==" in line]


def _size(name: str) -> int:
    files = distribution(name).files or ()
    return sum(x.stat().st_size for file in files if (x := Path(file.locate())).exists())


def _seconds(arguments: tuple[str, ...]) -> float:
    before = os.times()
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return (after.children_user - before.children_user) + (
        after.children_system - before.children_system
    )


if __name__ == "__main__":
    main()
