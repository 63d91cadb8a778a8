"""`python -m sandbox.install FILE`: installs hashed requirements, and tells how far it is.

Imports the standard library alone, because it runs before anything is installed. With
`--launchers` the project's programs can be called from the environment before the project
itself is installed there: the build backend that this takes is not part of a small set.
"""

import argparse
import re
import shlex
import subprocess
import sys
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;]+)", re.MULTILINE)
_FOUND: Final = re.compile(
    r"Requirement already satisfied: (?P<present>[\w.-]+)"
    r"|Collecting (?P<fetched>[\w.-]+)"
    r"|Processing (?:\S*/)?(?P<local>[\w.]+)-\S+\.whl"
)
_UNPACKS: Final = "Installing collected packages:"
_OWN_LAUNCHER: Final = "#!/bin/sh\n"
_SHOWN_OF_A_FAILURE: Final = 20
_COMMAND: Final = (
    *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check"),
    *("--progress-bar", "off", "--require-hashes", "-r"),
)


def main(arguments: list[str] | None = None) -> int:
    """Install one file; returns pip's exit status."""
    parser = argparse.ArgumentParser(prog="python -m sandbox.install", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--launchers", action="store_true", help="make the project's programs")
    parsed = parser.parse_args(arguments)
    last: deque[str] = deque(maxlen=_SHOWN_OF_A_FAILURE)
    with subprocess.Popen(
        (*_COMMAND, str(parsed.file)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None, "started with a pipe"  # noqa: S101 - narrows the type
        for line in progress(_kept(pip.stdout, last), pins(parsed.file.read_text())):
            print(f"setup: {line}", flush=True)
    if pip.returncode:
        sys.stderr.write("".join(last))
        sys.stderr.write(f"setup: pip could not install {parsed.file}; run the command again\n")
        return pip.returncode
    if parsed.launchers:
        write_launchers(Path(sys.executable).parent)
    return 0


def pins(requirements: str) -> dict[str, str]:
    """Name to version of a requirement file."""
    return {_normal(name): version for name, version in _PIN.findall(requirements)}


def progress(lines: Iterable[str], wanted: Mapping[str, str]) -> Iterator[str]:
    """What to tell for pip's lines: each package that it fetches, and when it unpacks them."""
    present: set[str] = set()
    fetched: set[str] = set()
    for line in lines:
        if line.startswith(_UNPACKS):
            yield f"unpacks {len(fetched)} packages; this can take a minute"
        if (found := _FOUND.match(line)) is None:
            continue
        name = _normal(found[str(found.lastgroup)])
        if name not in wanted or name in present | fetched:
            continue
        if found.lastgroup == "present":
            present.add(name)
            continue
        fetched.add(name)
        number = len(fetched) + len(present)
        yield f"package {number:3} of {len(wanted)}, {name} {wanted[name]}"
    yield f"{len(fetched)} packages are new, {len(present)} were there"


def write_launchers(folder: Path, root: Path = ROOT) -> None:
    """Write each program of pyproject.toml to `folder`; what an installation put there stays."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    python = shlex.quote(str(folder / "python"))
    for name, entry in project["scripts"].items():
        path = folder / name
        if path.exists() and not path.read_text().startswith(_OWN_LAUNCHER):
            continue
        module = entry.partition(":")[0].removesuffix(".__main__")
        path.write_text(
            f"{_OWN_LAUNCHER}# Made by `make demo`; `make setup` puts pip's in its place.\n"
            f'PYTHONPATH={shlex.quote(str(root))} exec {python} -P -m {module} "$@"\n'
        )
        path.chmod(0o755)


def _kept(lines: Iterable[str], last: deque[str]) -> Iterator[str]:
    """The same lines, the newest of them also in `last`."""
    for line in lines:
        last.append(line)
        yield line


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
