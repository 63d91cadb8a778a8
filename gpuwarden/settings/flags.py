"""Command line flags of the agent and the controller programs; stdlib only."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwarden.settings.key import Key


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was given on the command line."""

    config: str | None
    print_config: bool
    flags: tuple[tuple[str, str, str], ...]
    """Key, text, flag as typed; unknown ones included."""


def parse_arguments(program: str, keys: Sequence[Key], argv: Sequence[str]) -> Arguments:
    """Parse; exits 0 for --help and 2 for what is not even a flag."""
    flags: list[tuple[str, str, str]] = []
    parser = _parser(program, keys, flags)
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
    program: str, keys: Sequence[Key], flags: list[tuple[str, str, str]]
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
        prog=program, allow_abbrev=False, epilog="Rank: flag > environment > file > default."
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file (GPUWARDEN_CONFIG)")
    parser.add_argument(
        "--print-config", action="store_true", help="show the effective configuration and end"
    )
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
