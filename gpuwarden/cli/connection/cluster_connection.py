"""Reaches a controller with a kubeconfig: finds a pod, and forwards a private socket to its port.

gRPC speaks TLS through the forwarded port with the controller itself, so what lies between sees
bytes of TLS alone. By which authority the controller is verified, the API server says. Must not
speak gRPC, nor send a token to anybody but the API server.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuwarden.cli.connection.api_server import ApiServer, ForbiddenError, NotFoundError
from gpuwarden.cli.connection.exec_plugin import SECONDS, run_plugin
from gpuwarden.cli.connection.kubeconfig import Credentials, kubeconfig_files, read_login
from gpuwarden.cli.connection.options import Connection
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.terminal import shown

ACCESS: Final = "gpuwarden-access"
"""The ConfigMap with the authority and the ports; and the Role that lets people come in."""
CONTROLLER: Final = "gpuwarden-controller"
MOST_REPLICAS: Final = 5
TOKENS_PORT: Final = 9444
CERTIFICATES_PORT: Final = 9445
_MAX_PORT: Final = 65535


@dataclass(frozen=True, slots=True)
class Way:
    """A way to a controller that is open."""

    target: str
    """Of gRPC: a private socket."""
    server_name: str
    """What the controller's certificate has to name."""
    authority: bytes
    """PEM."""
    credentials: Credentials = field(repr=False)
    forwarding: "_Forwarding"

    @property
    def trouble(self) -> CliError | None:
        """Why the last connection did not come about, by the API server."""
        return self.forwarding.trouble


@contextlib.asynccontextmanager
async def open_way(connection: Connection) -> AsyncIterator[Way]:
    """The way that the kubeconfig gives to one replica; raises CliError."""
    async with _entrance(connection) as entrance:
        pod = await _pod(entrance.api, entrance.namespace)
        async with entrance.way_to(pod) as way:
            yield way


@contextlib.asynccontextmanager
async def open_ways(
    connection: Connection,
) -> AsyncIterator[tuple[dict[str, Way], dict[str, CliError]]]:
    """The ways to all replicas by the names of their pods, and why none leads to the others.

    Raises CliError.
    """
    async with _entrance(connection) as entrance, contextlib.AsyncExitStack() as stack:
        running, others = await _every_pod(entrance.api, entrance.namespace)
        ways = {pod: await stack.enter_async_context(entrance.way_to(pod)) for pod in running}
        yield ways, others


@dataclass(frozen=True, slots=True)
class _Entrance:
    api: ApiServer
    namespace: str
    access: dict[str, str]
    credentials: Credentials = field(repr=False)

    @contextlib.asynccontextmanager
    async def way_to(self, pod: str) -> AsyncIterator[Way]:
        port = _port(self.access, by_certificate=bool(self.credentials.certificate))
        async with _forwarded(self.api, self.namespace, pod, port) as (target, forwarding):
            yield Way(
                target=target,
                server_name=f"{ACCESS}.{self.namespace}.svc",
                authority=self.access["ca.crt"].encode(),
                credentials=self.credentials,
                forwarding=forwarding,
            )


@contextlib.asynccontextmanager
async def _entrance(connection: Connection) -> AsyncIterator[_Entrance]:
    login = read_login(kubeconfig_files(connection.kubeconfig, os.environ), connection.context)
    credentials = login.credentials
    if login.plugin is not None:
        # Only a person at a terminal may need long, to log in.
        seconds = SECONDS if sys.stdin.isatty() else connection.timeout
        credentials = run_plugin(login.plugin, login, os.environ, seconds=seconds)
    if credentials is None:
        raise CliError(ExitCode.USAGE, "kubeconfig: no credentials")
    namespace = connection.controller_namespace
    async with ApiServer(login, credentials, connection.timeout) as api:
        access = await _access(api, namespace)
        yield _Entrance(api, namespace, access, credentials)


async def _access(api: ApiServer, namespace: str) -> dict[str, str]:
    try:
        found = (await api.get(namespace, "configmaps", ACCESS)).get("data")
    except NotFoundError:
        found = None
    except ForbiddenError:
        raise _forbidden(api, "get", f"configmaps/{ACCESS}", namespace) from None
    if not isinstance(found, dict) or not found.get("ca.crt"):
        text = (
            f"{shown(api.name)}: no ConfigMap {ACCESS} with an authority in namespace"
            f" {shown(namespace)}: gpuwarden is not there (see --controller-namespace), or lets"
            " nobody in with a kubeconfig (access.tls)"
        )
        raise CliError(ExitCode.NOT_REACHABLE, text)
    return {str(key): str(text) for key, text in found.items()}


