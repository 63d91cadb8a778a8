from dataclasses import replace
from typing import ClassVar

import pytest

from controller.policy import Level
from controller.spire.client import SpireFailure, SpireServerError
from controller.spire.facts import (
    ADMIN_WARNING,
    CAPPED,
    LiveSpireFacts,
    SpireCondition,
    no_spire_server,
    own_condition,
)
from controller.spire.snapshot import SpireEntry, SpireSnapshot
from controller.verifier.context import Standing
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.evidence import Scene
from tests.builders.spire import (
    CONTROLLER,
    LIMITS,
    NOW_NS,
    PARENT,
    PEER,
    TD,
    S,
    spire_agent,
    spire_entry,
    spire_question,
    spire_snapshot,
)
from tests.fakes.spire_polls import PollBench

# --- The snapshot as the Verifier and readiness see it, and what is asked for afterwards

OTHER = f"spiffe://{TD}/spire/agent/k8s_psat/prod/uid-2"
GONE = SpireServerError(SpireFailure.UNREACHABLE, "connection refused")


async def facts(snapshot: SpireSnapshot | None) -> tuple[LiveSpireFacts, PollBench]:
    bench = PollBench()
    bench.poller.snapshot = snapshot
    return LiveSpireFacts(bench.poller, LIMITS, CONTROLLER), bench


async def test_before_the_first_answer_nothing_is_decided_and_nothing_is_revoked() -> None:
    found, _ = await facts(None)
    question = spire_question()
    for refusal in (found.entry(question), found.agent(question), found.image(question)):
        assert isinstance(refusal, Refusal)
        assert refusal.code is ReasonCode.SPIRE_UNAVAILABLE


async def test_the_three_steps_answer_from_the_snapshot_of_now() -> None:
    found, bench = await facts(spire_snapshot())
    question = spire_question()
    assert found.entry(question) is None
    assert found.agent(question) == Standing(Level.L1, "k8s_psat", PARENT)
    assert found.image(question) is None
    bench.poller.snapshot = spire_snapshot(spire_agent(banned=True))
    refusal = found.agent(question)
    assert isinstance(refusal, Refusal)
    assert refusal.code is ReasonCode.SPIRE_AGENT_BANNED
    assert bench.poller._newcomers == {}


@pytest.mark.parametrize(
    "snapshot",
    [
        spire_snapshot(entries={}),
        replace(spire_snapshot(), agents={}),
        spire_snapshot(spire_agent(expires_ns=NOW_NS)),
    ],
)
async def test_what_is_missing_is_asked_for(snapshot: SpireSnapshot) -> None:
    found, bench = await facts(snapshot)
    question = spire_question()
    refusal = found.entry(question) or found.agent(question)
    assert isinstance(refusal, Refusal)
    assert list(bench.poller._newcomers) == [PEER]


class TestCondition:
    OWN: ClassVar[dict[str, tuple[SpireEntry, ...]]] = {CONTROLLER: (spire_entry(),)}

    async def test_no_answer_yet_says_why(self) -> None:
        found, bench = await facts(None)
        assert found.condition(NOW_NS).error == "the SPIRE server was not asked yet"
        bench.poller.trouble = GONE
        assert found.condition(NOW_NS).error == "unreachable: connection refused"

    async def test_a_failing_server_is_a_warning_until_its_last_answer_is_stale(self) -> None:
        found, bench = await facts(spire_snapshot(entries=self.OWN))
        assert found.condition(NOW_NS) == type(found.condition(NOW_NS))()
        bench.poller.trouble = GONE
        warned = found.condition(NOW_NS)
        assert warned.error is None
        assert warned.warnings == (
            "SPIRE server: unreachable: connection refused; its last answer counts for now",
        )
        later = found.condition(NOW_NS + 299 * S)
        assert later.error == (
            "the SPIRE server's last answer is 300 s old: unreachable: connection refused"
        )
        bench.poller.trouble = None
        assert found.condition(NOW_NS + 299 * S).error == (
            "the SPIRE server's last answer is 300 s old"
        )

    async def test_the_own_agent_and_too_many_rights(self) -> None:
        found, bench = await facts(spire_snapshot(spire_agent(banned=True), entries=self.OWN))
        assert found.condition(NOW_NS).error == f"own SPIRE agent: {PARENT} is banned"
        bench.poller.snapshot = spire_snapshot(entries={CONTROLLER: (spire_entry(admin=True),)})
        bench.poller.excessive = True
        assert found.condition(NOW_NS).warnings == (ADMIN_WARNING,)
        assert found.condition(NOW_NS).excessive

    async def test_rights_beyond_reading_are_said_without_an_admin_entry(self) -> None:
        found, bench = await facts(spire_snapshot(entries=self.OWN))
        assert not found.condition(NOW_NS).excessive
        bench.poller.excessive = True
        assert found.condition(NOW_NS) == SpireCondition(warnings=(ADMIN_WARNING,), excessive=True)


def test_without_a_spire_server_the_level_is_capped_and_says_so() -> None:
    condition = no_spire_server(NOW_NS)
    assert condition == SpireCondition(warnings=(CAPPED,), configured=False)
    assert Scene().accepted().level is Level.L0


# --- What the SPIRE server says about the controller itself


def own(*parents: str, banned: tuple[str, ...] = (), admin: bool = False) -> SpireCondition:
    agents = [spire_agent(x, banned=x in banned) for x in (PARENT, OTHER)]
    entries = {CONTROLLER: tuple(spire_entry(x, admin=admin) for x in parents)}
    return own_condition(
        spire_snapshot(*agents, entries=entries if parents else {}), LIMITS, NOW_NS, CONTROLLER
    )


def test_a_controller_whose_agent_is_in_force_has_nothing_to_say() -> None:
    assert own(PARENT) == SpireCondition()
    assert own(PARENT, OTHER) == SpireCondition()


def test_without_an_entry_nobody_knows_its_agent() -> None:
    found = own()
    text = f"the SPIRE server has no registration entry of {CONTROLLER}"
    assert found == SpireCondition(warnings=(text,), unregistered=True)


def test_a_banned_own_agent_makes_it_unready() -> None:
    assert own(PARENT, banned=(PARENT,)).error == f"own SPIRE agent: {PARENT} is banned"


def test_of_several_replicas_one_good_agent_is_enough_and_the_other_is_a_warning() -> None:
    found = own(PARENT, OTHER, banned=(OTHER,))
    assert found == SpireCondition(None, (f"own SPIRE agent: {OTHER} is banned",))
    both = own(PARENT, OTHER, banned=(PARENT, OTHER))
    assert both.error is not None
    assert both.error.count("is banned") == 2


def test_an_admin_entry_is_said_whatever_else_is_wrong() -> None:
    assert own(PARENT, admin=True) == SpireCondition(None, (ADMIN_WARNING,), excessive=True)
    assert own(PARENT, banned=(PARENT,), admin=True).warnings == (ADMIN_WARNING,)
    assert own(PARENT, banned=(PARENT,), admin=True).excessive
