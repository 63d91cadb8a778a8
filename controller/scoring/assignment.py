"""Gives the jobs of a gang GPU types at once: entropic optimal transport in the log domain.

Each job has mass one, each type takes at most its capacity. What capacities leave over goes to a
row of its own, so the sums of rows and columns hold exactly in the limit. Costs count as parts of
the largest, and all is done with logarithms: costs of any size neither overflow nor vanish.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

_SHARPNESS: Final = 0.1
"""Entropy's weight as a part of the range of the costs."""
_ROUNDS: Final = 500
_CLOSE: Final = 1e-9


class NotEnoughError(ValueError):
    """The capacities are less than the number of jobs."""


def transport_plan(
    costs: Sequence[Sequence[float]], capacities: Sequence[float]
) -> list[list[float]]:
    """For each job how much of it goes to each type; raises NotEnoughError.

    An infinite cost means that the job must not go there; every job has a finite one.
    """
    if not costs:
        return []
    spare = sum(capacities) - len(costs)
    if spare < 0:
        raise NotEnoughError(f"{len(costs)} jobs, expected at most {sum(capacities):g}")
    finite = [cost for row in costs for cost in row if math.isfinite(cost)]
    largest = max(map(abs, finite), default=0.0) or 1.0
    parts = [[cost / largest for cost in row] for row in costs]
    low = min(finite, default=0.0) / largest
    span = (max(finite, default=0.0) / largest - low) or 1.0
    kernel = [[-(part - low) / (_SHARPNESS * span) for part in row] for row in parts]
    masses = [0.0] * len(costs)
    if spare > 0:
        kernel.append([0.0] * len(capacities))
        masses.append(math.log(spare))
    return _balanced(kernel, masses, [math.log(x) if x else -math.inf for x in capacities])[
        : len(costs)
    ]


def _balanced(
    kernel: list[list[float]], rows: list[float], columns: list[float]
) -> list[list[float]]:
    """Sinkhorn's iteration; `rows` and `columns` are logarithms of the wanted sums."""
    right = [0.0 if math.isfinite(x) else -math.inf for x in columns]
    left = [0.0] * len(rows)
    for _ in range(_ROUNDS):
        left = [
            wanted - _log_sum(k + r for k, r in zip(row, right, strict=True))
            for row, wanted in zip(kernel, rows, strict=True)
        ]
        before = right
        right = [
            wanted - _log_sum(row[at] + x for row, x in zip(kernel, left, strict=True))
            if math.isfinite(wanted)
            else -math.inf
            for at, wanted in enumerate(columns)
        ]
        moved = [abs(a - b) for a, b in zip(right, before, strict=True) if math.isfinite(a)]
        if max(moved, default=0.0) < _CLOSE:
            break
    plan = [
        [math.exp(k + x + r) for k, r in zip(row, right, strict=True)]
        for row, x in zip(kernel, left, strict=True)
    ]
    wanted = [math.exp(x) for x in rows]
    return [
        [part * mass / sum(row) for part in row] for row, mass in zip(plan, wanted, strict=True)
    ]


def _log_sum(values: Iterable[float]) -> float:
    terms = list(values)
    top = max(terms)
    if top == -math.inf:
        return -math.inf
    return top + math.log(sum(math.exp(x - top) for x in terms))


def whole_assignment(
    plan: Sequence[Sequence[float]],
    costs: Sequence[Sequence[float]],
    capacities: Sequence[int],
) -> list[int]:
    """One type for each job, by the plan, and never more jobs than a type takes.

    The surest job chooses first; equal parts go to the first job and the first type. A job that
    finds its types taken makes another one move. Raises NotEnoughError where no assignment has
    finite costs alone.
    """
    given: list[list[int]] = [[] for _ in capacities]

    def place(job: int, tried: set[int]) -> bool:
        for at in sorted(range(len(capacities)), key=lambda x: (-plan[job][x], x)):
            if at in tried or not capacities[at] or not math.isfinite(costs[job][at]):
                continue
            tried.add(at)
            if len(given[at]) < capacities[at]:
                given[at].append(job)
                return True
            for other in given[at]:
                if place(other, tried):
                    given[at].remove(other)
                    given[at].append(job)
                    return True
        return False

    for job in sorted(range(len(plan)), key=lambda x: (-max(plan[x]), x)):
        if not place(job, set()):
            raise NotEnoughError(f"job {job} fits nowhere beside the others")
    return [next(at for at, jobs in enumerate(given) if job in jobs) for job in range(len(plan))]
