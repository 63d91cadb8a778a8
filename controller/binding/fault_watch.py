"""Which disagreements stand, and which are new: told once, however many reports show them. Pure.

Accounts of one report are taken one after the other, and the copies of pods and ledger are a
moment old, so what one report shows alone is nothing yet: it stands from the second on in a row,
and is over with the first that does not show it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from controller.binding.use_faults import UseFault, UseFaultKind

ENOUGH: Final = 2
MAX_PER_NODE: Final = 256
"""Disagreements of one node that are remembered; a node has some hundred pods at most."""


@dataclass(frozen=True, slots=True)
class FaultChanges:
    """What a report has changed."""

    begun: tuple[UseFault, ...]
    ended: tuple[UseFault, ...]


class FaultWatch:
    """One per process."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[UseFault, int]] = {}
        """By node: in how many reports in a row."""
        self._counts: Counter[UseFaultKind] = Counter()

    def reported(
        self, node: str, faults: Iterable[UseFault], *, whole: bool = True
    ) -> FaultChanges:
        """A node's new report; one that is not whole ends nothing."""
        before = self._seen.pop(node, {})
        kept = sorted(set(faults), key=_order)[:MAX_PER_NODE]
        now = {x: min(before.get(x, 0) + 1, ENOUGH) for x in kept}
        if not whole:
            now = {**before, **now}
        if now:
            self._seen[node] = now
        begun = [x for x, count in now.items() if count == ENOUGH > before.get(x, 0)]
        ended = [x for x, count in before.items() if count == ENOUGH and x not in now]
        self._counts.update(x.kind for x in begun)
        self._counts.subtract(x.kind for x in ended)
        return FaultChanges(tuple(begun), tuple(ended))

    def standing(self) -> Iterator[UseFault]:
        """All that stand."""
        for faults in self._seen.values():
            yield from (x for x, count in faults.items() if count == ENOUGH)

    def counts(self) -> Mapping[UseFaultKind, int]:
        """How many stand of each kind."""
        return {kind: count for kind, count in self._counts.items() if count}


def _order(fault: UseFault) -> tuple[str, str, str, str, str]:
    pod = fault.pod
    return (
        fault.kind.value,
        fault.gpu,
        "" if pod is None else pod.namespace,
        "" if pod is None else pod.name or "",
        fault.owner,
    )
