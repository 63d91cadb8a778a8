"""`gpuwarden-agent support-bundle`: what may leave of the agent of this node, for a bug report.

Takes the agent's own flags and environment, so that it finds the settings that the agent has, and
asks the agent's ops listener. The agent's image has no other command line; elsewhere
`gpuwarden support-bundle --process agent` does the same.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from gpuwarden.settings.loader import AGENT
from gpuwarden.settings.start import settings_or_exit
from gpuwarden.settings.values import Address
from gpuwarden.support.archive import pack, write_new
from gpuwarden.support.local import ops_parts, reachable, settings_parts, versions_part
from gpuwarden.support.part import Part, missing

_PROGRAM: Final = "gpuwarden-agent support-bundle"
_STDOUT: Final = "-"
_ABOUT: Final = (
    "collect what helps with a bug report about the agent of this node; takes the agent's own flags"
)
_OUTPUT: Final = "file to write, `-` for standard output (default: a name with the time)"
_OPS: Final = "where the agent's ops listener is (default: `listen.ops` of its settings)"
_OWN: Final = f"Of this command: --output FILE: {_OUTPUT}; --ops HOST:PORT: {_OPS}."
_EXIT_ERROR: Final = 1
_EXIT_USAGE: Final = 2


def main(argv: Sequence[str]) -> int:
    """Write one archive; returns the exit status."""
    own, rest = parser().parse_known_args(argv)
    if own.output == _STDOUT and sys.stdout.isatty():
        sys.stderr.write(f"{_PROGRAM}: --output -: a terminal is no place for an archive\n")
        return _EXIT_USAGE
    loaded = settings_or_exit(_PROGRAM, AGENT, rest, os.environ, commands=_OWN)
    ops = own.ops or reachable(loaded.settings.listen.ops)
    parts = [versions_part(), *settings_parts(loaded), *_of_listener(ops)]
    bundle = pack({"local": parts}, datetime.now(UTC))
    for path, why in bundle.gaps:
        sys.stderr.write(f"{_PROGRAM}: missing in the bundle: {path}: {why}\n")
    if own.output == _STDOUT:
        sys.stdout.buffer.write(bundle.data)
        return 0
    return _kept(bundle.data, Path(own.output or bundle.name))


def parser() -> argparse.ArgumentParser:
    """Its own arguments; the agent's follow."""
    found = argparse.ArgumentParser(
        prog=_PROGRAM, description=_ABOUT, allow_abbrev=False, add_help=False
    )
    found.add_argument("--output", default="", metavar="FILE", help=_OUTPUT)
    found.add_argument("--ops", default=None, type=Address.parse, metavar="HOST:PORT", help=_OPS)
    return found


def _of_listener(ops: Address | None) -> list[Part]:
    if ops is None:
        return [missing("readyz.json", "listen.ops is any free port; see --ops")]
    return list(ops_parts(ops))


def _kept(data: bytes, path: Path) -> int:
    try:
        write_new(data, path)
    except OSError as error:
        sys.stderr.write(f"{_PROGRAM}: --output: cannot write the file: {error.strerror}\n")
        return _EXIT_ERROR
    sys.stdout.write(f"{path}\n")
    return 0
