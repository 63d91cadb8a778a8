"""How long a test waits for what must happen. A limit for hangs: it says nothing about speed."""

from typing import Final

HANG_S: Final = 240.0
