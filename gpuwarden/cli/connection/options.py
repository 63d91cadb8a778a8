"""Options that commands share: where the controller is, who calls, how to print, --yes."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Group, Parameter

from gpuwarden.cli.connection.kubeconfig import has_kubeconfig
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.output import Format
from gpuwarden.cli.text.terminal import shown
from gpuwarden.identity.person import PERSON, is_person

DEFAULT_SERVER: Final = "unix:/run/gpuwarden/fleet.sock"
SERVER_VARIABLE: Final = "GPUWARDEN_SERVER"
CONTROLLER_ID_VARIABLE: Final = "GPUWARDEN_CONTROLLER_ID"
NAMESPACE_VARIABLE: Final = "GPUWARDEN_NAMESPACE"
OWN_VARIABLES: Final = frozenset({SERVER_VARIABLE, CONTROLLER_ID_VARIABLE, NAMESPACE_VARIABLE})
"""Variables of this program; agent and controller do not know them."""

_GROUP: Final = Group("Connection", sort_key=10)
_AFFIRMATIVE: Final = frozenset({"y", "yes"})


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a controller."""

    server: Annotated[str, Parameter(env_var=SERVER_VARIABLE)] = ""
    """Controller to ask: `unix:PATH` for its local socket, `HOST:PORT` over mTLS. Without it: its
    socket where there is one, else the kubeconfig."""
    kubeconfig: Path | None = None
    """Kubeconfig file with which to reach the controller; by default $KUBECONFIG or
    ~/.kube/config."""
    context: str | None = None
    """Context of the kubeconfig; by default the current one."""
    controller_namespace: Annotated[str, Parameter(env_var=NAMESPACE_VARIABLE)] = "gpuwarden-system"
    """Namespace of the controller, with a kubeconfig."""
    svid: Path | None = None
    """PEM file with your certificate chain; without it, the Workload API is used."""
    key: Path | None = None
    """PEM file with the private key of --svid."""
    bundle: Path | None = None
    """PEM file with the trust bundle that the controller must chain to."""
    workload_api: Annotated[str | None, Parameter(env_var="SPIFFE_ENDPOINT_SOCKET")] = None
    """Socket of the SPIFFE Workload API, `unix:///PATH`."""
    controller_id: Annotated[str | None, Parameter(env_var=CONTROLLER_ID_VARIABLE)] = None
    """SPIFFE ID that the controller must have; by default derived from your own."""
    timeout: float = 10.0
    """Seconds to wait for an answer."""


HERE: Final = Connection()
"""The local socket or the kubeconfig, with the default time limit."""


def chosen_server(connection: Connection) -> str:
    """`unix:PATH` or `HOST:PORT`; empty for the way through a kubeconfig. Raises CliError."""
    by_kubeconfig = connection.kubeconfig is not None or connection.context is not None
    if connection.server:
        if by_kubeconfig:
            text = f"give one of --server ({SERVER_VARIABLE}) and --kubeconfig or --context"
            raise CliError(ExitCode.USAGE, text)
        return connection.server
    if by_kubeconfig:
        return ""
    spiffe = (connection.svid, connection.key, connection.bundle, connection.workload_api)
    if _is_there(DEFAULT_SERVER) or any(spiffe) or not has_kubeconfig(os.environ):
        return DEFAULT_SERVER
    return ""


def _is_there(server: str) -> bool:
    try:
        return os.path.lexists(server.removeprefix("unix:"))
    except OSError:
        return True  # not for us to look at: whoever opens it says so


Output = Annotated[Format, Parameter(name=["--output", "-o"])]
Namespace = Annotated[str, Parameter(name=["--namespace", "-n"])]
AsRecordedBy = Annotated[str, Parameter(name="--as-recorded-by")]
NAMELESS: Final = (
    "note: recorded as an act of the owner of the controller's socket. Name yourself with"
    " --as-recorded-by, or come with a kubeconfig or an operator's SVID, which prove who you are."
)
Yes = Annotated[bool, Parameter(name=["--yes", "-y"], negative="")]


def check_person(name: str) -> None:
    """Check the name of who acts, before anything is asked; raises CliError."""
    if name and not is_person(name):
        raise CliError(ExitCode.USAGE, f"--as-recorded-by: expected {PERSON}, got '{shown(name)}'")


def note_who_acted(name: str, connection: Connection) -> None:
    """Tell who acted through the controller's socket without a name what was recorded."""
    if not name and chosen_server(connection).startswith("unix:"):
        sys.stderr.write(f"{NAMELESS}\n")


def demand_yes(question: str, text: str, *, yes: bool) -> None:
    """Ask on the terminal unless `yes`; raises CliError unless the answer is yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CliError(ExitCode.USAGE, "stdin is not a terminal; use --yes")
    sys.stderr.write(f"{text}\n{question} [y/N] " if text else f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in _AFFIRMATIVE:
        raise CliError(ExitCode.ERROR, "not confirmed, nothing was done")
