"""Seven sets of values, as a cluster of each Kubernetes version would get them."""

import json
import subprocess
from collections import Counter

import pytest

from tests.chart.pod_security import violations
from tests.chart.rendering import (
    CHART,
    KUBERNETES,
    NAMESPACE,
    REQUIRED,
    SETS,
    Object,
    objects,
    one,
    pods,
    render,
    rendered,
)
from tests.chart.schemas import faults, is_quantity
from tests.chart.tools import HELM, tools
from tests.hang import HANG_S

ROOTS = ("runAsNonRoot", "runAsUser 0")
HOST = ("hostPID", "volume spire: hostPath /run/spire/agent-sockets")
AGENT = (
    *HOST,
    "volume pod-resources: hostPath /var/lib/kubelet/pod-resources",
    "volume state: hostPath /var/lib/gpuwarden",
    *(f"container agent: {x}" for x in ROOTS),
)
"""What agents need: the host's process ids for the pods of GPU processes, three folders of the host
(identity, kubelet's allocations, the witness's memory), and root, whose the driver's files are.
"""
CONTROLLER = (HOST[1],)
"""The controllers' identity comes by the same socket."""
SPIRE_AGENT = (
    "hostPID",
    "hostNetwork",
    "volume socket: hostPath /run/spire/agent-sockets",
    "container spire-agent: capability SYS_PTRACE",
    *(f"container spire-agent: {x}" for x in ROOTS),
)
"""A SPIRE agent looks at the processes of other pods, and asks kubelet by its loopback address."""
ADMINISTERS = "container agent: capability SYS_ADMIN"
"""By it NVIDIA's runtime and NVML tell who may see everything."""


@pytest.mark.parametrize("kubernetes", KUBERNETES)
@pytest.mark.parametrize("name", SETS)
def test_set_is_valid_for_the_api(name: str, kubernetes: str) -> None:
    found = rendered(name, kubernetes)
    assert faults(found, kubernetes) == []
    assert [x for x, count in Counter(map(identity, found)).items() if count > 1] == []


def identity(x: Object) -> tuple[str, str, str]:
    return (x["kind"], x["metadata"].get("namespace", ""), x["metadata"]["name"])


def test_a_misspelled_field_would_be_found() -> None:
    broken = [
        {**x, "spec": {**x["spec"], "replica": 2}} for x in rendered("default") if "spec" in x
    ]
    workloads = {"StatefulSet", "DaemonSet", "Deployment", "Service", "Job"}
    named = {x.partition("/")[0] for x in faults(broken, "1.37") if "replica" in x}
    assert workloads <= named


@pytest.mark.parametrize("name", SETS)
def test_set_is_restricted_but_for_what_is_listed(name: str) -> None:
    privileged = SETS[name].get("agent", {}).get("gpuAccess") == "privileged"
    allowed = {
        "DaemonSet/gpuwarden-agent": sorted([*AGENT, *([ADMINISTERS] if privileged else [])]),
        "StatefulSet/gpuwarden-controller": sorted(CONTROLLER),
        "DaemonSet/gpuwarden-spire-agent": sorted(SPIRE_AGENT),
    }
    found = {x: sorted(violations(spec)) for x, spec in pods(rendered(name)).items()}
    assert {x: y for x, y in found.items() if y} == {x: allowed[x] for x in allowed if x in found}


@pytest.mark.parametrize("name", SETS)
def test_set_has_amounts_tokens_and_files_as_a_cluster_expects(name: str) -> None:
    for where, spec in pods(rendered(name)).items():
        for container in spec["containers"]:
            kinds = container.get("resources", {})
            assert kinds.get("requests"), where
            for amounts in kinds.values():
                assert all(is_quantity(x) for x in amounts.values()), where
            assert container["securityContext"]["readOnlyRootFilesystem"] is True, where
            mounted = {x["name"] for x in container.get("volumeMounts", ())}
            claims = volumes(rendered(name), where)
            assert mounted <= claims, where


def volumes(found: list[Object], where: str) -> set[str]:
    kind, _, name = where.partition("/")
    workload = one(found, kind, name)
    claims = workload["spec"].get("volumeClaimTemplates", ())
    named = {x["name"] for x in pods([workload])[where].get("volumes", ())}
    return named | {x["metadata"]["name"] for x in claims}


@pytest.mark.parametrize("name", SETS)
def test_what_pods_name_is_there_or_is_made_by_somebody_named(name: str) -> None:
    """Accounts and ConfigMaps are the chart's; Secrets its own, cert-manager's, yours, or made."""
    found = rendered(name)
    mode = SETS[name].get("certificates", {}).get("mode", "self-managed")
    accounts = {x["metadata"]["name"] for x in objects(found, "ServiceAccount")}
    maps = {x["metadata"]["name"] for x in objects(found, "ConfigMap")}
    secrets = {x["metadata"]["name"] for x in objects(found, "Secret")}
    secrets |= {x["spec"]["secretName"] for x in objects(found, "Certificate")}
    if mode == "self-managed":
        secrets.add("gpuwarden-scheduler-client-tls")
    if mode == "given":
        secrets |= {"gpuwarden-admission-server", "gpuwarden-extender-server"}
        secrets |= {"gpuwarden-extender-client", "gpuwarden-api-server", "gpuwarden-access-server"}
    secrets.add(SETS[name].get("webhooks", {}).get("existingKeysSecret", ""))
    for where, spec in pods(found).items():
        assert spec["serviceAccountName"] in accounts, where
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps, where
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets, where


def test_helm_is_the_version_that_the_page_names() -> None:
    command = (str(tools().helm), "version", "--template", "{{.Version}}")
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=True)
    assert done.stdout == f"v{HELM}"


@pytest.mark.parametrize("name", SETS)
def test_set_passes_helms_own_linter(name: str) -> None:
    values = json.dumps({**REQUIRED, **SETS[name]})
    command = (str(tools().helm), "lint", "--strict", "--quiet", str(CHART))
    done = subprocess.run(
        [*command, "--namespace", NAMESPACE, "--values", "-"],
        input=values,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [("1.33.4", "v1.33.4"), ("1.34.1-gke.1829001", "v1.34.1"), ("1.37.0+k3s1", "v1.37.0")],
)
def test_the_scheduler_is_of_the_clusters_version(cluster: str, tag: str) -> None:
    found = render(REQUIRED, kubernetes=cluster)
    image = pods(found)["Deployment/gpuwarden-scheduler"]["containers"][0]["image"]
    assert image == f"registry.k8s.io/kube-scheduler:{tag}"
