"""`python -m tests.e2e.lab.keeper LOCK FOLDER`: waits until its owner is gone, then sweeps.

The owner holds the other end of standard input, so that its end is seen even after SIGKILL.
"""

import sys
import time
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.claim import locked
from tests.e2e.lab.sweep import sweep

_POLL_S = 0.05


def main() -> int:
    lock_name, folder = sys.argv[1], Path(sys.argv[2])
    sys.stdin.read()
    with Path(lock_name).open("w") as lock:
        while folder.exists():  # else its owner, or the number's next one, has swept
            if locked(lock):  # the kernel may unlock a dying owner's file after our input's end
                sweep(folder, AddressPlan(int(folder.name.partition("-")[0])))
            time.sleep(_POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
