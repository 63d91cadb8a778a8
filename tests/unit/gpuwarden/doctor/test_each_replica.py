"""What is said of several replicas, and of those that have not answered."""

import shlex
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpuwarden.doctor.catalog import INSTALLED
from gpuwarden.doctor.check import Outcome, Verdict, failed, judge, not_checked, passed, warned
from gpuwarden.doctor.each_replica import of_each
from gpuwarden.doctor.facts import NODES, Fact, Facts, Replica, Replicas, UnknownError
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.doctor_facts import (
    REPLICAS,
    added,
    measured,
    on_one,
    showing,
    standing,
    unheard,
)
from tests.builders.doctor_faults import CHECKS, Fault, listening, verdict
from tests.builders.doctor_faults_of_replicas import FAULTS
from tests.builders.fleet_messages import node_message

ASKS_A_REPLICA = {
    *("controller-ready", "controller-warnings", "versions", "store", "enforcement"),
    *("evaluation", "scorer", "spire-server", "spire-policy", "spire-entries", "svids"),
    *("evidence", "clocks", "driver", "webhooks-ca", "certificates", "api-server-certificate"),
    *("scheduler-certificate", "scheduler-extender", "log-available", "log-witnesses"),
}
BAD, LATE = failed("bad", "good", "gpuwarden status"), warned("late", "soon", "kubectl get pods")
NONE = not_checked("nothing there")


def known(*names: str, **more: tuple[object, ...]) -> Facts:
    asked = tuple(Replica(pb.GetStatusResponse(replica=x)) for x in names)
    return Facts(version_here="1", replicas=Fact(Replicas(asked, **more)))  # type: ignore[arg-type] # names


def judging(**verdicts: Verdict | str) -> Callable[[Replica], Verdict]:
    """By name of the replica; a text is why it is not known."""

    def judge_one(replica: Replica) -> Verdict:
        found = verdicts[replica.name]
        if isinstance(found, str):
            raise UnknownError(found)
        return found

    return judge_one


def test_what_holds_on_all_is_said_once() -> None:
    assert of_each(known("a", "b"), judging(a=BAD, b=BAD)) == BAD
    assert of_each(known("a"), judging(a=passed("ready"))) == passed("ready")


def test_where_they_differ_they_are_named() -> None:
    found = of_each(known("a", "b", "c"), judging(a=passed("1"), b=passed("2"), c=passed("1")))
    assert found == passed("a, c: 1; b: 2")


@pytest.mark.parametrize(
    ("first", "second", "outcome", "seen"),
    [
        (BAD, LATE, Outcome.FAILED, "a: bad"),
        (LATE, "lost", Outcome.WARNING, "a: late"),
        (passed("ready"), "lost", Outcome.NOT_CHECKED, "b: lost"),
        (passed("ready"), NONE, Outcome.PASSED, "a: ready"),
        (NONE, "lost", Outcome.NOT_CHECKED, "b: lost"),
        (NONE, NONE, Outcome.NOT_CHECKED, "nothing there"),
    ],
)
def test_the_worst_counts_and_what_is_not_known_never_passes(
    first: Verdict, second: Verdict | str, outcome: Outcome, seen: str
) -> None:
    for facts in (known("a", "b"), known("b", "a")):
        found = of_each(facts, judging(a=first, b=second))
        assert (found.outcome, found.seen) == (outcome, seen)


def test_a_command_of_ours_is_run_where_the_fault_is() -> None:
    found = of_each(known("a", "b"), judging(a=passed("ready"), b=BAD))
    assert found.command == "kubectl -n gpuwarden-system exec b -- gpuwarden status"
    found = of_each(known("a", "b"), judging(a=passed("ready"), b=LATE))
    assert found.command == LATE.command
    assert of_each(known("a", "b"), judging(a=BAD, b=BAD)).command == BAD.command
    found = of_each(known("a", "b"), judging(a=BAD, b=replace(BAD, seen="worse")))
    assert found.command == "kubectl -n gpuwarden-system exec a -- gpuwarden status"


def test_one_that_has_not_answered_is_not_spoken_for() -> None:
    facts = known("a", silent=(("b", "gone"),), elsewhere=("c",))
    found = of_each(facts, judging(a=passed("ready")))
    assert found == passed("a: ready; not asked: b, c")
    assert of_each(facts, judging(a=BAD)).seen == "a: bad"
    with pytest.raises(UnknownError, match="nobody answers"):
        of_each(Facts(version_here="1", replicas=Fact(why="nobody answers")), judging())


