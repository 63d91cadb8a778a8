"""`gpuwarden doctor` on what the chart makes: its checks pass, whatever names its values give."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.doctor.catalog import INSTALLED
from gpuwarden.doctor.check import Result, judge
from gpuwarden.doctor.facts import NODES, Fact, Facts
from tests.builders.doctor_facts import changed, healthy
from tests.builders.doctor_faults import SEEN
from tests.chart.comparing import SAME
from tests.chart.rendering import NAMESPACE, annotations, render

ACME = {"scheduler": {"names": ["acme"]}}


def installed(folder: Path, values: dict[str, Any]) -> Facts:
    """A cluster with this release, without the objects of Helm's hooks."""
    found = [x for x in render({**SAME, **values}) if "helm.sh/hook" not in annotations(x)]
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
