"""Settings of a process that starts: reads flags, files and environment, or ends with a message.

Nothing else in this package touches files, the environment or streams. Standard library only.
"""

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpuwarden import __version__
from gpuwarden.finding import Finding, quoted
from gpuwarden.settings.keys import Key
from gpuwarden.settings.loader import (
    MAX_FILE_BYTES,
    ConfigType,
    Inputs,
    Loaded,
    SettingsError,
    load,
)
from gpuwarden.settings.report import render

EXIT_BAD_CONFIGURATION = 2
CONFIG_VARIABLE = "GPUWARDEN_CONFIG"
MAX_SECRET_BYTES = 64 << 10

S = TypeVar("S")


def settings_or_exit(
    program: str,
    config: ConfigType[S],
    argv: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    commands: str = "",
) -> Loaded[S]:
    """Return the settings; `commands` is what --help says of other things the program does.

    Prints every finding and exits 2, or prints the settings and exits 0 (`--print-config`).
    """
    arguments = parse_arguments(program, config.keys, argv, commands=commands)
    try:
        loaded = load(config, read_inputs(arguments, environment))
    except SettingsError as error:
        for finding in error.findings:
            sys.stderr.write(f"{program}: {finding}\n")
        raise SystemExit(EXIT_BAD_CONFIGURATION) from None
    if arguments.print_config:
        sys.stdout.write(render(loaded))
        raise SystemExit(0)
    return loaded


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was given on the command line."""

    config: str | None
    print_config: bool
    flags: tuple[tuple[str, str, str], ...]
    """Key, text, flag as typed; unknown ones included."""


def parse_arguments(
    program: str, keys: Sequence[Key], argv: Sequence[str], *, commands: str = ""
) -> Arguments:
    """Parse; exits 0 for --help and 2 for what is not even a flag."""
    flags: list[tuple[str, str, str]] = []
    parser = _parser(program, keys, flags, commands)
    known, rest = parser.parse_known_args(list(argv))
    position = 0
    while position < len(rest):
        match = re.fullmatch(r"--([A-Za-z][\w.-]*)(?:=.*)?", rest[position], re.DOTALL)
        if match is None:
            parser.error(f"unexpected argument {rest[position]!r}")
        flags.append((match[1], "", f"--{match[1]}"))
        position += 1
        if position < len(rest) and not rest[position].startswith("--"):
            position += 1
    return Arguments(known.config, known.print_config, tuple(flags))


def _parser(
    program: str, keys: Sequence[Key], flags: list[tuple[str, str, str]], commands: str
) -> argparse.ArgumentParser:
    class Take(argparse.Action):
        """Appends the key and its text in the order given."""

        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: object,
            option_string: str | None = None,
        ) -> None:
            del parser, namespace
            text = "true" if self.nargs == 0 else str(values)
            flags.append((self.dest, text, str(option_string)))

    class Set(argparse.Action):
        """Appends the key and text of --set KEY=VALUE."""

        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: object,
            option_string: str | None = None,
        ) -> None:
            del namespace
            name, equals, text = str(values).partition("=")
            if not equals:
                parser.error(f"{option_string} {values!r}: expected KEY=VALUE")
            flags.append((name, text, f"--set {name}"))

    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        epilog=f"Rank: flag > environment > file > default. {commands}".rstrip(),
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (GPUWARDEN_CONFIG)")
    parser.add_argument(
        "--print-config", action="store_true", help="show the effective configuration and end"
    )
    parser.add_argument("--version", action="version", version=f"{program} {__version__}")
    parser.add_argument("--set", action=Set, metavar="KEY=VALUE", help="set any key")
    for key in keys:
        parser.add_argument(
            f"--{key.name}", action=Take, dest=key.name, metavar="VALUE", help=_help(key)
        )
    if any(key.name == "insecureStaticHashes" for key in keys):
        parser.add_argument(
            "--insecure-static-hashes",
            action=Take,
            nargs=0,
            dest="insecureStaticHashes",
            help="the same as --insecureStaticHashes true",
        )
    return parser


def _help(key: Key) -> str:
    default = "required" if key.required else f"default {key.shown(key.default)}"
    return f"{key.spec.help} [{key.env}] ({default})".replace("%", "%%")


def read_inputs(arguments: Arguments, environment: Mapping[str, str]) -> Inputs:
    """Read the file that flag or environment names; raises SettingsError if that fails."""
    name = arguments.config or environment.get(CONFIG_VARIABLE)
    file = (name, read_config_file(name)) if name else None
    return Inputs(arguments.flags, environment, file, read_secret_file)


def read_config_file(name: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Read a configuration file, at most one byte more than is allowed."""
    try:
        with Path(name).open("rb") as file:
            return file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise SettingsError(
            [Finding("--config", quoted(name), f"a readable file ({_reason(error)})")]
        ) from None


def read_secret_file(name: str) -> str:
    """Read a secret; raises OSError, ValueError."""
    with Path(name).open("rb") as file:
        data = file.read(MAX_SECRET_BYTES + 1)
    if len(data) > MAX_SECRET_BYTES:
        raise ValueError(f"more than {MAX_SECRET_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
