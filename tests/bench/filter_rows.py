"""/filter over mTLS on one connection, as kube-scheduler asks: ours against idiomatic Go."""

import http.client
import json
import ssl
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.bench.bodies import by_name, in_full
from tests.bench.child import LOAD_CORE, SERVER_CORE, Child, pin
from tests.bench.fleet_of import RARE, holder_of, node_name
from tests.bench.results import Bound, Goal, Row
from tests.builders.web_certificates import WebCa

GROUP = "/filter over mTLS, one connection"
_GO = "Go"


@dataclass(frozen=True)
class Tls:
    """Certificates for servers and for the client."""

    ca: Path
    server: tuple[Path, Path]
    client: tuple[Path, Path]

    @classmethod
    def make(cls, folder: Path) -> "Tls":
        ca = WebCa(folder, "extender-ca")
        return cls(ca.file, ca.issue("server", server=True), ca.issue("scheduler"))

    def flags(self) -> list[str]:
        """For either server."""
        return ["--cert", str(self.server[0]), "--key", str(self.server[1]), "--ca", str(self.ca)]


class Asking:
    """One server and a connection to it that stays open."""

    def __init__(self, child: Child, tls: Tls, path: str = "/filter") -> None:
        self.child = child
        self._path = path
        self.hello = child.event("listening")
        context = ssl.create_default_context(cafile=str(tls.ca))
        context.load_cert_chain(*tls.client)
        host, _, port = self.hello["address"].rpartition(":")
        self._connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=60)

    def ask(self, body: bytes) -> tuple[float, bytes]:
        """Milliseconds from the first byte sent to the last received, and the answer."""
        begin = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        text = answer.read()
        spent = (time.perf_counter() - begin) * 1000
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"status {answer.status}: {text[:200]!r}")
        return spent, text


def our_extender(
    stack: ExitStack, tls: Tls, nodes: int, *flags: str | Path, path: str = "/filter"
) -> Asking:
    """The product's extender over `nodes` nodes, pinned to the server's core."""
    module = "tests.bench.extender_main"
    arguments = (module, "--nodes", str(nodes), *tls.flags(), *flags)
    return Asking(stack.enter_context(Child.python(*arguments, core=SERVER_CORE)), tls, path)


def go_extender(
    stack: ExitStack, tls: Tls, peers: Path, fleet: Path, *flags: str, path: str = "/filter"
) -> Asking:
    """The Go extender, on the same core with one thread for Go code."""
    child = Child(
        [peers, "extender", *tls.flags(), "--fleet", fleet, *flags],
        core=SERVER_CORE,
        environment={"GOMAXPROCS": "1"},
    )
    return Asking(stack.enter_context(child), tls, path)


def write_fleet(path: Path, nodes: int, rare: str, usual: str, *, full: int = 0) -> Path:
    """What the Go peer knows of the same nodes; of the first `full` all GPUs are held."""
    standings = {
        node_name(number): {
            "hash": usual if number % RARE else rare,
            "gpus": 8,
            "freshUntil": "2100-01-01T00:00:00Z",
            "holders": [holder_of(number, gpu) for gpu in range(8)] if number < full else [],
        }
        for number in range(nodes)
    }
    path.write_text(json.dumps(standings))
    return path


@dataclass(frozen=True)
class Spent:
    """What one call takes, in milliseconds."""

    latency: float
    """Median over the rounds of each round's median, as the client sees it."""
    cpu: float
    """Of the server, over all rounds."""


def alternate(servers: Sequence[Asking], body: bytes, rounds: int, calls: int) -> list[Spent]:
    """Ask the servers in turn, each `calls` times a round, without a pause between calls."""
    for server in servers:
        server.ask(body)
    latencies: list[list[float]] = [[] for _ in servers]
    spent = [0.0 for _ in servers]
    for _ in range(rounds):
        for at, server in enumerate(servers):
            begin = server.child.cpu_s()
            latencies[at].append(median(server.ask(body)[0] for _ in range(calls)))
            spent[at] += server.child.cpu_s() - begin
    per_call = 1000 / (rounds * calls)
    return [
        Spent(median(times), cpu * per_call) for times, cpu in zip(latencies, spent, strict=True)
    ]


