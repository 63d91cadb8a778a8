"""Who somebody is by the API server's answer about a token, or by a client certificate. Pure.

A certificate names its user as kube-apiserver reads it (k8s.io/apiserver request/x509
CommonNameUserConversion): CN is the user, O are the groups. Must not decide what anybody may do.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.access import Person
from gpuwarden.identity.chain import MAX_CERTIFICATE_BYTES, MAX_INTERMEDIATES
from gpuwarden.reasons import ReasonCode, Refusal

ANONYMOUS: Final = "system:anonymous"
UNAUTHENTICATED: Final = "system:unauthenticated"
AUTHENTICATED: Final = "system:authenticated"
MAX_NAME: Final = 512
MAX_PERSON_BYTES: Final = 64 << 10
"""Name, groups and extra fields together."""
_CREDENTIAL: Final = "authentication.kubernetes.io/credential-id"
_UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension)
_CLIENT: Final = frozenset(
    {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
)


def person_of(
    username: str,
    groups: Sequence[str] = (),
    uid: str = "",
    extra: Mapping[str, Sequence[str]] | None = None,
) -> Person | str:
    """The person of these fields, or why they name nobody."""
    if not username:
        return "it names no user"
    if username == ANONYMOUS or UNAUTHENTICATED in groups:
        return "it is anonymous"
    if len(username) > MAX_NAME or not username.isprintable():
        return f"its user name is no line of at most {MAX_NAME} printable characters"
    ordered = tuple((key, tuple(extra[key])) for key in sorted(extra)) if extra else ()
    texts = (username, uid, *groups, *(x for key, values in ordered for x in (key, *values)))
    if sum(len(x.encode()) for x in texts) > MAX_PERSON_BYTES:
        return f"its groups and fields have more than {MAX_PERSON_BYTES} bytes"
    return Person(username, tuple(groups), uid, ordered)


# --- client certificates


def person_of_certificate(
    chain: Sequence[bytes], roots: Sequence[x509.Certificate], at: datetime
) -> tuple[Person, datetime] | Refusal:
    """The user of a certificate and when it ends, as of `at` (aware), or why it does not count.

    `chain` is what the client sent in a handshake in which it has proven to have the key: DER, leaf
    first. `roots` are the cluster's client CAs.
    """
    if not chain:
        return Refusal(ReasonCode.TLS_NO_CLIENT_CERT, "no client certificate was shown")
    try:
        leaf, ends = _verified(chain, roots, at)
        names = [_text(x) for x in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        groups = [_text(x) for x in leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    except verification.VerificationError:
        return _refused("no client CA of the cluster vouches for it now")
    except _UNREADABLE as error:
        return _refused(f"it cannot be used: {ascii(str(error)[:120])[1:-1]}")
    if len(names) != 1:
        return _refused(f"it has {len(names)} common names, expected one")
    found = person_of(
        names[0],
        (*groups, AUTHENTICATED),
        extra={_CREDENTIAL: [f"X509SHA256={hashlib.sha256(chain[0]).hexdigest()}"]},
    )
    if isinstance(found, str):
        return _refused(found)
    return found, ends


def _refused(text: str) -> Refusal:
    return Refusal(ReasonCode.CERTIFICATE_INVALID, f"the client certificate: {text}")


def _text(attribute: "x509.NameAttribute[str | bytes]") -> str:
    if not isinstance(attribute.value, str):
        raise TypeError("a name is not text")
    return attribute.value


def _verified(
    chain: Sequence[bytes], roots: Sequence[x509.Certificate], at: datetime
) -> tuple[x509.Certificate, datetime]:
    """The leaf, and when the first of the chain ends. Caps come before any signature."""
    if len(chain) > 1 + MAX_INTERMEDIATES or any(len(x) > MAX_CERTIFICATE_BYTES for x in chain):
        raise ValueError("the chain is too long or too large")
    certificates = [x509.load_der_x509_certificate(x) for x in chain]
    _check_usage(certificates[0])
    _verify(certificates, roots, at)
    return certificates[0], min(x.not_valid_after_utc for x in certificates)


def _check_usage(leaf: x509.Certificate) -> None:
    try:
        usages = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return  # as in Go: it is for everything
    if not _CLIENT & set(usages):
        raise ValueError("it is not for clients (extended key usage)")


def _verify(
    chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate], at: datetime
) -> None:
    """The path as TLS has verified it, against the roots of now.

    A cluster's certificates are no web certificates: of a leaf no extension is demanded, and of an
    authority only that it is one.
    """
    if not roots:
        raise ValueError("the cluster's client CA is not known")
    authority = verification.ExtensionPolicy.permit_all().require_present(
        x509.BasicConstraints, verification.Criticality.AGNOSTIC, None
    )
    verifier = (
        verification.PolicyBuilder()
        .store(verification.Store(list(roots)))
        .time(at)
        .max_chain_depth(MAX_INTERMEDIATES)
        .extension_policies(
            ca_policy=authority, ee_policy=verification.ExtensionPolicy.permit_all()
        )
        .build_client_verifier()
    )
    leaf, *above = chain
    verifier.verify(leaf, above)
