"""Labels on nodes with what accepted evidence shows: chassis, serial numbers, class, level.

For people and tools that look at Nodes. gpuwarden reads them back for nothing but to remove what is
stale: whoever may patch Nodes can change them. `InventoryLabels` decides nothing about trust.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any, Final, NoReturn

from controller.fleet.directory import DirectorySnapshot
from controller.fleet.view import Acceptance, FleetSnapshot, GpuView, NodeState
from controller.kube.api.client import ApiClient
from controller.kube.nodes.node_labels import NodeLabels
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

GPUID: Final = "gpuid.github.com/"
OWN: Final = "inventory.gpuwarden.dev/"
PREFIXES: Final = (GPUID, OWN)
"""Whatever a node has below them is ours."""
RECONCILE_SECONDS: Final = 2.0
MOST_CHANGES: Final = 20
_MOST: Final = 63
_SHORT_HASH: Final = 12
_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9._-]")
_NO_VALUE: Final = frozenset({"", "0", "N/A"})
_NOBODY: Final = "na"


@dataclass(frozen=True, slots=True)
class LabelPatch:
    """What to change about one node; None removes a label."""

    node: str
    labels: Mapping[str, str | None]


def value(text: str) -> str:
    """A text as the value of a label: 63 allowed characters at most; `na` for no value."""
    if text.strip() in _NO_VALUE:
        return _NOBODY
    return _NOT_ALLOWED.sub("-", text.strip())[:_MOST].strip("._-") or _NOBODY


def labels_of(acceptance: Acceptance) -> dict[str, str]:
    """The labels of a node that is eligible now: gpuid's, and three of our own."""
    gpus = [x for x in acceptance.gpus if x.lost is None]
    short = acceptance.attestation_hash.rpartition(":")[2][:_SHORT_HASH]
    return {
        **_as_gpuid(gpus),
        f"{OWN}class": value(short),
        f"{OWN}gpu-count": str(len(gpus)),
        f"{OWN}level": value(acceptance.level.value),
    }


def _as_gpuid(gpus: list[GpuView]) -> dict[str, str]:
    """One chassis: its number beside those of the GPUs. Several: each with its own GPUs."""
    by_chassis: dict[str, set[str]] = {}
    for gpu in gpus:
        serial = gpu.serial if (gpu.serial or "").strip() not in _NO_VALUE else gpu.uuid
        by_chassis.setdefault(value(gpu.chassis_serial or ""), set()).add(value(serial or ""))
    found: dict[str, str] = {}
    chassis = sorted(x for x in by_chassis if x != _NOBODY)
    if chassis:
        found[f"{GPUID}chassis-count"] = str(len(chassis))
    if len(by_chassis) == 1 and chassis:
        found[f"{GPUID}chassis"] = chassis[0]
    if len(by_chassis) <= 1:
        serials = sorted(x for group in by_chassis.values() for x in group)
        return {**found, **{f"{GPUID}gpu-{n}": x for n, x in enumerate(serials)}}
    for number, name in enumerate(sorted(by_chassis)):
        found[f"{GPUID}chassis-{number}"] = name
        for position, serial in enumerate(sorted(by_chassis[name])):
            found[f"{GPUID}chassis-{number}-gpu-{position}"] = serial
    return found


class LabelPlan:
    """What to change. Looks again only at nodes of which something is another object. Pure."""

    def __init__(self) -> None:
        self._settled: dict[str, tuple[object, ...]] = {}
        """Node -> what was compared when nothing was to be changed."""

    def changes(
        self, fleet: FleetSnapshot, nodes: DirectorySnapshot, now_ns: int
    ) -> list[LabelPatch]:
        """What differs; a node that is not eligible has none of these labels."""
        found = []
        for name, known in nodes.nodes.items():
            view = fleet.nodes.get(name)
            shown = None
            if view is not None and view.state(now_ns) is NodeState.ELIGIBLE:
                shown = view.acceptance
            seen = (known, *((shown.gpus, shown.attestation_hash, shown.level) if shown else ()))
            before = self._settled.get(name, ())
            if len(seen) == len(before) and all(map(is_, seen, before)):
                continue
            patch = _difference(name, known.labels, labels_of(shown) if shown else {})
            if patch is None:
                self._settled[name] = seen
            else:
                found.append(patch)
        for name in self._settled.keys() - nodes.nodes.keys():
            del self._settled[name]
        return found


def _difference(
    node: str, labels: Mapping[str, str], wanted: Mapping[str, str]
) -> LabelPatch | None:
    there = {key: x for key, x in labels.items() if key.startswith(PREFIXES)}
    if there == wanted:
        return None
    changed = {key: x for key, x in wanted.items() if there.get(key) != x}
    return LabelPatch(node, {**dict.fromkeys(there.keys() - wanted.keys()), **changed})


class InventoryLabels:
    """Keeps them; only the leader does, and few nodes at a time. One event loop."""

    def __init__(
        self,
        api: ApiClient,
        *,
        fleet: Callable[[], FleetSnapshot],
        nodes: Callable[[], DirectorySnapshot],
        not_ready: Callable[[], str | None],
        leads: Callable[[], bool],
        boottime_ns: Callable[[], int],
        instruments: Instruments,
    ) -> None:
        """All callables answer from memory; `not_ready`: why nothing is decided yet."""
        self._fleet = fleet
        self._nodes = nodes
        self._not_ready = not_ready
        self._leads = leads
        self._boottime_ns = boottime_ns
        self._plan = LabelPlan()
        self._labels = NodeLabels(
            api,
            "inventory",
            MOST_CHANGES,
            changes=names.KUBE_LABELS,
            failed=Event.KUBE_LABEL_FAILED,
            boottime_ns=boottime_ns,
            instruments=instruments,
        )

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"kube inventory labels": self.follow()}

    async def follow(self, seconds: float = RECONCILE_SECONDS) -> NoReturn:
        """Change what is due, forever; ends by cancellation only."""
        while True:
            await asyncio.sleep(seconds)
            await self.reconcile()

    async def reconcile(self) -> None:
        """Change what is due now, few nodes at a time."""
        await self._labels.write((x.node, x.labels) for x in self._due())

    def _due(self) -> list[LabelPatch]:
        now_ns, nodes = self._boottime_ns(), self._nodes()
        if not self._leads() or self._not_ready() is not None or now_ns >= nodes.fresh_until_ns:
            return []
        return self._plan.changes(self._fleet(), nodes, now_ns)
