"""Client TLS contexts of the standard library that hold one SVID.

The key goes through an anonymous memory file, because `ssl` loads keys from files
only and a key must never be in one that has a name. No connection is made here.
"""

import os
import ssl

from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gpuwarden.identity.svid import Svid

ALPN = "h2"


def client_context(svid: Svid) -> ssl.SSLContext:
    """A context that presents `svid` and accepts servers that its own roots vouch for.

    It checks no host name, since SPIFFE servers have none: the caller must compare the
    peer's SPIFFE ID before it sends a byte. TLS 1.2 at least, ALPN h2 only.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([ALPN])
    roots = b"".join(root.public_bytes(Encoding.DER) for root in svid.roots)
    context.load_verify_locations(cadata=roots)
    _load_key(context, svid)
    return context


def _load_key(context: ssl.SSLContext, svid: Svid) -> None:
    key = svid.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    chain = b"".join(certificate.public_bytes(Encoding.PEM) for certificate in svid.chain)
    descriptor = os.memfd_create("svid", os.MFD_CLOEXEC)
    with open(descriptor, "wb", buffering=0) as memory:  # noqa: PTH123 - a descriptor, not a path
        memory.write(key + chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
