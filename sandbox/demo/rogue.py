"""An agent with a genuine identity that misbehaves: it can change what it sends, or send it again.

It speaks the real protocol through the real tunnel and signs with its real key, so
that a refusal shows the Verifier and not some earlier obstacle.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc.aio
from cryptography import x509

from agent.attester import AttestedStream, Attester, SigningTime
from agent.challenge import ChallengeRefusal, SignedChallenge
from agent.gpu.reading import InventoryReading, NvmlState
from gpuwarden.clock import SystemClock
from gpuwarden.evidence.envelope import sign
from gpuwarden.evidence.model import Gpu, Host, Inventory
from gpuwarden.identity.spiffe_id import agent_id, controller_id
from gpuwarden.identity.svid import Svid
from gpuwarden.identity.tunnel import Tunnel
from gpuwarden.moment import NS_PER_MS
from gpuwarden.wire.v1 import attestation_pb2 as wire
from gpuwarden.wire.v1.attestation_pb2_grpc import (
    AttestationServiceStub,
)
from sandbox.demo.stage import CheckFailedError
from sandbox.nodes import CLUSTER, ROGUE, TRUST_DOMAIN
from sandbox.nvml.models import bus_id, made_uuid
from sandbox.spiffe.ca import InsecureCa

if TYPE_CHECKING:  # exists in the stub file only
    from gpuwarden.wire.v1.attestation_pb2_grpc import AttestationServiceAsyncStub

PREFIX = "/gpuwarden"
_WAIT_S = 10.0
Change = Callable[[wire.AttestRequest], wire.AttestRequest]


class RogueAgent:
    """One stream of the node `rogue-0`, opened when entered."""

    def __init__(
        self,
        address: str,
        issuer: InsecureCa,
        roots: Sequence[InsecureCa],
        *,
        node_name: str = ROGUE,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._svid = _svid(issuer, roots)
        self._controller = controller_id(TRUST_DOMAIN, PREFIX)
        self._tunnel = Tunnel(self._svid, host, int(port), self._controller)
        self._attester = Attester(
            node_name=node_name,
            trust_domain=TRUST_DOMAIN,
            cluster=CLUSTER,
            controller=self._controller,
            instance_id=os.urandom(16).hex(),
            boot_id=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            agent_version="rogue",
        )
        self._stack = AsyncExitStack()
        self._stream: AttestedStream | None = None
        self._call: grpc.aio.StreamStreamCall[wire.AttestRequest, wire.AttestResponse] | None = None

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._tunnel)
        channel = await self._stack.enter_async_context(self._tunnel.channel())
        stub: AttestationServiceAsyncStub = AttestationServiceStub(channel)
        self._call = stub.Attest()
        hello = self._attester.hello(())
        self._stream = self._attester.open_stream(hello, self._svid.leaf)
        await self._call.write(wire.AttestRequest(hello=wire.Hello(document=hello)))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._call is not None:
            self._call.cancel()
        await self._stack.aclose()

    @property
    def leaf(self) -> x509.Certificate:
        """The leaf of this TLS session."""
        return self._svid.leaf

    def sign(self, payload_type: str, payload: bytes) -> bytes:
        """Sign with the key of this TLS session."""
        return sign(self._svid.private_key, payload_type, payload)

    async def evidence(self) -> wire.AttestRequest:
        """Wait for a challenge and make the evidence that answers it, without sending it."""
        challenge = await self._received("challenge")
        return self._answer(challenge.challenge)

    async def greeting(self) -> wire.Verdict:
        """Wait for the verdict about the stream itself, where it is refused at Hello."""
        return (await self._received("verdict")).verdict

    async def verdict(self, request: wire.AttestRequest) -> wire.Verdict:
        """Send `request` and wait for the verdict."""
        assert self._call is not None  # noqa: S101 - entered
        await self._call.write(request)
        return (await self._received("verdict")).verdict

    async def _received(self, kind: str) -> wire.AttestResponse:
        assert self._call is not None  # noqa: S101 - entered
        async with asyncio.timeout(_WAIT_S):
            while True:
                response = await self._call.read()
                if not isinstance(response, wire.AttestResponse):
                    raise CheckFailedError(f"the stream ended before a {kind} came")
                if response.WhichOneof("message") == kind:
                    return response

    def _answer(self, challenge: wire.Challenge) -> wire.AttestRequest:
        assert self._stream is not None  # noqa: S101 - entered
        opened = self._attester.challenged(
            replace(self._stream, challenge=None),
            SignedChallenge(
                payload=challenge.envelope.payload,
                payload_type=challenge.envelope.payload_type,
                signature=challenge.envelope.signature,
                chain_der=tuple(challenge.certificate_chain),
            ),
            roots=self._svid.roots,
            now=datetime.now(UTC),
        )
        if isinstance(opened, ChallengeRefusal):
            raise CheckFailedError(f"the controller's challenge proves nothing: {opened.detail}")
        clock = SystemClock()
        message = self._attester.evidence(
            opened,
            rogue_reading(),
            (),
            signer=self,
            at=SigningTime(clock.wall_ns() // NS_PER_MS, clock.boottime_ns() // NS_PER_MS),
        )
        self._stream = message.stream
        return message.request


def rogue_reading() -> InventoryReading:
    """One GPU that only this node has."""
    gpu = Gpu(
        index=0,
        uuid=made_uuid("GPU", ROGUE, 0),
        serial="1650000000099",
        board_part_number=None,
        product="NVIDIA L40S",
        pci_bus_id=bus_id(0),
        pci="10de:26b9",
        subsystem="10de:1851",
        vbios="95.02.66.00.02",
        gsp="570.86.10",
        memory_bytes=str(46068 << 20),
        ecc=True,
        mig=None,
        mig_devices=(),
        virt="none",
        compute_capability="8.9",
        architecture="ada",
        compute_mode="default",
        persistence_mode=True,
        nvlinks=(),
        fabric=None,
        chassis_serial=None,
        module_id=None,
    )
    host = Host(driver="570.86.10", cuda="12.8", cc="off", arch="x86_64", system_uuid=None)
    return InventoryReading(Inventory(host=host, gpus=(gpu,), lost=()), (), (), NvmlState.READY)


def _svid(issuer: InsecureCa, roots: Sequence[InsecureCa]) -> Svid:
    spiffe_id = agent_id(TRUST_DOMAIN, PREFIX, ROGUE)
    issued = issuer.issue(str(spiffe_id))
    return Svid(
        spiffe_id=spiffe_id,
        private_key=issued.private_key,
        chain=issued.chain,
        roots=tuple(root.certificate for root in roots),
        generation=1,
    )
