"""Any interleaving: no evidence without a challenge, nonces once, make before break."""

import secrets
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent.attester import AttestedStream
from agent.session import link as links
from agent.session import machine
from agent.session.link import Link, LinkTiming, backoff_s
from agent.session.machine import Answer, EndReason, Read, SendNotice, StreamTiming
from gpuwarden.evidence.model import TYPE_EVIDENCE, ZERO_DIGEST, Challenge, Evidence, FailureNotice
from gpuwarden.evidence.strict_json import decode
from sandbox.spiffe.ca import utc_now
from tests.builders.attesting import AGENT, AT, SvidSigner, attester, reading, xid
from tests.builders.ca import SpiffeCa
from tests.builders.challenges import CONTROLLER, challenge, signed

S = 1_000_000_000
NOW = utc_now()
CA = SpiffeCa(at=NOW)
SVID = CA.svid(AGENT)
LEAF = SVID.leaf.public_bytes(Encoding.DER)
CONTROLLER_SVID = CA.svid(CONTROLLER)
HELLO = attester().hello(())
READING = reading()


class OneStream(RuleBasedStateMachine):
    """The stream machine and the Attester together, as the client drives them."""

    @initialize()
    def greet(self) -> None:
        self.now_ns = 0
        self.state = machine.greeted(0, StreamTiming())
        self.stream = attester().open_stream(HELLO, SVID.leaf)
        self.stream_id = secrets.token_hex(16)
        self.issued: dict[str, Challenge] = {}
        self.used: set[str] = set()
        self.sent = 0
        self.prev = ZERO_DIGEST
        self.reading_for: list[str] = []

    def feed(self, event: machine.Event) -> None:
        self.state, actions = machine.step(self.state, event, self.now_ns)
        for action in actions:
            match action:
                case Read(challenge_id):
                    self.reading_for.append(challenge_id)
                case Answer() | SendNotice():
                    self.send(action)

    def send(self, action: Answer | SendNotice) -> None:
        if isinstance(action, Answer):
            message = attester().evidence(
                self.stream, action.reading, (), signer=SvidSigner(SVID), at=AT
            )
        else:
            message = attester().failure_notice(
                self.stream, action.events, signer=SvidSigner(SVID), at=AT
            )
        self.stream = message.stream
        outer = message.request.evidence
        nonce = outer.nonce.hex()
        asked = self.issued[outer.challenge_id.hex()]
        document: Evidence | FailureNotice
        if outer.envelope.payload_type == TYPE_EVIDENCE:
            assert nonce == asked.nonce
            document = decode(outer.envelope.payload, Evidence, max_bytes=1 << 18)
        else:
            assert nonce == asked.spare_nonce
            document = decode(outer.envelope.payload, FailureNotice, max_bytes=1 << 18)
        assert nonce not in self.used
        self.used.add(nonce)
        assert document.seq == self.sent + 1
        assert document.prev == self.prev
        self.sent, self.prev = document.seq, message.digest

    @rule()
    def challenge(self) -> None:
        document = challenge(HELLO, LEAF, stream_id=self.stream_id)
        if self.state.phase is machine.Phase.ENDED:
            return
        judged = attester().challenged(
            self.stream, signed(document, CONTROLLER_SVID), roots=CA.roots, now=NOW
        )
        assert isinstance(judged, AttestedStream)
        self.stream = judged
        self.issued[document.challenge_id] = document
        self.feed(machine.Challenged(document.challenge_id, 15_000, 25_000))

    @precondition(lambda self: self.reading_for)
    @rule(data=st.data())
    def finish_reading(self, data: st.DataObject) -> None:
        challenge_id = data.draw(st.sampled_from(self.reading_for))
        self.feed(machine.ReadingDone(challenge_id, READING))

    @rule(number=st.integers(0, 5))
    def failure_notice(self, number: int) -> None:
        self.feed(machine.GpuFailed(xid(number)))

    @rule(accepted=st.booleans(), has_hash=st.booleans(), data=st.data())
    def verdict(self, accepted: bool, has_hash: bool, data: st.DataObject) -> None:
        challenge_id = data.draw(st.sampled_from([*self.issued, ""]))
        verdict = machine.Verdict(
            challenge_id=challenge_id,
            accepted=accepted,
            code="ACCEPTED" if accepted else "SEQ_GAP",
            detail="",
            attestation_hash="v1" if has_hash else "",
            level="",
            fresh_for_ms=0,
            next_challenge_ms=25_000,
        )
        before = self.state
        self.feed(machine.VerdictReceived(verdict))
        if before.phase is machine.Phase.GREETED and accepted:
            assert self.state.phase is machine.Phase.ENDED

    @rule()
    def time_passes(self) -> None:
        if self.state.deadline_ns is not None:
            self.now_ns = max(self.now_ns, self.state.deadline_ns)
        self.feed(machine.Due())

    @invariant()
    def waits_for_something_unless_ended(self) -> None:
        if not hasattr(self, "state"):
            return
        ended = self.state.phase is machine.Phase.ENDED
        assert (self.state.deadline_ns is None) == ended


