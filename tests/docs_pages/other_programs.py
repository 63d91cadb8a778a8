"""The part of docs/reference/cli.md about programs other than `gpuwarden`, from their parsers."""

import argparse
from collections.abc import Iterator
from typing import Final

from agent import support_bundle
from controller.scorer import replay, transfer
from sandbox.__main__ import parser as sandbox_parser

_HEAD: Final = """\
## Other programs

`gpuwarden-agent`, `gpuwarden-controller` and `gpuwarden-score` are services. Each takes:

* `--config FILE`: configuration file, else `$GPUWARDEN_CONFIG`.
* `--KEY VALUE`, `--set KEY=VALUE`: any key of its [configuration](configuration.md).
* `--print-config`: show the effective configuration and end.
* `--version`, `--help`.

[Exit codes of the services](../limits.md#exit-codes) are on a page of their own. Of the commands
below, 2 is a wrong argument or a file that cannot be read, 1 any other error.
"""
_STANDARD: Final = frozenset({"help", "version"})


def other_programs() -> str:
    """The section as Markdown."""
    services = {"gpuwarden-score": transfer.parser(), "gpuwarden-sandbox": sandbox_parser()}
    alone = (support_bundle.parser(), replay.parser())
    parsers = [
        *(
            (f"{program} {name}", found)
            for program, parser in services.items()
            for name, found in _commands(parser)
        ),
        *((found.prog, found) for found in alone),
    ]
    return "\n".join((_HEAD, *(_section(name, found) for name, found in sorted(parsers))))


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    text = str(parser.description)
    about = f"{text[:1].upper()}{text[1:].rstrip('.')}.\n\n"
    lines = [_line(x) for x in parser._actions if x.help not in {None, argparse.SUPPRESS}]
    return f"### {name}\n\n{about}{''.join(filter(None, lines))}"


def _line(action: argparse.Action) -> str:
    if action.dest in _STANDARD:
        return ""
    value = action.metavar or action.dest.upper().replace("_", "-")
    takes = "" if action.nargs == 0 else f" {value}"
    names = [f"`{x}{takes}`" for x in action.option_strings] or [f"`{value}`"]
    return f"* {', '.join(names)}: {str(action.help).replace('%%', '%')}.\n"
