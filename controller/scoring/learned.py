"""What has been learned: runs of each pair of job type and GPU type, and who slows whom.

Runs alone on their GPU are the baseline. Runs beside others tell how much those slow the job; they
are no baseline, and count as run times only until there is one. Must not know where it is stored.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from controller.scoring.estimate import NO_RUNS, Moments
from controller.scoring.parameters import Parameters

_TRUST_AFTER_CHANGE = 1.0
"""Runs that all runs before a driver or an image that is new are worth after it."""
MOST_VARIANTS = 8
"""Pairs of driver and image that are remembered for one pair; the last one included."""
MOST_TYPES = 64
"""GPU types that are remembered for one type of job: a score compares them with each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One run that has ended; from whoever saw it."""

    job_type: str
    gpu_type: str
    runtime_s: float
    """Finite and above 0."""
    colocated: tuple[str, ...] = ()
    """Job types that ran beside it, each once."""
    succeeded: bool = True
    driver: str = ""
    image: str = ""
    """What it ran with; empty where nobody says."""
    run_id: str = ""
    """By which a run that is reported twice is known; empty where nobody says."""


class RowKind(StrEnum):
    """What a row is about."""

    PAIR = "pair"
    """A job type on a GPU type."""
    BESIDE = "beside"
    """A job type beside another."""


@dataclass(frozen=True, slots=True)
class Key:
    """Names one row."""

    kind: RowKind
    job_type: str
    other: str
    """GPU type, or the other job type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Runs of a pair with one driver and one image; empty where nobody said."""

    alone: Moments = NO_RUNS
    beside: Moments = NO_RUNS
    driver: str = ""
    image: str = ""

    def agrees(self, driver: str, image: str) -> bool:
        """Whether it may be with these; silence contradicts nothing."""
        known = ((self.driver, driver), (self.image, image))
        return not any(old and new and old != new for old, new in known)

    def fresh(self, driver: str, image: str) -> "Variant":
        """What it lets expect of another one: its runs, worth one."""
        return Variant(
            alone=self.alone.at_most(_TRUST_AFTER_CHANGE),
            beside=self.beside.at_most(_TRUST_AFTER_CHANGE),
            driver=driver or self.driver,
            image=image or self.image,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """All that is remembered under a key; what is stored, exported and imported."""

    kind: RowKind
    job_type: str
    other: str
    alone: Moments = NO_RUNS
    """Of a pair: runs with the GPU to themselves. Of two jobs: logarithms of slowdowns."""
    beside: Moments = NO_RUNS
    """Of a pair: runs beside others."""
    failures: int = 0
    driver: str = ""
    image: str = ""
    """Of the last run, as `alone` and `beside`."""
    number: int = 0
    """Of the observation that changed it last."""
    earlier: tuple[Variant, ...] = ()
    """Of a pair: the same with other drivers and images, the last that ran first."""

    @property
    def key(self) -> Key:
        """Its key."""
        return Key(self.kind, self.job_type, self.other)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """One at least, the last that ran first."""
        last = Variant(alone=self.alone, beside=self.beside, driver=self.driver, image=self.image)
        return (last, *self.earlier)

    def runs(self, image: str = "") -> Moments:
        """What tells the run time with this image: the baseline, else runs beside others.

        Of the last runs with it; where there are none, or nobody knows it, of the last ones of all.
        """
        which: Row | Variant = (
            self if not image or image == self.image else _most_like(self.variants, image)
        )
        return which.alone if which.alone.weight else which.beside

    def turned_to(self, driver: str, image: str) -> "Row":
        """The same with the variant that a run with these belongs to as the last one."""
        variants = self.variants
        found = next((x for x in variants if x.agrees(driver, image)), None)
        others = [x for x in variants if x is not found and (x.alone.weight or x.beside.weight)]
        last = found or _most_like(variants, image).fresh(driver, image)
        return replace(
            self,
            alone=last.alone,
            beside=last.beside,
            driver=last.driver or driver,
            image=last.image or image,
            earlier=tuple(others)[: MOST_VARIANTS - 1],
        )


def _most_like(variants: Sequence[Variant], image: str) -> Variant:
    return next((x for x in variants if image and x.image == image), variants[0])


Before = Mapping[Key, Row | None]
"""How each row was that has been written or forgotten; None: there was none."""


class Learned:
    """Used from one event loop."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self._rows: dict[Key, Row] = {}
        """In the order of their last change."""
        self._by_job: dict[str, dict[str, Row]] = {}
        """Pairs alone, by job type and GPU type."""
        self._by_gpu: dict[str, dict[str, Row]] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, keys: Iterable[Key] | None = None) -> tuple[Row, ...]:
        """All rows, or those of `keys` that exist."""
        if keys is None:
            return tuple(self._rows.values())
        return tuple(self._rows[key] for key in keys if key in self._rows)

    def of_job(self, job_type: str) -> Mapping[str, Row]:
        """Its pairs by GPU type."""
        return self._by_job.get(job_type, {})

    def on_gpu(self, gpu_type: str) -> Mapping[str, Row]:
        """Pairs of this GPU type by job type."""
        return self._by_gpu.get(gpu_type, {})

    def slowdown(self, job_type: str, other: str) -> float:
        """How much longer `job_type` runs beside `other`, at least 0; 0.1 is 10 %.

        Shrunk towards 0 as if one run had shown no slowdown.
        """
        row = self._rows.get(Key(RowKind.BESIDE, job_type, other))
        return 0.0 if row is None else max(0.0, math.expm1(_shrunk(row.alone)))

    # --- learning

    def observe(self, seen: Observation) -> Before:
        """Learn from a run; the pairs unchanged for longest go where there are too many."""
        self._number += 1
        row = self._pair(seen)
        if not seen.succeeded:
            return self._put([replace(row, failures=row.failures + 1)])
        value = math.log(seen.runtime_s)
        if not seen.colocated:
            return self._put([replace(row, alone=self._bounded(row.alone.with_one(value)))])
        beside = replace(row, beside=self._bounded(row.beside.with_one(value)))
        slowed = self._slowed(seen, value - row.alone.mean) if row.alone.weight else []
        return self._put([beside, *slowed])

    def correct(self, rows: Mapping[Key, Row | None]) -> Before:
        """Have these rows as they are known elsewhere, None for none; what is too much goes."""
        for key, row in rows.items():
            if row is not None:
                self._set(row)
            elif key in self._rows:
                self._forget(key)
        self._rows = dict(sorted(self._rows.items(), key=lambda x: x[1].number))
        self._number = max((row.number for row in self._rows.values()), default=0)
        return self._bounds_kept(tuple(self._by_job), {})

    def _pair(self, seen: Observation) -> Row:
        key = Key(RowKind.PAIR, seen.job_type, seen.gpu_type)
        row = self._rows.get(key)
        if row is None:
            row = Row(kind=key.kind, job_type=key.job_type, other=key.other)
        return row.turned_to(seen.driver, seen.image)

    def _slowed(self, seen: Observation, excess: float) -> list[Row]:
        """Divide a slowdown among those that were there; what each is known for goes first."""
        rows = []
        for other in seen.colocated:
            new = Row(kind=RowKind.BESIDE, job_type=seen.job_type, other=other)
            rows.append(self._rows.get(new.key, new))
        share = 1 / len(rows)
        unexplained = excess - sum(_shrunk(row.alone) for row in rows)
        return [
            replace(
                row,
                alone=self._bounded(
                    row.alone.with_one(_shrunk(row.alone) + unexplained * share, share)
                ),
            )
            for row in rows
        ]

    def _bounded(self, moments: Moments) -> Moments:
        return moments.at_most(float(self._parameters.retention_observations))

    def _put(self, rows: list[Row]) -> Before:
        before = {row.key: self._rows.get(row.key) for row in rows}
        for row in rows:
            self._set(replace(row, number=self._number))
        return self._bounds_kept({row.job_type for row in rows}, before)

    def _set(self, row: Row) -> None:
        self._rows.pop(row.key, None)
        self._rows[row.key] = row
        self._index(row)

    def _bounds_kept(self, job_types: Iterable[str], before: dict[Key, Row | None]) -> Before:
        for job_type in job_types:
            pairs = self._by_job.get(job_type, {})
            while len(pairs) > MOST_TYPES:
                oldest = min(pairs.values(), key=lambda x: x.number)
                before.setdefault(oldest.key, self._forget(oldest.key))
        while len(self._rows) > self._parameters.max_pairs:
            key = next(iter(self._rows))
            before.setdefault(key, self._forget(key))
        return before

    def _index(self, row: Row) -> None:
        if row.kind is RowKind.PAIR:
            self._by_job.setdefault(row.job_type, {})[row.other] = row
            self._by_gpu.setdefault(row.other, {})[row.job_type] = row

    def _forget(self, key: Key) -> Row:
        row = self._rows.pop(key)
        if key.kind is RowKind.PAIR:
            for index, name, other in (
                (self._by_job, key.job_type, key.other),
                (self._by_gpu, key.other, key.job_type),
            ):
                del index[name][other]
                if not index[name]:
                    del index[name]
        return row


def _shrunk(slowdowns: Moments) -> float:
    return slowdowns.mean * slowdowns.weight / (slowdowns.weight + 1.0)
