"""What programs are told, where a wrong word would show only much later."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.lab.addresses import AddressPlan
from tests.e2e.lab.api_server import ApiServer
from tests.e2e.lab.containerd import (
    CDI,
    configuration_text,
    network_configuration,
    toolkit_text,
)
from tests.e2e.lab.fake_nodes import node_status
from tests.e2e.lab.identities import Identities
from tests.e2e.lab.kubelet import kubelet_configuration, ready_condition
from tests.e2e.lab.pki import Pair
from tests.e2e.lab.place import Loopback
from tests.e2e.lab.program import Site
from tests.e2e.lab.selection import chosen_kubernetes, needed, why_no_node

PLAN = AddressPlan(5)


def api_server(folder: Path, *, has_node: bool, extra: Sequence[str] = ()) -> Sequence[str]:
    site = Site(folder / "lab", {"kube-apiserver": Path("/x/kube-apiserver")}, Loopback())
    identities = Identities(folder / "pki")
    server = ApiServer(site, PLAN, identities, "unix:///e", has_node=has_node, extra=extra)
    return server.arguments()


def test_an_api_server_alone_publishes_no_loopback_address(tmp_path: Path) -> None:
    arguments = api_server(tmp_path, has_node=False)
    assert "--endpoint-reconciler-type=none" in arguments
    assert not any(word.startswith("--advertise-address") for word in arguments)


def test_an_api_server_beside_a_node_is_reached_by_its_service(tmp_path: Path) -> None:
    arguments = api_server(tmp_path, has_node=True)
    assert "--advertise-address=127.0.0.1" in arguments
    assert "--enable-aggregator-routing=true" in arguments
    assert "--endpoint-reconciler-type=none" not in arguments


def test_what_a_test_adds_comes_last_and_so_wins(tmp_path: Path) -> None:
    arguments = api_server(tmp_path, has_node=False, extra=["--authorization-mode=AlwaysAllow"])
    assert arguments[-1] == "--authorization-mode=AlwaysAllow"


def test_containerd_gets_toml_that_it_can_read() -> None:
    runtimes = {"runc": Path("/r/runc"), "nvidia": Path("/r/nvidia")}
    text = configuration_text("image:1", runtimes, Path("/c"), Path("/n"))
    plugins = tomllib.loads(text)["plugins"]
    runtime = plugins["io.containerd.cri.v1.runtime"]
    assert plugins["io.containerd.cri.v1.images"]["pinned_images"] == {"sandbox": "image:1"}
    found = runtime["containerd"]["runtimes"]
    started = {name: Path(each["options"]["BinaryName"]) for name, each in found.items()}
    assert started == runtimes
    assert runtime["cni"] == {"bin_dirs": ["/c"], "conf_dir": "/n"}


def test_the_toolkit_gives_devices_by_the_variable_and_starts_runc() -> None:
    settings = tomllib.loads(toolkit_text(Path("/r/runc")))["nvidia-container-runtime"]
    assert settings["mode"] == "cdi"
    assert settings["runtimes"] == ["/r/runc"]
    assert settings["modes"]["cdi"] == {"default-kind": "nvidia.com/gpu", "spec-dirs": [CDI]}


def test_pods_get_addresses_of_their_lab() -> None:
    text = json.dumps(network_configuration(PLAN))
    assert json.loads(text)["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.202.5.0/24"}]]


def test_kubelets_beside_each_other_have_their_own_cgroups() -> None:
    pair = Pair(Path("/c"), Path("/k"))
    roots = {
        kubelet_configuration(AddressPlan(number), pair, Path("/ca"), Path("/r"))["cgroupRoot"]
        for number in (0, 1)
    }
    assert roots == {"/gpuwarden-lab-0", "/gpuwarden-lab-1"}


def test_the_condition_of_a_node_that_said_nothing_is_empty() -> None:
    assert ready_condition({"metadata": {}}) == ""
    assert ready_condition(node_status("2026-01-02T03:04:05.000006Z", gpus=1, pods=1)) == "True"


def test_a_fake_node_without_gpus_has_no_such_resource() -> None:
    status = node_status("2026-01-02T03:04:05.000006Z", gpus=0, pods=3)["status"]
    assert "nvidia.com/gpu" not in status["allocatable"]
    assert status["allocatable"]["pods"] == "3"


def test_an_older_kubernetes_replaces_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES", raising=False)
    assert needed(has_node=False) == ["etcd", "kubernetes-1.35"]
    monkeypatch.setenv("KUBERNETES", "1.34.4")
    assert chosen_kubernetes().version == "1.34.4"
    assert needed(has_node=False) == ["etcd", "kubernetes-1.35", "kubernetes-1.34"]
    assert "KUBERNETES=1.34.4 is tested without a node" in why_no_node()
