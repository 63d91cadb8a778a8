"""One hostile pod per door and way through it; a real API server would take each."""

from typing import Any, Final

from controller.scheduling.reserved_keys import RUNTIME_DEVICE_PREFIXES
from tests.builders.admitted_pods import UUIDS, container, new_pod, variable

ALL = variable("NVIDIA_VISIBLE_DEVICES", "all")
FIELD = {"fieldRef": {"fieldPath": "metadata.annotations['mine']"}}
PRIVILEGED = {"privileged": True}
HOST = {"name": "v", "hostPath": {"path": "/dev/nvidia0"}}
LINK = {"name": "v", "hostPath": {"path": "/data/put-there-by-the-last-pod"}}
EMPTY = [{"name": "v", "emptyDir": {}}]
LIST = {"name": "v", "mountPath": "/var/run/nvidia-container-devices/GPU-a"}


def with_(field: str, value: Any, **pod: Any) -> dict[str, Any]:
    """A pod whose only container has one field more."""
    return new_pod(container(**{field: value}), **pod)


def device_key(prefix: str) -> str:
    """An annotation that the API server takes; a name of its own has no part behind it."""
    if prefix.endswith("/"):
        return f"{prefix}gpu"
    if prefix.endswith("."):
        return f"{prefix}DeviceAllow"
    return prefix if prefix != prefix.lower() else f"{prefix}/container.main"


HOSTILE: Final[list[tuple[str, dict[str, Any]]]] = [
    ("DOOR_ENV", with_("env", [ALL])),
    ("DOOR_ENV", new_pod(container(gpus=1, env=[ALL]))),
    ("DOOR_ENV", with_("env", [{"name": ALL["name"], "valueFrom": FIELD}])),
    ("DOOR_ENV", new_pod(initContainers=[container("i", env=[ALL])])),
    ("DOOR_ENV", with_("env", [variable("NVIDIA_VISIBLE_DEVICES", "$(WHICH)")])),
    ("DOOR_ENV", with_("env", [variable("NVIDIA_MIG_CONFIG_DEVICES", "all")], annotations=UUIDS)),
    ("DOOR_ENV_FROM", new_pod(container(gpus=1, envFrom=[{"configMapRef": {"name": "c"}}]))),
    (
        "DOOR_ENV_FROM",
        new_pod(container(gpus=1, envFrom=[{"prefix": "NVIDIA_", "secretRef": {"name": "c"}}])),
    ),
    ("DOOR_HOSTPATH", new_pod(volumes=[HOST])),
    ("DOOR_HOSTPATH", new_pod(volumes=[LINK])),
    ("DOOR_DEVICE_LIST", with_("volumeMounts", [LIST], volumes=EMPTY)),
    (
        "DOOR_DEVICE_LIST",
        new_pod(initContainers=[container("i", volumeMounts=[LIST])], volumes=EMPTY),
    ),
    ("DOOR_PRIVILEGED", with_("securityContext", PRIVILEGED)),
    ("DOOR_PRIVILEGED", new_pod(initContainers=[container("i", securityContext=PRIVILEGED)])),
    ("DOOR_PRIVILEGED", with_("securityContext", {"capabilities": {"add": ["cap_sys_admin"]}})),
    ("DOOR_PRIVILEGED", with_("securityContext", {"capabilities": {"add": ["ALL"]}})),
    (
        "DOOR_PRIVILEGED",
        with_("securityContext", {"capabilities": {"add": ["CHOWN", "DAC_READ_SEARCH"]}}),
    ),
    ("DOOR_PRIVILEGED", with_("securityContext", {"capabilities": {"add": ["SYS_BOOT"]}})),
    ("DOOR_HOST_PID", new_pod(hostPID=True)),
    ("DOOR_SCHEDULER", new_pod(container(gpus=1), schedulerName="volcano")),
    ("DOOR_NODE_NAME", new_pod(container(gpus=1), nodeName="gpu-1")),
    ("DOOR_RUNTIME_CLASS", new_pod(runtimeClassName="kata-qemu-nvidia-gpu")),
    ("DOOR_CLAIM", new_pod(resourceClaims=[{"name": "a", "resourceClaimName": "b"}])),
    (
        "DOOR_CLAIM",
        with_("resources", {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}),
    ),
    ("DOOR_RESOURCE", with_("resources", {"limits": {"nvidia.com/mig-1g.10gb": "1"}})),
    ("DOOR_RESOURCE", with_("resources", {"limits": {"nvidia.com/gpu.shared": "1"}})),
    *(
        (
            "DOOR_CDI" if "cdi" in prefix else "DOOR_NRI",
            new_pod(annotations={key: "nvidia.com/gpu=0"}),
        )
        for prefix in RUNTIME_DEVICE_PREFIXES
        for key in (device_key(prefix),)
    ),
    ("DOOR_CDI", new_pod(annotations={"nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=0"})),
]

HOSTILE_IDS: Final = [f"{number}-{code}" for number, (code, _) in enumerate(HOSTILE)]