# --- of the checks


@pytest.mark.parametrize("name", sorted(ASKS_A_REPLICA))
def test_a_check_that_passes_says_which_replica_it_is_not_about(sound: Facts, name: str) -> None:
    for facts in (unheard(sound, silent="gone"), unheard(sound, elsewhere=True)):
        found = verdict(name, facts)
        assert found.outcome is Outcome.PASSED
        assert found.seen.endswith(f"; not asked: {REPLICAS[1]}")
    assert REPLICAS[1] not in verdict(name, sound).seen


def test_other_checks_do_not_change_without_a_replica(sound: Facts) -> None:
    facts = unheard(sound, elsewhere=True)
    for name in CHECKS.keys() - ASKS_A_REPLICA - {"controller-answers"}:
        assert verdict(name, facts) == verdict(name, sound), name


def test_replicas_to_which_no_way_leads_are_named(sound: Facts) -> None:
    assert verdict("controller-answers", sound) == passed(f"{', '.join(REPLICAS)} of cluster prod")
    assert verdict("controller-answers", unheard(sound, elsewhere=True)) == passed(
        f"{REPLICAS[0]} of cluster prod; not asked from here: {REPLICAS[1]}"
    )


def test_one_replica_that_was_asked_is_enough_for_the_extender(sound: Facts) -> None:
    facts = on_one(lambda x: measured(x, "gpuwarden_extender_requests_total", None))(sound)
    assert verdict("scheduler-extender", sound) == passed("30 requests")
    assert verdict("scheduler-extender", facts) == passed("15 requests")


def test_a_probe_of_the_extender_of_a_replica_is_no_fault(sound: Facts) -> None:
    """It closes its connection; the scheduler keeps its own to another replica."""
    facts = on_one(lambda x: measured(x, "gpuwarden_tls_handshakes_completed_total", None))(sound)
    assert verdict("scheduler-extender", facts) == passed("30 requests")


@pytest.mark.parametrize("name", ["api-server-certificate", "scheduler-certificate"])
def test_a_client_that_has_called_one_replica_is_known(sound: Facts, name: str) -> None:
    found = verdict(name, on_one(listening(client_ends=""))(sound))
    assert found.outcome is Outcome.PASSED
    assert found.seen.startswith(f"{REPLICAS[0]}: the ")


def test_programs_are_told_of_each_replica(sound: Facts) -> None:
    one = judge(INSTALLED, unheard(sound, silent="gone")).plain()["replicas"]
    assert one == [
        {"name": REPLICAS[0], "answers": True, "why": ""},
        {"name": REPLICAS[1], "answers": False, "why": "gone"},
    ]
    (_, other) = judge(INSTALLED, unheard(sound, elsewhere=True)).plain()["replicas"]
    assert other["why"] == "no way from here leads to it"
    assert judge(INSTALLED, replace(sound, replicas=Fact())).plain()["replicas"] == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda x: f"{x.check}: {x.seen[:30]}")
def test_no_command_is_about_the_replica_without_the_fault(sound: Facts, fault: Fault) -> None:
    assert REPLICAS[0] not in verdict(fault.check, fault.inject(sound)).command


def test_a_node_that_has_shown_gpus_to_one_replica_owes_them_to_all(sound: Facts) -> None:
    """Also one that has no label and no device plugin."""
    plain = {"metadata": {"name": "bare-1"}, "spec": {}, "status": {"capacity": {"cpu": "4"}}}
    nodes = sound.asked[0].fleet.get()
    facts = showing(added(sound, NODES, plain), *nodes, node_message("bare-1"))
    unknown = node_message("bare-1", state="unknown")
    facts = on_one(lambda x: showing(x, *nodes, unknown))(facts)
    found = verdict("evidence", facts)
    assert (found.outcome, found.seen) == (Outcome.FAILED, f"{REPLICAS[1]}: bare-1 is unknown")
    assert found.command == (
        f"kubectl -n gpuwarden-system exec {REPLICAS[1]} -- gpuwarden explain node bare-1"
    )


def test_a_shell_gives_kubectl_the_column_that_it_needs(sound: Facts) -> None:
    command = verdict("modes", standing(sound, mode="env")).command
    columns = "custom-columns=NAME:.metadata.name,GPUS:.status.capacity.nvidia\\.com/gpu"
    assert shlex.split(command) == ["kubectl", "get", "nodes", "-o", columns]
