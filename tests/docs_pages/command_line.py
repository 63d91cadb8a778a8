"""Makes docs/reference/cli.md from the command tree; pure, writes no file."""

from typing import Final

from gpuwarden.cli.app import build
from gpuwarden.cli.exit_codes import MEANING

_HEAD: Final = """\
# Command line

Generated from the program's own help by `make docs`; do not edit.

`gpuwarden` shows the verified fleet and needs no access to the Kubernetes API. By default it asks
the controller's local socket (inside the controller's pod: `kubectl exec … -- gpuwarden nodes`).
From elsewhere give `--server HOST:PORT` and an SVID with the role inspector or operator, from the
Workload API or from files:

```console
$ gpuwarden nodes --server controller.example:9443 --svid svid.pem --key key.pem --bundle bundle.pem
```

What nodes say about themselves is untrusted: characters that are not printable are shown escaped.
Tables are for people and may change; `-o json` and `-o yaml` give the messages of
`proto/gpuwarden/wire/v1/` with all their fields.

## Exit codes

| code | meaning |
|---|---|
"""


def command_line_page() -> str:
    """The whole page as Markdown."""
    codes = "".join(f"| {int(code)} | {meaning} |\n" for code, meaning in MEANING.items())
    commands = build().generate_docs(heading_level=2)
    return f"{_HEAD}{codes}\n{commands.rstrip()}\n"
