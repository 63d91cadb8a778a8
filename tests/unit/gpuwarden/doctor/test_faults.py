"""Each check finds its fault, says what repairs it, and passes on facts of shipped manifests."""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.doctor.catalog import INSTALLED, NOT_YET
from gpuwarden.doctor.check import Check, Outcome, Verdict, judge, passed
from gpuwarden.doctor.facts import (
    COLLECTIONS,
    CONFIG_MAPS,
    DAEMON_SETS,
    MUTATING,
    NODES,
    OPERATOR_POLICIES,
    PODS,
    POLICY_BINDINGS,
    SPIFFE_IDS,
    DryRun,
    Fact,
    Facts,
)
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.kube.json_patch import applied
from tests.builders.doctor_facts import (
    CONFIGURATION,
    added,
    changed,
    measured,
    on_one,
    reported,
    showing,
    standing,
    told,
    without,
)
from tests.builders.doctor_faults import (
    CHECKS,
    FAILED,
    NOT_CHECKED,
    UNPRIVILEGED,
    WARNING,
    Fault,
    agents_with,
    by_discovery,
    by_operator,
    cluster_policy,
    configured,
    discovered,
    entries,
    labelled,
    listening,
    other_entries,
    plugin,
    privileged,
    released,
    report,
    spec,
    toolkit,
    verdict,
    without_svids,
)
from tests.builders.doctor_faults_of_admission import FAULTS as OF_ADMISSION
from tests.builders.doctor_faults_of_clusters import FAULTS as OF_CLUSTERS
from tests.builders.doctor_faults_of_nodes import FAULTS as OF_NODES
from tests.builders.doctor_faults_of_nodes import PAUSED
from tests.builders.doctor_faults_of_replicas import FAULTS as OF_REPLICAS
from tests.builders.fleet_messages import node_message

BEFORE = {one.id for group in NOT_YET for one in group.checks}
FAULTS = [*OF_CLUSTERS, *OF_NODES, *OF_ADMISSION, *OF_REPLICAS]


def test_all_checks_pass_on_the_manifests_that_are_shipped(sound: Facts, bare: Facts) -> None:
    for groups, facts in ((INSTALLED, sound), (NOT_YET, bare)):
        report = judge(groups, facts)
        bad = [x for _, found in report.groups for x in found if x.verdict.outcome != "passed"]
        assert bad == []
        assert report.is_success


# --- one fault for each check


@pytest.mark.parametrize("fault", FAULTS, ids=lambda x: f"{x.check}: {x.seen[:30]}")
def test_a_fault_is_found(fault: Fault, sound: Facts, bare: Facts) -> None:
    is_before = fault.check in BEFORE and fault.check not in _in_both()
    found = verdict(fault.check, fault.inject(bare if is_before else sound))
    assert found.outcome is fault.outcome, found
    assert re.search(fault.seen, found.seen), found.seen
    if found.outcome in {FAILED, WARNING}:
        assert found.expected
        assert re.match(
            "(kubectl|helm|gpuwarden|spire-server|openssl|chronyc|nvidia-ctk) ", found.command
        )
        words = shlex.shlex(found.command, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        assert not any(set(x) <= set("();<>|&\n") for x in words), "more than one command"
        is_endless = "rollout status" in found.command or "wait" in found.command.split()
        assert not is_endless or "--timeout=" in found.command


def _in_both() -> set[str]:
    return BEFORE & {one.id for group in INSTALLED for one in group.checks}


def test_every_check_has_a_fault_that_it_finds() -> None:
    found = {x.check for x in FAULTS if x.outcome in {FAILED, WARNING}}
    assert found == set(CHECKS)


def test_a_scheduler_that_is_turned_away_is_found(sound: Facts) -> None:
    facts = measured(sound, "gpuwarden_tls_handshakes_completed_total", None)
    facts = measured(facts, "gpuwarden_extender_requests_total", None)
    found = verdict("scheduler-extender", facts)
    seen = "1 on gpuwarden-controller-0, 1 on gpuwarden-controller-1; 0 requests in all"
    assert (found.outcome, found.seen) == (
        FAILED,
        f"TLS handshakes failed and none succeeded: {seen}",
    )


# --- what repairs it


UPGRADE = (
    "helm upgrade mine deploy/helm/gpuwarden --namespace gpuwarden-system --reset-then-reuse-values"
)
OF_KUSTOMIZE = re.compile(r"apply -[kf]|OVERLAY|\bscale\b|\bset env statefulset")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda x: f"{x.check}: {x.seen[:30]}")
def test_what_helm_has_installed_is_repaired_by_helm(
    fault: Fault, sound: Facts, bare: Facts
) -> None:
    """What kustomize applies would be another installation."""
    if fault.check in BEFORE and fault.check not in _in_both():
        assert not bare.release
        return
    found = verdict(fault.check, fault.inject(released(sound, "mine")))
    assert not OF_KUSTOMIZE.search(found.command), found.command
    if found.command.startswith("helm ") and fault.check != "namespace":
        assert " mine " in found.command
        assert " --namespace gpuwarden-system" in found.command


