"""Which streams are open for which node, and which of them an acceptance ends.

Make-before-break: an agent opens a second stream and only when that one is
accepted is the first ended. A new process of the agent does the same to the old
one. So an accepted stream ends all older ones of its node and no newer one.
State of one event loop; must not await.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from gpuwarden.reasons import ReasonCode, Refusal


class EndableStream(Protocol):
    """A stream that can be told to end."""

    def end(self, refusal: Refusal | None, /) -> None:
        """End soon with this reason, None for an orderly end; returns at once."""


@dataclass(slots=True)
class StreamTable:
    """Open streams by node, oldest first."""

    _by_node: dict[str, list[EndableStream]] = field(default_factory=dict)

    def add(self, node: str, stream: EndableStream) -> None:
        """A stream of `node` was admitted; not accepted yet."""
        self._by_node.setdefault(node, []).append(stream)

    def remove(self, node: str, stream: EndableStream) -> None:
        """A stream is over; no matter whether it was ever added."""
        streams = self._by_node.get(node, [])
        if stream in streams:
            streams.remove(stream)
        if not streams:
            self._by_node.pop(node, None)

    def accepted(self, node: str, stream: EndableStream) -> None:
        """Evidence of `stream` counts: every older stream of the node is superseded."""
        streams = self._by_node.get(node, [])
        if stream not in streams:
            return
        for older in streams[: streams.index(stream)]:
            older.end(Refusal(ReasonCode.STREAM_SUPERSEDED, "a newer stream of this node counts"))

    def end_node(self, node: str, refusal: Refusal) -> None:
        """End every stream of a node."""
        for stream in tuple(self._by_node.get(node, ())):
            stream.end(refusal)

    def end_all(self) -> None:
        """End every stream in an orderly way."""
        for stream in tuple(self):
            stream.end(None)

    def counts(self) -> Mapping[str, int]:
        """How many are open for each node that has any."""
        return {node: len(streams) for node, streams in self._by_node.items()}

    def __iter__(self) -> Iterator[EndableStream]:
        for streams in self._by_node.values():
            yield from streams
