"""`python -m tests.deploy.wheels`: which wheels the images install, on each kind of machine.

`make lock` asks the index and writes `requirements/wheels.sha256`; whoever reads the list needs no
network to know that every locked package has a wheel for both. A package without one is an error.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT: Final = Path(__file__).resolve().parents[2]
LIST: Final = ROOT / "requirements/wheels.sha256"
PARTS: Final = ("agent", "controller")
MACHINES: Final = ("x86_64", "aarch64")
PYTHON: Final = (3, 11)
GLIBC: Final = 36
"""The images' Debian 12 has glibc 2.36."""
_HEADER: Final = """\
# Made by `make lock`: the wheels that the images of agent and controller install on x86_64 and
# aarch64 (Python 3.11, glibc 2.36), with their SHA-256. All are among the hashes of agent.txt and
# controller.txt.
"""


class NoWheelError(ValueError):
    """A package would have to be compiled on some machine."""


def tags(machine: str) -> Sequence[Tag]:
    """What the images' Python installs on a machine, best first."""
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 16, -1)]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    return [
        *cpython_tags(PYTHON, platforms=platforms),
        *compatible_tags(PYTHON, "cp311", platforms),
    ]


def applies(marker: str | None, machine: str) -> bool:
    """Whether a requirement with this marker is one of the image's."""
    version = ".".join(map(str, PYTHON))
    image = {
        "python_version": version,
        "python_full_version": f"{version}.2",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_machine": machine,
    }
    return marker is None or Marker(marker).evaluate(image)


def chosen(lock: Mapping[str, Any], machine: str) -> Iterator[tuple[str, str]]:
    """File name and SHA-256 of each package's best wheel; `lock` is a PEP 751 document."""
    ranks = {tag: rank for rank, tag in enumerate(tags(machine))}
    for package in lock["packages"]:
        if not applies(package.get("marker"), machine):
            continue
        fitting = []
        for wheel in package.get("wheels", ()):
            name = wheel["url"].rpartition("/")[2]
            if found := [ranks[tag] for tag in parse_wheel_filename(name)[3] if tag in ranks]:
                fitting.append((min(found), name, wheel["hashes"]["sha256"]))
        if not fitting:
            raise NoWheelError(
                f"{package['name']} {package['version']} has no wheel for {machine}:"
                " the images compile nothing"
            )
        _, name, digest = min(fitting)
        yield name, digest


def read(text: str) -> dict[str, str]:
    """SHA-256 by file name."""
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: digest for digest, name in rows}


def locked(part: str, machine: str) -> dict[tuple[str, str], set[str]]:
    """Name and version of each package that a machine's image has, with the hashes."""
    text = (ROOT / f"requirements/{part}.txt").read_text().strip()
    found: dict[tuple[str, str], set[str]] = {}
    for entry in re.split(r"\n(?=\S)", text):
        first = entry.partition("\n")[0].rstrip(" \\")
        pin, _, marker = first.partition(" ; ")
        name, _, version = pin.partition("==")
        if applies(marker.strip() or None, machine):
            hashes = set(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
            found[canonicalize_name(name), version] = hashes
    return found


def main() -> int:
    """Ask the index and write the list."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            lock = Path(folder) / f"pylock.{part}.toml"
            subprocess.run(
                (
                    *("uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"),
                    *("--format", "pylock.toml", f"requirements/{part}.txt", "-o", str(lock)),
                ),
                cwd=ROOT,
                check=True,
            )
            document = tomllib.loads(lock.read_text())
            for machine in MACHINES:
                found.update(chosen(document, machine))
    lines = [f"{digest}  {name}\n" for name, digest in sorted(found.items())]
    LIST.write_text(_HEADER + "".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
