"""Ed25519 keys of audit logs, the same in every run."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuwarden.audit.checkpoint import Checkpoint, TreeHead
from gpuwarden.audit.note import Signer

ORIGIN = "lab/controller-0"


def signer(number: int = 1, name: str = ORIGIN) -> Signer:
    return Signer(name, Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))


def checkpoint(size: int = 5, root: bytes = b"r" * 32, log: str = "1f" * 16) -> Checkpoint:
    return Checkpoint(ORIGIN, log, TreeHead(size, root))