def filter_rows(folder: Path, peers: Path) -> list[Row]:
    """All rows about /filter."""
    pin(LOAD_CORE)
    tls = Tls.make(folder)
    return [*_names(folder, peers, tls), *_full(folder, peers, tls)]


def _names(folder: Path, peers: Path, tls: Tls) -> list[Row]:
    nodes = 15_000
    with ExitStack() as stack:
        ours = our_extender(stack, tls, nodes, "--audit", folder / "filter-audit")
        rare, usual = ours.hello["rare"], ours.hello["usual"]
        fleet = write_fleet(folder / "fleet.json", nodes, rare, usual)
        idiomatic = go_extender(stack, tls, peers, fleet)
        capped = go_extender(stack, tls, peers, fleet, "--reasons", "100")
        body = by_name(nodes, rare)
        _same_answer(ours, idiomatic, body)
        times = alternate([ours, idiomatic, capped], body, rounds=7, calls=9)
        passing = alternate([ours, idiomatic], by_name(nodes, usual), rounds=5, calls=7)
    return [
        Row(
            GROUP,
            "15,000 names, 150 pass, reasons for the first 100",
            "ms",
            times[0].latency,
            times[1].latency,
            _GO,
            Goal(Bound.AT_MOST, 0.25),
            "The Go extender gives a reason for each rejection.",
        ),
        Row(GROUP, "the same, CPU time of the server", "ms", times[0].cpu, times[1].cpu, _GO),
        Row(
            GROUP,
            "the same, 100 reasons on both sides",
            "ms",
            times[0].latency,
            times[2].latency,
            _GO,
        ),
        Row(
            GROUP,
            "15,000 names, 14,850 pass",
            "ms",
            passing[0].latency,
            passing[1].latency,
            _GO,
        ),
    ]


def _same_answer(ours: Asking, go: Asking, body: bytes) -> None:
    """A faster answer that differs would prove nothing."""
    mine, other = (json.loads(server.ask(body)[1])["NodeNames"] for server in (ours, go))
    if mine != other or not mine:
        raise RuntimeError("the extenders disagree about who passes")


def _full(folder: Path, peers: Path, tls: Tls) -> list[Row]:
    nodes = 5_000
    with ExitStack() as stack:
        ours = our_extender(stack, tls, nodes, "--audit", folder / "full-audit")
        rare, usual = ours.hello["rare"], ours.hello["usual"]
        fleet = write_fleet(folder / "fleet.json", nodes, rare, usual)
        go = go_extender(stack, tls, peers, fleet)
        body = in_full(nodes, rare)
        megabytes = len(body) / 1e6
        times = alternate([ours, go], body, rounds=5, calls=1)
        extra = [_extra_mib(server, body) for server in (ours, go)]
    return [
        Row(
            GROUP,
            f"5,000 whole nodes, {megabytes:.0f} MB, 50 pass",
            "ms",
            times[0].latency,
            times[1].latency,
            _GO,
            Goal(Bound.AT_MOST, 0.35),
        ),
        Row(GROUP, "whole nodes, CPU time of the server", "ms", times[0].cpu, times[1].cpu, _GO),
        Row(
            GROUP,
            "whole nodes, peak memory beyond idle, in bodies",
            "",
            extra[0] * 1.048576 / megabytes,
            extra[1] * 1.048576 / megabytes,
            _GO,
            Goal(Bound.AT_MOST, 2.3, of_ratio=False),
        ),
    ]


def _extra_mib(server: Asking, body: bytes) -> float:
    """Over three calls, from where memory stands between calls."""
    time.sleep(1)
    idle = server.child.rss_mib()
    server.child.forget_peak()
    for _ in range(3):
        server.ask(body)
    return server.child.peak_mib() - idle
