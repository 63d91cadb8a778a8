"""`gpuwarden doctor` on what the chart makes: its checks pass, whatever names its values give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.doctor.catalog import INSTALLED
from gpuwarden.doctor.check import Result, judge
from gpuwarden.doctor.facts import DAEMON_SETS, NODES, SPIFFE_IDS, Fact, Facts
from tests.builders.doctor_facts import added, changed, healthy, without
from tests.builders.doctor_faults import (
    SEEN,
    by_operator,
    other_entries,
    released,
    verdict,
    without_svids,
)
from tests.chart.comparing import SAME
from tests.chart.rendering import NAMESPACE, annotations, render

ACME = {"scheduler": {"names": ["acme"]}}


def installed(folder: Path, values: dict[str, Any], *apis: str) -> Facts:
    """A cluster with this release, without the objects of Helm's hooks."""
    rendered = render({**SAME, **values}, apis=apis)
    found = [x for x in rendered if "helm.sh/hook" not in annotations(x)]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    return healthy(folder, [*found, namespace])


def bad(facts: Facts) -> list[Result]:
    report = judge(INSTALLED, facts)
    return [x for _, found in report.groups for x in found if x.verdict.outcome != "passed"]


def named(facts: Facts, scheduler: str) -> Facts:
    """The webhooks give pods this scheduler."""
    given = facts.asking_pod.get()
    pod = {**given.answer, "spec": {**given.answer["spec"], "schedulerName": scheduler}}
    return replace(facts, asking_pod=Fact(replace(given, answer=pod)))


@pytest.mark.parametrize(("values", "scheduler"), [({}, "gpuwarden"), (ACME, "acme")])
def test_the_checks_pass_on_what_the_chart_makes(
    values: dict[str, Any], scheduler: str, tmp_path: Path
) -> None:
    assert bad(named(installed(tmp_path, values), scheduler)) == []


def test_a_scheduler_that_nobody_is_given_is_found(tmp_path: Path) -> None:
    (found,) = bad(installed(tmp_path, ACME))
    assert (found.check.id, found.verdict.seen) == (
        "scheduler-configuration",
        "no profile gpuwarden",
    )


@pytest.mark.parametrize("label", SEEN)
def test_the_checks_pass_with_any_label_that_agents_go_by(label: str, tmp_path: Path) -> None:
    labels = {"kubernetes.io/os": "linux", label: "true"}
    facts = changed(
        installed(tmp_path, {}), NODES, None, lambda x: x["metadata"].update(labels=labels)
    )
    assert bad(facts) == []


@pytest.mark.parametrize("way", ["runtimeClass", "privileged", "nri"])
def test_the_toolkit_refuses_once_agents_need_no_variable(way: str, tmp_path: Path) -> None:
    facts = by_operator(installed(tmp_path, {"agent": {"gpuAccess": way}}))
    found = verdict("device-variables", facts)
    is_patch = found.command.startswith("kubectl patch clusterpolicy ")
    assert is_patch is (way != "runtimeClass"), found.command


def test_a_class_of_the_controller_manager_is_given_by_the_printed_value(tmp_path: Path) -> None:
    spire = "spire.spiffe.io/v1alpha1"
    other = other_entries("spire-mgmt-spire", namespacesSelected=9)
    facts = without_svids(added(installed(tmp_path, {}, spire), SPIFFE_IDS, other))
    command = verdict("spire-entries", released(facts)).command
    key, _, name = command.rpartition(" --set ")[2].partition("=")
    assert (key, name) == ("spire.className", "spire-mgmt-spire")
    after = installed(tmp_path, {"spire": {"className": name}}, spire)
    own = [x for x in after.all(SPIFFE_IDS) if x["metadata"]["name"].startswith("gpuwarden-")]
    assert {x["spec"]["className"] for x in own} == {name}
    assert {x["metadata"]["name"] for x in own} == {"gpuwarden-agent", "gpuwarden-controller"}


@pytest.mark.parametrize("taint", ["nvidia.com/gpu", "gpuwarden.dev/managed"])
def test_the_bundled_spire_goes_to_every_node(taint: str, tmp_path: Path) -> None:
    facts = without(installed(tmp_path, {"spire": {"mode": "bundled"}}), DAEMON_SETS, "spire-agent")
    taints = [{"key": taint, "effect": "NoExecute"}]
    facts = changed(facts, NODES, None, lambda x: x["spec"].update(taints=taints))
    found = verdict("spire-installed", facts)
    assert (found.outcome, found.seen) == ("passed", "DaemonSet gpuwarden-spire-agent")
