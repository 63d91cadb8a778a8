"""Judges a peer's certificate chain against the roots of the own trust domain, at a given time.

Sources: X509-SVID standard sections 3 to 5 and appendix A; RFC 5280 section 6 for
the path, which `cryptography` walks. Caps come before any signature is computed,
because a chain is whatever its sender made it. The TLS layer has looked at the
same chain before, but against the roots of the time of the handshake; this is
asked again for each message.

Pure: reads no clock, decides about no name (see `spiffe_id_of` for that), and
keeps no state.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509 import verification

from gpuwarden.identity.spiffe_id import SpiffeId, SpiffeIdError, parse_spiffe_id
from gpuwarden.reasons import ReasonCode

MAX_INTERMEDIATES = 4
MAX_CERTIFICATE_BYTES = 16 * 1024
_CURVES = (ec.SECP256R1, ec.SECP384R1)
_RSA_BITS = range(2048, 8192 + 1)
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension)
"""What `cryptography` raises, mostly late, for certificates that parse only in part."""


class ChainError(Exception):
    """A chain that is not accepted; `code` is reported to the peer and the operator."""

    code: ClassVar[ReasonCode] = ReasonCode.CHAIN_INVALID


class ChainInvalidError(ChainError):
    """Not a chain of X509-SVIDs from one of the roots, at any time."""


class SvidExpiredError(ChainError):
    """A good chain, of which a certificate has ended."""

    code = ReasonCode.SVID_EXPIRED


class SvidNotYetValidError(ChainError):
    """A good chain, of which a certificate has not begun."""

    code = ReasonCode.SVID_NOT_YET_VALID


@dataclass(frozen=True, slots=True)
class ChainProof:
    """That a chain was verified, and how long nothing but time has to be looked at again."""

    chain_der: tuple[bytes, ...]
    roots: tuple[x509.Certificate, ...]
    since: datetime
    until: datetime
    """The first end among the chain and the roots that had not ended: all were valid till then."""

    def covers(
        self, chain_der: Sequence[bytes], roots: Sequence[x509.Certificate], at: datetime
    ) -> bool:
        """Whether `verify_chain` with these arguments could only succeed."""
        same = self.chain_der == tuple(chain_der) and self.roots == tuple(roots)
        return same and self.since <= at < self.until


def verify_chain(
    chain_der: Sequence[bytes], roots: Sequence[x509.Certificate], at: datetime
) -> ChainProof:
    """Accept leaf + intermediates (DER, leaf first) as valid at `at` (aware), or raise ChainError.

    A chain that is wrong apart from its dates is ChainInvalidError whatever its
    dates are: it is verified at the moment of its validity that is nearest to `at`.
    """
    chain = parse_chain(chain_der)
    begin = max(certificate.not_valid_before_utc for certificate in chain)
    end = min(certificate.not_valid_after_utc for certificate in chain)
    if begin > end:
        raise ChainInvalidError("the certificates of the chain are never valid together")
    _verify_path(chain, roots, min(max(at, begin), end))
    if at > end:
        raise SvidExpiredError(f"the chain ended at {end:%Y-%m-%dT%H:%M:%SZ}")
    if at < begin:
        raise SvidNotYetValidError(f"the chain begins at {begin:%Y-%m-%dT%H:%M:%SZ}")
    ends = (root.not_valid_after_utc for root in roots)
    until = min(end, *(x for x in ends if x >= at))
    return ChainProof(tuple(chain_der), tuple(roots), at, until)


def parse_chain(chain_der: Sequence[bytes]) -> tuple[x509.Certificate, ...]:
    """Parse a chain within the caps and check all that needs no signature.

    Raises ChainInvalidError for too many or too large certificates, keys outside the
    allow-list, and a leaf that is not an X509-SVID leaf (section 4 and appendix A).
    """
    if not chain_der:
        raise ChainInvalidError("no certificate at all")
    if len(chain_der) > 1 + MAX_INTERMEDIATES:
        raise ChainInvalidError(f"{len(chain_der) - 1} intermediates, at most {MAX_INTERMEDIATES}")
    if any(len(der) > MAX_CERTIFICATE_BYTES for der in chain_der):
        raise ChainInvalidError(f"a certificate is larger than {MAX_CERTIFICATE_BYTES} bytes")
    try:
        chain = tuple(x509.load_der_x509_certificate(der) for der in chain_der)
        for certificate in chain:
            _check_key(certificate)
        _check_leaf(chain[0])
    except _UNREADABLE as error:
        raise ChainInvalidError(f"a certificate cannot be read: {_brief(error)}") from error
    return chain


def uri_sans(leaf: x509.Certificate) -> tuple[str, ...]:
    """All URI SANs of `leaf`, in its order; raises SpiffeIdError if they cannot be read."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    except _UNREADABLE as error:
        raise SpiffeIdError(f"certificate's names cannot be read: {error}") from error
    return tuple(names.get_values_for_type(x509.UniformResourceIdentifier))


