"""Each bypass past us: what opens it, and what looks like it and does not."""

from typing import Any

import pytest

from controller.admission.bypass_checks import BYPASS_CHECKS, Case, is_device_list
from controller.admission.early_reservation import Granted
from controller.admission.rules import AdmissionRules
from controller.admission.validation import validated, validated_ephemeral
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements, parse_requirements
from controller.wiring.binding import admission_rules
from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.builders.admitted_pods import (
    LEVEL,
    UUIDS,
    admitted,
    codes,
    container,
    mutate,
    new_pod,
    patched,
    validate,
    variable,
)
from tests.builders.hostile_pods import (
    ALL,
    FIELD,
    HOST,
    HOSTILE,
    LIST,
    PRIVILEGED,
    with_,
)

CLOSED: list[dict[str, Any]] = [
    new_pod(),
    new_pod(container(gpus=1)),
    new_pod(annotations=UUIDS),
    with_("env", [variable("NVIDIA_DRIVER_CAPABILITIES", "all")]),
    with_("env", [variable("nvidia_visible_devices", "all")]),
    with_("env", [variable("NVIDIA_VISIBLE_DEVICES", "none")]),
    with_("env", [variable("CUDA_VISIBLE_DEVICES", "0")]),
    with_("env", [ALL], annotations=UUIDS),
    new_pod(container(gpus=1, env=[variable("NVIDIA_VISIBLE_DEVICES", "void")])),
    new_pod(container(gpus=1, env=[variable("CUDA_VISIBLE_DEVICES", "0")])),
    new_pod(container(gpus=1, envFrom=[{"prefix": "APP_", "configMapRef": {"name": "c"}}])),
    with_("envFrom", [{"configMapRef": {"name": "c"}}]),
    with_("envFrom", [{"configMapRef": {"name": "c"}}], annotations=UUIDS),
    new_pod(volumes=[{"name": "e", "emptyDir": {}}]),
    with_("volumeMounts", [{"name": "v", "mountPath": "/var/run/nvidia-container"}]),
    with_(
        "securityContext",
        {"privileged": False, "capabilities": {"add": ["NET_ADMIN", "SYS_PTRACE"]}},
    ),
    new_pod(hostPID=False, hostNetwork=True),
    new_pod(nodeName="cpu-1"),
    new_pod(runtimeClassName="nvidia"),
    new_pod(annotations={"example.org/cdi.k8s.io": "x", "cdi": "x"}),
    with_("resources", {"limits": {"cpu": "1", "nvidia.com/hostdev": "1"}}),
]


@pytest.mark.parametrize(
    ("code", "pod"), HOSTILE, ids=[f"{i}-{x[0]}" for i, x in enumerate(HOSTILE)]
)
def test_an_open_bypass_is_named(code: str, pod: dict[str, Any]) -> None:
    assert codes(pod) == [code]


@pytest.mark.parametrize(
    ("code", "pod"), [x for x in HOSTILE if x[1]["metadata"].get("annotations") != UUIDS]
)
def test_outside_enforced_namespaces_only_managed_pods_are_asked(
    code: str, pod: dict[str, Any]
) -> None:
    assert codes(pod, enforced=False) == []
    annotations = {**pod["metadata"].get("annotations", {}), **LEVEL}
    asking = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
    assert codes(asking, enforced=False) == [code]


@pytest.mark.parametrize("pod", CLOSED)
def test_what_only_looks_like_a_bypass_is_let_in(pod: dict[str, Any]) -> None:
    assert codes(pod) == []


def test_what_is_injected_wins_over_a_configmap_in_every_namespace() -> None:
    pod = with_("envFrom", [{"configMapRef": {"name": "c"}}], annotations=LEVEL)
    for enforced in (True, False):
        assert codes(pod, enforced=enforced) == []
        (entry,) = patched(pod, enforced=enforced)["spec"]["containers"][0]["env"]
        assert entry == variable("NVIDIA_VISIBLE_DEVICES", "void")


def test_every_bypass_of_the_closed_set_is_shut_here_or_named_elsewhere() -> None:
    here = {code for code, _ in HOSTILE}
    elsewhere = {
        "BYPASS_ANNOTATION",  # below, as the next ones
        "BYPASS_UNINJECTED",
        "BYPASS_EPHEMERAL",
        "BYPASS_TOLERATION",  # deploy/policy
    }
    assert here | elsewhere == {x.value for x in ReasonCode if x.name.startswith("BYPASS_")}


