"""The base image's file system, from Debian packages, where no image can be pulled.

debootstrap's smallest variant with the same lists that apt uses on this machine, so that the
build finds the same mirrors. No host is written here.
"""

import subprocess
from collections.abc import Iterable
from pathlib import Path

CODENAME = "bookworm"
"""Of the base that the Dockerfiles name."""
_FORMAT = "$(REPO_URI) $(CODENAME) $(COMPONENT)"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_ASSEMBLE_S = 1800
_SHOWN = 2000


class BaseImageError(RuntimeError):
    """The base cannot be assembled here; says what is missing."""


def machine_sources() -> str:
    """A sources.list of this machine's Debian archives of our release; BaseImageError if none."""
    targets = ("apt-get", "indextargets", "--format", _FORMAT)
    chosen = ("Created-By: Packages", "Origin: Debian")
    done = subprocess.run([*targets, *chosen], capture_output=True, text=True, check=False)
    return sources_list(done.stdout.splitlines())


def sources_list(targets: Iterable[str]) -> str:
    """From lines `URI CODENAME COMPONENT`; other releases of Debian are left out."""
    lines = []
    for target in sorted(set(targets)):
        uri, codename, component = target.split()
        if codename.partition("-")[0] == CODENAME and component == "main":
            lines.append(f"deb [signed-by={_KEYRING}] {uri} {codename} main\n")
    if not any(f" {CODENAME} main" in line for line in lines):
        raise BaseImageError(
            f"apt has no list of Debian's {CODENAME} main: this step needs Debian 12 after"
            " `apt-get update`"
        )
    return "".join(lines)


def mirror(sources: str, suite: str = CODENAME) -> str:
    """The archive of the release itself, or of another suite."""
    return next(line.split()[2] for line in sources.splitlines() if f" {suite} main" in line)


def assemble(target: Path, sources: str) -> None:
    """Fill `target` with a whole root file system; BaseImageError says what debootstrap said."""
    command = ("debootstrap", "--variant=minbase", f"--keyring={_KEYRING}", CODENAME)
    done = subprocess.run(
        [*command, target, mirror(sources)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_ASSEMBLE_S,
        check=False,
    )
    if done.returncode != 0:
        raise BaseImageError(f"debootstrap failed: {done.stdout[-_SHOWN:]}")
    (target / "etc/apt/sources.list").write_text(sources)
    for left in (target / "var/cache/apt/archives").glob("*.deb"):
        left.unlink()
