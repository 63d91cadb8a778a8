"""Whether a DaemonSet's pods go to a node, and what brings SPIRE's agents to GPU nodes."""

import json
import shlex
from typing import Any

import pytest

from gpuwarden.doctor.check import Outcome
from gpuwarden.doctor.daemon_sets import left_out, selects, untolerated
from gpuwarden.doctor.facts import DAEMON_SETS, NODES, Fact, Facts
from sandbox.kube.json_patch import applied
from tests.builders.doctor_facts import added, changed, without
from tests.builders.doctor_faults import FAILED, labelled, selecting, spec, tolerating, verdict

GPU = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(*taints: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "n", "labels": labels}, "spec": {"taints": list(taints)}}


@pytest.mark.parametrize(
    ("toleration", "is_enough"),
    [
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Equal", "value": "true"}, False),
        ({"key": "nvidia.com/gpu"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Gt", "value": "7"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Equal"}, False),
    ],
)
def test_what_tolerates_a_taint(toleration: dict[str, str], is_enough: bool) -> None:
    """As in k8s.io/api core/v1, Toleration."""
    found = untolerated(
        {"tolerations": [{"key": "x", "operator": "Exists"}, toleration]}, node(GPU)
    )
    assert found == ([] if is_enough else ["nvidia.com/gpu:NoSchedule"])


def test_which_taints_keep_a_daemon_set_off() -> None:
    passing = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    soft = {"key": "a", "effect": "PreferNoSchedule"}
    hard = {"key": "b", "effect": "NoExecute"}
    assert untolerated({}, node(passing, soft, hard)) == ["b:NoExecute"]
    assert untolerated({}, {"metadata": {"name": "n"}}) == []


def test_labels_select() -> None:
    assert selects({"nodeSelector": {"pool": "a"}}, node(pool="a"))
    assert not selects({"nodeSelector": {"pool": "a"}}, node(pool="b"))


def test_one_of_several_daemon_sets_is_enough(sound: Facts) -> None:
    (spire,) = (x for x in sound.all(DAEMON_SETS) if x["metadata"]["name"] == "spire-agent")
    other = {**spire, "metadata": {"name": "spire-agent-gpu", "namespace": "spire-system"}}
    facts = changed(sound, DAEMON_SETS, "spire-agent", tolerating())
    assert left_out(facts, facts.all(NODES)) is not None
    assert left_out(added(facts, DAEMON_SETS, other), facts.all(NODES)) is None


def test_spire_is_known_by_its_image_too(sound: Facts) -> None:
    facts = changed(
        sound, DAEMON_SETS, "spire-agent", lambda x: x["metadata"].update(name="acme-agent")
    )
    assert verdict("spire-installed", facts).seen == "DaemonSet acme-agent"


def test_nothing_is_said_of_a_spire_that_is_not_seen(sound: Facts) -> None:
    nodes = sound.all(NODES)
    assert left_out(without(sound, DAEMON_SETS, "spire-agent"), nodes) is None
    assert left_out(Facts(version_here="1", objects={DAEMON_SETS: Fact()}), nodes) is None


def test_a_node_without_gpus_or_agents_needs_no_spire_agent(sound: Facts) -> None:
    facts = changed(sound, DAEMON_SETS, "spire-agent", tolerating())
    facts = changed(facts, NODES, "gpu-a1", spec(taints=[]))
    facts = changed(facts, NODES, "gpu-a2", labelled(**{"gpuwarden.dev/agent": "off"}))
    facts = added(facts, NODES, {**node(GPU), "metadata": {"name": "cpu-1"}})
    assert verdict("spire-installed", facts).outcome is Outcome.PASSED


def test_only_nodes_that_the_taint_keeps_agents_off_are_named_with_it(sound: Facts) -> None:
    facts = changed(sound, DAEMON_SETS, "spire-agent", tolerating())
    facts = changed(facts, DAEMON_SETS, "spire-agent", selecting(pool="a"))
    facts = changed(facts, NODES, "gpu-a1", labelled(pool="a"))
    assert verdict("spire-installed", facts).seen.startswith("no SPIRE agent on gpu-a1: ")


# --- what repairs it


def test_the_patch_lets_agents_go_everywhere(sound: Facts) -> None:
    facts = changed(sound, DAEMON_SETS, "spire-agent", tolerating({"key": "a"}))
    found = verdict("spire-installed", facts)
    *start, patch = shlex.split(found.command)
    assert start == [
        *("kubectl", "-n", "spire-system", "patch", "daemonset", "spire-agent"),
        *("--type=json", "-p"),
    ]
    after = changed(
        facts, DAEMON_SETS, "spire-agent", lambda x: x.update(applied(x, json.loads(patch)))
    )
    assert verdict("spire-installed", after).outcome is Outcome.PASSED


def test_what_helm_has_installed_is_changed_by_helm(sound: Facts) -> None:
    """Names and labels of spiffe/helm-charts-hardened."""

    def by_helm(found: Any) -> None:
        found["metadata"]["labels"] = {"helm.sh/chart": "spire-agent-0.1.0"}
        found["metadata"]["annotations"] = {
            "meta.helm.sh/release-name": "spire",
            "meta.helm.sh/release-namespace": "spire-mgmt",
        }

    facts = changed(sound, DAEMON_SETS, "spire-agent", tolerating())
    facts = changed(facts, DAEMON_SETS, "spire-agent", by_helm)
    found = verdict("spire-installed", facts)
    assert found.outcome is FAILED
    assert found.command == (
        "helm upgrade spire CHART --namespace spire-mgmt --reuse-values"
        " --set 'spire-agent.tolerations[0].operator=Exists'"
    )
    assert "CHART is SPIRE's chart with --version" in found.expected
    other = changed(
        facts,
        DAEMON_SETS,
        "spire-agent",
        lambda x: x["metadata"].update(labels={"helm.sh/chart": "acme-1.0.0"}),
    )
    assert verdict("spire-installed", other).command.startswith("kubectl -n spire-system patch ")
