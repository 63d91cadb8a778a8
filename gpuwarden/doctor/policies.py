"""Checks of the admission policies that the API server evaluates by itself. Pure."""

from typing import Final

from gpuwarden.doctor.check import Check, Group, Verdict, failed, not_checked, passed
from gpuwarden.doctor.facts import (
    ADMISSION_POLICIES,
    POLICIES,
    POLICY_BINDINGS,
    PROTECTION_POLICY,
    Facts,
)

_APPLY: Final = "kubectl apply -k deploy/policy"
_ON: Final = ("policies.enabled=true",)


def policies_are_bound(facts: Facts) -> Verdict:
    """Whether all of them are there and deny."""
    wrong = [text for name in POLICIES for text in _faults(facts, name)]
    if wrong:
        return failed("; ".join(wrong), "four policies that deny", facts.reapply(_APPLY, *_ON))
    return passed(f"{len(POLICIES)} policies")


def protection_is_bound(facts: Facts) -> Verdict:
    """Whether the policy behind `protection: cluster` is there."""
    wrong = _faults(facts, PROTECTION_POLICY)
    if all(one.status.protection != "cluster" for one in facts.asked):
        return not_checked("protection is namespaces")
    if wrong:
        command = facts.reapply(
            "kubectl apply -k deploy/policy/protection", *_ON, "protection.enabled=true"
        )
        return failed("; ".join(wrong), "the policy that protection: cluster declares", command)
    return passed(PROTECTION_POLICY)


def _faults(facts: Facts, name: str) -> list[str]:
    policy, binding = facts.named(ADMISSION_POLICIES, name), facts.named(POLICY_BINDINGS, name)
    if policy is None:
        return [f"{name} is missing"]
    wrong = []
    if policy["spec"].get("failurePolicy", "Fail") != "Fail":
        wrong.append(f"{name} has failurePolicy: {policy['spec']['failurePolicy']}")
    if binding is None or binding["spec"]["policyName"] != name:
        return [*wrong, f"{name} is not bound"]
    actions = binding["spec"].get("validationActions") or ()
    if "Deny" not in actions and not _reports(facts):
        wrong.append(f"{name} is bound with {', '.join(actions)}")
    if binding["spec"].get("matchResources"):
        wrong.append(f"the binding of {name} narrows it by matchResources")
    return wrong


def _reports(facts: Facts) -> bool:
    return all(one.status.enforcement == "report" for one in facts.asked)


POLICIES_GROUP: Final = Group(
    "policies",
    "Admission policies",
    (
        Check(
            "policies-bound",
            "the admission policies are bound and deny",
            "They protect annotations, labels and Bindings, also without a controller.",
            policies_are_bound,
            "policies.md#install",
        ),
        Check(
            "protection-bound",
            "the policy of protected nodes is bound",
            "For `protection: cluster`.",
            protection_is_bound,
            "policies.md#protection",
        ),
    ),
)
