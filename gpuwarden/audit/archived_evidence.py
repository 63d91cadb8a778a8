"""Evidence as it is kept beside the log: what was signed, by whom, and against which roots.

One JSON document per piece of evidence, named by its digest. With it anybody can verify
years later that the signature and the chain were valid then. What was decided about it
is in the log's record, which names the digests of evidence, leaf and roots. Pure.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpuwarden.evidence.canonical import canonical_json, sha256_hex
from gpuwarden.evidence.envelope import (
    AlgorithmDeniedError,
    SignatureInvalidError,
    evidence_digest,
    verify,
)
from gpuwarden.evidence.model import Document
from gpuwarden.evidence.strict_json import DecodeError, decode
from gpuwarden.identity.chain import ChainError, parse_chain, spiffe_id_of, verify_chain
from gpuwarden.identity.spiffe_id import SpiffeIdError

FORMAT: Final = "gpuwarden.dev/evidence/v1"
MAX_ARCHIVED_EVIDENCE_BYTES: Final = 32 << 20
FOLDER: Final = "evidence"
"""In the log's folder; below it one folder per day (UTC), `YYYYMMDD`."""
CITED_FOLDER: Final = "evidence-cited"
"""Likewise, for evidence of unchanged rounds that something was granted by."""


class ArchivedEvidenceError(Exception):
    """What is kept does not prove what it should; the message is why."""


class StoredEvidence(Document, frozen=True):
    """The file. Binary values are base64."""

    v: str
    payload_type: str
    payload: str
    signature: str
    chain: tuple[str, ...]
    """Certificates of the signer, DER, leaf first."""
    roots: tuple[str, ...]
    """Trust bundle of that time, DER."""
    received_ms: str
    """Wall time of the controller, milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class ArchivedEvidence:
    """A piece of evidence on its way to the store."""

    payload_type: str
    payload: bytes
    signature: bytes
    chain: tuple[bytes, ...]
    roots: tuple[x509.Certificate, ...]
    received_ms: int

    @property
    def digest(self) -> str:
        """The evidence digest: name of the file."""
        return evidence_digest(self.payload_type, self.payload)

    @property
    def bundle(self) -> str:
        """Digest of the roots."""
        return bundle_digest(self.roots)

    def encoded(self) -> bytes:
        """The file's bytes."""
        return canonical_json(
            StoredEvidence(
                v=FORMAT,
                payload_type=self.payload_type,
                payload=_text(self.payload),
                signature=_text(self.signature),
                chain=tuple(_text(der) for der in self.chain),
                roots=tuple(_text(_der(root)) for root in self.roots),
                received_ms=str(self.received_ms),
            )
        )


def read_archived_evidence(file: bytes) -> ArchivedEvidence:
    """Read what `encoded` wrote; raises ArchivedEvidenceError."""
    try:
        stored = decode(file, StoredEvidence, max_bytes=MAX_ARCHIVED_EVIDENCE_BYTES)
        if stored.v != FORMAT:
            raise ArchivedEvidenceError(f"v must be {FORMAT!r}")
        return ArchivedEvidence(
            stored.payload_type,
            _bytes(stored.payload),
            _bytes(stored.signature),
            tuple(_bytes(der) for der in stored.chain),
            tuple(x509.load_der_x509_certificate(_bytes(der)) for der in stored.roots),
            int(stored.received_ms),
        )
    except (DecodeError, ValueError) as error:
        raise ArchivedEvidenceError(f"not stored evidence: {error}") from error


def reverify(
    archived_evidence: ArchivedEvidence,
    digest: str,
    at: datetime,
    roots: Sequence[x509.Certificate] | None = None,
) -> str:
    """Verify that this evidence was validly signed at that time; returns the signer's SPIFFE ID.

    `roots` replaces the trust bundle that is kept. Raises ArchivedEvidenceError.
    """
    if archived_evidence.digest != digest:
        raise ArchivedEvidenceError(f"the evidence has the digest {archived_evidence.digest}")
    try:
        verify_chain(
            archived_evidence.chain, archived_evidence.roots if roots is None else roots, at
        )
        leaf = parse_chain(archived_evidence.chain)[0]
        verify(
            leaf,
            archived_evidence.payload_type,
            archived_evidence.payload,
            archived_evidence.signature,
        )
        return str(spiffe_id_of(leaf))
    except ChainError as error:
        raise ArchivedEvidenceError(f"{error.code.value}: {error}") from error
    except (AlgorithmDeniedError, SignatureInvalidError, SpiffeIdError) as error:
        raise ArchivedEvidenceError(str(error)) from error


def bundle_digest(roots: Sequence[x509.Certificate]) -> str:
    """SHA-256 over the sorted SHA-256 digests (hex, one a line) of the roots' DER."""
    digests = sorted(sha256_hex(_der(root)) for root in roots)
    return sha256_hex("".join(f"{digest}\n" for digest in digests).encode())


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)
