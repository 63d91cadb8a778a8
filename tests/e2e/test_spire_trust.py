"""Level L1 on real SPIRE: whatever happens there reaches the fleet in time, and no more."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from cryptography.x509 import (
    SubjectAlternativeName,
    UniformResourceIdentifier,
    load_pem_x509_certificate,
)

from tests.builders.console_commands import typed, words
from tests.e2e.lab.program import ProgramError
from tests.e2e.lab.selection import why_no_spire
from tests.e2e.lab.spire_server import TRUST_DOMAIN
from tests.e2e.lab.waiting import until
from tests.e2e.spire_world import (
    CONTROLLER,
    HOME,
    SELECTOR,
    WEAK_SELECTOR,
    SpireWorld,
    agent_id,
)

pytestmark = pytest.mark.skipif(
    bool(why_no_spire()), reason=f"no SPIRE: {'; '.join(why_no_spire())}"
)
BAN_S = 15.0
"""A ban must be effective by then, at the default interval."""
ROTATIONS = 6
PAGE = "docs/inspect-grpc.md"
PARENT = "spiffe://example.org/spire/agent/x509pop/FINGERPRINT"
"""Stands for a SPIRE agent on the page."""


def polls(world: SpireWorld) -> float:
    """Snapshots that were taken so far."""
    return world.controller.metric('gpuwarden_spire_polls_total{result="taken"}')


def svid_in_use(world: SpireWorld, node: str) -> str:
    """End of the SVID of the node's last stream that replaced another, as its agent logs."""
    held = opened = used = ""
    for line in world.agents[node].log.read_text().splitlines():
        event = json.loads(line)
        match event["event"]:
            case "svid.updated":
                held = event["state"].rpartition(" until ")[2]
            case "stream.opened":
                opened = held
                used = used or held
            case "stream.closed":
                used = opened
    return used


NEWCOMER = {"SPIRE_ENTRY_NOT_FOUND"}
"""An agent that is faster than our look at its entry."""


def refusals_of(world: SpireWorld, node: str) -> float:
    """Streams of the node that were refused so far: a refusal that repeats is counted."""
    code = 'gpuwarden_evidence_total{code="SPIRE_AGENT_BANNED"}'
    assert world.controller.node(node).code == "SPIRE_AGENT_BANNED"
    return world.controller.metric(code)


@pytest.fixture(scope="module")
def world() -> Iterator[SpireWorld]:
    """At the default interval of 10 s."""
    with SpireWorld("spire-trust", spire={"poll": "10s"}) as world:
        yield world


def test_a_confirmed_node_is_l1(world: SpireWorld) -> None:
    world.add("gpu-0")
    node = world.eligible("gpu-0")
    assert node.level == "L1"
    assert set(world.controller.refusals("gpu-0")) <= NEWCOMER


def made_folder(tmp_path: Path) -> Path:
    """As the page makes it: SPIRE's programs write into a folder that is there."""
    make, _ = typed(PAGE, "mkdir")
    subprocess.run(["/bin/mkdir", *words(make)], cwd=tmp_path, check=True)
    return tmp_path / "alice"


def spiffe_ids(certificate: Path) -> list[str]:
    read = load_pem_x509_certificate(certificate.read_bytes())
    names = read.extensions.get_extension_for_class(SubjectAlternativeName).value
    return names.get_values_for_type(UniformResourceIdentifier)


def test_an_svid_that_the_page_mints_is_an_inspector_s(world: SpireWorld, tmp_path: Path) -> None:
    """docs/inspect-grpc.md, for a person."""
    folder = made_folder(tmp_path)
    (mint,) = (x for x in typed(PAGE, "spire-server") if x.startswith("x509 mint"))
    world.server.cli(*(str(folder) if x == "alice" else x for x in words(mint)))
    assert {x.name for x in folder.iterdir()} == {"svid.pem", "key.pem", "bundle.pem"}
    assert spiffe_ids(folder / "svid.pem") == [f"spiffe://{TRUST_DOMAIN}/gpuwarden/inspector/alice"]


def test_an_entry_of_the_page_gives_a_tool_an_svid(world: SpireWorld, tmp_path: Path) -> None:
    """docs/inspect-grpc.md, for a machine with a SPIRE agent."""
    folder = made_folder(tmp_path)
    agent = world.attest("gpu-tools")
    (create,) = (x for x in typed(PAGE, "spire-server") if x.startswith("entry"))
    here = {PARENT: world.parents["gpu-tools"], "unix:uid:1000": SELECTOR}
    world.server.cli(*(here.get(x, x) for x in words(create)))
    (fetch,) = typed(PAGE, "spire-agent")
    asked = [str(folder) if x == "alice" else x for x in words(fetch)]
    program = str(world.site.programs["spire-agent"])
    command = [program, *asked, "-socketPath", str(agent.socket)]
    written = {"svid.0.pem", "svid.0.key", "bundle.0.pem"}

    def has_fetched() -> bool:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    until("the SPIRE agent knows the entry", has_fetched, poll_s=0.5)
    assert {x.name for x in folder.iterdir()} == written
    assert spiffe_ids(folder / "svid.0.pem") == [
        f"spiffe://{TRUST_DOMAIN}/gpuwarden/operator/alice"
    ]


