"""How long a test waits for what must happen. A limit for hangs: it says nothing about speed."""

import os
from typing import Final

HANG_S: Final = float(os.environ.get("TEST_HANG_S", "240"))
"""`TEST_HANG_S` is for runs in which hanging is expected: mutations."""
PATIENT: Final = {"handshake_s": HANG_S, "head_s": HANG_S, "receive_s": HANG_S}
"""Limits of an HTTP listener in tests that are not about them: its usual ones cut off clients that
a busy machine keeps waiting."""
