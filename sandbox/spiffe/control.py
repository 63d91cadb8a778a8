"""Lets another process ask the Workload API server for rotations and faults.

One JSON request and one JSON reply per connection on a unix socket (mode 0600).
Requests: {"do": "rotate", "name"?} · {"do": "rotate-ca"} · {"do": "retire-ca"} ·
{"do": "fault", "name"?, "fault"} · {"do": "add", "name", "ids"} ·
{"do": "assign", "name", "ids"} · {"do": "remove", "name"} · {"do": "status"}.
Replies: {"ok": true, "result": …} or {"ok": false, "error": "…"}.
"""

import json
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from sandbox.spiffe.workload import Fault
from sandbox.spiffe.workload_api import InsecureWorkloadApi

_MAX_REQUEST = 64 * 1024
_TIMEOUT_SECONDS = 60


class ControlSocket:
    """Serves the control socket at `path` until closed."""

    def __init__(self, api: InsecureWorkloadApi, path: Path) -> None:
        self._path = path
        self._server = _Server(str(path), _Handler)
        self._server.api = api
        path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        """Stop serving and remove the socket."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ControlError(Exception):
    """The server did not do what it was asked."""


def ask(path: Path, do: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever JSON the reply carries
    """Ask the server at `path` to `do` something; returns the result or raises ControlError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_TIMEOUT_SECONDS)
        connection.connect(str(path))
        connection.sendall(json.dumps({"do": do, **arguments}).encode() + b"\n")
        with connection.makefile("rb") as reader:
            reply = json.loads(reader.readline())
    if not reply["ok"]:
        raise ControlError(reply["error"])
    return reply["result"]


class _Server(socketserver.ThreadingUnixStreamServer):
    api: InsecureWorkloadApi


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        try:
            reply = {"ok": True, "result": _obey(self.server.api, self._request())}
        except (KeyError, TypeError, ValueError) as error:
            reply = {"ok": False, "error": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(reply).encode() + b"\n")

    def _request(self) -> dict[str, Any]:
        request = json.loads(self.rfile.readline(_MAX_REQUEST))
        if not isinstance(request, dict):
            raise TypeError("a request is a JSON object")
        return request


def _obey(api: InsecureWorkloadApi, request: dict[str, Any]) -> object:
    acts: dict[str, Callable[[], object]] = {
        "rotate": lambda: api.rotate(request.get("name")),
        "rotate-ca": api.rotate_ca,
        "retire-ca": api.retire_ca,
        "fault": lambda: api.fault(request.get("name"), Fault(request["fault"])),
        "add": lambda: api.add(request["name"], *request["ids"]),
        "assign": lambda: api.assign(request["name"], *request["ids"]),
        "remove": lambda: api.remove(request["name"]),
        "status": api.status,
    }
    return acts[request["do"]]()
