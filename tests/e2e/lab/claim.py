"""A lab's number and folder: ours while we live, swept by whoever finds them after that.

The number is held by an abstract unix socket: one holder on the whole machine, whatever its
user and its folder of labs, and the kernel frees it however its owner ends. A keeper process
sweeps at once when the owner is gone; should the keeper be gone as well, the next claim does.
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e.lab.addresses import LABS, AddressPlan
from tests.e2e.lab.sweep import sweep

_ROOT = Path(__file__).resolve().parents[3]
_HIDDEN = ("/run", "/var")
"""The node mounts something else there."""
_NUMBERS = range(LABS)
_KEEPER_S = 60.0


class ClaimError(RuntimeError):
    """No lab can be made on this machine now."""


def labs_folder() -> Path:
    """`GPUWARDEN_LAB_HOME`, else a folder of this user below the temporary one."""
    chosen = os.environ.get("GPUWARDEN_LAB_HOME")
    folder = Path(chosen or Path(tempfile.gettempdir()) / f"gpuwarden-lab-{os.geteuid()}").resolve()
    if any(folder.is_relative_to(hidden) for hidden in _HIDDEN):
        raise ClaimError(f"GPUWARDEN_LAB_HOME is {folder}, expected a folder outside /run and /var")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid() or folder.stat().st_mode & 0o022:
        raise ClaimError(f"{folder} can be written by somebody else, expected it to be ours alone")
    return folder


class Claim:
    """One lab number of this machine, with its folder."""

    def __init__(self, root: Path, number: int, hold: socket.socket) -> None:
        self.plan = AddressPlan(number)
        self._hold: socket.socket | None = hold
        for left in root.glob(f"{number}-*"):
            sweep(left, self.plan)
        self.folder = root / f"{number}-{secrets.token_hex(3)}"
        self.folder.mkdir(mode=0o700)
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.lab.keeper", str(self.folder)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for its owner
        )

    @classmethod
    def take(cls, root: Path | None = None, numbers: range = _NUMBERS) -> "Claim":
        """The first free number; leftovers of its dead owners below `root` are swept."""
        root = root or labs_folder()
        for number in numbers:
            if hold := held(number):
                return cls(root, number, hold)
        raise ClaimError(f"all {len(numbers)} labs of this machine are taken")

    def release(self) -> None:
        """Sweep and give the number back. May be called twice."""
        if self._hold is None:
            return
        sweep(self.folder, self.plan)
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        self._hold.close()  # first: what is left of the folder the keeper sweeps under the number
        self._hold = None
        self._keeper.wait(_KEEPER_S)


def held(number: int) -> socket.socket | None:
    """Hold the number until the socket is closed; None where somebody has it."""
    hold = socket.socket(socket.AF_UNIX)
    try:
        hold.bind(f"\0gpuwarden-lab-{number}")
    except OSError:
        hold.close()
        return None
    return hold
