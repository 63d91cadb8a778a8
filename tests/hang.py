"""How long a test waits for what must happen. A limit for hangs: it says nothing about speed."""

import os
from typing import Final

HANG_S: Final = float(os.environ.get("TEST_HANG_S", "240"))
"""`TEST_HANG_S` is for runs in which hanging is expected: mutations."""
