"""`python -m sandbox.controller_main`: the real controller with a list of nodes for a directory.

Takes the controller's own flags, and `--node NAME` (repeatable, `*` for any) and
`--addresses FILE`. With `kubernetes.api: kubeconfig` the nodes come from that API server instead of
the list. Says on standard output where it listens, as one JSON line.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from controller.__main__ import run_to_end
from controller.app import run
from controller.wiring.listeners import Addresses
from gpuwarden.cli.exit_codes import CliError
from gpuwarden.settings.loader import CONTROLLER
from gpuwarden.settings.start import EXIT_BAD_CONFIGURATION, settings_or_exit
from gpuwarden.telemetry.logs import announce as announce_line
from sandbox.insecure_static_nodes import InsecureStaticNodes
from sandbox.kube.exchange import HttpExchange

PROGRAM: Final = "sandbox-controller"
EVENT: Final = "controller.listening"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; returns the exit status."""
    parser = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False, add_help=False)
    parser.add_argument("--node", action="append", default=[], metavar="NAME")
    parser.add_argument("--addresses", type=Path, metavar="FILE")
    own, rest = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
    loaded = settings_or_exit(PROGRAM, CONTROLLER, rest)
    kubeconfig = loaded.settings.kubernetes.kubeconfig
    try:
        directory = None if kubeconfig else InsecureStaticNodes(own.node)
        exchange = HttpExchange(kubeconfig) if kubeconfig else None
    except ValueError as error:
        sys.stderr.write(f"{PROGRAM}: --node: {error}\n")
        return EXIT_BAD_CONFIGURATION
    except CliError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_BAD_CONFIGURATION

    def announce(addresses: Addresses) -> None:
        if own.addresses is not None:
            line = json.dumps({"event": EVENT, **asdict(addresses)})
            _write_whole(own.addresses, line + "\n")
        announce_line(EVENT, **asdict(addresses))

    return run_to_end(
        lambda: run(loaded, directory=directory, exchange=exchange, announce=announce)
    )


def _write_whole(path: Path, text: str) -> None:
    """Whoever waits for the file sees all of it or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
