"""What a stream's last inventory came to, so that the same one need not be worked out again. Pure.

An inventory that equals the last one, under the same standing, has the same documents and
hashes. What depends on anything else (pins, policy, claims of others) is judged each time.
"""

from dataclasses import dataclass

from gpuwarden.evidence.class_document import ClassDocument
from gpuwarden.evidence.model import Evidence, FailedRead
from gpuwarden.evidence.outline import KnownInventory


@dataclass(frozen=True, slots=True)
class JudgedInventory:
    """A well-formed inventory and the documents that were made of it."""

    known: KnownInventory
    failed_reads: tuple[FailedRead, ...]
    standing: object
    """The `Standing` under which it was judged; only ever compared."""
    node_uid: str | None
    document: ClassDocument
    attestation_hash: str
    class_document: bytes
    """RFC 8785 JSON."""
    identity_digest: str
    identity_document: bytes
    """RFC 8785 JSON."""

    def shows(self, evidence: Evidence) -> bool:
        """Whether evidence says about the hardware what this one said."""
        inventory = self.known.inventory
        same = inventory is evidence.inventory or inventory == evidence.inventory
        return same and self.failed_reads == evidence.failed_reads

    def holds(self, standing: object, node_uid: str | None) -> bool:
        """Whether the documents would be the same again."""
        return self.standing == standing and self.node_uid == node_uid
