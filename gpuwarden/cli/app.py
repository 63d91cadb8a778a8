"""The command tree and the one place where a command's end becomes an exit code.

Commands stand here by name, so that asking for one does not load the others.
"""

import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError

from gpuwarden.cli.exit_codes import MEANING, CliError, ExitCode
from gpuwarden.cli.terminal import shown

_COMMANDS: Final = "gpuwarden.cli.commands"
_HELP: Final = (
    "Show the fleet of attested GPUs, explain decisions, let nodes back in, verify audit logs,"
    " check configurations."
)
_GROUPS: Final = {
    "node": "One node.",
    "reservation": "One reservation.",
    "class": "Attestation classes and the documents behind them.",
    "explain": "Why things are as they are.",
    "audit": "Audit logs; needs no controller.",
    "config": "Configuration of agent and controller; needs no controller.",
}
_LAZY: Final = {
    "nodes": ("nodes:nodes", "List the nodes of the fleet, once or as they change."),
    "node show": ("nodes:show", "Show one node and its GPUs."),
    "node accept": ("nodes:accept", "Make the hardware that a node shows its pins."),
    "node quarantine": ("nodes:quarantine", "Take a node out until it is let back in."),
    "node release": ("nodes:release", "End the denial of a node; its pins stay."),
    "gpus": ("gpus:gpus", "List every GPU with its serial and UUID."),
    "reservations": ("reservations:reservations", "List who holds which GPU."),
    "reservation release": (
        "reservations:release",
        "Release a GPU of a silent node from a pod that has ended.",
    ),
    "class list": ("classes:list_", "List the classes that nodes have and that policy names."),
    "class show": ("classes:show", "Show the document behind a class."),
    "class diff": ("classes:diff_", "Show where two classes differ; exits with 3 if they do."),
    "explain node": ("explain:node", "Explain why a node is or is not eligible."),
    "explain pod": (
        "explain:pod",
        "Explain a pod's way to its GPUs, or why it waits; exits with 3 if that is wrong.",
    ),
    "fit": ("fit:fit", "Say which nodes a pod would pass on; exits with 3 if there is none."),
    "audit verify": ("audit:verify", "Verify an audit log; exits with 3 if it is broken."),
    "audit prove": ("audit:prove", "Prove that a record is in the log; exits with 3 if not."),
    "audit consistency": (
        "audit:consistency",
        "Prove that a log only grew; exits with 3 if it did not.",
    ),
    "audit reverify": (
        "reverify:reverify_",
        "Verify kept evidence as of when it came; exits with 3 if it does not hold.",
    ),
    "support-bundle": (
        "support:support_bundle",
        "Collect what helps with a bug report into one archive, without secrets.",
    ),
    "config print": ("config:print_", "Print every effective value and where it comes from."),
    "config validate": ("config:validate", "Check a configuration; exits with 2 and all findings."),
    "config schema": ("config:schema", "Print the JSON Schema of a configuration file."),
    "version": ("program:version", "Print the version of this program and of the protocol."),
    "completion": ("program:completion", "Print the completion script of a shell."),
}
"""Command -> place and summary, which help shows without loading the command."""


def build() -> App:
    """The whole command tree."""
    app = _app("gpuwarden", _HELP)
    app.help_epilogue = f"Exit codes: {'; '.join(f'{int(k)} {v}' for k, v in MEANING.items())}."
    groups = {name: _app(name, help_) for name, help_ in _GROUPS.items()}
    for command, (place, summary) in _LAZY.items():
        group, _, name = command.rpartition(" ")
        parent = groups[group] if group else app
        parent.command(f"{_COMMANDS}.{place}", name=name, help=summary)
    for group_app in groups.values():
        app.command(group_app)
    return app


def run(arguments: Sequence[str]) -> ExitCode:
    """Run one command line and return its exit code; writes to standard output and error."""
    try:
        code = build()(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(ExitCode.USAGE, f"{error}\nSee gpuwarden --help.")
    except CliError as error:
        return _fail(error.code, str(error))
    except BrokenPipeError:
        # Whoever read our output has had enough; Python must not complain about it at exit.
        sys.stdout = None
        return ExitCode.OK
    return code if isinstance(code, ExitCode) else ExitCode.OK


def _fail(code: ExitCode, text: str) -> ExitCode:
    safe = "\n".join(shown(line) for line in text.splitlines())
    sys.stderr.write(f"gpuwarden: {safe}\n")
    return code


def _app(name: str, help_: str) -> App:
    return App(
        name=name,
        help=help_,
        help_epilogue="",
        help_formatter="plain",
        help_format="plaintext",
        version_flags=[],
    )
