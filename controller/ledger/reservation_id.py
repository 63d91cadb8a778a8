"""Reservation IDs, which every replica checks for forgery and copying without asking anybody.

Pure.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from controller.ledger.record import demand_gpus
from gpuwarden.evidence.canonical import canonical_json

# --- reservation id
# Every replica can check an id without asking anybody. Pure.
#
#     v1.<key id>.<mac>             of a pod that exists: the MAC covers its UID
#     v1.<key id>.<nonce>.<mac>     of an early reservation: the MAC covers the nonce
#
# MAC = lower-hex HMAC-SHA-256 over `gpuwarden.dev/reservation/v1`, a line feed and the
# canonical JSON (RFC 8785) of cluster, namespace, pod, nonce, node and gpus. The id of a pod
# on a node with certain GPUs is always the same while the key is, so a retry finds it again.
# The key is shared by all replicas; old ones are kept for reading.

TAG: Final = b"gpuwarden.dev/reservation/v1"
MIN_SECRET_BYTES: Final = 32
_KEY_ID: Final = re.compile(r"[a-z0-9]{1,16}")
_NONCE: Final = re.compile(r"[0-9a-f]{32}")
_FORM: Final = re.compile(r"v1\.([a-z0-9]{1,16})\.(?:([0-9a-f]{32})\.)?([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class ReservationKey:
    """One HMAC key; raises ValueError for one that is too short or has no fit name."""

    key_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(self.key_id):
            raise ValueError(f"key id: {self.key_id!a}, expected 1 to 16 of a-z and 0-9")
        if len(self.secret) < MIN_SECRET_BYTES:
            raise ValueError(f"key {self.key_id}: expected {MIN_SECRET_BYTES} bytes or more")


@dataclass(frozen=True, slots=True)
class ReservationSubject:
    """What an id is made for."""

    namespace: str
    node: str
    gpus: tuple[str, ...]
    """In claiming order."""
    pod_uid: str | None = None
    """None for an early reservation, whose id holds a nonce."""


class ReservationIds:
    """Makes ids with the first key and knows those of all keys; one cluster's."""

    def __init__(self, cluster: str, keys: tuple[ReservationKey, ...]) -> None:
        self._cluster = cluster
        self._keys = {x.key_id: x for x in reversed(keys)}
        if not keys or len(self._keys) != len(keys):
            raise ValueError("keys: expected one or more, each with a name of its own")
        self._writing = keys[0]

    def make(self, subject: ReservationSubject, nonce: str | None = None) -> str:
        """The id of a subject; `nonce` (32 hex digits) where and only where it has no pod UID."""
        demand_gpus(subject.gpus)
        if (nonce is None) == (subject.pod_uid is None) or (nonce and not _NONCE.fullmatch(nonce)):
            raise ValueError("expected either a pod UID or a nonce of 32 hex digits")
        parts = ["v1", self._writing.key_id, *([nonce] if nonce else [])]
        return ".".join([*parts, _mac(self._writing, self._cluster, subject, nonce)])

    def is_authentic(self, text: str, subject: ReservationSubject) -> bool:
        """Whether one of the keys made `text` for this very subject.

        A pod's UID does not count for an id with a nonce: which pod it belongs to is in the
        ledger alone. Takes equally long for every wrong MAC.
        """
        found = _FORM.fullmatch(text)
        key = None if found is None else self._keys.get(found[1])
        if found is None or key is None:
            return False
        nonce = found[2]
        if nonce is None and subject.pod_uid is None:
            return False
        return hmac.compare_digest(_mac(key, self._cluster, subject, nonce), found[3])

    def lacks_key_of(self, text: str) -> bool:
        """Whether `text` has an id's form and names none of the keys; says nothing of its MAC."""
        found = _FORM.fullmatch(text)
        return found is not None and found[1] not in self._keys


def is_early_id(text: str) -> bool:
    """Whether an id has the form of an early reservation's; says nothing of who made it."""
    found = _FORM.fullmatch(text)
    return found is not None and found[2] is not None


def request_nonce(namespace: str, request_uid: str) -> str:
    """The nonce for a pod's creation: the same request asked twice has the same one.

    It stands in the id for all to see; nothing rests on its being hard to guess.
    """
    return hashlib.sha256(b"%b\n%b" % (namespace.encode(), request_uid.encode())).hexdigest()[:32]


def nonce_of(text: str) -> str | None:
    """The nonce in an early reservation's id."""
    found = _FORM.fullmatch(text)
    return None if found is None else found[2]


def _mac(key: ReservationKey, cluster: str, subject: ReservationSubject, nonce: str | None) -> str:
    document = canonical_json(
        {
            "cluster": cluster,
            "namespace": subject.namespace,
            "pod": subject.pod_uid if nonce is None else None,
            "nonce": nonce,
            "node": subject.node,
            "gpus": subject.gpus,
        }
    )
    return hmac.new(key.secret, b"%b\n%b" % (TAG, document), hashlib.sha256).hexdigest()