@pytest.mark.parametrize(
    ("check", "inject", "command"),
    [
        (
            "policies-bound",
            lambda x: without(x, POLICY_BINDINGS),
            f"{UPGRADE} --set policies.enabled=true",
        ),
        (
            "scheduler-configuration",
            configured("nodeCacheCapable: true", "nodeCacheCapable: false"),
            UPGRADE,
        ),
        (
            "spire-entries",
            lambda x: told(x, spire=pb.SpireServer(configured=True, unregistered=True)),
            "helm get notes mine --namespace gpuwarden-system",
        ),
    ],
)
def test_the_command_of_helm(
    check: str, inject: Callable[[Facts], Facts], command: str, sound: Facts
) -> None:
    assert verdict(check, inject(released(sound, "mine"))).command == command


def test_the_class_of_the_controller_manager_is_read_where_it_is_seen(sound: Facts) -> None:
    """SPIRE's Helm charts always give it one, and ClusterSPIFFEIDs that have it."""
    facts = without_svids(added(sound, SPIFFE_IDS, *entries()))
    found = verdict("spire-entries", released(facts, "mine"))
    assert found.command == f"{UPGRADE} --set spire.className=CLASS"
    assert "get configmap RELEASE-controller-manager -o yaml | grep className" in found.expected
    seen = added(facts, SPIFFE_IDS, other_entries("spire-mgmt-spire", namespacesSelected=9))
    found = verdict("spire-entries", released(seen, "mine"))
    assert found.command == f"{UPGRADE} --set spire.className=spire-mgmt-spire"
    assert shlex.split(verdict("spire-entries", seen).command) == [
        *("kubectl", "patch", "clusterspiffeids", "gpuwarden-agent", "gpuwarden-controller"),
        *("--type=merge", "-p", '{"spec":{"className":"spire-mgmt-spire"}}'),
    ]
    two = added(seen, SPIFFE_IDS, other_entries("other", namespacesSelected=1))
    assert "=CLASS" in verdict("spire-entries", released(two, "mine")).command
    ignored = added(facts, SPIFFE_IDS, other_entries("old"))
    assert "=CLASS" in verdict("spire-entries", released(ignored, "mine")).command


def test_the_right_class_is_not_asked_for_again(sound: Facts) -> None:
    facts = without_svids(added(sound, SPIFFE_IDS, *entries(class_name="spire")))
    found = verdict("spire-entries", released(facts, "mine"))
    assert found.seen.startswith("with className spire, no SPIRE controller manager handles ")
    facts = added(facts, SPIFFE_IDS, other_entries("spire", namespacesSelected=9))
    found = verdict("spire-entries", released(facts, "mine"))
    assert found.seen.endswith(": no counts in its status")
    assert (
        found.command == "kubectl get clusterspiffeids gpuwarden-agent gpuwarden-controller -o yaml"
    )


