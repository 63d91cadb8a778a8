"""A log as its tree sees it: leaves that a test chooses, shown as a controller would show them."""

from base64 import b64encode
from dataclasses import dataclass, field

from gpuwarden.audit.checkpoint import Checkpoint, TreeHead, log_id
from gpuwarden.audit.merkle import Frontier, consistency_proof, leaf_hash, root_at, stored_index
from gpuwarden.audit.note import Signer
from gpuwarden.audit.witness import Shown
from tests.builders.log_keys import signer


@dataclass
class GrownLog:
    """A log of `size` leaves; those from `fork` on differ from every other log's."""

    size: int
    fork: int = 1 << 30
    mark: str = "fork"
    signer: Signer = field(default_factory=signer)
    prev: TreeHead | None = None
    key_changes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        tree, stored = Frontier(), bytearray()
        for number in range(self.size):
            text = f"{self.mark} {number}" if number >= self.fork else str(number)
            stored += tree.append(leaf_hash(text.encode()))
        self._stored = bytes(stored)

    def node(self, level: int, offset: int) -> bytes:
        at = 32 * stored_index(level, offset)
        return self._stored[at : at + 32]

    def head(self, size: int | None = None) -> TreeHead:
        size = self.size if size is None else size
        return TreeHead(size, root_at(size, self.node))

    @property
    def log(self) -> str:
        return log_id(self.node(0, 0))

    def note(self, size: int | None = None) -> str:
        checkpoint = Checkpoint(self.signer.key.name, self.log, self.head(size), self.prev)
        return checkpoint.signed(self.signer)

    def shown(self, base: int = 0, size: int | None = None) -> Shown:
        """The checkpoint of `size`, proven from `base`."""
        size = self.size if size is None else size
        proof = consistency_proof(base, size, self.node)
        encoded = tuple(b64encode(one).decode() for one in proof)
        return Shown(self.note(size), encoded, str(self.signer.key), self.key_changes)
