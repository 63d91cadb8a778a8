"""The binding webhook over mTLS: what a bind takes beyond its writes, and beside many others."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from tests.bench.child import LOAD_CORE, SERVER_CORE, Child, pin, undisturbed
from tests.bench.filter_rows import Asking, Tls
from tests.bench.fleet_of import node_name
from tests.bench.results import Bound, Goal, Row
from tests.builders.bindings import binding, binding_review

GROUP: Final = "Binding webhook over mTLS, ledger in memory and audit log on disk"
_BINDING_WEBHOOK: Final = "/mutate/bindings"
_BINDS: Final = 1_000
_WARM: Final = 50
_PER_NODE: Final = 8
_BURSTS: Final = 9
_MANY: Final = 200
_NODES: Final = (_BINDS + _WARM) // _PER_NODE + 1 + (_BURSTS + 1) * (_MANY + 1 + 2 + 1)


def binding_rows(folder: Path) -> list[Row]:
    """One bind after the other, and many at once."""
    pin(LOAD_CORE)
    tls = Tls.make(folder)
    with ExitStack() as stack:
        stack.enter_context(undisturbed())
        flags = ("--nodes", str(_NODES), "--folder", str(folder / "gate"), *tls.flags())
        server = Child.python("tests.bench.binding_main", *flags, core=SERVER_CORE)
        binding_webhook = Asking(stack.enter_context(server), tls, _BINDING_WEBHOOK)
        _bind(binding_webhook, range(_WARM))
        server.ask()
        server.event("report")
        taken = _bind(binding_webhook, range(_WARM, _WARM + _BINDS))
        server.ask()
        report = server.event("report")
        writes, whole = list[float](report["writes"]), list[float](report["whole"])
        bursts = {over: list[float]() for over in (0, 1, _MANY)}
        for _ in range(_BURSTS + 1):
            for over, found in bursts.items():
                server.ask(f"burst {over}")
                found.append(server.event("burst")["other"])
    beyond, seen = _less(whole, writes), _less(taken, writes)
    alone, one, many = (median(found[1:]) for found in bursts.values())
    return [
        Row(
            GROUP,
            "p99 of what a bind takes beyond its writes",
            "ms",
            _p99(beyond),
            goal=Goal(Bound.AT_MOST, 2.0, of_ratio=False),
            note="From headers to answer, less the wait for ledger and audit log: one claim, and"
            " one synced record.",
        ),
        Row(GROUP, "median of the same", "ms", median(beyond)),
        Row(GROUP, "p99 of the same as a client sees it, TLS and HTTP included", "ms", _p99(seen)),
        Row(
            GROUP,
            "p99 of a whole bind, beside that of its writes",
            "ms",
            _p99(whole),
            _p99(writes),
            "writes",
        ),
        Row(
            GROUP,
            "a bind beside 200 at once for another node, and for 200 others",
            "ms",
            one,
            many,
            "200 nodes",
            Goal(Bound.AT_MOST, 1.0),
            f"Alone it takes {alone:.2g} ms, writes included.",
        ),
    ]


def _bind(binding_webhook: Asking, numbers: Sequence[int]) -> list[float]:
    """Milliseconds of each, as the client sees them; every pod gets one GPU."""
    taken = []
    for number in numbers:
        name = f"train-{number}"
        document = binding(name, node_name(number // _PER_NODE), uid=f"uid-{name}")
        spent, answer = binding_webhook.ask(json.dumps(binding_review(document)).encode())
        if not json.loads(answer)["response"]["allowed"]:
            raise RuntimeError(f"{name} is refused: {answer[:300]!r}")
        taken.append(spent)
    return taken


def _less(times: Sequence[float], writes: Sequence[float]) -> list[float]:
    """Of one bind after the other; ValueError where one did not write."""
    return [time - part for time, part in zip(times, writes, strict=True)]


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100, method="inclusive")[98]