@pytest.mark.parametrize("replicas", [True, False])
def test_ignored_entries_are_found_also_where_no_controller_answers(
    replicas: bool, sound: Facts
) -> None:
    facts = without_svids(added(sound, SPIFFE_IDS, *entries()))
    facts = facts if replicas else replace(facts, replicas=Fact(why="no controller answers you"))
    assert verdict("spire-entries", facts).outcome is FAILED


def test_what_the_server_misses_counts_although_old_svids_are_valid(sound: Facts) -> None:
    facts = added(sound, SPIFFE_IDS, *entries())
    assert verdict("spire-entries", facts).outcome is Outcome.PASSED, "registered by hand"
    unregistered = pb.SpireServer(configured=True, unregistered=True)
    for worse in (
        told(facts, spire=unregistered),
        standing(facts, state="revoked", code="SPIRE_ENTRY_NOT_FOUND"),
    ):
        assert verdict("spire-entries", worse).seen.startswith("with no className, ")


def test_an_ignored_entry_that_is_an_administrators_says_so(sound: Facts) -> None:
    found = entries()
    found[1]["spec"]["admin"] = True
    facts = without_svids(added(sound, SPIFFE_IDS, *found))
    assert "gpuwarden-controller, which has admin: true" in verdict("spire-entries", facts).seen


def test_entries_that_the_server_refuses_are_none(sound: Facts) -> None:
    counts: Any = {"namespacesSelected": 1, "podsSelected": 2, "entriesToSet": 2}
    good = without_svids(added(sound, SPIFFE_IDS, *entries(**counts)))
    assert verdict("spire-entries", good).seen == "the SPIRE server does not answer: no SVID"
    bad = without_svids(added(sound, SPIFFE_IDS, *entries(**counts, entryFailures=2)))
    assert verdict("spire-entries", bad).seen.endswith(
        "gpuwarden-agent: entriesToSet 2, entryFailures 2, namespacesSelected 1, podsSelected 2"
    )


def test_without_pods_there_need_be_no_entries(sound: Facts) -> None:
    facts = without_svids(added(sound, SPIFFE_IDS, *entries(namespacesSelected=1)))
    facts = without(facts, PODS)
    assert verdict("spire-entries", facts).seen == "the SPIRE server does not answer: no SVID"


# --- what is not a fault


def test_report_mode_is_no_fault_of_webhooks_and_policies(sound: Facts) -> None:
    facts = report(sound)
    for name in ("gpuwarden-pods", "gpuwarden-bindings"):
        facts = changed(
            facts,
            MUTATING,
            name,
            lambda y: [x.update(failurePolicy="Ignore") for x in y["webhooks"]],
        )
    facts = changed(facts, POLICY_BINDINGS, None, spec(validationActions=["Warn", "Audit"]))
    for check in ("webhooks-registered", "policies-bound", "protection-bound"):
        assert verdict(check, facts).outcome is Outcome.PASSED, check


def test_what_an_extender_is_by_default_need_not_be_said(sound: Facts) -> None:
    for text in ("    ignorable: false\n", "    httpTimeout: 5s\n"):
        found = verdict("scheduler-configuration", configured(text, "")(sound))
        assert found.outcome is Outcome.PASSED, text


def test_a_scheduler_has_the_name_that_pods_are_given(sound: Facts) -> None:
    facts = configured("schedulerName: gpuwarden", "schedulerName: acme")(sound)
    assert verdict("scheduler-configuration", facts).seen == "no profile gpuwarden"
    given = sound.asking_pod.get()
    named = {**given.answer, "spec": {**given.answer["spec"], "schedulerName": "acme"}}
    facts = replace(facts, asking_pod=Fact(DryRun(201, named)))
    assert verdict("scheduler-configuration", facts).outcome is Outcome.PASSED
    assert verdict("scheduler-configuration", replace(facts, asking_pod=Fact())).outcome == "passed"


