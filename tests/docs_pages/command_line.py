"""Makes docs/reference/cli.md from the command tree; pure, writes no file."""

from typing import Final

from gpuwarden.cli.app import COMMANDS, build
from gpuwarden.cli.exit_codes import MEANING

_HEAD: Final = """\
# Command line

Generated from the program's own help by `make docs`; do not edit.

`gpuwarden` shows the verified fleet and needs no access to the Kubernetes API; only
[`doctor`](../doctor.md) asks it. By default it calls
the local socket of the controller: run it in the controller's pod with
`kubectl -n gpuwarden-system exec gpuwarden-controller-0 -- gpuwarden nodes`. From elsewhere give
`--server HOST:PORT` and an SVID with the role inspector or operator, from the Workload API or from
files:

```console
$ gpuwarden nodes --server controller.example:9443 --svid svid.pem --key key.pem --bundle bundle.pem
```

A plural lists (`nodes`, `gpus`, `reservations`, `classes`); a singular with a verb is about one
(`node show`, `class diff`). `status`, `fit` and `explain` answer questions.

Tables are for people and may change. They fit 80 columns where names are short; `-o wide` has
whole UUIDs, digests, times and more columns. Times are ages by the clock of this machine. State
is coloured on a terminal, unless `NO_COLOR` is set. Programs use `-o json` or `-o yaml`, which give
the messages of `proto/gpuwarden/wire/v1/` with all their fields. Names and texts from nodes are
untrusted: characters that are not printable are shown escaped.

Warnings of the installation are in `gpuwarden status`. Other commands write to standard error only
what makes their own answer incomplete.

## Exit codes

| code | meaning |
|---|---|
"""


def command_line_page() -> str:
    """The whole page as Markdown."""
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANING.items())
    sections = build().generate_docs(heading_level=2).rstrip().split("\n##")
    commands = "\n##".join(map(_with_example, sections))
    return f"{_HEAD}{codes}\n{commands}\n"


def _with_example(section: str) -> str:
    """Details and example of a command after its summary; other sections stay as they are."""
    heading, _, _ = section.partition("\n")
    command = COMMANDS.get(heading.lstrip("# ").removeprefix("gpuwarden "))
    if command is None:
        return section
    details = f"\n{command.details}\n" if command.details else ""
    example = f"\n```console\n$ {command.example}\n```\n"
    return section.replace(f"\n{command.summary}\n", f"\n{command.summary}\n{details}{example}", 1)