def test_a_ban_revokes_in_time_while_the_svid_is_valid(world: SpireWorld) -> None:
    world.add("gpu-1")
    world.eligible("gpu-1")
    world.server.ban(world.parents["gpu-1"])
    assert world.in_state("gpu-1", "revoked", within_s=BAN_S).code == "SPIRE_AGENT_BANNED"
    # Its SVID still gets through TLS and chain: only step 8 keeps it out from now on.
    before = refusals_of(world, "gpu-1")
    until("it comes again", lambda: refusals_of(world, "gpu-1") > before)
    assert set(world.controller.refusals("gpu-1")) <= {*NEWCOMER, "SPIRE_AGENT_BANNED"}


def test_an_evicted_agent_is_gone_until_it_attests_again(world: SpireWorld) -> None:
    world.add("gpu-2")
    world.eligible("gpu-2")
    world.spire_agents["gpu-2"].stop()  # else it attests again within a second
    world.server.evict(world.parents["gpu-2"])
    assert world.in_state("gpu-2", "revoked", within_s=BAN_S).code == "SPIRE_AGENT_NOT_FOUND"
    with suppress(ProgramError):  # it finds out, drops its SVID and ends; who supervises it
        world.spire_agents["gpu-2"].resume_service()
    world.spire_agents["gpu-2"].resume_service()  # starts it again
    assert world.eligible("gpu-2").level == "L1"


def test_an_entry_with_other_selectors_is_enough_to_refuse(world: SpireWorld) -> None:
    world.add("gpu-3")
    world.eligible("gpu-3")
    weak = world.server.register(agent_id("gpu-3"), world.parents["gpu-3"], WEAK_SELECTOR)
    assert world.in_state("gpu-3", "revoked", within_s=BAN_S).code == "SPIRE_ENTRY_WEAK"
    world.server.unregister(weak)
    world.eligible("gpu-3")
    privileged = world.server.register(
        agent_id("gpu-3"), world.parents["gpu-3"], SELECTOR, "unix:gid:0", admin=True
    )
    assert world.in_state("gpu-3", "revoked", within_s=BAN_S).code == "SPIRE_ENTRY_PRIVILEGED"
    world.server.unregister(privileged)


def test_an_entry_below_the_agent_of_another_node(world: SpireWorld) -> None:
    """Node X's SPIRE agent would hand out node Y's identity: it attested as X."""
    world.attest("gpu-4")
    world.parents["gpu-5"] = world.parents["gpu-4"]
    world.spire_agents["gpu-5"] = world.spire_agents["gpu-4"]
    world.server.register(agent_id("gpu-5"), world.parents["gpu-4"], SELECTOR)
    world.start_agent("gpu-5")
    world.refused("gpu-5", "SPIRE_NODE_MISMATCH")


def test_a_node_that_attested_by_join_token(world: SpireWorld) -> None:
    world.add("gpu-6", join_token=True)
    world.refused("gpu-6", "SPIRE_ATTESTOR_DENIED")


def test_a_restarted_spire_agent_costs_nothing(world: SpireWorld) -> None:
    world.add("gpu-7")
    world.eligible("gpu-7")
    before = world.controller.refusals("gpu-7")
    world.spire_agents["gpu-7"].kill()
    world.spire_agents["gpu-7"].resume_service()
    rounds = world.controller.node("gpu-7").accepted_at
    until(
        "another round",
        lambda: world.controller.node("gpu-7").accepted_at != rounds,
    )
    assert world.eligible("gpu-7", within_s=1.0).level == "L1"
    assert world.controller.refusals("gpu-7") == before


def test_the_ca_is_rotated_under_everybody(world: SpireWorld) -> None:
    """Each step once SPIRE's agents have heard of the one before, as SPIRE asks of whoever
    rotates: nobody is refused, no lease ends.
    """
    world.add("gpu-8")
    world.eligible("gpu-8")
    before = world.controller.refusals("gpu-8")
    server = world.server
    agents = [world.spire_agents[name] for name in (HOME, "gpu-8")]
    parents = [world.parents[name] for name in (HOME, "gpu-8")]
    old, new = server.authority("active"), server.prepare_ca()

    def everybody(what: str, holds: Callable[[], bool]) -> None:
        def ask() -> bool:
            assert world.controller.node("gpu-8").state == "eligible"
            return holds()

        until(what, ask, timeout_s=60.0)

    everybody("all trust the new one", lambda: all(new in x.trusted() for x in agents))
    server.activate_ca(new)
    own = server.agent_serials()
    used = svid_in_use(world, "gpu-8")
    server.taint_ca(old)
    everybody("all SVIDs are renewed", lambda: all(x.signed_by() == new for x in agents))
    everybody(
        "the agents' own, too",
        lambda: all(server.agent_serials()[x] != own[x] for x in parents),
    )
    everybody("evidence comes under a new SVID", lambda: svid_in_use(world, "gpu-8") != used)
    server.revoke_ca(old)
    everybody("nobody trusts the old one", lambda: all(old not in x.trusted() for x in agents))
    taken = polls(world)
    everybody("SPIRE answers the controller's new SVID", lambda: polls(world) > taken)
    assert world.controller.refusals("gpu-8") == before
    assert world.controller.metric("gpuwarden_spire_available") == 1


