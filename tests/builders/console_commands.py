"""Commands that a page of the documentation shows as typed."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_FENCE: Final = re.compile(r"( *)```(\w*)$")
_HERE_DOCUMENT: Final = re.compile(r"<<-?'?(\w+)'?")


@dataclass(frozen=True, slots=True)
class PageCommand:
    """One command, or one loop, with what it reads up to the end of a here-document."""

    text: str
    """Without the prompt; what continues a line is on it."""
    section: str
    """The heading (`##`) above it."""
    is_of_a_list: bool
    """Its block is indented."""


def page_commands(page: str) -> Sequence[PageCommand]:
    """Of a page (a path of the repository): of ```console after a prompt, of ```sh all."""
    found: list[PageCommand] = []
    section, language, indent = "", "", ""
    lines: list[str] = []
    for line in (_ROOT / page).read_text().splitlines():
        fence = _FENCE.match(line)
        if fence and not language:
            indent, language, lines = fence[1], fence[2] or "text", []
        elif fence:
            taken = {"sh": _of_a_shell, "console": _of_a_console}.get(language)
            texts = taken(lines) if taken else ()
            found += [PageCommand(x, section, bool(indent)) for x in texts]
            language = ""
        elif language:
            lines.append(line.removeprefix(indent))
        elif line.startswith("## "):
            section = line[3:]
    return found


def typed(page: str, beginning: str) -> Sequence[str]:
    """What follows these words in each command of the page that begins with them."""
    commands = [x.text for x in page_commands(page)]
    found = [x.removeprefix(beginning) for x in commands if x.startswith(beginning)]
    return [x.lstrip() for x in found if not x or x.startswith(" ")]


def words(command: str) -> list[str]:
    """Of a command, without the remark after it."""
    return shlex.split(command, comments=True)


def _of_a_console(lines: list[str]) -> Iterator[str]:
    text = "\n".join(lines).replace("\\\n", " ")
    return (x[2:] for x in text.splitlines() if x.startswith(("$ ", "# ")))


def _of_a_shell(lines: list[str]) -> Iterator[str]:
    """A line that is indented, closes a loop, or is read by a command belongs to it."""
    command: list[str] = []
    end = ""
    for line in lines:
        is_more = line.startswith((" ", "done", "fi"))
        if not (end or is_more or not line) and command:
            yield _joined(command)
            command = []
        command += [line] if line else []
        here = _HERE_DOCUMENT.search(line)
        end = here[1] if here else "" if line == end else end
    if command:
        yield _joined(command)


def _joined(lines: list[str]) -> str:
    return "\n".join(lines).replace("\\\n", " ")
