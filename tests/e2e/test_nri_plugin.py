"""`agent.gpuAccess: nri` with a real kubelet, containerd and NVIDIA's NRI plugin: who gets GPUs.

No GPU and no driver is there: the CDI specification is NVIDIA's own of device files and libraries
that are made up.
"""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.builders.hostile_pods import DEVICE_KEYS
from tests.chart.rendering import NAMESPACE, REQUIRED, one, render
from tests.e2e.lab.api import Document
from tests.e2e.lab.containerd import CDI, GPU_KIND
from tests.e2e.lab.kubeconfig import written
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.nri_plugin import DEVICES, LIBRARY, NriPlugin, made_up_driver
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.cards import PATIENCE_S, Seen, seen
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pod_processes import process_of

pytestmark = pytest.mark.usefixtures("real_node")
LISTED, ELSEWHERE = "nri-agents", "nri-elsewhere"
KEY: Final = "nvidia.cdi.k8s.io"
FORMS: Final = (KEY, f"{KEY}/pod", f"{KEY}/container.main")
NOTHING: Final = Seen(None, "", ())
EVERY: Final = Seen(None, "void", DEVICES)
"""The specification's `void` keeps NVIDIA's runtime from adding more."""
PAGE: Final = Path(__file__).parents[2] / "docs/platforms.md"


@dataclass(frozen=True, slots=True)
class World:
    """A node with the plugin, which knows one namespace beside the operator's."""

    listed: Namespace
    elsewhere: Namespace


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    made = World(Namespace(lab.api, LISTED), Namespace(lab.api, ELSEWHERE))
    plugin = NriPlugin(lab.on_node("nri", {}), {listed_by(): f"another,{LISTED}"})
    card = lab.node.capsule.path(CDI) / "nri-card.json"
    try:
        for name in (LISTED, ELSEWHERE):
            create_namespace(lab, name)
        made.listed.create(agent("early", restartPolicy="Always"))
        assert seen(made.listed, "early") == NOTHING
        with made_up_driver(lab.node.capsule):
            written(card, specification())
            plugin.start()
            yield made
    finally:
        plugin.stop()
        card.unlink(missing_ok=True)
        for name in (LISTED, ELSEWHERE):
            remove_namespace(lab, name)


def listed_by() -> str:
    """The toolkit's variable, as the page has it for the chart's namespace."""
    (text,) = re.findall(r"`toolkit\.env: (\[\{name: [^`]*\])`", PAGE.read_text())
    (variable,) = yaml.safe_load(text)
    assert variable["value"] == NAMESPACE
    return str(variable["name"])


def agent(name: str, **spec: Any) -> Document:
    """A pod with what the chart writes on the agent's for containerd, kubelet and the plugin."""
    values = {**REQUIRED, "agent": {"gpuAccess": "nri"}}
    template = one(render(values), "DaemonSet", "gpuwarden-agent")["spec"]["template"]
    (rendered,) = template["spec"]["containers"]
    kept = {key: template["spec"][key] for key in ("hostPID", "securityContext")}
    document = pod(name, "gpus", **kept, **spec)
    document["metadata"]["annotations"] = template["metadata"]["annotations"]
    document["spec"]["containers"][0] |= {
        key: rendered[key] for key in ("name", "env", "securityContext")
    }
    return document


def specification() -> Document:
    """One card, as other tools of NVIDIA write it for pods."""
    edits = {"deviceNodes": [{"path": DEVICES[0], "hostPath": "/dev/null"}]}
    device = {"name": "0", "containerEdits": edits}
    return {"cdiVersion": "0.6.0", "kind": GPU_KIND, "devices": [device]}


def test_the_agent_gets_every_gpu_and_the_driver_where_its_namespace_is_listed(
    world: World,
) -> None:
    name = world.listed.create(agent("agent"))
    assert seen(world.listed, name) == EVERY
    process = process_of(world.listed.get(name)["metadata"]["uid"])
    assert Path(f"/proc/{process}/root{LIBRARY}").exists()


def test_the_same_pod_gets_nothing_elsewhere(world: World) -> None:
    """It runs all the same: nothing but the toolkit's log says why it has no GPU."""
    name = world.elsewhere.create(agent("agent"))
    assert seen(world.elsewhere, name) == NOTHING


def test_an_agent_from_before_the_plugin_gets_them_in_its_next_container(world: World) -> None:
    """As after a node's start. An agent that can read no GPU ends by itself after a while."""
    os.kill(process_of(world.listed.get("early")["metadata"]["uid"]), signal.SIGTERM)
    until(
        "the next container runs",
        lambda: [(x["restartCount"], x["ready"]) for x in _containers(world)] == [(1, True)],
        timeout_s=PATIENCE_S,
    )
    assert seen(world.listed, "early") == EVERY


def _containers(world: World) -> list[Document]:
    found: list[Document] = world.listed.get("early")["status"]["containerStatuses"]
    return found


def test_each_form_of_the_annotation_gives_any_pod_a_card(world: World) -> None:
    """In every namespace, which the webhook and the policies keep from enforced ones."""
    for number, key in enumerate(FORMS):
        document = pod(f"form-{number}", "gpus")
        document["metadata"]["annotations"] = {key: f"{GPU_KIND}=0"}
        world.elsewhere.create(document)
    found = [seen(world.elsewhere, f"form-{number}") for number in range(len(FORMS))]
    assert found == [Seen(None, "", DEVICES[:1])] * len(FORMS)
    assert set(FORMS) <= set(DEVICE_KEYS)