def spiffe_id_of(leaf: x509.Certificate) -> SpiffeId:
    """The SPIFFE ID of `leaf`; raises SpiffeIdError unless it has exactly one URI SAN, an ID."""
    uris = uri_sans(leaf)
    if len(uris) != 1:
        raise SpiffeIdError(f"certificate must have exactly one URI SAN, has {len(uris)}")
    [uri] = uris
    return parse_spiffe_id(uri)


def signing_authority(chain: Sequence[x509.Certificate]) -> bytes:
    """Key id of the authority above the last certificate of a chain (RFC 5280 section 4.2.1.1).

    Empty where the certificate does not name it.
    """
    try:
        key = chain[-1].extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return b""
    return key.key_identifier or b""


def authorities_of(roots: Sequence[x509.Certificate]) -> frozenset[bytes]:
    """Key ids of the authorities in a bundle (RFC 5280 section 4.2.1.2)."""
    found = set()
    for root in roots:
        with suppress(x509.ExtensionNotFound, *_UNREADABLE):
            key = root.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
            found.add(key.value.digest)
    return frozenset(found)


def _check_key(certificate: x509.Certificate) -> None:
    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey):
        if not isinstance(key.curve, _CURVES):
            raise ChainInvalidError(f"key on curve {key.curve.name}, expected P-256 or P-384")
    elif isinstance(key, rsa.RSAPublicKey):
        if key.key_size not in _RSA_BITS:
            raise ChainInvalidError(f"RSA key of {key.key_size} bits, expected 2048 to 8192")
    else:
        raise ChainInvalidError(f"key is {type(key).__name__}, expected EC or RSA")


def _check_leaf(leaf: x509.Certificate) -> None:
    try:
        usage = leaf.extensions.get_extension_for_class(x509.KeyUsage)
        if leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            raise ChainInvalidError("leaf is a CA certificate")
    except x509.ExtensionNotFound as error:
        raise ChainInvalidError(f"leaf lacks extension {error.oid.dotted_string}") from error
    if not usage.critical or not usage.value.digital_signature:
        raise ChainInvalidError("leaf's key usage must be critical and have digitalSignature")
    if usage.value.key_cert_sign or usage.value.crl_sign:
        raise ChainInvalidError("leaf's key usage has keyCertSign or cRLSign")


def _verify_path(
    chain: tuple[x509.Certificate, ...], roots: Sequence[x509.Certificate], at: datetime
) -> None:
    if not roots:
        raise ChainInvalidError("no roots to verify against")
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store(list(roots)))
        .time(at)
        .max_chain_depth(MAX_INTERMEDIATES)
        .build_client_verifier()
    )
    try:
        leaf, *above = chain
        verifier.verify(leaf, above)
    except verification.VerificationError as error:
        raise ChainInvalidError(f"no path to a root: {_cause(chain, roots, error)}") from error


def _cause(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], error: Exception
) -> str:
    authority = signing_authority(chain)
    if authority and authority not in authorities_of(roots):
        return f"the authority that signed it is not in the trust bundle (key id {authority.hex()})"
    return _brief(error)


def _brief(error: Exception) -> str:
    """One line without control characters: the text may quote names from a hostile certificate."""
    return ascii(str(error)[:200])[1:-1]
