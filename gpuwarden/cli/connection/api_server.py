"""The API server that a kubeconfig names, for a command: what fails is a CliError with its code."""

import asyncio
import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import quote

from gpuwarden.cli.connection.kubeconfig import Credentials, Login, access_by
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.text.terminal import shown
from gpuwarden.cluster import api
from gpuwarden.cluster.access import AccessError

MAX_BYTES: Final = 4 << 20


class NotFoundError(Exception):
    """There is no such object."""


class ForbiddenError(Exception):
    """The API server does not allow the call."""


class ApiServer:
    """The API server of one context; an async context manager around its connections."""

    def __init__(self, login: Login, credentials: Credentials, timeout: float) -> None:
        """Raises CliError for credentials that cannot be used."""
        self.name = f"context {login.context}"
        try:
            access = access_by(login, credentials)
            self._api = api.ApiServer(access, timeout, max_bytes=MAX_BYTES)
        except AccessError as error:
            raise CliError(ExitCode.USAGE, f"kubeconfig: {error}") from None

    async def __aenter__(self) -> Self:
        await self._api.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._api.__aexit__()

    async def get(self, namespace: str, plural: str, name: str) -> dict[str, Any]:
        """One object of the core group; raises CliError, NotFoundError, ForbiddenError."""
        parts = ("api", "v1", "namespaces", namespace, plural, name)
        with self._told():
            answer = await self._api.get("".join(f"/{quote(x, safe='')}" for x in parts))
        self._check(answer.status)
        if answer.document is None:
            raise self._unreachable("an answer that is no JSON object")
        found: dict[str, Any] = answer.document
        return found

    async def forward(
        self,
        namespace: str,
        pod: str,
        port: int,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Carry a connection to a port of a pod until one side ends it.

        Raises CliError, NotFoundError, ForbiddenError.
        """
        with self._told():
            await self._api.forward(namespace, pod, port, near)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except api.ForwardRefusedError as error:
            self._check(error.status)
            raise self._unreachable(str(error)) from None
        except api.ApiError as error:
            if error.is_late:
                raise CliError(ExitCode.TIMEOUT, f"{shown(self.name)}: {error}") from None
            raise self._unreachable(str(error)) from None

    def _check(self, status: int) -> None:
        if status == HTTPStatus.NOT_FOUND:
            raise NotFoundError
        if status == HTTPStatus.FORBIDDEN:
            raise ForbiddenError
        if status == HTTPStatus.UNAUTHORIZED:
            text = f"{shown(self.name)}: the API server does not accept these credentials"
            raise CliError(ExitCode.NOT_AUTHORISED, text)
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise self._unreachable(f"it answered {status}")

    def _unreachable(self, text: str) -> CliError:
        return CliError(ExitCode.NOT_REACHABLE, f"{shown(self.name)}: API server: {shown(text)}")
