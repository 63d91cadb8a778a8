"""TLS clients out of the standard library, which do what gRPC's own never would."""

import os
import ssl
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sandbox.spiffe.ca import IssuedSvid


class ResumingContext(ssl.SSLContext):
    """A client's context that offers its last session again, which asyncio's never do."""

    last: ssl.SSLObject | None = None

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        options["session"] = self.last.session if self.last else None
        self.last = super().wrap_bio(*args, **options)
        return self.last


def client_context(
    issued: IssuedSvid | None,
    root: x509.Certificate,
    version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
    kind: type[ssl.SSLContext] = ssl.SSLContext,
) -> ssl.SSLContext:
    """A context that shows `issued`, if any, and believes `root`; HTTP/2 only."""
    context = kind(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=root.public_bytes(Encoding.DER))
    if issued is not None:
        descriptor = os.memfd_create("test")
        with os.fdopen(descriptor, "wb", buffering=0) as memory:
            memory.write(issued.key_pem + issued.chain_pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    return context
