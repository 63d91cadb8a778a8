"""What is to be said in Kubernetes Events, merged into series and slowed down. Pure.

The first of a kind is written at once, repeats become a count that is written at most
once a minute (events.k8s.io/v1 `series`). Few kinds are remembered and few writes are
made in a second: what does not fit is dropped and counted. Nothing here waits.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from controller.kube.errors import cleaned
from controller.kube.micro_time import micro_time

_SECOND: Final = 1_000_000_000
MAX_KINDS: Final = 1024
MAX_NOTE: Final = 1024
WRITES_PER_SECOND: Final = 5.0
BURST: Final = 25.0
REPEAT_NS: Final = 60 * _SECOND
FORGET_NS: Final = 10 * 60 * _SECOND
"""A kind that was silent for so long begins a new Event."""
_MAX_NAME: Final = 200
_TRIES: Final = 3


class Severity(StrEnum):
    """`type` of an Event."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that people will look at."""

    kind: str
    name: str
    uid: str
    """Empty for a pod at its creation."""
    namespace: str = ""
    api_version: str = "v1"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to be said; repeats differ in nothing but the note."""

    regarding: Regarding
    reason: str
    """UpperCamelCase, constant."""
    action: str
    severity: Severity
    code: str = ""
    """Reason code: another code is another Event."""
    note: str = ""

    @property
    def key(self) -> tuple[Regarding, str, str]:
        """What repeats have in common."""
        return self.regarding, self.reason, self.code


Key = tuple[Regarding, str, str]


@dataclass(frozen=True, slots=True)
class Writing:
    """One write to make: a new Event, or the count of one that is there."""

    key: Key
    namespace: str
    name: str
    body: dict[str, Any]
    is_new: bool


@dataclass(slots=True)
class _Series:
    notice: Notice
    name: str
    count: int
    last_ns: int
    last_wall_ns: int
    written: int = 0
    """Of `count`, how many the API server knows of."""
    written_ns: int = 0
    failures: int = 0


class EventSeries:
    """One per process; `reporter` is shown as the instance that reports."""

    def __init__(self, controller: str, reporter: str) -> None:
        self._controller = controller
        self._reporter = reporter[:128]
        self._series: dict[Key, _Series] = {}
        self._tokens = BURST
        self._filled_ns = 0
        self._forgot_ns = 0

    def add(self, notice: Notice, name: str, now_ns: int, wall_ns: int) -> str:
        """Remember it; `name` is for a new Event. Returns `merged`, `queued` or `dropped`."""
        self._forget(now_ns)
        found = self._series.get(notice.key)
        if found is not None:
            found.count += 1
            found.last_ns, found.last_wall_ns = now_ns, wall_ns
            return "merged"
        if len(self._series) >= MAX_KINDS:
            return "dropped"
        self._series[notice.key] = _Series(notice, name, 1, now_ns, wall_ns)
        return "queued"

    def next_writing(self, now_ns: int) -> Writing | None:
        """The next write that may be made now, oldest kind first."""
        self._fill(now_ns)
        if self._tokens < 1.0:
            return None
        for key, series in self._series.items():
            is_repeat_due = (
                series.count > max(series.written, 1) and now_ns - series.written_ns >= REPEAT_NS
            )
            if not series.written or is_repeat_due:
                self._tokens -= 1.0
                return self._writing(key, series)
        return None

    def wrote(self, key: Key, now_ns: int) -> None:
        """The API server took the last writing of `key`."""
        series = self._series.get(key)
        if series is not None:
            series.written, series.written_ns, series.failures = series.count, now_ns, 0

    def failed(self, key: Key, *, is_gone: bool) -> bool:
        """It did not; an Event that is gone is written anew. True when we give up on it."""
        series = self._series.get(key)
        if series is None:
            return False
        series.failures += 1
        if is_gone:
            series.written = 0
        if series.failures < _TRIES:
            return False
        del self._series[key]
        return True

    def clear(self) -> int:
        """Forget everything; returns how much was waiting to be written."""
        waiting = sum(1 for x in self._series.values() if x.count > x.written)
        self._series.clear()
        return waiting

    def _writing(self, key: Key, series: _Series) -> Writing:
        notice = series.notice
        namespace = notice.regarding.namespace or "default"
        name = f"{notice.regarding.name[:_MAX_NAME]}.{series.name}"
        seen = {"count": series.count, "lastObservedTime": micro_time(series.last_wall_ns)}
        if series.written:
            return Writing(key, namespace, name, {"series": seen}, is_new=False)
        event = self._event(series, namespace, name, seen)
        return Writing(key, namespace, name, event, is_new=True)

    def _event(
        self, series: _Series, namespace: str, name: str, seen: dict[str, Any]
    ) -> dict[str, Any]:
        notice, regarding = series.notice, series.notice.regarding
        event: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": micro_time(series.last_wall_ns),
            "reportingController": self._controller,
            "reportingInstance": self._reporter,
            "action": notice.action,
            "reason": notice.reason,
            "type": notice.severity.value,
            "note": f"gpuwarden: {' '.join(x for x in (notice.code, cleaned(notice.note)) if x)}"[
                :MAX_NOTE
            ],
            "regarding": {
                "apiVersion": regarding.api_version,
                "kind": regarding.kind,
                "name": regarding.name,
                **({"uid": regarding.uid} if regarding.uid else {}),
                **({"namespace": regarding.namespace} if regarding.namespace else {}),
            },
        }
        return event if series.count == 1 else {**event, "series": seen}

    def _fill(self, now_ns: int) -> None:
        elapsed_s = max(0, now_ns - self._filled_ns) / _SECOND
        self._tokens = min(BURST, self._tokens + elapsed_s * WRITES_PER_SECOND)
        self._filled_ns = now_ns

    def _forget(self, now_ns: int) -> None:
        """Now and then: what was silent for long and is all written."""
        if now_ns - self._forgot_ns < REPEAT_NS:
            return
        self._forgot_ns = now_ns
        self._series = {
            k: x
            for k, x in self._series.items()
            if now_ns - x.last_ns < FORGET_NS or x.count > x.written
        }