def test_a_foreign_scheduler_is_refused_for_managed_pods_alone() -> None:
    managed = new_pod(container(gpus=1))
    managed["spec"]["schedulerName"] = "volcano"
    assert codes(managed) == ["BYPASS_SCHEDULER"]
    plain = new_pod()
    plain["spec"]["schedulerName"] = "volcano"
    assert codes(plain) == []


def test_all_open_bypasses_are_reported_at_once() -> None:
    pod = new_pod(container(env=[ALL], securityContext=PRIVILEGED), hostPID=True, volumes=[HOST])
    assert codes(pod) == ["BYPASS_ENV", "BYPASS_HOSTPATH", "BYPASS_PRIVILEGED", "BYPASS_HOST_PID"]


@pytest.mark.parametrize(
    ("pod", "path"),
    [
        (new_pod(), "/spec/containers/0/env"),
        (new_pod(annotations=UUIDS), "/spec/containers/0/env"),
        (new_pod(container(gpus=1)), "/spec/schedulerName"),
    ],
)
def test_a_pod_that_the_mutating_webhook_has_not_seen_is_refused(
    pod: dict[str, Any], path: str
) -> None:
    (refusal,) = validate(pod).refusals
    assert refusal.code is ReasonCode.BYPASS_UNINJECTED
    assert refusal.detail.startswith(path)
    assert validate(pod, injected=False).refusals == ()


def test_an_own_value_where_ours_belongs_is_not_injected() -> None:
    stored = patched(new_pod(annotations=UUIDS))
    stored["spec"]["containers"][0]["env"][0] = variable("CUDA_VISIBLE_DEVICES", "0")
    (refusal,) = validate(stored).refusals
    assert refusal.code is ReasonCode.BYPASS_UNINJECTED
    stored = patched(new_pod(annotations=UUIDS))
    stored["spec"]["containers"][0]["env"].append(ALL)
    assert [x.code for x in validate(stored).refusals] == [ReasonCode.BYPASS_UNINJECTED]


def test_results_and_faults_are_reported_before_any_bypass() -> None:
    bad = {"gpuwarden.dev/node": "n", "gpuwarden.dev/min-level": "?"}
    found = validate(new_pod(hostPID=True, annotations=bad)).refusals
    assert [x.code.value for x in found] == ["BYPASS_ANNOTATION", "REQ_INVALID"]
    assert [x.code.value for x in validate(new_pod(annotations=bad), enforced=False).refusals] == [
        "BYPASS_ANNOTATION",
        "REQ_INVALID",
    ]


@pytest.mark.parametrize(
    ("annotations", "labels"),
    [
        ({f"example.org/{x}": "" for x in range(900)}, {}),
        (
            {f"example.org/{x}": "" for x in range(400)},
            {f"example.org/{x}": "" for x in range(500)},
        ),
        ({"example.org/a": "é" * (96 << 10)}, {}),
    ],
)
def test_a_managed_pod_leaves_room_for_what_we_write(
    annotations: dict[str, str], labels: dict[str, str]
) -> None:
    full = new_pod(annotations={**annotations, **LEVEL}, labels=labels)
    for judged in (mutate(full), validate(full, injected=False), mutate(full, enforced=False)):
        assert [x.code.value for x in judged.refusals] == ["REQ_INVALID"]
    assert codes(new_pod(annotations=annotations, labels=labels)) == []
    few = dict(list(annotations.items())[1:])
    assert codes(new_pod(annotations={**few, **LEVEL}, labels=labels)) == []


def test_aliases_of_result_annotations_are_reserved_too() -> None:
    for key in ("fudo.org/gpu.uuid", "fudo.org/gpu.reservation-id", "fudo.org/gpu.node"):
        found = validate(new_pod(annotations={key: "x"}), enforced=False).refusals
        assert [x.code.value for x in found] == ["BYPASS_ANNOTATION"]


@pytest.mark.parametrize(
    "fields",
    [
        {"env": [ALL]},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": FIELD}]},
        {"securityContext": PRIVILEGED},
        {"volumeMounts": [LIST]},
    ],
)
def test_an_ephemeral_container_opens_no_bypass(fields: dict[str, Any]) -> None:
    pod = admitted(new_pod(ephemeralContainers=[container("debug", **fields)]))
    rules, none = AdmissionRules(), frozenset[str]()
    found = validated_ephemeral(pod, none, rules, enforced=True, injected=False)
    assert {x.code for x in found.refusals} == {ReasonCode.BYPASS_EPHEMERAL}
    known = validated_ephemeral(pod, frozenset({"debug"}), rules, enforced=True)
    assert known.refusals == ()
    outside = validated_ephemeral(pod, none, rules, enforced=False)
    assert not outside.concerned


