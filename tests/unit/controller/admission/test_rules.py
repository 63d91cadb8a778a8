"""What an installation configures about admission, and for which pods the API server asks."""

import pytest

from controller.admission.rules import AdmissionRules, asks_condition
from controller.placement.keys import RequirementRules


def test_what_an_installation_gets_that_configures_nothing() -> None:
    rules = AdmissionRules()
    assert rules.schedulers == (rules.scheduler_name,) == ("gpuwarden",)
    assert rules.runtime_classes == ("nvidia",)
    assert rules.by_affinity is False
    assert rules.host_paths == frozenset()
    assert rules.resources == ("nvidia.com/gpu",)


@pytest.mark.parametrize(
    ("rules", "only_enforced"),
    [
        (AdmissionRules(), False),
        (AdmissionRules(scheduler_name="default-scheduler"), True),
        (AdmissionRules(by_affinity=True), True),
        (AdmissionRules(by_affinity=True, scheduler_name="default-scheduler"), True),
    ],
    ids=["own scheduler", "the cluster's scheduler", "affinity", "both"],
)
def test_without_a_scheduler_of_our_own_only_enforced_namespaces_count(
    rules: AdmissionRules, *, only_enforced: bool
) -> None:
    assert rules.only_enforced is only_enforced


def test_further_schedulers_come_after_the_one_that_pods_are_sent_to() -> None:
    assert AdmissionRules(further_schedulers=("b", "c")).schedulers == ("gpuwarden", "b", "c")
    assert not AdmissionRules(further_schedulers=("default-scheduler",)).only_enforced


def test_the_managed_resources_are_those_of_the_requirements() -> None:
    mine = RequirementRules(managed_resources=("example.org/gpu", "example.org/mig"))
    assert AdmissionRules(mine).resources == ("example.org/gpu", "example.org/mig")


def test_the_api_server_asks_about_our_keys_and_about_pods_with_very_many() -> None:
    annotations = "object.metadata.?annotations.orValue({})"
    labels = "object.metadata.?labels.orValue({})"
    ours = (
        "(k.startsWith('gpuwarden.dev/') || k.startsWith('fudo.org/gpu.')"
        " || k in ['example.org/hash', 'gpu-scheduling-map'])"
    )
    hints = (
        "['gpuwarden.dev/batch-size', 'gpuwarden.dev/chosen-gpus', 'gpuwarden.dev/gpu-memory',"
        " 'gpuwarden.dev/job-type', 'gpuwarden.dev/tenant']"
    )
    assert asks_condition(RequirementRules(hash_keys=("example.org/hash",))) == (
        f"{annotations}.size() + {labels}.size() > 1000"
        f" || {annotations}.exists(k, {ours} && !(k in {hints}))"
        f" || {labels}.exists(k, {ours} && !(k in {hints}))"
    )
