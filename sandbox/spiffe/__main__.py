"""Run the throwaway Workload API, or ask a running one for a rotation or a fault.

python -m sandbox.spiffe serve --directory DIR --workload NAME=ID[,ID…] …
python -m sandbox.spiffe ask --directory DIR rotate [NAME]
python -m sandbox.spiffe ask --directory DIR fault FAULT [NAME]
"""

import argparse
import json
import logging
import signal
import sys
import threading
from datetime import timedelta
from pathlib import Path

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from sandbox.spiffe.control import ControlError, ControlSocket, ask
from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi

CONTROL = "control.sock"


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    return _serve(parsed) if parsed.command == "serve" else _ask(parsed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sandbox.spiffe")
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="serve workloads until SIGTERM")
    serve.add_argument("--directory", type=Path, required=True)
    serve.add_argument("--trust-domain", default="example.org")
    serve.add_argument("--ttl", type=float, default=3600.0, help="seconds an SVID lives")
    serve.add_argument("--rotate-every", type=float, help="seconds, default half of the TTL")
    serve.add_argument("--workload", action="append", default=[], metavar="NAME=ID[,ID]")
    request = commands.add_parser("ask", help="ask a running server")
    request.add_argument("--directory", type=Path, required=True)
    acts = request.add_subparsers(dest="do", required=True)
    for act in ("rotate-ca", "retire-ca", "status"):
        acts.add_parser(act)
    acts.add_parser("rotate").add_argument("name", nargs="?")
    acts.add_parser("remove").add_argument("name")
    fault = acts.add_parser("fault")
    fault.add_argument("fault", choices=[fault.value for fault in Fault])
    fault.add_argument("name", nargs="?")
    for act in ("add", "assign"):
        given = acts.add_parser(act)
        given.add_argument("name")
        given.add_argument("ids", nargs="+")
    return parser


def _serve(parsed: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    every = parsed.rotate_every or parsed.ttl / 2
    with (
        InsecureWorkloadApi(
            parsed.directory,
            parsed.trust_domain,
            ttl=timedelta(seconds=parsed.ttl),
            rotate_every=timedelta(seconds=every),
        ) as api,
        ControlSocket(api, parsed.directory / CONTROL),
    ):
        for workload in parsed.workload:
            name, _, ids = workload.partition("=")
            print(name, api.add(name, *ids.split(",")))
        print("ready", flush=True)
        stop.wait()
    return 0


def _ask(parsed: argparse.Namespace) -> int:
    arguments = {
        key: value
        for key, value in vars(parsed).items()
        if key not in {"command", "directory", "do"} and value is not None
    }
    try:
        result = ask(parsed.directory / CONTROL, parsed.do, **arguments)
    except (ControlError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if result is not None:
        print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
