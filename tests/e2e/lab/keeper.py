"""`python -m tests.e2e.lab.keeper FOLDER`: waits until its owner is gone, then sweeps.

The owner holds the other end of standard input, so that its end is seen even after SIGKILL.
"""

import sys
import time
from pathlib import Path

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.claim import held
from tests.e2e.lab.sweep import sweep

_POLL_S = 0.05


def main() -> int:
    folder = Path(sys.argv[1])
    number = int(folder.name.partition("-")[0])
    sys.stdin.read()
    while folder.exists():  # else its owner, or the number's next one, has swept
        if hold := held(number):  # the kernel may free a dying owner's number after our input's end
            with hold:
                sweep(folder, AddressPlan(number))
        time.sleep(_POLL_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