def test_an_ephemeral_container_must_be_injected_too() -> None:
    pod = admitted(new_pod(container(gpus=1), ephemeralContainers=[container("debug")]))
    found = validated_ephemeral(pod, frozenset(), AdmissionRules(), enforced=True)
    assert [x.code for x in found.refusals] == [ReasonCode.BYPASS_UNINJECTED]


def test_allowed_runtime_classes_are_configured() -> None:
    pod = admitted(new_pod(runtimeClassName="gvisor"))
    rules = AdmissionRules(runtime_classes=("gvisor",))
    assert validated(pod, rules, enforced=True, injected=False).refusals == ()
    (refusal,) = validated(pod, AdmissionRules(), enforced=True, injected=False).refusals
    assert "gvisor" in refusal.detail
    assert "admission.runtimeClasses" in refusal.detail


@pytest.mark.parametrize(
    "path", ["/", "/data/", "/data/x", "/dat", "//data", "data", "/data/../dev", "/DATA"]
)
def test_a_host_path_is_listed_as_it_is_written_or_refused(path: str) -> None:
    rules = AdmissionRules(host_paths=frozenset({"/data", "/mnt/scratch"}))
    listed = [{"name": "v", "hostPath": {"path": x}} for x in ("/data", "/mnt/scratch")]
    pod = admitted(new_pod(volumes=[*listed, {"name": "e", "emptyDir": {}}]))
    assert validated(pod, rules, enforced=True, injected=False).refusals == ()
    other = admitted(new_pod(volumes=[{"name": "v", "hostPath": {"path": path}}]))
    (refusal,) = validated(other, rules, enforced=True, injected=False).refusals
    assert refusal.code is ReasonCode.BYPASS_HOSTPATH
    assert "admission.hostPaths" in refusal.detail


def test_the_listed_host_paths_are_those_of_the_settings() -> None:
    given = {"trustDomain": "example.org", "cluster": "lab", "workloadApi": "unix:///s"}
    lines = [f"{key}: {value}" for key, value in given.items()]
    head = "apiVersion: config.gpuwarden.dev/v1alpha1\nkind: ControllerConfig\n"
    text = "\n".join([*lines, "admission: {hostPaths: [/data]}"])
    settings = load(CONTROLLER, Inputs(file=("c.yaml", f"{head}{text}\n".encode()))).settings
    assert admission_rules(settings, RequirementRules()).host_paths == {"/data"}


def test_device_lists_in_every_spelling() -> None:
    for path in (
        "/var/run/nvidia-container-devices",
        "/run/nvidia-container-devices/cdi/x",
        "//var/run/./nvidia-container-devices/",
        "/var/run/x/../nvidia-container-devices/GPU-a",
    ):
        assert is_device_list(path)
    for path in (
        "/var/run/nvidia-container-devices-not",
        "/run",
        "/var/run/nvidia-container-devices/..",
        "/other/run/nvidia-container-devices",
        "/var/running/nvidia-container-devices",
        "/var/nvidia-container-devices",
    ):
        assert not is_device_list(path)


# --- What is told of a bypass, and what a reservation of the pod's own changes

GRANTED = Granted("id", "team-a", "gpu-1", ("GPU-a",))
KUBELET = container(gpus=1)


