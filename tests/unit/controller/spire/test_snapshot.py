from dataclasses import replace

import pytest

from controller.fleet.directory import FOREVER_NS
from controller.spire.snapshot import (
    ATTESTORS,
    MAX_SELECTORS,
    MAX_TEXT,
    AgentChange,
    ChangedAgent,
    SpireAgent,
    changed_agents,
    read_agent,
    read_entries,
)
from controller.spire.verification import DEFAULT_SELECTORS, digests_of
from gpuwarden.moment import Moment
from gpuwarden.policy.document import ATTESTORS as NAMEABLE
from gpuwarden.policy.texts import image_digest
from gpuwarden.wire.spire import types_pb2 as pb
from tests.builders.spire import (
    IMAGE,
    PARENT,
    PEER,
    TD,
    S,
    spire_agent,
    spire_entry,
    spire_snapshot,
)

# --- Snapshots: corrected by single answers, compared with the one before

OTHER = f"spiffe://{TD}/spire/agent/k8s_psat/prod/uid-2"


def test_a_single_answer_adds_replaces_and_removes_without_making_it_fresher() -> None:
    before = spire_snapshot()
    added = before.with_answer({"x": (spire_entry(OTHER),)}, {OTHER: spire_agent(OTHER)})
    assert set(added.entries) == {PEER, "x"}
    assert set(added.agents) == {PARENT, OTHER}
    assert (added.agents_ns, added.entries_ns) == (before.agents_ns, before.entries_ns)
    gone = added.with_answer({PEER: ()}, {PARENT: None, "never there": None})
    assert set(gone.entries) == {"x"}
    assert set(gone.agents) == {OTHER}
    replaced = added.with_answer({}, {PARENT: spire_agent(banned=True)})
    assert replaced.agents[PARENT].banned
    assert set(before.entries) == {PEER}
    assert not before.agents[PARENT].banned


def test_every_kind_of_change_is_reported_and_a_renewal_is_not() -> None:
    before = spire_snapshot()

    def change(*agents: SpireAgent) -> list[AgentChange]:
        after = replace(before, agents={x.agent_id: x for x in agents})
        return [x.change for x in changed_agents(before, after)]

    assert change(spire_agent(serial="8", expires_ns=1)) == []
    assert change(spire_agent(banned=True)) == [AgentChange.BANNED]
    assert change(spire_agent(), spire_agent(OTHER)) == [AgentChange.ATTESTED]
    assert change(spire_agent(), spire_agent(OTHER, banned=True)) == [AgentChange.BANNED]
    assert change() == [AgentChange.EVICTED]
    assert change(spire_agent(selectors=frozenset())) == [AgentChange.REATTESTED]
    assert change(spire_agent(attestor="x509pop")) == [AgentChange.REATTESTED]
    banned = replace(before, agents={PARENT: spire_agent(banned=True)})
    assert list(changed_agents(banned, before)) == [
        ChangedAgent(PARENT, AgentChange.UNBANNED, "k8s_psat")
    ]


# --- What is kept of the server's records, and how its dates become boot time

MOMENT = Moment(boottime_ns=50 * S, wall_ns=1_000 * S)
OURS = f"spiffe://{TD}/gpuwarden/"


def selectors(*texts: str) -> list[pb.Selector]:
    return [pb.Selector(type=x.partition(":")[0], value=x.partition(":")[2]) for x in texts]


def agent(*texts: str) -> pb.Agent:
    return pb.Agent(
        id=pb.SPIFFEID(trust_domain=TD, path="/spire/agent/x509pop/1"),
        attestation_type="x509pop",
        x509svid_serial_number="12",
        x509svid_expires_at=1_060,
        selectors=selectors(*texts),
        banned=True,
    )


def entry(path: str = "/gpuwarden/agent/gpu-1", expires_at: int = 0, *texts: str) -> pb.Entry:
    return pb.Entry(
        id="e",
        spiffe_id=pb.SPIFFEID(trust_domain=TD, path=path),
        parent_id=pb.SPIFFEID(trust_domain=TD, path="/spire/agent/x509pop/1"),
        selectors=selectors(*texts),
        admin=True,
        downstream=True,
        expires_at=expires_at,
    )


def test_of_an_agent_the_selectors_that_name_its_node_are_kept() -> None:
    naming = ("x509pop:san:node-name:gpu-1", "x509pop:san:node-uid:u")
    found = read_agent(
        agent(*naming, "x509pop:subject:cn:x", "k8s_psat:agent_node_label:a:b"), MOMENT
    )
    assert found.selectors == set(naming)
    assert found.agent_id == f"spiffe://{TD}/spire/agent/x509pop/1"
    assert (found.attestor, found.serial, found.banned) == ("x509pop", "12", True)


def test_dates_are_counted_from_the_moment_of_the_question() -> None:
    assert read_agent(agent(), MOMENT).expires_ns == 110 * S
    ((one,),) = read_entries([entry(expires_at=990)], OURS, MOMENT).values()
    assert one.expires_ns == 40 * S
    ((one,),) = read_entries([entry()], OURS, MOMENT).values()
    assert one.expires_ns == FOREVER_NS


def test_only_our_own_entries_are_kept() -> None:
    found = read_entries(
        [
            entry(),
            entry("/gpuwardens/agent/x"),
            entry("/ns/a/sa/b"),
            entry("/gpuwarden/controller"),
        ],
        OURS,
        MOMENT,
    )
    assert set(found) == {f"{OURS}agent/gpu-1", f"{OURS}controller"}
    (one,) = found[f"{OURS}agent/gpu-1"]
    assert (one.admin, one.downstream) == (True, True)
    assert one.parent_id == f"spiffe://{TD}/spire/agent/x509pop/1"


def test_a_record_with_too_many_or_too_long_selectors_shows_none_of_them() -> None:
    name = "x509pop:san:node-name:gpu-1"
    many = [f"x509pop:ca:fingerprint:{n}" for n in range(MAX_SELECTORS)]
    assert read_agent(agent(name, *many[1:]), MOMENT).selectors == {name}
    assert read_agent(agent(name, *many), MOMENT).selectors == set()
    long = "unix:path:" + "x" * MAX_TEXT
    ((one,),) = read_entries(
        [entry("/gpuwarden/agent/a", 0, "unix:uid:0", long)], OURS, MOMENT
    ).values()
    assert one.selectors == {"unix:uid:0"}


def test_default_rules_are_of_attestors_that_name_their_node() -> None:
    assert DEFAULT_SELECTORS.keys() <= ATTESTORS.keys()
    assert tuple(ATTESTORS) == NAMEABLE, "what a policy may name"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (IMAGE, IMAGE),
        (f"registry.example:5000/a/b@{IMAGE}", IMAGE),
        (f"registry.example/a:v1@{IMAGE}", IMAGE),
        ("registry.example/a:v1", None),
        (IMAGE.upper(), None),
        (f"{IMAGE}0", None),
        (f"x {IMAGE}", None),
        ("", None),
    ],
)
def test_images_count_by_digest(reference: str, expected: str | None) -> None:
    assert image_digest(reference) == expected


def test_digests_of_an_entry_are_those_of_the_container() -> None:
    assert digests_of(spire_entry()) == {IMAGE}
    assert digests_of(spire_entry(selectors=frozenset({f"k8s:pod-image:{IMAGE}"}))) == set()
