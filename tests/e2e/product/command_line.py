"""`gpuwarden` as an operator beside a controller calls it: by the replica's own socket."""

import json
import subprocess
import sys
from typing import Any, Final

from tests.e2e.product.controller import ROOT, Controller

_ASK_S: Final = 60
_WAIT_S: Final = 90
_FOUND_FAULT: Final = 3
"""The exit code of who found that something is not as it ought to be."""


def asked(one: Controller, *arguments: str) -> tuple[int, Any]:
    """Exit code, and what it says for programs; any other code than 0 and 3 is a failure."""
    server = ("--server", f"unix:{one.local}", "--timeout", str(_ASK_S))
    done = subprocess.run(
        (sys.executable, "-m", "gpuwarden.cli", *arguments, "-o", "json", *server),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_WAIT_S,
        check=False,
    )
    assert done.returncode in {0, _FOUND_FAULT}, done.stderr
    return done.returncode, json.loads(done.stdout)


def decide(one: Controller, verb: str, node: str) -> None:
    """Decide about a node: `accept`, `quarantine` or `release`."""
    code, _ = asked(one, "node", verb, node, "--reason", "a test", "--yes")
    assert code == 0
