"""Pods that come and go all the time, through the cluster's own scheduler; nobody runs them.

What a kubelet would say of a pod is said here: it runs once it is bound, and has ended when its
time is over. One thread acts, another follows what becomes of the pods.
"""

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from http.client import HTTPException
from typing import Final

from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import NeverError
from tests.e2e.product.ledger import ASSIGNED
from tests.e2e.product.pods import managed
from tests.soak.log_lines import ErrorLine
from tests.soak.report import Placed, percentile

CLIENT: Final = "client"
"""Who creates the pods, in the report."""
_MOST_WAITING: Final = 20
_TURN_S: Final = 0.1
_WATCH: Final = "watch=true&allowWatchBookmarks=true&timeoutSeconds=5"
_GPUS: Final = (1, 1, 1, 2, 2, 4, 8)
_SHORTEST_S: Final = 2.0


class End(StrEnum):
    """How a pod ends."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    DELETED = "deleted"
    """While it runs."""


_ENDS: Final = (End.SUCCEEDED, End.SUCCEEDED, End.SUCCEEDED, End.FAILED, End.DELETED)


@dataclass(frozen=True, slots=True)
class Planned:
    """One pod."""

    name: str
    gpus: int
    stays_s: float
    """From its Binding."""
    end: End


class Load:
    """`act` and `follow` go on until `close`, each in a thread of its own."""

    def __init__(self, pods: Namespace, *, per_minute: float, longest_s: float) -> None:
        """`longest_s`: no pod stays longer."""
        self._pods = pods
        self._pause_s = 60 / per_minute
        self._longest_s = longest_s
        self._draw = random.Random(1)  # noqa: S311 - repeatable on purpose
        self._numbers = itertools.count()
        self._turn = threading.Lock()
        self._closed = threading.Event()
        self._is_held = False
        self._due = time.monotonic()
        self._next: Planned | None = None
        self._running: list[tuple[Planned, float]] = []
        self._created = 0
        self._ended: Counter[str] = Counter()
        self.errors: list[ErrorLine] = []
        """What the API server refused, and calls without an answer."""
        self._lock = threading.Lock()
        """Of everything below, which both threads use."""
        self._waiting: dict[str, tuple[Planned, float]] = {}
        self._bound: list[Planned] = []
        self._gpus: dict[str, tuple[str, ...]] = {}
        self._twice: list[str] = []
        self._took_ms: list[float] = []

    @property
    def waiting(self) -> list[str]:
        """Pods without a node."""
        with self._lock:
            return list(self._waiting)

    def hold(self, timeout_s: float) -> None:
        """From now on no pod is begun, and none ends; NeverError where a turn takes too long."""
        if not self._turn.acquire(timeout=timeout_s):
            raise NeverError(f"the turn of the pods' client: not over within {timeout_s:g} s")
        try:
            self._is_held = True
        finally:
            self._turn.release()

    def close(self) -> None:
        """End both threads."""
        self._closed.set()

    def placed(self) -> Placed:
        """What became of the pods so far."""
        with self._lock:
            took = list(self._took_ms)
            return Placed(
                created=self._created,
                bound=len(took),
                ended=dict(self._ended),
                left=tuple(self._waiting),
                twice=tuple(self._twice),
                p50_ms=percentile(took, 0.5),
                p99_ms=percentile(took, 0.99),
            )

    def act(self) -> None:
        """Create pods, say that they run, end them."""
        with self._pods.api.kept_open() as api:
            pods = Namespace(api, self._pods.name)
            while not self._closed.wait(_TURN_S):
                with self._turn:
                    if not self._is_held or self._next is not None:
                        self._create(pods)
                    self._run(pods)
                    if not self._is_held:
                        self._end(pods)

    def follow(self) -> None:
        """See every change of every pod, in its order."""
        api, path = self._pods.api, f"{self._pods.path}/pods"
        version = api.get(path)["metadata"]["resourceVersion"]
        while not self._closed.is_set():
            for event in api.watched(f"{path}?{_WATCH}&resourceVersion={version}"):
                if event["type"] == "ERROR":
                    raise RuntimeError(f"the watch of pods ended: {event['object']}")
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._see(event["type"], event["object"])

    def _create(self, pods: Namespace) -> None:
        now = time.monotonic()
        if now < self._due or len(self.waiting) >= _MOST_WAITING:
            return
        self._due = max(self._due, now - self._pause_s) + self._pause_s
        if self._next is None:  # one that is tried again may be bound by now
            self._next = self._planned()
            with self._lock:
                self._waiting[self._next.name] = (self._next, now)
        planned = self._next
        document = managed(planned.name, {"gpu-count": str(planned.gpus)}, gpus=0)
        if self._did(lambda: pods.create(document), repeated=HTTPStatus.CONFLICT):
            self._next = None
            self._created += 1

    def _run(self, pods: Namespace) -> None:
        with self._lock:
            bound, self._bound = self._bound, []
        for planned in bound:
            if not self._closed.is_set() and self._say(pods, planned, "Running"):
                self._running.append((planned, time.monotonic() + planned.stays_s))
            else:
                with self._lock:
                    self._bound.append(planned)

    def _end(self, pods: Namespace) -> None:
        now = time.monotonic()
        for each in [x for x in self._running if x[1] <= now]:
            if self._closed.is_set():
                return
            planned, _ = each
            path = f"{pods.path}/pods/{planned.name}"
            if planned.end is not End.DELETED and not self._say(pods, planned, planned.end.value):
                continue
            if self._did(lambda at=path: pods.api.delete(at, grace_s=0)):  # type: ignore[misc] # mypy cannot infer the default
                self._running.remove(each)
                self._ended[planned.end.value] += 1

    def _say(self, pods: Namespace, planned: Planned, phase: str) -> bool:
        path = f"{pods.path}/pods/{planned.name}/status"
        return self._did(
            lambda: pods.api.patch(path, {"status": {"phase": phase}}),
            repeated=HTTPStatus.NOT_FOUND,
        )

    def _did(self, call: Callable[[], object], *, repeated: HTTPStatus | None = None) -> bool:
        """Whether it was done; else it is tried again. `repeated`: an answer had been lost."""
        try:
            call()
        except ApiError as error:
            if error.status == repeated:
                return True
            self.errors.append(ErrorLine(CLIENT, f"{error.status} {error.message}", time.time()))
            return False
        except (OSError, HTTPException) as error:
            self.errors.append(ErrorLine(CLIENT, repr(error), time.time()))
            return False
        return True

    def _see(self, kind: str, pod: Document) -> None:
        metadata, now = pod["metadata"], time.monotonic()
        name = metadata["name"]
        phase = pod["status"].get("phase")
        with self._lock:
            if kind == "DELETED" or phase in {End.SUCCEEDED, End.FAILED}:
                self._gpus.pop(name, None)
            elif pod["spec"].get("nodeName") and name not in self._gpus:
                has = tuple(metadata["annotations"].get(ASSIGNED, "").split(","))
                used = {gpu: who for who, gpus in self._gpus.items() for gpu in gpus}
                self._twice += [f"{gpu}: {used[gpu]}, {name}" for gpu in has if gpu in used]
                self._gpus[name] = has
                with suppress(KeyError):
                    planned, since = self._waiting.pop(name)
                    self._took_ms.append((now - since) * 1000)
                    self._bound.append(planned)

    def _planned(self) -> Planned:
        draw = self._draw
        return Planned(
            name=f"soak-{next(self._numbers)}",
            gpus=draw.choice(_GPUS),
            stays_s=draw.uniform(_SHORTEST_S, self._longest_s),
            end=draw.choice(_ENDS),
        )


def described(pods: Namespace, name: str) -> str:
    """How a pod stands that was not seen to be bound, as the API has it."""
    try:
        pod = pods.get(name)
    except (ApiError, OSError, HTTPException) as error:
        return f"pod {name}: {error!r}"
    status = pod["status"]
    said = [x["message"] for x in status.get("conditions", []) if x.get("message")]
    node = pod["spec"].get("nodeName", "no node")
    return f"pod {name}: {status.get('phase')} on {node}: {'; '.join(said) or 'no condition'}"