def told(pod: dict[str, Any], **known: Any) -> list[str]:
    """Code and text of all that the bypass checks find."""
    rules = known.pop("rules", AdmissionRules())
    enforced = known.pop("enforced", True)
    needs = parse_requirements(admitted(pod), rules.requirements, enforced=enforced)
    assert isinstance(needs, Requirements)
    case = Case(admitted(pod), needs, rules, enforced, **known)
    return [f"{x.code} {x.detail}" for check in BYPASS_CHECKS for x in check(case)]


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (with_("env", [ALL]), "BYPASS_ENV container main sets NVIDIA_VISIBLE_DEVICES"),
        (
            new_pod(container(gpus=1, envFrom=[{"configMapRef": {"name": "c"}}])),
            "BYPASS_ENV_FROM container main has envFrom without a prefix",
        ),
        (new_pod(annotations={"cdi.k8s.io/x": ""}), "BYPASS_CDI annotation cdi.k8s.io/x"),
        (new_pod(annotations={"devices.nri.io": ""}), "BYPASS_NRI annotation devices.nri.io"),
        (
            new_pod(volumes=[HOST]),
            "BYPASS_HOSTPATH volume v is hostPath /dev/nvidia0 (admission.hostPaths)",
        ),
        (
            with_("volumeMounts", [LIST]),
            f"BYPASS_DEVICE_LIST container main mounts {LIST['mountPath']}",
        ),
        (with_("securityContext", PRIVILEGED), "BYPASS_PRIVILEGED container main is privileged"),
        (
            with_("securityContext", {"capabilities": {"add": ["ALL"]}}),
            "BYPASS_PRIVILEGED container main adds capability ALL",
        ),
        (new_pod(hostPID=True), "BYPASS_HOST_PID hostPID is set"),
        (
            new_pod(KUBELET, schedulerName="other"),
            "BYPASS_SCHEDULER schedulerName other, expected gpuwarden (scheduling.schedulerNames)",
        ),
        (new_pod(KUBELET, nodeName="gpu-1"), "BYPASS_NODE_NAME nodeName gpu-1"),
        (
            new_pod(runtimeClassName="x"),
            "BYPASS_RUNTIME_CLASS runtimeClassName x, expected nvidia (admission.runtimeClasses)",
        ),
        (new_pod(resourceClaims=[{"name": "a"}]), "BYPASS_CLAIM resourceClaims"),
        (
            with_("resources", {"requests": {"deviceclass.resource.kubernetes.io/x": "1"}}),
            "BYPASS_CLAIM container main requests deviceclass.resource.kubernetes.io/x",
        ),
        (
            with_("resources", {"requests": {"nvidia.com/pgpu": "1"}}),
            "BYPASS_RESOURCE container main requests nvidia.com/pgpu (managedResources)",
        ),
    ],
)
def test_the_text_names_what_opens_it(pod: dict[str, Any], text: str) -> None:
    assert told(pod) == [text]


@pytest.mark.parametrize(
    "capability",
    ["ALL", "BPF", "DAC_READ_SEARCH", "SYS_ADMIN", "SYS_BOOT", "SYS_MODULE", "SYS_RAWIO"],
)
@pytest.mark.parametrize("spelling", ["{0}", "CAP_{0}"])
def test_capabilities_that_reach_any_device(capability: str, spelling: str) -> None:
    for text in (spelling.format(capability), spelling.format(capability).lower()):
        assert codes(with_("securityContext", {"capabilities": {"add": [text]}})) == [
            "BYPASS_PRIVILEGED"
        ]


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        ("nvidia.com/gpu", []),
        ("nvidia.com/gpu.shared", ["BYPASS_RESOURCE"]),
        ("nvidia.com/mig-1g.10gb", ["BYPASS_RESOURCE"]),
        ("nvidia.com/pgpu", ["BYPASS_RESOURCE"]),
        ("nvidia.com/vgpu", ["BYPASS_RESOURCE"]),
        ("nvidia.com/hostdev", []),
        ("nvidia.comx/gpu", []),
        ("amd.com/gpu", []),
    ],
)
def test_resources_that_are_gpus(resource: str, expected: list[str]) -> None:
    for field in ("requests", "limits"):
        assert codes(with_("resources", {field: {resource: "1"}})) == expected


def test_a_resource_that_is_managed_is_no_bypass() -> None:
    rules = AdmissionRules(RequirementRules(managed_resources=("nvidia.com/vgpu",)))
    assert told(with_("resources", {"limits": {"nvidia.com/vgpu": "1"}}), rules=rules) == []


def test_every_allowed_runtime_class_is_named() -> None:
    (text,) = told(new_pod(runtimeClassName="x"), rules=AdmissionRules(runtime_classes=("a", "b")))
    assert "expected a or b" in text


@pytest.mark.parametrize("name", [None, "", "default-scheduler", "mine"])
def test_our_scheduler_and_what_becomes_it_are_no_foreign_ones(name: str | None) -> None:
    rules = AdmissionRules(scheduler_name="mine")
    assert told(new_pod(KUBELET, schedulerName=name), rules=rules) == []
    assert told(new_pod(KUBELET, schedulerName="gpuwarden"), rules=rules) != []


@pytest.mark.parametrize("name", ["mine", "gpu-scheduler"])
def test_a_pod_may_name_any_scheduler_that_asks_us(name: str) -> None:
    rules = AdmissionRules(scheduler_name="mine", further_schedulers=("gpu-scheduler",))
    assert told(new_pod(KUBELET, schedulerName=name), rules=rules) == []
    (text,) = told(new_pod(KUBELET, schedulerName="volcano"), rules=rules)
    assert "expected mine or gpu-scheduler (scheduling.schedulerNames)" in text


def test_where_nodes_are_a_hint_any_scheduler_will_do() -> None:
    rules = AdmissionRules(by_affinity=True)
    assert told(new_pod(KUBELET, schedulerName="volcano"), rules=rules) == []


