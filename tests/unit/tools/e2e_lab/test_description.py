"""What `make lab` prints: every place that a person needs, and what is not there and why."""

from dataclasses import replace
from pathlib import Path

from tests.e2e.lab.__main__ import why_no_product
from tests.e2e.lab.description import LabFacts, NodeFacts, SpireFacts, description
from tests.e2e.lab.machine import missing
from tests.e2e.lab.product_images import NEEDS

ALONE = LabFacts(
    number=3,
    ready_s=12.34,
    versions="Kubernetes 1.35.0, etcd 3.6.7",
    url="https://127.0.0.1:6443",
    kubeconfig=Path("/lab/3/pki/admin"),
    kubectl=Path("/cache/kubectl"),
    logs=Path("/lab/3/logs"),
    pid=4711,
)
NODE = NodeFacts(
    enter=("nsenter", "--target=99", "--all"),
    ctr=Path("/cache/ctr"),
    containerd="/run/containerd/containerd.sock",
    pod_logs=Path("/lab/3/node/var-log-pods"),
)
SPIRE = SpireFacts(
    program=Path("/cache/spire-server"),
    socket=Path("/lab/3/spire/api.sock"),
    agent_id="spiffe://example.org/spire/agent/k8s_psat/prod/u",
    logs=Path("/lab/3/spire/logs"),
)


def test_a_control_plane_alone_says_how_to_use_and_stop_it() -> None:
    assert description(ALONE) == (
        "lab 3 is ready after 12.3 s\n"
        "  versions      Kubernetes 1.35.0, etcd 3.6.7\n"
        "  API server    https://127.0.0.1:6443\n"
        "  kubectl       export KUBECONFIG=/lab/3/pki/admin\n"
        "                alias kubectl=/cache/kubectl\n"
        "  logs          /lab/3/logs\n"
        "  stop          Ctrl-C, or kill 4711\n"
    )


def test_with_a_node_it_says_where_ctr_and_the_logs_of_pods_are() -> None:
    said = description(replace(ALONE, node=NODE))
    assert "  node          nsenter --target=99 --all\n" in said
    assert (
        "  ctr           nsenter --target=99 --all \\\n"
        "                  /cache/ctr \\\n"
        "                  -a /run/containerd/containerd.sock -n k8s.io containers list\n"
    ) in said
    assert "  pods' logs    /lab/3/node/var-log-pods\n" in said
    assert "SPIRE" not in said


def test_spire_is_named_and_the_product_offered() -> None:
    said = description(replace(ALONE, node=NODE, spire=SPIRE))
    assert (
        "  SPIRE         /cache/spire-server agent list \\\n"
        "                  -socketPath /lab/3/spire/api.sock\n"
        "  SPIRE agent   spiffe://example.org/spire/agent/k8s_psat/prod/u\n"
        "  gpuwarden     not deployed; `make lab PRODUCT=1` deploys it\n"
    ) in said
    assert "  SPIRE's logs  /lab/3/spire/logs\n" in said


def test_the_deployed_product_is_asked_through_kubectl() -> None:
    said = description(replace(ALONE, node=NODE, spire=SPIRE, product="gpuwarden-system"))
    command = "kubectl -n gpuwarden-system exec gpuwarden-controller-0 -- gpuwarden"
    assert f"  gpuwarden     {command} nodes\n                {command} gpus\n" in said
    assert "PRODUCT=1" not in said


def test_without_spire_each_reason_is_said() -> None:
    said = description(replace(ALONE, without_spire=["gcc: install it", "other"]))
    assert "  SPIRE         none: gcc: install it\n  SPIRE         none: other\n" in said
    assert "gpuwarden" not in said


def test_why_the_product_cannot_be_deployed_is_said_once_each() -> None:
    node, both, spire = "root: run as root", "gcc: install it", "other Kubernetes"
    assert why_no_product([node, both], [both, spire], alone=True) == [
        "--control-plane-only leaves it no node",
        *dict.fromkeys([node, both, spire, *missing(NEEDS)]),
    ]
    assert why_no_product([], [], alone=False) == missing(NEEDS)
