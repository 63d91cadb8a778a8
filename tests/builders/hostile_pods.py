"""One hostile pod per bypass and way through it; a real API server would take each."""

from typing import Any, Final

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


DEVICE_KEYS: Final = {
    "cdi.k8s.io/gpu": "BYPASS_CDI",
    "cdi.k8s.io/vendor_device": "BYPASS_CDI",
    **{
        f"{key}{form}": code
        for key, code in (
            ("nvidia.cdi.k8s.io", "BYPASS_CDI"),
            ("cdi-devices.nri.io", "BYPASS_CDI"),
            ("cdi-devices.noderesource.dev", "BYPASS_CDI"),
            ("cdi.nri.io", "BYPASS_CDI"),
            ("devices.nri.io", "BYPASS_NRI"),
            ("devices.noderesource.dev", "BYPASS_NRI"),
            ("devices.gke.io", "BYPASS_NRI"),
            ("mounts.nri.io", "BYPASS_NRI"),
            ("mounts.noderesource.dev", "BYPASS_NRI"),
        )
        for form in ("", "/pod", "/container.main")
    },
    "io.kubernetes.cri-o.Devices": "BYPASS_NRI",
    "io.kubernetes.cri-o.Devices/main": "BYPASS_NRI",
    "devices.crio.io": "BYPASS_NRI",
    "devices.crio.io/main": "BYPASS_NRI",
    "io.kubernetes.cri-o.PlatformRuntimePath": "BYPASS_NRI",
    "platform-runtime-path.crio.io": "BYPASS_NRI",
    "org.systemd.property.DeviceAllow": "BYPASS_NRI",
    "org.systemd.property.DevicePolicy": "BYPASS_NRI",
}
"""Annotations and the bypass checks that they are, from the documentation of what reads them.

Never made from the product's list: a key that is missing there would be missing here. The CDI
specification (annotations of a container). NRI plugins, each with two forms for all containers of
a pod and one for a single container: nvidia-container-toolkit's; device-injector of containerd/nri,
also as noderesource.dev; GKE's copy of it; cdi-injector of the NRI Plugins authors. CRI-O,
crio.conf(5) `allowed_annotations` and its ANNOTATION_MIGRATION.md; runc, docs/systemd.md.
"""


HOSTILE: Final[list[tuple[str, dict[str, Any]]]] = [
    ("BYPASS_ENV", with_("env", [ALL])),
    ("BYPASS_ENV", new_pod(container(gpus=1, env=[ALL]))),
    ("BYPASS_ENV", with_("env", [{"name": ALL["name"], "valueFrom": FIELD}])),
    ("BYPASS_ENV", new_pod(initContainers=[container("i", env=[ALL])])),
    ("BYPASS_ENV", with_("env", [variable("NVIDIA_VISIBLE_DEVICES", "$(WHICH)")])),
    ("BYPASS_ENV", with_("env", [variable("NVIDIA_MIG_CONFIG_DEVICES", "all")], annotations=UUIDS)),
    ("BYPASS_ENV_FROM", new_pod(container(gpus=1, envFrom=[{"configMapRef": {"name": "c"}}]))),
    (
        "BYPASS_ENV_FROM",
        new_pod(container(gpus=1, envFrom=[{"prefix": "NVIDIA_", "secretRef": {"name": "c"}}])),
    ),
    ("BYPASS_HOSTPATH", new_pod(volumes=[HOST])),
    ("BYPASS_HOSTPATH", new_pod(volumes=[LINK])),
    ("BYPASS_DEVICE_LIST", with_("volumeMounts", [LIST], volumes=EMPTY)),
    (
        "BYPASS_DEVICE_LIST",
        new_pod(initContainers=[container("i", volumeMounts=[LIST])], volumes=EMPTY),
    ),
    ("BYPASS_PRIVILEGED", with_("securityContext", PRIVILEGED)),
    ("BYPASS_PRIVILEGED", new_pod(initContainers=[container("i", securityContext=PRIVILEGED)])),
    ("BYPASS_PRIVILEGED", with_("securityContext", {"capabilities": {"add": ["cap_sys_admin"]}})),
    ("BYPASS_PRIVILEGED", with_("securityContext", {"capabilities": {"add": ["ALL"]}})),
    (
        "BYPASS_PRIVILEGED",
        with_("securityContext", {"capabilities": {"add": ["CHOWN", "DAC_READ_SEARCH"]}}),
    ),
    ("BYPASS_PRIVILEGED", with_("securityContext", {"capabilities": {"add": ["SYS_BOOT"]}})),
    ("BYPASS_HOST_PID", new_pod(hostPID=True)),
    ("BYPASS_SCHEDULER", new_pod(container(gpus=1), schedulerName="volcano")),
    ("BYPASS_NODE_NAME", new_pod(container(gpus=1), nodeName="gpu-1")),
    ("BYPASS_RUNTIME_CLASS", new_pod(runtimeClassName="kata-qemu-nvidia-gpu")),
    ("BYPASS_CLAIM", new_pod(resourceClaims=[{"name": "a", "resourceClaimName": "b"}])),
    (
        "BYPASS_CLAIM",
        with_("resources", {"limits": {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}}),
    ),
    ("BYPASS_RESOURCE", with_("resources", {"limits": {"nvidia.com/mig-1g.10gb": "1"}})),
    ("BYPASS_RESOURCE", with_("resources", {"limits": {"nvidia.com/gpu.shared": "1"}})),
    *((code, new_pod(annotations={key: "nvidia.com/gpu=0"})) for key, code in DEVICE_KEYS.items()),
]

HOSTILE_IDS: Final = [f"{number}-{code}" for number, (code, _) in enumerate(HOSTILE)]