def test_a_pod_may_be_on_the_node_on_which_it_has_its_gpus() -> None:
    pod = new_pod(annotations=UUIDS, nodeName="gpu-1")
    assert told(pod) == ["BYPASS_NODE_NAME nodeName gpu-1"]
    assert told(pod, granted=GRANTED) == []
    assert told(pod, to_be_reserved=True) == []
    elsewhere = new_pod(annotations=UUIDS, nodeName="gpu-2")
    assert told(elsewhere, granted=GRANTED) == ["BYPASS_NODE_NAME nodeName gpu-2"]


def test_the_assignment_of_its_own_reservation_is_no_bypass() -> None:
    ours, theirs = "cdi.k8s.io/gpu-assignment", "cdi.k8s.io/other"
    pod = new_pod(annotations={ours: "", theirs: ""} | UUIDS)
    assert told(pod, granted=GRANTED) == [f"BYPASS_CDI annotation {theirs}"]
    assert told(pod) == [f"BYPASS_CDI annotation {x}" for x in (ours, theirs)]


def test_only_the_visible_devices_of_who_gets_gpus_from_us_are_replaced() -> None:
    flood = [ALL, variable("NVIDIA_NVSWITCH", "all")]
    assert told(with_("env", flood, annotations=UUIDS)) == [
        "BYPASS_ENV container main sets NVIDIA_NVSWITCH"
    ]
    assert len(told(with_("env", flood))) == 2


def test_a_source_is_last_where_kubelet_gives() -> None:
    source: dict[str, Any] = {"envFrom": [{"prefix": "A_"}, {"prefix": "NVIDIA_"}]}
    assert len(told(new_pod(container(gpus=1, **source)))) == 1
    assert told(with_("envFrom", source["envFrom"], annotations=LEVEL), enforced=False) == []
    assert told(with_("envFrom", source["envFrom"])) == []
    assert told(with_("envFrom", source["envFrom"], annotations=UUIDS)) == []
    assert told(new_pod(container(gpus=1, envFrom=[{"prefix": "A_"}]))) == []


def test_of_ephemeral_containers_the_new_ones_are_judged_whatever_comes_first() -> None:
    old, new = (container(x, securityContext=PRIVILEGED) for x in ("old", "new"))
    pod = admitted(new_pod(ephemeralContainers=[old, new]))
    judged = validated_ephemeral(
        pod, frozenset({"old"}), AdmissionRules(), enforced=True, injected=False
    )
    assert [x.detail for x in judged.refusals] == [
        "container new is privileged (BYPASS_PRIVILEGED)"
    ]


def brought(**pod: Any) -> list[str]:
    found = validate(new_pod(**pod)).refusals
    return [x.detail for x in found if x.code is ReasonCode.BYPASS_ANNOTATION]


def test_one_refusal_names_every_result_that_a_copy_has_to_lose() -> None:
    end = "gpuwarden alone writes this; remove it"
    copied = "(a copy of a managed pod has it)"
    both: dict[str, Any] = {
        "annotations": {"gpuwarden.dev/node": ""},
        "labels": {"fudo.org/gpu.uuid": ""},
    }
    keys = "fudo.org/gpu.uuid, gpuwarden.dev/node"
    assert brought(**both) == [f"{keys}: {end} {copied}"]
    assert brought(**both, nodeName="gpu-1") == [f"{keys}: {end} and spec.nodeName {copied}"]
    both["annotations"]["cdi.k8s.io/gpu-assignment"] = "x"
    assert brought(**both) == [f"{keys}, cdi.k8s.io/gpu-assignment: {end} {copied}"]
    assert brought(annotations={"cdi.k8s.io/gpu-assignment": "x"}) == []


def test_a_copy_without_annotations_keeps_no_reference() -> None:
    """As `kubectl debug --copy-to` makes it: with what was injected, and no requirement."""
    copy = patched(new_pod(annotations=UUIDS))
    del copy["metadata"]["annotations"]
    assert codes(copy) == []
    (container_,) = patched(copy)["spec"]["containers"]
    entries = {x["name"]: x for x in container_["env"]}
    assert entries["NVIDIA_VISIBLE_DEVICES"] == variable("NVIDIA_VISIBLE_DEVICES", "void")
    other = {"fieldRef": {"fieldPath": "metadata.annotations['example.org/x']"}}
    for own in ({"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": other}, ALL):
        hostile = new_pod(container(env=[container_["env"][1], own]))
        assert "BYPASS_ENV" in codes(hostile)
    kubelet = new_pod(container(gpus=1, env=copy["spec"]["containers"][0]["env"]))
    assert codes(kubelet) == ["BYPASS_ENV"]
