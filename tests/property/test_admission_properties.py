"""Whatever a pod looks like: patches apply, are idempotent, touch nothing else, widen nothing."""

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.admission.gpu_supply import CUDA, NVIDIA
from controller.placement.keys import REQUIREMENT_ANNOTATIONS, RequirementRules
from controller.placement.requirements import RequirementsInvalid, parse_requirements
from gpuwarden.reasons import ReasonCode
from tests.builders.admitted_pods import admitted, documents, mutate, new_pod, patched, validate
from tests.builders.pods import GPU_RESOURCE
from tests.golden.admission import admission_patches

NAMES = st.sampled_from([CUDA, NVIDIA, "MODE", "PATH", "NVIDIA_MIG_CONFIG_DEVICES"])
ENTRIES = st.one_of(
    st.fixed_dictionaries(
        {"name": NAMES}, optional={"value": st.sampled_from(["", "void", "none", "all", "GPU-a"])}
    ),
    st.builds(lambda name: {"name": name, "valueFrom": {"secretKeyRef": {}}}, NAMES),
    st.sampled_from(
        [
            entry
            for case in admission_patches()
            if case["name"] == "all there already"
            for entry in case["pod"]["spec"]["containers"][0]["env"]
        ]
    ),
)
CONTAINERS = st.fixed_dictionaries(
    {"name": st.text("abc", min_size=1, max_size=3)},
    optional={
        "env": st.one_of(st.none(), st.lists(ENTRIES, max_size=5)),
        "envFrom": st.lists(
            st.fixed_dictionaries({}, optional={"prefix": st.sampled_from(["", "N", "X_"])}),
            max_size=2,
        ),
        "resources": st.sampled_from(
            [
                {"limits": {GPU_RESOURCE: "1"}},
                {"requests": {GPU_RESOURCE: 0}},
                {"claims": [{"name": "c"}]},
                {"limits": {GPU_RESOURCE: "x"}},
            ]
        ),
        "restartPolicy": st.just("Always"),
        "unknown": st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    },
)
TOLERATIONS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.sampled_from(["", "gpuwarden.dev/managed", "a"]),
        "operator": st.sampled_from(["Exists", "Equal"]),
        "effect": st.sampled_from(["NoExecute", "NoSchedule", ""]),
        "tolerationSeconds": st.integers(0, 9),
    },
)
REQUIREMENTS = st.dictionaries(
    st.sampled_from(sorted({*REQUIREMENT_ANNOTATIONS, "other", "a/b~c", "gpuwarden.dev/node"})),
    st.sampled_from(["GPU-a", "L0", "set", "0=n:0", "admission", "1", "", "memory>=1Gi", "é"]),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    pod = new_pod(*draw(st.lists(CONTAINERS, min_size=1, max_size=3)))
    if draw(st.booleans()):
        pod["metadata"]["annotations"] = draw(st.one_of(st.none(), REQUIREMENTS))
    if draw(st.booleans()):
        pod["spec"]["initContainers"] = draw(st.lists(CONTAINERS, max_size=2))
    if draw(st.booleans()):
        pod["spec"]["tolerations"] = draw(st.one_of(st.none(), st.lists(TOLERATIONS, max_size=3)))
    scheduler = draw(st.sampled_from([None, "", "default-scheduler", "gpuwarden", "other"]))
    pod["spec"]["schedulerName"] = scheduler
    return pod


@settings(max_examples=300)
@given(pod=pods(), enforced=st.booleans())
def test_a_patch_applies_and_then_there_is_none(pod: dict[str, Any], enforced: bool) -> None:
    stored = patched(pod, enforced=enforced)
    again = mutate(stored, enforced=enforced)
    first = mutate(pod, enforced=enforced).refusals
    assert (again.patch, again.refusals) == ((), first)
    if not first:
        found = validate(stored, enforced=enforced).refusals
        assert ReasonCode.BYPASS_UNINJECTED not in {x.code for x in found}


@settings(max_examples=300)
@given(pod=pods(), enforced=st.booleans())
def test_nothing_else_is_touched(pod: dict[str, Any], enforced: bool) -> None:
    before, after = copy.deepcopy(pod), patched(pod, enforced=enforced)
    for each in (before, after):
        each["spec"].pop("schedulerName", None)
        each["spec"]["tolerations"] = [
            x for x in each["spec"].get("tolerations") or [] if x not in _added(pod, enforced)
        ]
        for field in ("containers", "initContainers"):
            for one in each["spec"].get(field, []):
                one["env"] = [x for x in one.get("env") or [] if x["name"] not in {CUDA, NVIDIA}]
    assert before == after


def _added(pod: dict[str, Any], enforced: bool) -> list[Any]:
    patch = documents(mutate(pod, enforced=enforced).patch)
    found = [x["value"] for x in patch if "/tolerations" in x["path"]]
    return [each for value in found for each in (value if isinstance(value, list) else [value])]


@settings(max_examples=300)
@given(pod=pods(), enforced=st.booleans())
def test_a_patch_never_changes_what_the_pod_asks_for(pod: dict[str, Any], enforced: bool) -> None:
    rules = RequirementRules()
    asked = parse_requirements(admitted(pod), rules, enforced=enforced)
    stored = admitted(patched(pod, enforced=enforced))
    assert parse_requirements(stored, rules, enforced=enforced) == asked
    if isinstance(asked, RequirementsInvalid):
        assert ReasonCode.REQ_INVALID in {x.code for x in mutate(pod, enforced=enforced).refusals}
        assert mutate(pod, enforced=enforced).patch == ()


@settings(max_examples=300)
@given(pod=pods(), enforced=st.booleans())
def test_no_container_of_a_managed_pod_is_left_to_its_image(
    pod: dict[str, Any], enforced: bool
) -> None:
    """What is let in has a variable of ours wherever kubelet gives no device."""
    stored = patched(pod, enforced=enforced)
    judged = validate(stored, enforced=enforced)
    if judged.refusals or not judged.concerned:
        return
    for field in ("containers", "initContainers"):
        for one in stored["spec"].get(field) or []:
            resources = one.get("resources", {})
            if resources.get("claims") or resources.get("limits", {}).get(GPU_RESOURCE) == "1":
                continue
            (entry,) = [x for x in one["env"] if x["name"] == NVIDIA]
            assert entry.get("value") == "void" or "gpu-uuids-assigned" in str(entry["valueFrom"])


@settings(max_examples=200)
@given(pod=pods())
def test_to_enforce_never_lets_more_in(pod: dict[str, Any]) -> None:
    outside = validate(pod, enforced=False, injected=False).refusals
    inside = validate(pod, enforced=True, injected=False).refusals
    assert {x.code for x in outside} <= {x.code for x in inside}
