"""The scorer's answer, believed in nothing but its form; and when the scorer is asked no more.

An answer counts as a whole or not at all. It can choose among the candidates that it was given, and
say which job types to keep away from: nothing else of it gets into a pod.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from controller.admission.hints.request import is_label_value
from controller.placement.gpu_type import MOST_CHOSEN, MOST_WEIGHT
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
    others: tuple[tuple[str, int], ...] = ()
    """Other candidates in falling order, with weights from 99 to 1; the chosen one has 100."""

    @property
    def weights(self) -> tuple[tuple[str, int], ...]:
        """All of them, the chosen one first."""
        return ((self.gpu_type, MOST_WEIGHT), *self.others)

    @property
    def shown(self) -> str:
        """The priority as an annotation: `85`, or `85.25`."""
        return f"{round(self.priority, 2):g}"


class _Terms(msgspec.Struct, frozen=True, gc=False):
    chosen_gpu: str | None = None


class _Selector(msgspec.Struct, frozen=True, rename={"node_selector": "nodeSelector"}, gc=False):
    node_selector: dict[str, str] | None = None


class _Candidate(msgspec.Struct, frozen=True, gc=False):
    gpu_type: str
    score: float


class _Answer(msgspec.Struct, frozen=True, gc=False):
    priority_score: float
    candidates: list[_Candidate] | None = None
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
    _demand_in_range("priority_score", found.priority_score)
    named = {x for x in (_chosen(found), _selected(found)) if x is not None}
    if len(named) != 1 or not named <= {*candidates}:
        raise ScoreError(ScoreFault.UNKNOWN_TYPE, "it chooses none of the candidates, or several")
    (gpu_type,) = named
    avoided = dict.fromkeys(x for x in found.avoid_co_locate_with or () if is_label_value(x))
    avoided.pop(own_type, None)
    others = _others(found.candidates or (), gpu_type, candidates)
    return Score(found.priority_score, gpu_type, tuple(avoided)[:MOST_AVOIDED], others)


def _others(
    found: Sequence[_Candidate], chosen: str, candidates: Sequence[str]
) -> tuple[tuple[str, int], ...]:
    """Weights by the scores, next to the highest; those that round to 0 are left out.

    The chosen one need not have the highest: a scorer may want to learn more about it.
    """
    scores = {x.gpu_type: x.score for x in found}
    if len(scores) < len(found) or not scores.keys() <= {*candidates}:
        text = "candidates has types that were none, or one of them twice"
        raise ScoreError(ScoreFault.UNKNOWN_TYPE, text)
    for score in scores.values():
        _demand_in_range("a score of candidates", score)
    most = max(scores.values(), default=0.0)
    weights = {
        name: math.floor((MOST_WEIGHT - 1) * score / most)
        for name, score in scores.items()
        if score and name != chosen
    }
    falling = sorted(weights.items(), key=lambda x: -x[1])
    return tuple(x for x in falling if x[1])[: MOST_CHOSEN - 1]


def _demand_in_range(name: str, score: float) -> None:
    if not LEAST_SCORE <= score <= MOST_SCORE:
        text = f"{name} is not from {LEAST_SCORE:g} to {MOST_SCORE:g}"
        raise ScoreError(ScoreFault.OUT_OF_RANGE, text)


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

    @property
    def is_open(self) -> bool:
        """Whether it has failed too often, and not answered since."""
        return self.failures >= FAILURES_TO_OPEN

    def lets(self, now_ns: int) -> bool:
        """Whether the scorer may be asked."""
        return now_ns >= self.asks_again_ns

    def trying(self, now_ns: int) -> "Breaker":
        """It is asked: while it was open, nobody else asks until the answer is there."""
        if not self.is_open:
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
