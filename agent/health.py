"""The ops listener: `/healthz`, `/readyz` and `/metrics` for kubelet and Prometheus.

HTTP/1.1, GET or HEAD of these paths, nothing else. That an answer comes at all shows that the
event loop turns. Requests are bounded in size, time and number; bodies are not read; each
connection carries one request. A connection that has brought none gives way to a newer one, so
that a crowd of silent ones cannot keep kubelet out. It reads values and has no side effects.
"""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Final

from agent.detached import detached
from agent.gpu.source import StuckCall
from agent.recorder import AgentRecorder, ReplicaReport
from gpuwarden.connections import ConnectionBounds, ConnectionTable, Phase
from gpuwarden.identity.svid import SvidSource
from gpuwarden.identity.svid_watcher import SvidFacts
from gpuwarden.settings.values import Address
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import CONTENT_TYPE, Instruments

# --- the server

MAX_REQUEST_BYTES: Final = 8 * 1024
MAX_CONNECTIONS: Final = 128
REQUEST_S: Final = 5.0
TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
_METHODS: Final = frozenset({"GET", "HEAD"})
_REQUEST_LINE_PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Route = Callable[[], Answer]


class HealthServer:
    """Serves `routes` at `address`; port 0 means any free one."""

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Route],
        *,
        request_s: float = REQUEST_S,
        cut: Callable[[str], None] = lambda _cause: None,
    ) -> None:
        """`cut` hears why a connection was ended by this side."""
        self._address = address
        self._routes = routes
        self._request_s = request_s
        self._server: asyncio.Server | None = None
        self._cut = cut
        self._connections: ConnectionTable[asyncio.Task[None]] = ConnectionTable(
            ConnectionBounds(
                connections=MAX_CONNECTIONS, head_s=request_s, idle_s=request_s, busy_s=request_s
            )
        )

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self) -> Address:
        """Listen; returns the address with the port that was bound. Raises OSError."""
        listener = await _listen(self._address)
        self._server = await asyncio.start_server(
            self._connected, sock=listener, limit=MAX_REQUEST_BYTES
        )
        return Address(self._address.host, listener.getsockname()[1])

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is not None:
            self._server.close()
        connections = self._connections.all()
        for task in connections:
            task.cancel()
        if connections:
            await asyncio.wait(connections)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a stream callback always runs in its own task
        try:
            if self._admit(task):
                async with asyncio.timeout(self._request_s):
                    await self._serve(task, reader, writer)
        except TimeoutError:
            slow = self._connections.phase(task) is Phase.BUSY
            self._cut("slow" if slow else "no-request")
        except (OSError, asyncio.CancelledError):
            pass  # gone, given way, or the process ends: there is nobody to tell
        finally:
            self._connections.remove(task)
            writer.transport.abort()

    def _admit(self, task: asyncio.Task[None]) -> bool:
        if self._connections.is_full:
            other = self._connections.in_the_way()
            if other is None:
                self._cut("full")
                return False
            self._cut("gave-way")
            self._connections.remove(other)
            other.cancel()
        self._connections.add(task, asyncio.get_running_loop().time())
        return True

    async def _serve(
        self,
        task: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            writer.write(
                _response(_plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), is_head=False)
            )
        except asyncio.IncompleteReadError:
            return
        else:
            self._connections.move(task, Phase.BUSY, asyncio.get_running_loop().time())
            method, answer = self._answer(head)
            writer.write(_response(answer, is_head=method == "HEAD"))
        # Answered: a client that does not read gives way, too.
        self._connections.move(task, Phase.IDLE, asyncio.get_running_loop().time())
        await writer.drain()
        writer.write_eof()
        # An abort now could overtake the answer: wait for the client to close, or for the deadline.
        while await reader.read(MAX_REQUEST_BYTES):
            pass

    def _answer(self, head: bytes) -> tuple[str, Answer]:
        parts = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(parts) != _REQUEST_LINE_PARTS or not parts[2].startswith("HTTP/1."):
            return "", _plain(HTTPStatus.BAD_REQUEST)
        method, target, _ = parts
        route = self._routes.get(target.partition("?")[0])
        if route is None:
            return method, _plain(HTTPStatus.NOT_FOUND)
        if method not in _METHODS:
            return method, _plain(HTTPStatus.METHOD_NOT_ALLOWED)
        return method, route()


