"""`python -m controller`: the controller in a cluster.

Reads settings and takes the nodes from the Kubernetes API. Without that API it reports so and ends:
a controller that knows no nodes could accept nobody, and one that accepted any name would be
insecure. `python -m sandbox.controller_main` runs the same controller with a list of nodes.
"""

import gc
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
import uvloop

from controller.app import EXIT_FAULT, SERVICE, StartError, run
from controller.settings import ControllerSettings, KubernetesUse
from gpuwarden.clock import SystemClock
from gpuwarden.settings.loader import CONTROLLER
from gpuwarden.settings.start import settings_or_exit
from gpuwarden.telemetry import logs
from gpuwarden.telemetry.names import Event

PROGRAM: Final = "gpuwarden-controller"
_COLLECT: Final = (5_000, 10, 10)
"""Thresholds of Python's garbage collector. The default ones search what an attestation has made
before it is over, several times; an attestation leaves no cycles."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    loaded = settings_or_exit(PROGRAM, CONTROLLER, arguments)
    settings = loaded.settings
    logs.configure(settings.log.level, settings.log.format, service=SERVICE)
    if not uses_kubernetes(settings, os.environ):
        detail = (
            "no node directory: this is not a pod with a service account, and kubernetes.api is not"
            " `kubeconfig`; set it, or on a laptop run"
            " `python -m sandbox.controller_main --node NAME`"
        )
        logs.logger(SERVICE).error(Event.PROCESS_START_FAILED, detail=detail, status=EXIT_FAULT)
        return EXIT_FAULT
    from controller.kube.api.transport import open_transport  # noqa: PLC0415 - brings 20 MiB of client library, needed here only

    exchange = open_transport(settings.kubernetes, os.environ, SystemClock())
    return run_to_end(lambda: run(loaded, exchange=exchange))


def uses_kubernetes(settings: ControllerSettings, environ: Mapping[str, str]) -> bool:
    """Whether this process uses the Kubernetes API (KUBERNETES_SERVICE_HOST in a pod)."""
    if settings.kubernetes.api is KubernetesUse.AUTO:
        return bool(environ.get("KUBERNETES_SERVICE_HOST"))
    return settings.kubernetes.api is not KubernetesUse.OFF


def run_to_end(serve: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run the coroutine on uvloop; a StartError becomes one line and its exit status."""
    gc.set_threshold(*_COLLECT)
    with logs.unhandled_logged():
        try:
            return uvloop.run(serve())
        except StartError as error:
            log = logs.logger(SERVICE)
            log.error(  # noqa: TRY400 -- its text says it all
                Event.PROCESS_START_FAILED, detail=str(error), status=error.status
            )
            return error.status


if __name__ == "__main__":
    sys.exit(main())
