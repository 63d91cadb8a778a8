"""`python -m controller`: the controller in a cluster.

Reads settings, and needs a node directory to run with. The directory that asks the
Kubernetes API comes with the Kubernetes support; until then this program says so and
ends, because a controller that knows no nodes could accept nobody, and one that
believed any name would be a hole. `python -m sandbox.controller_main` runs the same
controller with a stand-in.
"""

import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
import uvloop

from controller.app import EXIT_FAULT, StartError
from gpuwarden.settings.loader import CONTROLLER
from gpuwarden.settings.start import settings_or_exit

PROGRAM: Final = "gpuwarden-controller"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    settings_or_exit(PROGRAM, CONTROLLER, sys.argv[1:] if argv is None else argv)
    sys.stderr.write(
        f"{PROGRAM}: no node directory: the one that asks the Kubernetes API comes with the"
        " Kubernetes support; on a laptop, `python -m sandbox.controller_main` runs this"
        " controller with a list of nodes\n"
    )
    return EXIT_FAULT


def run_to_end(program: str, serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run the coroutine on uvloop; a StartError becomes one line and its exit status."""
    try:
        return uvloop.run(serve())
    except StartError as error:
        sys.stderr.write(f"{program}: {error}\n")
        return error.status


if __name__ == "__main__":
    sys.exit(main())