async def _listen(address: Address) -> socket.socket:
    """An empty host means all addresses of both families where the machine has both."""
    if address.host:
        [(family, _, _, _, bound), *_] = await detached(
            lambda: socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM),
            deadline_s=REQUEST_S,
            name="resolver",
        )
        return socket.create_server(bound, family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", address.port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", address.port))


def _plain(status: HTTPStatus) -> Answer:
    return Answer(status, f"{status.phrase}\n".encode())


def _response(answer: Answer, *, is_head: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if is_head else head + answer.body


# --- the answers


class Ops:
    """The three answers."""

    def __init__(
        self,
        instruments: Instruments,
        recorder: AgentRecorder,
        identity: SvidSource,
        *,
        stuck: Callable[[float], StuckCall | None],
        unreadable: Callable[[], str],
        facts: Callable[[], SvidFacts],
    ) -> None:
        """`stuck` gives the NVML call that will never return; it takes `time.monotonic()`.

        `unreadable`: why a new container is needed, empty while it is not.
        """
        self._instruments = instruments
        self._recorder = recorder
        self._stuck = stuck
        self._unreadable = unreadable
        self._facts = facts
        self._identity = identity
        self._counted = SvidFacts(0.0, 0, 0, 0, watching=False)

    def routes(self) -> dict[str, Route]:
        """For the health server."""
        return {
            "/healthz": self.healthz,
            "/health": self.healthz,
            "/readyz": self.readyz,
            "/ready": self.readyz,
            "/metrics": self.metrics,
        }

    def healthz(self) -> Answer:
        """Liveness."""
        text = self._unreadable()
        if stuck := self._stuck(time.monotonic()):
            text = f"NVML call {stuck.call} has not returned for {stuck.seconds:.0f} s"
        if not text:
            return Answer(HTTPStatus.OK, b"ok\n")
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{text}\n".encode())

    def readyz(self) -> Answer:
        """Readiness with a reason and with the last verdict of every replica."""
        readiness = self._recorder.readiness()
        body = {
            "ready": readiness.ready,
            "reasons": list(readiness.reasons),
            "identity": self._identity.state(),
            "alarms": list(readiness.alarms),
            "replicas": [_shown(replica) for replica in readiness.replicas],
        }
        status = HTTPStatus.OK if readiness.ready else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(status, json.dumps(body).encode() + b"\n", JSON)

    def metrics(self) -> Answer:
        """Prometheus' text format."""
        self._recorder.refresh()
        self._count(self._facts())
        return Answer(HTTPStatus.OK, self._instruments.render(), CONTENT_TYPE)

    def _count(self, facts: SvidFacts) -> None:
        before, self._counted = self._counted, facts
        updates = self._instruments.counter(names.SVID_UPDATES)
        updates.labels("taken").inc(facts.generation - before.generation)
        updates.labels("failed").inc(facts.failures - before.failures)
        restarts = self._instruments.counter(names.SVID_SOURCE_RESTARTS)
        restarts.inc(max(0, facts.rebuilds - 1) - max(0, before.rebuilds - 1))
        self._instruments.gauge(names.SVID_EXPIRY).set(facts.svid_expires_seconds)


def _shown(replica: ReplicaReport) -> dict[str, object]:
    fields = asdict(replica)
    fields["state"] = fields.pop("condition")
    return {_CAMEL.get(name, name): value for name, value in fields.items()}


_CAMEL = {"attestation_hash": "attestationHash", "fresh_for_s": "freshForSeconds"}
