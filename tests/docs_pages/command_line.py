"""Makes docs/reference/cli.md from the command tree; pure, writes no file."""

import re
from typing import Final

from gpuwarden.cli.app import COMMANDS, build
from gpuwarden.cli.exit_codes import MEANING
from tests.docs_pages.other_programs import other_programs

_HEAD: Final = """\
# Command line

Generated from the program's own help by `make docs`; do not edit.

`gpuwarden` reaches the controller by your kubeconfig ([on a workstation](../workstation.md)), in
the controller's container by its socket (`kubectl -n gpuwarden-system exec gpuwarden-controller-0
-- gpuwarden nodes`), or with an SVID:

```console
$ gpuwarden nodes --server controller.example:9443 --svid svid.pem --key key.pem --bundle bundle.pem
```

A plural lists (`nodes`, `gpus`, `reservations`, `classes`); a singular with a verb is about one
(`node show`, `class diff`). `status`, `fit` and `explain` answer questions.

Tables are for people and may change; `-o wide` has whole UUIDs, digests, times and more columns.
On a terminal of 80 columns or more no table is wider than it: the last column goes on below, and
long names lose their middle (`ip-10-0-12-34…nal`). Names that differ look different where there is
room for it. `-o wide`, and whatever a pipe or file gets, has each row whole and on one line. What
you are asked to approve is never cut.
Times are ages by the clock of this machine. State is coloured on a terminal, unless `NO_COLOR` is
set. Programs use `-o json` or `-o yaml`, which give the messages of `proto/gpuwarden/wire/v1/` with
all their fields. Names and texts from nodes are untrusted: characters that are not printable are
shown escaped.

Warnings of the installation are in `gpuwarden status`. Other commands write to standard error only
what makes their own answer incomplete.

## Exit codes

| code | meaning |
|---|---|
"""

_ASKING: Final = """\
Every command that asks a controller takes these. [What counts without
them](../workstation.md#what-the-command-line-asks).
"""
_CONTENTS: Final = re.compile(r"^## Table of Contents\n.*?(?=^\*\*)", re.MULTILINE | re.DOTALL)
_CONNECTION: Final = re.compile(r"^\*\*Connection\*\*:\n\n(?:[* ].*\n)+", re.MULTILINE)
"""The same options with each command that asks; the page has them once."""


def command_line_page() -> str:
    """The whole page as Markdown."""
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANING.items())
    text = _CONTENTS.sub("", build().generate_docs(heading_level=2).rstrip())
    (connection,) = set(_CONNECTION.findall(f"{text}\n"))
    text = text.replace(connection.rstrip(), "Options of a [connection](#connection), too.")
    commands = "\n##".join(map(_with_example, text.split("\n##")))
    options = connection.partition("\n\n")[2]
    return (
        f"{_HEAD}{codes}\n## Connection\n\n{_ASKING}\n{options}\n{commands}\n\n{other_programs()}"
    )


def _with_example(section: str) -> str:
    """Details and example of a command after its summary; other sections stay as they are."""
    heading, _, _ = section.partition("\n")
    command = COMMANDS.get(heading.lstrip("# ").removeprefix("gpuwarden "))
    if command is None:
        return section
    details = f"\n{command.details}\n" if command.details else ""
    example = f"\n```console\n$ {command.example}\n```\n"
    return section.replace(f"\n{command.summary}\n", f"\n{command.summary}\n{details}{example}", 1)
