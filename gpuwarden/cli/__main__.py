"""Entry point of the program `gpuwarden`."""

import sys

import gpuwarden.telemetry.grpc_core  # noqa: F401 -- before anything imports grpc

# isort: split
from gpuwarden.cli.app import program_of, run


def main() -> None:
    """Run this process's command line and exit with the command's code."""
    sys.exit(int(run(sys.argv[1:], program=program_of(sys.argv[0]))))


if __name__ == "__main__":
    main()
