"""The scorer's answer, believed in nothing but its form; and when the scorer is asked no more.

An answer counts as a whole or not at all. It can choose among the candidates that it was given, and
say which job types to keep away from: nothing else of it gets into a pod.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from controller.admission.hint_request import is_label_value
from gpuwarden.moment import NS_PER_S

CLASS_LABEL: Final = "gpu.nvidia.com/class"
"""Under which the answer's node selector names the GPU type."""
LEAST_SCORE, MOST_SCORE = 0.0, 100.0
MOST_AVOIDED: Final = 8
MOST_BYTES: Final = 64 << 10


class ScoreFault(StrEnum):
    """Why there is no answer, or none that counts."""

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    STATUS = "status"
    """An HTTP status that is no success."""
    REFUSED = "refused"
    """A status of the 400s: this one question was wrong, not the scorer."""
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    """No JSON, or not of the form."""
    OUT_OF_RANGE = "out_of_range"
    UNKNOWN_TYPE = "unknown_type"
    """A GPU type that was no candidate, or two different ones."""


class ScoreError(Exception):
    """There is no answer that counts."""

    def __init__(self, fault: ScoreFault, detail: str = "") -> None:
        super().__init__(detail or fault.value)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Score:
    """An answer that counts."""

    priority: float
    """0 to 100."""
    gpu_type: str
    """One of the candidates."""
    avoided: tuple[str, ...] = ()
    """Job types to keep away from."""

    @property
    def shown(self) -> str:
        """The priority as an annotation: `85`, or `85.25`."""
        return f"{round(self.priority, 2):g}"


class _Terms(msgspec.Struct, frozen=True, gc=False):
    chosen_gpu: str | None = None


class _Selector(msgspec.Struct, frozen=True, rename={"node_selector": "nodeSelector"}, gc=False):
    node_selector: dict[str, str] | None = None


class _Answer(msgspec.Struct, frozen=True, gc=False):
    priority_score: float
    gpu_selector: _Selector | None = None
    avoid_co_locate_with: list[str] | None = None
    terms: _Terms | None = None


_ANSWER: Final = msgspec.json.Decoder(_Answer)


def read_score(body: bytes, candidates: Sequence[str], own_type: str) -> Score:
    """Read an answer; raises ScoreError."""
    if len(body) > MOST_BYTES:
        raise ScoreError(ScoreFault.TOO_LARGE, f"more than {MOST_BYTES} bytes")
    try:
        found = _ANSWER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        place = str(error) if isinstance(error, msgspec.ValidationError) else "no JSON"
        raise ScoreError(ScoreFault.MALFORMED, place) from None
    if not LEAST_SCORE <= found.priority_score <= MOST_SCORE:
        text = f"priority_score is not from {LEAST_SCORE:g} to {MOST_SCORE:g}"
        raise ScoreError(ScoreFault.OUT_OF_RANGE, text)
    named = {x for x in (_chosen(found), _selected(found)) if x is not None}
    if len(named) != 1 or not named <= {*candidates}:
        raise ScoreError(ScoreFault.UNKNOWN_TYPE, "it chooses none of the candidates, or several")
    (gpu_type,) = named
    avoided = dict.fromkeys(x for x in found.avoid_co_locate_with or () if is_label_value(x))
    avoided.pop(own_type, None)
    return Score(found.priority_score, gpu_type, tuple(avoided)[:MOST_AVOIDED])


def _chosen(answer: _Answer) -> str | None:
    return None if answer.terms is None else answer.terms.chosen_gpu


def _selected(answer: _Answer) -> str | None:
    labels = None if answer.gpu_selector is None else answer.gpu_selector.node_selector
    return None if labels is None else labels.get(CLASS_LABEL)


# --- the circuit breaker

FAILURES_TO_OPEN: Final = 5
OPEN_NS: Final = 30 * NS_PER_S


@dataclass(frozen=True, slots=True)
class Breaker:
    """After some failures in a row the scorer is left alone for a while, then asked once.

    Without it each pod of the namespaces would wait for a scorer that does not answer.
    """

    failures: int = 0
    asks_again_ns: int = 0
    """CLOCK_BOOTTIME until which nobody is asked."""

    def lets(self, now_ns: int) -> bool:
        """Whether the scorer may be asked."""
        return now_ns >= self.asks_again_ns

    def trying(self, now_ns: int) -> "Breaker":
        """It is asked: while it was open, nobody else asks until the answer is there."""
        if self.failures < FAILURES_TO_OPEN:
            return self
        return replace(self, asks_again_ns=now_ns + OPEN_NS)

    def failed(self, now_ns: int) -> "Breaker":
        """It gave no answer that counts."""
        failures = min(self.failures + 1, FAILURES_TO_OPEN)
        opens = failures == FAILURES_TO_OPEN
        return Breaker(failures, now_ns + OPEN_NS if opens else self.asks_again_ns)

    def succeeded(self) -> "Breaker":
        """It answered."""
        return Breaker()