def test_agents_may_go_by_the_labels_of_node_feature_discovery(sound: Facts, bare: Facts) -> None:
    facts = changed(
        sound,
        NODES,
        "gpu-a2",
        lambda x: x["metadata"].update(discovered("")["metadata"], name="gpu-a2"),
    )
    assert verdict("gpu-nodes", facts).outcome is Outcome.FAILED
    found = verdict("gpu-nodes", by_discovery(facts))
    assert (found.outcome, found.seen) == (Outcome.PASSED, "2 nodes")
    found = verdict(
        "gpu-nodes", replace(bare, objects={**bare.objects, NODES: facts.objects[NODES]})
    )
    assert (found.outcome, found.seen) == (WARNING, "node-feature-discovery's label alone: gpu-a2")


@pytest.mark.parametrize(
    ("operator", "values", "outcome"),
    [
        ("In", ["true"], Outcome.PASSED),
        ("NotIn", ["true"], Outcome.FAILED),
        ("Exists", None, Outcome.PASSED),
        ("DoesNotExist", None, Outcome.FAILED),
        ("Gt", ["5"], Outcome.PASSED),
    ],
)
def test_an_affinity_of_ones_own_is_read(
    operator: str, values: list[str] | None, outcome: Outcome, sound: Facts
) -> None:
    wanted = {"key": "nvidia.com/gpu.present", "operator": operator, "values": values}

    def inject(found: Any) -> None:
        affinity = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
        (terms,) = affinity.values()
        terms["nodeSelectorTerms"] = [{"matchExpressions": [wanted]}]

    facts = changed(by_discovery(sound), DAEMON_SETS, "gpuwarden-agent", inject)
    assert verdict("gpu-nodes", facts).outcome is outcome


@pytest.mark.parametrize("labels", [{"gpuwarden.dev/agent": "off"}, PAUSED], ids=["off", "paused"])
def test_nothing_is_wanted_of_a_node_that_a_label_keeps_agents_off(
    sound: Facts, labels: dict[str, str]
) -> None:
    """Not its agent, and not its evidence once the lease has ended."""
    away = without(sound, PODS, "gpuwarden-agent-gpu-a2")
    away = showing(away, node_message("gpu-a1"), node_message("gpu-a2", state="stale"))
    assert {verdict(x, away).outcome for x in ("agents", "evidence")} == {FAILED}
    found = changed(away, NODES, "gpu-a2", labelled(**labels))
    assert verdict("agents", found).seen == "on 1 node"
    assert verdict("evidence", found).seen.startswith("1 node, for ")


def test_nobody_wants_evidence_of_a_node_without_gpus(sound: Facts) -> None:
    plain = {"metadata": {"name": "cpu-1"}, "spec": {}, "status": {"capacity": {"cpu": "4"}}}
    other = node_message("cpu-1", state="unknown", code="NODE_NO_EVIDENCE", mode="plugin")
    nodes = (*sound.asked[0].fleet.get(), other)
    facts = showing(added(sound, NODES, plain), *nodes)
    for check in ("evidence", "modes", "protection", "agents", "clocks", "driver"):
        assert verdict(check, facts) == verdict(check, sound), check


def test_two_weeks_are_enough_for_a_client_certificate(sound: Facts) -> None:
    facts = listening(client_ends="2026-03-15T12:00:00Z")(sound)
    assert verdict("api-server-certificate", facts).outcome is Outcome.PASSED


def test_an_api_server_that_stops_to_answer_is_found(sound: Facts) -> None:
    found = verdict("kubernetes-api", replace(sound, api_error="no answer in time"))
    assert (found.outcome, found.seen) == (FAILED, "no answer in time")


def test_each_profile_has_to_be_without_preemption(sound: Facts) -> None:
    text = (Path(__file__).parents[4] / "deploy/scheduler/no-preemption.yaml").read_text()
    assert text.count("- name: DefaultPreemption") == 2
    one = text.replace("- name: DefaultPreemption", "- name: Other", 1)
    facts = changed(
        sound, CONFIG_MAPS, CONFIGURATION, lambda y: y["data"].update({"configuration.yaml": one})
    )
    found = verdict("scheduler-configuration", facts)
    assert found.seen == "preemptVerb is missing, and a profile has DefaultPreemption"


