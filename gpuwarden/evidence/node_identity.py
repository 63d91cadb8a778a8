"""The node identity document: which node and which GPUs exactly. This is what is enrolled.

MIG devices are not in it: they come and go and carry their parent's UUID. It must
not judge a change (pins do that) nor hold a fact that the class already covers.
"""

from collections.abc import Mapping
from typing import Final

from gpuwarden.evidence.canonical import canonical_json, tagged_digest
from gpuwarden.evidence.model import Document, Inventory
from gpuwarden.evidence.strict_json import DecodeError, decode

TAG: Final = "gpuwarden.dev/node-identity/v1"
MAX_BYTES: Final = 64 * 1024

IDENTITY_FACTS: Final = frozenset({"gpus", "uuid", "serial", "index", "pciBusId", "systemUuid"})
"""Wire names of the facts without which identity is not known (bus id and index: no such GPU)."""

_NO_SERIAL: Final = frozenset({"", "0", "N/A"})


class NodeName(Document, frozen=True):
    """The Node: its name, and its UID where a cluster gives one."""

    name: str
    uid: str | None


class GpuIdentity(Document, frozen=True):
    """One physical GPU; the serial is its board's and may repeat."""

    uuid: str
    serial: str | None
    identity_key: str | None
    """SHA-256 of the device identity key (L2), 64 hex digits."""


class NodeIdentity(Document, frozen=True):
    """What the identity digest is the digest of; facts that are not known are null."""

    trust_domain: str
    cluster: str
    node: NodeName
    spire_agent: str | None
    system_uuid: str | None
    ek: str | None
    """SHA-256 of the TPM's endorsement key, 64 hex digits (L3)."""
    gpus: tuple[GpuIdentity, ...]
    """Sorted by UUID."""


def node_identity(
    inventory: Inventory,
    *,
    trust_domain: str,
    cluster: str,
    node_name: str,
    node_uid: str | None = None,
    spire_agent: str | None = None,
    ek: str | None = None,
    identity_keys: Mapping[str, str] | None = None,
) -> NodeIdentity:
    """The identity of a node by its answering GPUs; `identity_keys` gives digests by UUID."""
    keys = identity_keys or {}
    gpus = (
        GpuIdentity(uuid=x.uuid, serial=serial(x.serial), identity_key=keys.get(x.uuid))
        for x in inventory.gpus
    )
    return NodeIdentity(
        trust_domain=trust_domain,
        cluster=cluster,
        node=NodeName(name=node_name, uid=node_uid),
        spire_agent=spire_agent,
        system_uuid=inventory.host.system_uuid,
        ek=ek,
        gpus=tuple(sorted(gpus, key=lambda x: x.uuid)),
    )


def identity_digest(identity: NodeIdentity) -> str:
    """`v1:sha256:<hex>` of the identity document."""
    return tagged_digest(TAG, identity)


def serial(text: str | None) -> str | None:
    """A board serial, or None for what drivers report where there is none."""
    return None if text is None or text.strip() in _NO_SERIAL else text


def decode_node_identity(data: bytes) -> NodeIdentity:
    """Read a document back from its canonical bytes; raises DecodeError for any other bytes."""
    identity = decode(data, NodeIdentity, max_bytes=MAX_BYTES)
    uuids = [x.uuid for x in identity.gpus]
    if uuids != sorted(set(uuids)) or canonical_json(identity) != data:
        raise DecodeError("node identity is not in canonical form (RFC 8785, sorted by UUID)")
    return identity
