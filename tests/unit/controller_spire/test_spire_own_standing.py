"""What the SPIRE server says about the controller itself."""

from controller.spire.judgement import ADMIN_WARNING, OwnStanding, own_standing
from tests.builders.spire import (
    CONTROLLER,
    LIMITS,
    NOW_NS,
    PARENT,
    TD,
    spire_agent,
    spire_entry,
    spire_snapshot,
)

OTHER = f"spiffe://{TD}/spire/agent/k8s_psat/prod/uid-2"


def own(*parents: str, banned: tuple[str, ...] = (), admin: bool = False) -> OwnStanding:
    agents = [spire_agent(x, banned=x in banned) for x in (PARENT, OTHER)]
    entries = {CONTROLLER: tuple(spire_entry(x, admin=admin) for x in parents)}
    return own_standing(
        spire_snapshot(*agents, entries=entries if parents else {}), LIMITS, NOW_NS, CONTROLLER
    )


def test_a_controller_whose_agent_is_in_force_has_nothing_to_say() -> None:
    assert own(PARENT) == OwnStanding()
    assert own(PARENT, OTHER) == OwnStanding()


def test_without_an_entry_nobody_knows_its_agent() -> None:
    found = own()
    assert found.error is None
    assert found.warnings == (f"the SPIRE server has no registration entry of {CONTROLLER}",)


def test_a_banned_own_agent_makes_it_unready() -> None:
    assert own(PARENT, banned=(PARENT,)).error == f"own SPIRE agent: {PARENT} is banned"


def test_of_several_replicas_one_good_agent_is_enough_and_the_other_is_a_warning() -> None:
    found = own(PARENT, OTHER, banned=(OTHER,))
    assert found == OwnStanding(None, (f"own SPIRE agent: {OTHER} is banned",))
    both = own(PARENT, OTHER, banned=(PARENT, OTHER))
    assert both.error is not None
    assert both.error.count("is banned") == 2


def test_an_admin_entry_is_said_whatever_else_is_wrong() -> None:
    assert own(PARENT, admin=True) == OwnStanding(None, (ADMIN_WARNING,))
    assert own(PARENT, banned=(PARENT,), admin=True).warnings == (ADMIN_WARNING,)