def test_a_scheduler_without_preemption_is_as_good(sound: Facts) -> None:
    text = (Path(__file__).parents[4] / "deploy/scheduler/no-preemption.yaml").read_text()
    facts = changed(
        sound, CONFIG_MAPS, CONFIGURATION, lambda y: y["data"].update({"configuration.yaml": text})
    )
    assert verdict("scheduler-configuration", facts).outcome is Outcome.PASSED


def test_a_toolkit_that_takes_no_variables_makes_up_for_the_device_plugin(sound: Facts) -> None:
    facts = added(sound, DAEMON_SETS, plugin("cdi-cri"), toolkit("False"))
    assert verdict("device-variables", facts).outcome is Outcome.PASSED


def test_the_operators_own_default_fails_nothing_before_the_installation(bare: Facts) -> None:
    """A check before the installation knows no controllers that protect nodes."""
    found = verdict("device-variables", by_operator(replace(bare, replicas=Fact())))
    assert found.outcome is WARNING
    assert "and agent.gpuAccess=privileged" in found.expected
    assert found.command.startswith("kubectl patch clusterpolicy cluster-policy --type=json -p ")


def test_agents_get_another_way_to_the_gpus_before_the_toolkit_refuses(sound: Facts) -> None:
    facts = by_operator(sound)
    first = verdict("device-variables", released(facts, "mine"))
    assert first.command == f"{UPGRADE} --set agent.gpuAccess=privileged"
    assert "without which they lose the GPUs" in first.expected
    assert verdict("device-variables", facts).command == "kubectl apply -k OVERLAY"
    for ready in (
        privileged(facts),
        changed(facts, DAEMON_SETS, "gpuwarden-agent", agents_with(privileged=True)),
        changed(facts, DAEMON_SETS, "gpuwarden-agent", _without_variables),
    ):
        then = verdict("device-variables", ready)
        assert then.outcome is FAILED
        assert then.command.startswith("kubectl patch clusterpolicy cluster-policy ")
        assert "gpuAccess" not in then.expected


def _without_variables(found: Any) -> None:
    """As with the ways by CDI and NRI."""
    (container,) = found["spec"]["template"]["spec"]["containers"]
    container["env"] = [x for x in container["env"] if x["name"] != "NVIDIA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    "toolkit_has",
    [
        {},
        {"toolkit": {}},
        {"toolkit": {"NVIDIA_RUNTIME_SET_AS_DEFAULT": "true"}},
        {"toolkit": {"A": "1", UNPRIVILEGED: "true", "B": "it's"}},
    ],
)
def test_the_patch_of_the_cluster_policy_keeps_what_else_it_has(
    toolkit_has: dict[str, dict[str, str]], sound: Facts
) -> None:
    facts = privileged(by_operator(sound, **toolkit_has))
    found = verdict("device-variables", facts)
    *start, patch = shlex.split(found.command)
    assert start == ["kubectl", "patch", "clusterpolicy", "cluster-policy", "--type=json", "-p"]
    (policy,) = facts.all(OPERATOR_POLICIES)
    after = applied(policy, json.loads(patch))
    env = [(x["name"], x["value"]) for x in after["spec"]["toolkit"]["env"]]
    wanted = {**toolkit_has.get("toolkit", {}), UNPRIVILEGED: "false"}
    assert env == list(wanted.items()), "in their order, each once"
    done = replace(facts, objects={**facts.objects, OPERATOR_POLICIES: Fact((after,))})
    done = changed(done, DAEMON_SETS, "toolkit", lambda x: x.update(toolkit("false")))
    assert verdict("device-variables", done).outcome is Outcome.PASSED


