"""What one exporter still has to deliver, and how far it has come. Pure.

How far: per GPU the number of its last delivered record, and the digest of that record's facts.
Every replica notes every change; the one that leads delivers, and the others drop what they see
delivered. So a replica that takes over has what its predecessor did not get to.
"""

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from controller.export.records import ExportRecord, Facts

SHARDS: Final = 8
"""Documents that hold how far an exporter is; each GPU belongs to one."""


@dataclass(frozen=True, slots=True)
class Position:
    """The last delivered record of a GPU."""

    change: int
    digest: str
    """Of its facts."""


_START: Final = Position(0, "")


class PositionTextError(ValueError):
    """A stored text does not say how far an exporter is."""


def shard_of(uuid: str) -> int:
    """The document that a GPU belongs to."""
    return sha256(uuid.encode()).digest()[0] % SHARDS


def positions_text(positions: Mapping[str, Position]) -> str:
    """The text of a document."""
    return json.dumps({uuid: f"{x.change}.{x.digest}" for uuid, x in sorted(positions.items())})


def read_positions(text: str) -> dict[str, Position]:
    """What a document says; raises PositionTextError."""
    try:
        found = {}
        for uuid, value in json.loads(text).items():
            change, dot, digest = value.partition(".")
            if dot and digest:
                found[uuid] = Position(int(change), digest)
    except (ValueError, AttributeError, RecursionError):
        raise PositionTextError("it is no JSON object of GPU and change.digest") from None
    return found


class Backlog:
    """Facts that wait, per GPU oldest first; bounded. Used from one event loop."""

    def __init__(self, cluster: str, most: int) -> None:
        """Beyond `most` waiting facts only the newest of each GPU are kept."""
        self._cluster = cluster
        self._most = most
        self._newest: dict[str, str] = {}
        """Digest of what was last noted of a GPU."""
        self._waiting: tuple[dict[str, deque[Facts]], ...] = tuple({} for _ in range(SHARDS))
        self._positions: tuple[dict[str, Position], ...] = tuple({} for _ in range(SHARDS))
        self._turn = 0
        self._count = 0
        self.dropped = 0
        """Facts that were overtaken by newer ones while there was no room."""

    def __len__(self) -> int:
        return self._count

    def note(self, facts: Facts) -> None:
        """Take what evidence shows; nothing where the GPU's newest facts are the same."""
        digest = facts.digest
        if self._newest.get(facts.uuid) == digest:
            return
        self._newest[facts.uuid] = digest
        queue = self._waiting[shard_of(facts.uuid)].setdefault(facts.uuid, deque())
        if self._count >= self._most:
            self.dropped += len(queue)
            self._count -= len(queue)
            queue.clear()
        queue.append(facts)
        self._count += 1

    def settle(self, shard: int, stored: Mapping[str, Position]) -> None:
        """Take how far the exporter is, as it is stored: what was delivered need not be again."""
        known = self._positions[shard]
        for uuid, position in stored.items():
            before = known.get(uuid)
            queue = self._waiting[shard].get(uuid)
            if queue is not None and position != before:
                self._drop(shard, uuid, _delivered(queue, before, position))
        known.clear()
        known.update(stored)

    def take(self, most: int) -> tuple[ExportRecord, ...]:
        """The next records, of few shards; they wait until they are `delivered`.

        Of one that knows how far the exporter is. Facts that were noted first after a start, and
        are what was delivered last, are no change: they do not wait any longer.
        """
        found: list[ExportRecord] = []
        for step in range(SHARDS):
            shard = (self._turn + step) % SHARDS
            for uuid, queue in tuple(self._waiting[shard].items()):
                last = self._positions[shard].get(uuid, _START)
                if queue[0].digest == last.digest:
                    self._drop(shard, uuid, 1)
                for change, facts in enumerate(queue, last.change + 1):
                    found.append(ExportRecord.of(self._cluster, facts, change))
                    if len(found) == most:
                        self._turn = shard
                        return tuple(found)
        return tuple(found)

    def delivered(self, records: Iterable[ExportRecord]) -> frozenset[int]:
        """These are at their destination; returns the shards whose positions changed by it."""
        changed = set()
        for record in records:
            facts = record.facts
            shard = shard_of(facts.uuid)
            if record.change <= self._positions[shard].get(facts.uuid, _START).change:
                continue
            digest = facts.digest
            self._positions[shard][facts.uuid] = Position(record.change, digest)
            changed.add(shard)
            queue = self._waiting[shard].get(facts.uuid)
            if queue and queue[0].digest == digest:
                self._drop(shard, facts.uuid, 1)
        return frozenset(changed)

    def positions(self, shard: int) -> Mapping[str, Position]:
        """How far the exporter is, for its document."""
        return self._positions[shard]

    def _drop(self, shard: int, uuid: str, count: int) -> None:
        queue = self._waiting[shard][uuid]
        for _ in range(count):
            queue.popleft()
        self._count -= count
        if not queue:
            del self._waiting[shard][uuid]


def _delivered(queue: Iterable[Facts], before: Position | None, now: Position) -> int:
    """How many of the oldest facts that wait were delivered, if `now` is the last that was.

    A card can come back to what it once was. So of several equal facts those count that are no
    more changes away than there were deliveries; where that is not known, the oldest.
    """
    matches = [index + 1 for index, x in enumerate(queue) if x.digest == now.digest]
    if not matches:
        return 0
    if before is None:
        return matches[0]
    within = [count for count in matches if count <= now.change - before.change]
    return within[-1] if within else matches[0]
