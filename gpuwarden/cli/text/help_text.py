"""Help for people: plain text whose lines fit a terminal and whose entries stand out."""

from typing import Any, Final

from cyclopts.help.formatters.plain import PlainFormatter

from gpuwarden.cli.text.terminal import WIDTH, flowed

_HANGING: Final = 6


class HelpFormatter(PlainFormatter):
    """Plain, with the further lines of an entry indented."""

    def _print_plain(self, console: Any, text: str) -> None:  # noqa: ANN401 - of rich, which is cyclopts' own
        indents = (self.indent, " " * _HANGING) if text.startswith(self.indent) else ("", "")
        lines = flowed(" ".join(text.split()), WIDTH - len(indents[1]))
        for number, line in enumerate(lines):
            console.out(f"{indents[number > 0]}{line}", highlight=False)