def test_without_the_operator_the_daemon_set_is_changed(sound: Facts) -> None:
    facts = privileged(added(sound, DAEMON_SETS, plugin("cdi-cri"), toolkit(None)))
    command = f"kubectl set env daemonset/toolkit -n gpu-operator {UNPRIVILEGED}=false"
    assert verdict("device-variables", facts).command == command
    off = cluster_policy()
    off["spec"]["toolkit"] = {"enabled": False, "env": [{"name": UNPRIVILEGED, "value": "false"}]}
    found = verdict("device-variables", added(facts, OPERATOR_POLICIES, off))
    assert (found.outcome, found.command) == (FAILED, command)


def test_no_command_takes_the_variable_from_nodes_that_need_it(sound: Facts) -> None:
    for facts in (by_operator(sound), added(sound, DAEMON_SETS, plugin("cdi-cri"))):
        found = verdict("device-variables", standing(privileged(facts), mode="env"))
        assert found.command == "gpuwarden nodes -o wide"
        assert "nodes of mode env need the variables" in found.expected


def test_a_device_plugin_that_also_sets_the_variable_is_no_fault(sound: Facts) -> None:
    facts = added(sound, DAEMON_SETS, plugin("envvar,cdi-cri"))
    assert verdict("device-variables", facts).outcome is Outcome.PASSED


# --- what is not known never passes


@pytest.mark.parametrize("groups", [INSTALLED, NOT_YET])
def test_without_facts_no_check_passes(groups: Any) -> None:
    report = judge(groups, Facts(version_here="0.1.0"))
    assert not report.count(Outcome.PASSED)
    assert not report.is_success


@pytest.mark.parametrize("name", ["now", "server", "served", "replicas", "logs"])
def test_a_check_that_lacks_a_fact_is_not_made(sound: Facts, name: str) -> None:
    lost: Any = {name: Fact(why="it was lost")}
    lacking = replace(sound, **lost)
    changed_checks = _changed(sound, lacking)
    assert changed_checks
    for found in changed_checks.values():
        assert found.outcome in {NOT_CHECKED, FAILED}
        assert found.seen == "it was lost"


@pytest.mark.parametrize("name", ["fleet", "metrics"])
def test_a_check_that_lacks_a_fact_of_one_replica_is_not_made(sound: Facts, name: str) -> None:
    lost: Any = {name: Fact(why="it was lost")}
    lacking = on_one(lambda x: reported(x, lambda y: replace(y, **lost)))(sound)
    found = _changed(sound, lacking)
    if name == "metrics":
        extender = found.pop("scheduler-extender")
        assert extender == passed("15 requests; not of gpuwarden-controller-1: it was lost")
    assert found
    assert {x.outcome for x in found.values()} == {NOT_CHECKED}
    by_nodes = {"modes", "protection"}
    assert {x: y.seen for x, y in found.items()} == {
        x: "it was lost" if x in by_nodes else "gpuwarden-controller-1: it was lost" for x in found
    }
    worse = told(lacking, not_ready="svid: none")
    assert verdict("controller-ready", worse).outcome is FAILED


@pytest.mark.parametrize("collection", COLLECTIONS)
def test_a_check_that_lacks_objects_is_not_made(sound: Facts, bare: Facts, collection: Any) -> None:
    everything: dict[str, Verdict] = {}
    for facts in (sound, bare):
        objects = {**facts.objects, collection: Fact(why="you may not read it")}
        everything |= _changed(facts, replace(facts, objects=objects))
    assert everything
    assert {(x.outcome, x.seen) for x in everything.values()} == {
        (NOT_CHECKED, "you may not read it")
    }


def _changed(before: Facts, after: Facts) -> dict[str, Verdict]:
    return {
        name: verdict(name, after)
        for name in CHECKS
        if verdict(name, before).outcome is Outcome.PASSED
        and verdict(name, before) != verdict(name, after)
    }


def test_checks_are_called_by_stable_names() -> None:
    names = [one.id for group in INSTALLED for one in group.checks]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[a-z]+(-[a-z0-9]+)*", x) for x in names)
    shared = [x for x in names if x in BEFORE]
    of = {one.id: one for group in NOT_YET for one in group.checks}
    assert all(isinstance(of[x], Check) and of[x] is CHECKS[x] for x in shared)
