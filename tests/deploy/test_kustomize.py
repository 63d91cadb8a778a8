"""What kustomize makes of the base, the overlay and the component."""

from pathlib import Path

import yaml

from gpuwarden import __version__
from gpuwarden.settings.loader import CONTROLLER, Inputs, load
from tests.deploy.manifests import (
    BASE,
    KUSTOMIZE,
    container_of,
    objects,
    one,
    pod_of,
    rendered,
    with_components,
)


def test_rights_and_names_are_what_the_files_say() -> None:
    """kustomize renames a ConfigMap with its digest, and in roles whatever has its name."""
    made = rendered(BASE)
    for kind in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding", "ServiceAccount"):
        wanted = [x for x in objects() if x["kind"] == kind]
        assert [x for x in made if x["kind"] == kind] == sorted(
            wanted, key=lambda x: str(x["metadata"]["name"])
        )


def test_images_have_this_version_and_volumes_their_configmaps() -> None:
    made = rendered(BASE)
    maps = {x["metadata"]["name"] for x in made if x["kind"] == "ConfigMap"}
    for kind, name in (
        ("DaemonSet", "gpuwarden-agent"),
        ("StatefulSet", "gpuwarden-controller"),
    ):
        workload = one(made, kind, name)
        assert container_of(workload)["image"] == f"{name}:{__version__}"
        used = {x["configMap"]["name"] for x in pod_of(workload)["volumes"] if "configMap" in x}
        assert used
        assert used <= maps


def test_a_change_of_settings_rolls_the_pods_and_one_of_the_policy_does_not() -> None:
    maps = {x["metadata"]["name"] for x in rendered(BASE) if x["kind"] == "ConfigMap"}
    assert "gpuwarden-policy" in maps
    assert not maps & {"gpuwarden-agent-config", "gpuwarden-controller-config"}


def test_mig_adds_one_capability_and_one_variable_and_nothing_else(tmp_path: Path) -> None:
    plain = one(rendered(BASE), "DaemonSet", "gpuwarden-agent")
    mig = one(rendered(with_components(tmp_path, "mig")), "DaemonSet", "gpuwarden-agent")
    container = container_of(mig)
    assert container["securityContext"]["capabilities"].pop("add") == ["SYS_ADMIN"]
    variable = {"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"}
    container["env"].remove(variable)
    assert mig == plain


def test_the_extender_component_opens_it_over_mtls(tmp_path: Path) -> None:
    made = rendered(with_components(tmp_path, "extender"))
    workload = one(made, "StatefulSet", "gpuwarden-controller")
    container = container_of(workload)
    known = {x["name"]: x["value"] for x in container["env"] if "value" in x}
    file = BASE / "config" / "controller.yaml"
    loaded = load(CONTROLLER, Inputs((), known, (str(file), file.read_bytes()))).settings
    mounts = {x["mountPath"]: x["name"] for x in container["volumeMounts"]}
    tls = loaded.extender.tls
    for path in (tls.cert, tls.key, tls.client_ca):
        assert path is not None
        assert mounts[str(path.parent)] == "extender"
    ports = {x["name"]: x["containerPort"] for x in container["ports"]}
    assert ports["extender"] == loaded.listen.extender.port
    policy = one(made, "NetworkPolicy", "gpuwarden-controller")
    (rule,) = [x for x in policy["spec"]["ingress"] if {"port": "extender"} in x["ports"]]
    file = KUSTOMIZE.parent / "scheduler" / "deployment.yaml"
    (scheduler,) = yaml.safe_load_all(file.read_text())
    labels = scheduler["spec"]["template"]["metadata"]["labels"]
    assert rule["from"] == [{"podSelector": {"matchLabels": labels}}]
