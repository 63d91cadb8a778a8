"""The server's side of TLS by the standard library, for whatever certificate a test makes."""

import os
import ssl

from sandbox.spiffe.ca import IssuedSvid


def server_side(issued: IssuedSvid, alpn: str = "h2") -> ssl.SSLContext:
    """A TLS server that presents whatever it is given and asks for nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    descriptor = os.memfd_create("test")
    with os.fdopen(descriptor, "wb", buffering=0) as memory:
        memory.write(issued.key_pem + issued.chain_pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    context.set_alpn_protocols([alpn])
    return context
