"""Compares deploy/spire/authorization.json with the policy that a SPIRE server has built in.

    python3 -m tests.spire_policy policy_data.json

The file is `pkg/server/authpolicy/policy_data.json` of SPIRE's repository, at the server's version.
Needs nothing but Python. Exit code 1: the table does not fit that server.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TABLE: Final = Path(__file__).resolve().parents[1] / "deploy/spire/authorization.json"
_KINDS: Final[Mapping[str, str]] = {
    "allow_admin": "admin",
    "allow_agent": "agent",
    "allow_any": "anyone",
    "allow_downstream": "downstream",
    "allow_local": "local",
}
"""SPIRE's word -> the table's."""
_METHOD: Final = "full_method"


class UnknownPolicyError(ValueError):
    """The file is of a form that this module does not know."""


def built_in(policy_data: str) -> dict[str, list[str]]:
    """Method -> who may call it, by SPIRE's own file."""
    found: dict[str, list[str]] = {}
    for api in json.loads(policy_data)["apis"]:
        unknown = {key for key, value in api.items() if value is not False} - {*_KINDS, _METHOD}
        if unknown or api[_METHOD] in found:
            raise UnknownPolicyError(f"{api[_METHOD]}: {', '.join(sorted(unknown)) or 'twice'}")
        found[api[_METHOD]] = sorted(_KINDS[key] for key in _KINDS if api.get(key))
    return found


def differences(table: Mapping[str, Any], policy_data: str) -> list[str]:
    """What the table would change for a server; what the server does not know changes nothing."""
    own: Mapping[str, list[str]] = table["methods"]
    found = []
    for method, kinds in built_in(policy_data).items():
        if method not in own:
            found.append(f"{method}: missing, nobody may call it; SPIRE: {', '.join(kinds)}")
        elif sorted(own[method]) != kinds:
            found.append(f"{method}: {', '.join(own[method])}; SPIRE: {', '.join(kinds)}")
    return found


def main(arguments: Sequence[str]) -> int:
    """Print the differences."""
    if len(arguments) != 1:
        print("expected: python3 -m tests.spire_policy policy_data.json", file=sys.stderr)  # noqa: T201 - for people
        return 2
    text = Path(arguments[0]).read_text()
    found = differences(json.loads(TABLE.read_text()), text)
    print("\n".join(found) or f"the table fits: {len(built_in(text))} methods of SPIRE")  # noqa: T201 - for people
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
