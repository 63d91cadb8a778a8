"""/preempt over mTLS on one connection, as kube-scheduler asks: ours against idiomatic Go."""

import json
from contextlib import ExitStack
from pathlib import Path

from tests.bench.bodies import victims
from tests.bench.child import LOAD_CORE, pin
from tests.bench.filter_rows import (
    Asking,
    Spent,
    Tls,
    alternate,
    go_extender,
    our_extender,
    write_fleet,
)
from tests.bench.results import Row

GROUP = "/preempt over mTLS, one connection"
_FLEET, _CANDIDATES = 15_000, 1_500
_GO = "Go"


def preempt_rows(folder: Path, peers: Path) -> list[Row]:
    """All rows about /preempt."""
    pin(LOAD_CORE)
    tls = Tls.make(folder)
    with ExitStack() as stack:
        full = ("--full", str(_CANDIDATES), "--audit", folder / "preempt-audit")
        ours = our_extender(stack, tls, _FLEET, *full, path="/preempt")
        rare, usual = ours.hello["rare"], ours.hello["usual"]
        fleet = write_fleet(folder / "fleet.json", _FLEET, rare, usual, full=_CANDIDATES)
        go = go_extender(stack, tls, peers, fleet, path="/preempt")
        few = _asked(ours, go, victims(_CANDIDATES, rare), keeps=15)
        most = _asked(ours, go, victims(_CANDIDATES, usual), keeps=1_485)
    nodes = "1,500 full nodes of 15,000, 8 victims each"
    return [
        Row(
            GROUP,
            f"{nodes}, 15 kept",
            "ms",
            few[0].latency,
            few[1].latency,
            _GO,
            note="kube-scheduler offers at most a tenth of the nodes.",
        ),
        Row(GROUP, "the same, CPU time of the server", "ms", few[0].cpu, few[1].cpu, _GO),
        Row(GROUP, f"{nodes}, 1,485 kept", "ms", most[0].latency, most[1].latency, _GO),
    ]


def _asked(ours: Asking, go: Asking, body: bytes, *, keeps: int) -> list[Spent]:
    mine, other = (
        json.loads(server.ask(body)[1])["NodeNameToMetaVictims"] for server in (ours, go)
    )
    if mine != other or len(mine) != keeps:
        raise RuntimeError(f"of {keeps} nodes, {len(mine)} and {len(other)} are kept")
    return alternate([ours, go], body, rounds=7, calls=9)
