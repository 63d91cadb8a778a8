"""The policy in force while its source does not know one yet, and when it changes."""

from dataclasses import dataclass, field, replace

import pytest

from controller.policies.file import PolicyChange
from controller.policies.in_force import PolicyInForce
from controller.policy import DEFAULT_POLICY, Level, Policy
from gpuwarden.finding import Finding
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from sandbox.spiffe.ca import InsecureCa
from tests.builders.support_scene import SupportScene
from tests.builders.svids import FakeSvidSource, new_svid
from tests.fakes.recording_audit import RecordingAudit

FAULTS = PolicyChange(None, (Finding("AttestationPolicy/cluster", "nothing", "one"),))


@dataclass
class Source:
    """Says what the test has prepared."""

    current: Policy | None = None
    changes: list[PolicyChange] = field(default_factory=list)

    async def poll(self) -> PolicyChange | None:
        if not self.changes:
            return None
        change = self.changes.pop(0)
        self.current = change.policy or self.current
        return change


@pytest.fixture
def audit() -> RecordingAudit:
    return RecordingAudit()


def in_force(source: Source | None, audit: RecordingAudit, taken: list[Policy]) -> PolicyInForce:
    instruments = Instruments(Process.CONTROLLER, "test")
    return PolicyInForce(source, audit=audit, instruments=instruments, changed=taken.append)


async def test_without_a_source_nothing_is_demanded_and_all_is_known(audit: RecordingAudit) -> None:
    policy = in_force(None, audit, [])
    await policy.reload()
    assert policy.current is DEFAULT_POLICY
    assert policy.unknown is None


async def test_it_is_unknown_until_the_source_has_a_right_one(audit: RecordingAudit) -> None:
    strict = Policy(min_level=Level.L1, digest="d" * 64)
    source = Source(changes=[FAULTS, PolicyChange(strict, ()), FAULTS])
    taken: list[Policy] = []
    policy = in_force(source, audit, taken)
    states = [policy.unknown]
    for _ in range(3):
        await policy.reload()
        states.append(policy.unknown)
    missing = "AttestationPolicy/cluster: got nothing; expected one"
    assert states == ["not read yet", missing, None, None]
    assert taken == [strict]
    assert policy.current is strict
    assert [x.refs for x in audit.noted] == [{"policy": strict.digest}]


def test_while_it_is_unknown_nobody_is_accepted_and_nothing_is_decided(
    audit: RecordingAudit,
) -> None:
    svid = new_svid(InsecureCa("example.org"), "spiffe://example.org/gpuwarden/controller")
    known = replace(SupportScene().state().conditions, svids=FakeSvidSource(svid))
    assert known.known().roots
    assert known.not_ready() != "policy: not read yet"
    unknown = replace(known, policy_in_force=in_force(Source(), audit, []))
    assert unknown.known().roots == ()
    assert unknown.not_ready() == "policy: not read yet"
    assert "policy: not read yet" in unknown.readiness().reasons
