"""Which nodes and GPUs a list shows: by state, class and policy label."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from gpuwarden.wire.v1 import fleet_pb2 as pb

if TYPE_CHECKING:
    from gpuwarden.cli.connection.client import Client

NodeState = Literal["unknown", "refused", "eligible", "stale", "revoked", "quarantined"]
GpuState = Literal[
    "free", "reserved", "used", "split", "lost", "unhealthy", "unavailable", "unknown"
]
ReservationState = Literal["Proposed", "Confirmed", "Releasing"]

STATE: Final = Parameter(name="--state", negative="")
ClassName = Annotated[str, Parameter(name="--class")]
Labels = Annotated[list[str] | None, Parameter(name=["--label", "-l"], negative="")]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a node or GPU must have; empty for anything."""

    states: frozenset[str] = frozenset()
    hashes: frozenset[str] | None = None
    labels: frozenset[str] = frozenset()

    def admits_node(self, node: pb.Node) -> bool:
        """A node has the labels of its GPUs: one GPU must have all that are asked for."""
        labelled = not self.labels or any(self.labels <= set(x.labels) for x in node.gpus)
        return self._admits(node.state, node.attestation_hash) and labelled

    def admits_gpu(self, gpu: pb.Gpu) -> bool:
        """A GPU with MIG devices has their states beside its own."""
        states = {gpu.state, *(x.state for x in gpu.mig_devices)}
        state = next(iter(states & self.states), gpu.state)
        return self._admits(state, gpu.attestation_hash) and self.labels <= set(gpu.labels)

    def _admits(self, state: str, attestation_hash: str) -> bool:
        of_class = self.hashes is None or attestation_hash in self.hashes
        return (not self.states or state in self.states) and of_class


async def choice(
    client: "Client", states: Sequence[str] | None, class_: str, labels: Sequence[str] | None
) -> Choice:
    """The choice that the options describe; the controller resolves the class."""
    hashes = None
    if class_:
        found = await client.attestation_class(class_)
        hashes = frozenset(filter(None, (found.attestation_hash, *found.hashes)))
    return Choice(frozenset(states or ()), hashes, frozenset(_split(labels or ())))


def _split(labels: Iterable[str]) -> Iterable[str]:
    return (one for text in labels for one in text.split(",") if one)