def _port(access: dict[str, str], *, by_certificate: bool) -> int:
    key, usual = ("tokens-port", TOKENS_PORT)
    if by_certificate:
        key, usual = ("certificates-port", CERTIFICATES_PORT)
    text = access.get(key, str(usual))
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) <= _MAX_PORT):
        raise CliError(ExitCode.NOT_REACHABLE, f"ConfigMap {ACCESS}: {key} is no port")
    return int(text)


async def _pod(api: ApiServer, namespace: str) -> str:
    """A replica that is ready, else one that runs: it can say why it is not."""
    running = ""
    for number in range(MOST_REPLICAS):
        name = f"{CONTROLLER}-{number}"
        try:
            found = await api.get(namespace, "pods", name)
        except NotFoundError:
            break
        except ForbiddenError:
            if number:
                break
            raise _forbidden(api, "get", f"pods/{name}", namespace) from None
        if _is_ready(found):
            return name
        running = running or (name if _phase(found) == "Running" else "")
    if not running:
        raise _none_runs(api, namespace)
    return running


async def _every_pod(api: ApiServer, namespace: str) -> tuple[list[str], dict[str, CliError]]:
    """Replicas that run, and what is wrong with the others that there are.

    All numbers are asked for: one that is being made again is not the end of them.
    """
    running, others = list[str](), dict[str, CliError]()
    for number in range(MOST_REPLICAS):
        name = f"{CONTROLLER}-{number}"
        try:
            phase = _phase(await api.get(namespace, "pods", name))
        except NotFoundError:
            continue
        except ForbiddenError:
            others[name] = _forbidden(api, "get", f"pods/{name}", namespace)
            continue
        if phase == "Running":
            running.append(name)
        else:
            text = f"its pod is {shown(phase) or 'in no phase'}"
            others[name] = CliError(ExitCode.NOT_REACHABLE, text)
    if not running:
        raise next(iter(others.values()), _none_runs(api, namespace))
    return running, others


def _none_runs(api: ApiServer, namespace: str) -> CliError:
    text = f"{shown(api.name)}: no pod {CONTROLLER}-N runs in namespace {shown(namespace)}"
    return CliError(ExitCode.NOT_REACHABLE, text)


def _phase(pod: dict[str, Any]) -> str:
    status = pod.get("status")
    return str(status.get("phase", "")) if isinstance(status, dict) else ""


def _is_ready(pod: dict[str, Any]) -> bool:
    metadata, status = pod.get("metadata"), pod.get("status")
    if not isinstance(metadata, dict) or not isinstance(status, dict):
        return False
    conditions = status.get("conditions") or []
    return "deletionTimestamp" not in metadata and any(
        isinstance(x, dict) and (x.get("type"), x.get("status")) == ("Ready", "True")
        for x in conditions
    )


def _forbidden(api: ApiServer, verb: str, what: str, namespace: str) -> CliError:
    text = (
        f"{shown(api.name)}: may not {verb} {what} in namespace {shown(namespace)}: the Role"
        f" {ACCESS} there lets people in"
    )
    return CliError(ExitCode.NOT_AUTHORISED, text)


# --- the forwarded port


class _Forwarding:
    """Carries each connection of the private socket to the pod."""

    def __init__(self, api: ApiServer, namespace: str, pod: str, port: int) -> None:
        self.trouble: CliError | None = None
        self._api = api
        self._namespace = namespace
        self._pod = pod
        self._port = port
        self._open: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def close(self) -> None:
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._api.forward(self._namespace, self._pod, self._port, (reader, writer))
        except CliError as error:
            self.trouble = error
        except ForbiddenError:
            what = f"pods/{self._pod}/portforward"
            self.trouble = _forbidden(self._api, "get and create", what, self._namespace)
        except NotFoundError:
            text = f"{shown(self._api.name)}: the pod {self._pod} is gone"
            self.trouble = CliError(ExitCode.NOT_REACHABLE, text)


@contextlib.asynccontextmanager
async def _forwarded(
    api: ApiServer, namespace: str, pod: str, port: int
) -> AsyncIterator[tuple[str, _Forwarding]]:
    forwarding = _Forwarding(api, namespace, pod, port)
    with tempfile.TemporaryDirectory(prefix="gpuwarden-") as folder:  # mode 0700
        path = Path(folder) / "s"
        server = await asyncio.start_unix_server(forwarding.accept, path)
        try:
            yield f"unix:{path}", forwarding
        finally:
            server.close()
            await forwarding.close()