TestOneStream = OneStream.TestCase
TestOneStream.settings = settings(max_examples=40, stateful_step_count=25)


class OneLink(RuleBasedStateMachine):
    """The link machine under any order of events."""

    @initialize()
    def begin(self) -> None:
        self.link = Link(LinkTiming())
        self.now_ns = 0
        self.open: dict[int, int] = {}
        self.arrived: set[int] = set()
        self.generation = 0
        self.halted = False

    def feed(self, event: links.Event, jitter: float = 0.3) -> tuple[links.Action, ...]:
        before = self.link
        self.link, actions = links.step(self.link, event, self.now_ns, jitter)
        for action in actions:
            match action:
                case links.Open(stream, generation):
                    assert not self.halted
                    assert stream not in self.open
                    assert generation == self.generation
                    # So they come to the controller in the order in which they are opened.
                    assert self.open.keys() <= self.arrived
                    self.open[stream] = generation
                case links.Close(stream, _):
                    assert stream in self.open
                    self.check_break(event, stream, before)
                    if not self.link.halted:
                        assert stream in self.arrived
                case links.Superseded():
                    self.halted = True
        return actions

    def check_break(self, event: links.Event, stream: int, before: Link) -> None:
        """The stream in use is closed only for an accepted successor, or at the very end."""
        is_current = before.current is not None and before.current.stream == stream
        if not is_current or isinstance(event, links.Halt):
            return
        if isinstance(event, links.Ended):
            assert event.reason is EndReason.SUPERSEDED
            return
        assert isinstance(event, links.Accepted)
        assert before.successor is not None
        assert event.stream == before.successor.stream

    @rule()
    def rotate(self) -> None:
        self.generation += 1
        ends_ns = self.now_ns + 3600 * S
        self.feed(links.IdentityChanged(links.Identity(self.generation, ends_ns, 3600 * S)))

    @rule()
    def withdraw(self) -> None:
        self.feed(links.IdentityChanged(None))

    @precondition(lambda self: self.link.deadline_ns is not None)
    @rule(jitter=st.floats(0, 1, exclude_max=True))
    def wait(self, jitter: float) -> None:
        assert self.link.deadline_ns is not None
        self.now_ns = max(self.now_ns, self.link.deadline_ns)
        self.feed(links.Due(), jitter)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(sorted(self.open)))
        self.arrived.add(stream)
        self.feed(links.Arrived(stream))

    @precondition(lambda self: self.open.keys() & self.arrived)
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        arrived = sorted(self.open.keys() & self.arrived)
        self.feed(links.Accepted(data.draw(st.sampled_from(arrived))))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), reason=st.sampled_from(EndReason))
    def end(self, data: st.DataObject, reason: EndReason) -> None:
        stream = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[stream]
        self.feed(links.Ended(stream, reason))

    @invariant()
    def at_most_two_streams_are_wanted(self) -> None:
        if hasattr(self, "link"):
            wanted = [x for x in (self.link.current, self.link.successor) if x]
            assert self.link.current is not None or self.link.successor is None
            assert all(x.stream in self.open for x in wanted)

    @invariant()
    def an_svid_leads_to_a_stream(self) -> None:
        if hasattr(self, "link") and self.link.identity and not self.link.halted:
            assert self.link.current is not None or self.link.deadline_ns is not None


TestOneLink = OneLink.TestCase
TestOneLink.settings = settings(max_examples=60, stateful_step_count=30)


@given(failures=st.integers(0, 10**6), jitter=st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded(failures: int, jitter: float) -> None:
    timing: Any = LinkTiming()
    assert 0 <= backoff_s(failures, timing, jitter) <= timing.backoff_cap_s
