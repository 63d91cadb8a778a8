"""How the processes of an image allocate memory, for those that tests start from the checkout.

glibc reads this once, when a process starts.
"""

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def allocator(part: str) -> dict[str, str]:
    """What the image of `part` (agent or controller) sets for glibc's malloc."""
    text = (ROOT / f"Dockerfile.{part}").read_text()
    (line,) = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    pairs = (x.split("=", 1) for x in line.split())
    return {name: value for name, value in pairs if name.startswith("MALLOC_")}


def environment_as_in(part: str, own: Mapping[str, str]) -> dict[str, str]:
    """`own` with what the image sets."""
    return {**own, **allocator(part)}
