"""One agent session through the real tunnel to a controller with real server credentials."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from agent.session.client import Session, SessionPorts
from agent.session.dialer import TunnelDialer
from agent.session.machine import End, EndReason
from agent.session.replicas import UsedStreamIds
from gpuwarden.clock import SystemClock
from gpuwarden.identity.server_credentials import server_credentials
from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from gpuwarden.settings.values import Address
from tests.builders.attesting import AGENT, attester
from tests.builders.ca import SpiffeCa
from tests.builders.challenges import CONTROLLER
from tests.fakes.agent_ports import FakeGpus, FakeSvids, FakeWitness, RecordingRecorder
from tests.fakes.fake_controller import FakeController
from tests.hang import HANG_S

CA = SpiffeCa()


async def converse(agent: Svid, server: Svid, expected: str = CONTROLLER) -> tuple[End, int]:
    """How a session ended, and how much evidence came; a session that is accepted is stopped."""
    controller = FakeController(server)
    credentials = server_credentials(FakeSvids(server), lambda _: None)
    port = await controller.start("127.0.0.1:0", credentials)
    ports = SessionPorts(
        attester=attester(),
        dialer=TunnelDialer(parse_spiffe_id(expected)),
        read=FakeGpus().read,
        roots=lambda: agent.roots,
        witness=FakeWitness(),
        recorder=RecordingRecorder(),
        stream_ids=UsedStreamIds(),
        clock=SystemClock(),
    )
    session = Session(
        ports,
        svid=agent,
        replica=Address("127.0.0.1", port),
        stream=1,
        accepted=lambda: session.stop("accepted"),
    )
    try:
        async with asyncio.timeout(HANG_S):
            return await session.run(), len(controller.all_evidence)
    finally:
        await controller.stop()


async def test_evidence_is_signed_with_the_leaf_of_the_tls_session() -> None:
    end, evidence = await converse(CA.svid(AGENT), CA.svid(CONTROLLER))
    assert end == End(EndReason.STOPPED, "accepted")
    assert evidence == 1  # the controller verified it with the certificate that TLS saw


async def test_a_server_of_another_identity_is_left_before_hello() -> None:
    end, evidence = await converse(CA.svid(AGENT), CA.svid("spiffe://example.org/gpuwarden/x"))
    assert (end.reason, evidence) == (EndReason.PEER, 0)
    assert "wrong-identity" in end.detail


async def test_a_server_of_another_authority_is_left_before_hello() -> None:
    end, evidence = await converse(CA.svid(AGENT), SpiffeCa().svid(CONTROLLER))
    assert (end.reason, evidence) == (EndReason.PEER, 0)
    assert "untrusted" in end.detail


async def test_an_svid_that_has_expired_opens_nothing() -> None:
    svid = CA.svid(AGENT, timedelta(seconds=-5))
    end, evidence = await converse(svid, CA.svid(CONTROLLER))
    assert (end.reason, evidence) == (EndReason.PEER, 0)


async def test_a_tunnel_that_cannot_be_made_is_an_end() -> None:
    mixed = replace(CA.svid(AGENT), private_key=CA.svid(AGENT).private_key)
    end, _ = await converse(mixed, CA.svid(CONTROLLER))
    assert end.reason is EndReason.PEER
    assert end.detail.startswith("no tunnel to 127.0.0.1:")
