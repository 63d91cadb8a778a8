"""The webhooks for pods over mTLS, as an API server asks them: ours against idiomatic Go."""

import base64
import http.client
import json
import ssl
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sandbox.kube.json_patch import applied
from tests.bench.child import LOAD_CORE, SERVER_CORE, Child, undisturbed
from tests.bench.filter_rows import Tls
from tests.bench.results import Bound, Goal, Row
from tests.bench.review_bodies import pod, review

GROUP: Final = "Admission of pods over mTLS, eight requests in flight"
MUTATE, VALIDATE = "/mutate/pods/enforced", "/validate/pods/enforced"
_GO: Final = "Go"
_ROUNDS: Final = 7
_REQUESTS: Final = 1_000


@dataclass(frozen=True)
class Asked:
    """One kind of review."""

    work: str
    path: str
    body: bytes


def admission_rows(folder: Path, peers: Path) -> list[Row]:
    """Reviews that one core answers in a second, of both webhooks."""
    tls = Tls.make(folder)
    bare = pod()
    with ExitStack() as stack:
        stack.enter_context(undisturbed())
        ours = _ours(stack, tls, folder)
        go = _go(stack, tls, peers)
        patch = _same_answers(tls, (ours, go), bare)
        injected = applied(bare, patch)
        hostile = {**injected, "spec": {**injected["spec"], "hostPID": True}}
        kinds = [
            Asked("a pod that is patched", MUTATE, review(bare)),
            Asked("the same pod, admitted", VALIDATE, review(injected)),
            Asked("a pod that is refused", VALIDATE, review(hostile)),
        ]
        for kind in kinds[1:]:
            _same_verdict(tls, (ours, go), kind)
        found = {x.work: _per_core(stack, tls, (ours, go), x, folder, peers) for x in kinds}
    creation = [_pair(found[kinds[0].work][at], found[kinds[1].work][at]) for at in (0, 1)]
    return [
        Row(
            GROUP,
            "reviews a second and core, of pods that are patched and admitted",
            "/s",
            creation[0],
            creation[1],
            _GO,
            Goal(Bound.AT_LEAST, 1.0),
            "gpuwarden also writes audit record, metrics and trace context; the Go webhook only"
            " decides.",
        ),
        *(Row(GROUP, f"of these, {x.work}", "/s", *found[x.work], _GO) for x in kinds[:2]),
        Row(GROUP, f"{kinds[2].work}", "/s", *found[kinds[2].work], _GO),
    ]


def _pair(one: float, other: float) -> float:
    """Reviews per second where each pod needs one of both."""
    return 2 / (1 / one + 1 / other)


def _ours(stack: ExitStack, tls: Tls, folder: Path) -> Child:
    flags = (*tls.flags(), "--audit", str(folder / "admission-audit"))
    return stack.enter_context(Child.python("tests.bench.admission_main", *flags, core=SERVER_CORE))


def _go(stack: ExitStack, tls: Tls, peers: Path) -> Child:
    child = Child(
        [peers, "admission", *tls.flags()], core=SERVER_CORE, environment={"GOMAXPROCS": "1"}
    )
    return stack.enter_context(child)


def _per_core(  # noqa: PLR0917 -- who, with what, about what
    stack: ExitStack,
    tls: Tls,
    servers: Sequence[Child],
    asked: Asked,
    folder: Path,
    peers: Path,
) -> tuple[float, float]:
    """Reviews per second of CPU time, of each server, which take turns."""
    body = folder / "review.json"
    body.write_bytes(asked.body)
    where = f"{asked.path}?timeout=5s"  # as an API server asks
    loads = [_load(stack, tls, peers, _address(x) + where, body) for x in servers]
    spent = [0.0 for _ in servers]
    for number in range(_ROUNDS + 1):
        for at, (server, load) in enumerate(zip(servers, loads, strict=True)):
            begin = server.cpu_s()
            load.ask()
            load.event("done")
            if number:  # the first one opens connections and warms caches
                spent[at] += server.cpu_s() - begin
    mine, other = (_ROUNDS * _REQUESTS / cpu for cpu in spent)
    return mine, other


def _load(stack: ExitStack, tls: Tls, peers: Path, url: str, body: Path) -> Child:
    client = ("--cert", tls.client[0], "--key", tls.client[1], "--ca", tls.ca)
    command = (peers, "reviews", *client, "--url", url, "--body", body, "--count", str(_REQUESTS))
    child = stack.enter_context(Child(command, core=LOAD_CORE, environment={"GOMAXPROCS": "1"}))
    child.event("ready")
    return child


_ADDRESSES: dict[int, str] = {}


def _address(server: Child) -> str:
    """Said once, at the start."""
    if server.pid not in _ADDRESSES:
        _ADDRESSES[server.pid] = f"https://{server.event('listening')['address']}"
    return _ADDRESSES[server.pid]


def _response(tls: Tls, server: Child, path: str, body: bytes) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(*tls.client)
    place = _address(server).removeprefix("https://")
    connection = http.client.HTTPSConnection(place, context=context, timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())["response"]
        return found
    finally:
        connection.close()


def _same_answers(tls: Tls, servers: Sequence[Child], bare: dict[str, Any]) -> list[dict[str, Any]]:
    """The patch; a faster one that differs would prove nothing."""
    found = [_response(tls, server, MUTATE, review(bare)) for server in servers]
    mine, other = (json.loads(base64.b64decode(x["patch"])) for x in found)
    if mine != other or not mine:
        raise RuntimeError(f"the webhooks disagree about the patch: {mine} and {other}")
    patch: list[dict[str, Any]] = mine
    return patch


def _same_verdict(tls: Tls, servers: Sequence[Child], asked: Asked) -> None:
    found = [_response(tls, server, asked.path, asked.body) for server in servers]
    mine, other = ((x["allowed"], x.get("status", {}).get("message")) for x in found)
    if mine != other:
        raise RuntimeError(f"the webhooks disagree about {asked.work}: {mine} and {other}")
