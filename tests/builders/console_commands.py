"""Commands that a page of the documentation shows as typed (```console, after `$ `)."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_DOCS: Final = Path(__file__).resolve().parents[2] / "docs"


def typed(page: str, program: str) -> Sequence[str]:
    """What follows the program's name, of each of its commands on docs/`page`."""
    text = (_DOCS / page).read_text()
    blocks = re.findall(r"^ *```console\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    lines = "".join(blocks).replace("\\\n", " ")
    return re.findall(rf"^ *\$ {re.escape(program)} (.*)$", lines, re.MULTILINE)


def words(command: str) -> list[str]:
    """Of a command, without the remark after it."""
    return shlex.split(command, comments=True)
