"""Pod Security's profile `restricted`, as Kubernetes 1.33 to 1.37 check it."""

from collections.abc import Iterator

from tests.chart.rendering import Object

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def violations(spec: Object) -> Iterator[str]:
    """What in a pod's spec the profile forbids, in the order of its fields."""
    for field in ("hostPID", "hostIPC", "hostNetwork"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", ()):
        for kind in sorted(set(volume) - {"name"} - _VOLUMES):
            where = volume[kind].get("path", "") if kind == "hostPath" else ""
            yield f"volume {volume['name']}: {kind} {where}".rstrip()
    pod = spec.get("securityContext", {})
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        for what in _container(pod, container.get("securityContext", {})):
            yield f"container {container['name']}: {what}"
        for port in container.get("ports", ()):
            if port.get("hostPort"):
                yield f"container {container['name']}: hostPort {port['hostPort']}"


def _container(pod: Object, own: Object) -> Iterator[str]:
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield "capabilities are not dropped"
    for name in capabilities.get("add", ()):
        if name != "NET_BIND_SERVICE":
            yield f"capability {name}"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield "runAsNonRoot"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield "runAsUser 0"
    profile = {**pod, **own}.get("seccompProfile", {}).get("type")
    if profile not in {"RuntimeDefault", "Localhost"}:
        yield f"seccompProfile {profile}"