@pytest.fixture(scope="module")
def brief() -> Iterator[SpireWorld]:
    """Grace of 8 s at an interval of a second."""
    with SpireWorld("spire-outage", spire={"poll": "1s", "grace": "8s"}) as world:
        world.add("gpu-0")
        yield world


class TestOutage:
    def test_a_server_that_is_down_for_less_than_the_grace(self, brief: SpireWorld) -> None:
        brief.eligible("gpu-0")
        until("ready", lambda: not brief.controller.reasons())
        before = brief.controller.refusals("gpu-0")
        brief.server.kill()
        until(
            "the outage is a warning",
            lambda: any("SPIRE server: unreachable" in x for x in brief.controller.warnings()),
        )
        assert brief.controller.reasons() == []
        brief.server.resume_service()
        until("it answers", lambda: brief.controller.metric("gpuwarden_spire_available") == 1)
        assert brief.controller.node("gpu-0").state == "eligible"
        assert brief.controller.refusals("gpu-0") == before

    def test_a_server_that_answers_nothing_for_longer(self, brief: SpireWorld) -> None:
        brief.eligible("gpu-0")
        brief.server.pause()
        try:
            brief.refused("gpu-0", "SPIRE_STATUS_STALE", within_s=30.0)
            brief.in_state("gpu-0", "stale", within_s=15.0)
            assert any(x.startswith("spire: ") for x in brief.controller.reasons())
        finally:
            brief.server.resume()
        assert brief.eligible("gpu-0").level == "L1"
        until("ready", lambda: not brief.controller.reasons())

    def test_a_restarted_server(self, brief: SpireWorld) -> None:
        brief.eligible("gpu-0")
        brief.server.restart()
        before = polls(brief)
        until("it answers", lambda: polls(brief) > before)
        assert brief.eligible("gpu-0").level == "L1"

    def test_a_controller_that_starts_while_the_server_is_down(self, brief: SpireWorld) -> None:
        brief.server.stop()
        brief.controller.restart()
        until(
            "it says why it is not ready",
            lambda: any(x.startswith("spire: unreachable") for x in brief.controller.reasons()),
        )
        brief.server.resume_service()
        until("ready", lambda: not brief.controller.reasons())


def test_an_agent_whose_svid_has_expired() -> None:
    """Its SPIRE agent is gone; the SVID that it has handed out lives on."""
    with SpireWorld("spire-expiry", agent_ttl="20s", svid_ttl="1h") as world:
        world.add("gpu-0")
        world.eligible("gpu-0")
        world.spire_agents["gpu-0"].kill()
        assert world.in_state("gpu-0", "revoked", within_s=60.0).code == "SPIRE_AGENT_EXPIRED"
        world.spire_agents["gpu-0"].resume_service()
        assert world.eligible("gpu-0").level == "L1"


def test_hours_of_rotation_in_half_a_minute() -> None:
    """An SVID of 20 s is renewed every 5 s: as many rotations as in three hours at 1 h."""
    with SpireWorld("spire-rotation", svid_ttl="20s", agent_ttl="1h") as world:
        world.add("gpu-0")
        world.eligible("gpu-0")
        before = world.controller.refusals("gpu-0")
        begin = rotations(world)

        def are_enough() -> bool:
            assert world.controller.node("gpu-0").state == "eligible"
            return rotations(world) >= begin + ROTATIONS

        until(f"{ROTATIONS} rotations", are_enough, timeout_s=120, poll_s=0.25)
        assert world.controller.refusals("gpu-0") == before


def rotations(world: SpireWorld) -> float:
    """SVIDs that the controller has taken so far."""
    return world.controller.metric('gpuwarden_svid_updates_total{result="taken"}')


def test_the_controllers_own_agent_and_its_rights() -> None:
    """The admin fallback works and warns; a ban of the own SPIRE agent makes it unready."""
    with SpireWorld("spire-admin", policy=False, admin_ids=[CONTROLLER]) as world:
        world.add("gpu-0")
        assert world.eligible("gpu-0").level == "L1"
        assert any("do more than read" in x for x in world.controller.warnings())
        world.server.ban(world.parents[HOME])
        until(
            "the own agent is banned",
            lambda: any("own SPIRE agent" in x for x in world.controller.reasons()),
        )
