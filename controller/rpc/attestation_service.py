"""AttestationService: counts a stream, collects its facts, and lets a session run.

Callers are authorized before they come here. Must not decide about evidence.
"""

from collections.abc import AsyncIterator

from controller.rpc.attest_session import AttestSession, Context, SessionPorts
from controller.rpc.session_facts import peer_key, stream_facts
from gpuwarden.wire.v1 import attestation_pb2 as pb
from gpuwarden.wire.v1 import attestation_pb2_grpc as pb_grpc


class AttestationService(pb_grpc.AttestationServiceServicer):
    """The servicer of the agents' listener."""

    def __init__(self, ports: SessionPorts) -> None:
        self._ports = ports

    async def Attest(  # type: ignore[override]  # noqa: N802 - grpc.aio's reader-writer form of the generated method
        self, request_iterator: AsyncIterator[pb.AttestRequest], context: Context
    ) -> None:
        """Run one stream; it is counted from its first moment to its last."""
        del request_iterator
        auth = context.auth_context()
        peer = peer_key(auth)
        occupancy = self._ports.usage.open(peer, self._ports.now().boottime_ns)
        try:
            facts = stream_facts(auth, occupancy)
            del auth  # what gRPC says of the peer would be kept for as long as the stream
            await AttestSession(self._ports, context, peer, facts).run()
        finally:
            self._ports.usage.close(peer)
