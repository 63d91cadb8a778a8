"""Who uses a real node's GPUs: kubelet's allocations and real cgroups, in verified evidence."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.claims.cgroup import pod_uid
from agent.claims.kubelet import KubeletAllocations
from gpuwarden.cli.text.terminal import short_uuid
from gpuwarden.wire.v1 import fleet_pb2 as pb
from sandbox.laptop import ROOT
from sandbox.nvml.models import h100_sxm
from sandbox.nvml.scenario import FakeGpu, Scenario
from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.contracts.pod_resources import (
    DEVICES,
    RESOURCE,
    NodeWithDevices,
    PodResourcesContract,
)
from tests.e2e.lab import cgroups
from tests.e2e.lab.claim import Claim
from tests.e2e.lab.device_plugin import DevicePlugin
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.place import Loopback
from tests.e2e.lab.pods import pod
from tests.e2e.lab.program import Site
from tests.e2e.lab.spire_server import TRUST_DOMAIN
from tests.e2e.lab.waiting import until
from tests.e2e.product.pod_processes import process_of
from tests.e2e.spire_world import CONTROLLER, OurAgent, OurController, agent_id

pytestmark = [pytest.mark.usefixtures("real_node"), pytest.mark.timeout(180)]
NODE = "gpu-0"
KUBELET = "/var/lib/kubelet"


@pytest.fixture(scope="module")
def plugin(lab: Lab) -> Iterator[DevicePlugin]:
    """The real node offers two devices."""
    folder = lab.node.capsule.path(f"{KUBELET}/device-plugins")
    with DevicePlugin(folder, DEVICES) as plugin:
        until("the node offers them", lambda: allocatable(lab) == str(len(DEVICES)))
        yield plugin


def allocatable(lab: Lab) -> str:
    status = lab.api.get(f"/api/v1/nodes/{lab.node.name}")["status"]
    return str(status["allocatable"].get(RESOURCE, ""))


def socket_of(lab: Lab) -> Path:
    return lab.node.capsule.path(f"{KUBELET}/pod-resources/kubelet.sock")


def start(lab: Lab, name: str, devices: int) -> None:
    """A pod that runs until it is deleted and holds so many devices.

    A kubelet that has just started turns pods away until it has heard of the plugin's devices;
    whoever owns such a pod makes another one.
    """
    document = pod(name, "say", "here")
    if devices:
        limits = {"limits": {RESOURCE: str(devices)}}
        document["spec"]["containers"][0]["resources"] = limits
    lab.pods.create(document)
    while lab.pods.phase(name, "Running", "Failed", timeout_s=60) == "Failed":
        assert lab.pods.get(name)["status"]["reason"] == "UnexpectedAdmissionError"
        lab.pods.delete(name)
        lab.pods.create(document)


class RealNode(NodeWithDevices):
    def __init__(self, lab: Lab, plugin: DevicePlugin) -> None:
        self._lab = lab
        self._plugin = plugin
        self.source = KubeletAllocations(socket_of(lab), (RESOURCE,))

    async def run(self, pod: str, devices: int) -> None:
        await asyncio.to_thread(start, self._lab, pod, devices)

    async def end(self, pod: str) -> None:
        await asyncio.to_thread(self._lab.pods.delete, pod)

    async def restart(self) -> None:
        await asyncio.to_thread(self._lab.node.kubelet.restart)
        await asyncio.to_thread(self._plugin.register)


class TestRealKubelet(PodResourcesContract):
    """The same as of the fake one."""

    @pytest.fixture
    async def node(self, lab: Lab, plugin: DevicePlugin) -> AsyncIterator[NodeWithDevices]:
        node = RealNode(lab, plugin)
        yield node
        await node.source.aclose()


class Warden:
    """Our controller, and our agent beside the real node's kubelet; identities are made up."""

    def __init__(self, lab: Lab, folder: Path, workloads: InsecureWorkloadApi) -> None:
        site = Site(folder, {}, Loopback())
        self._site = site
        workloads.add("controller", CONTROLLER)
        workloads.add("agent", agent_id(NODE))
        self.controller = OurController(site, f"unix://{folder}/controller.sock", {})
        self.controller.start()
        self.agent = OurAgent(
            site,
            NODE,
            f"unix://{folder}/agent.sock",
            self.controller.addresses["agents"],
            kubeletSocket=str(socket_of(lab)),
        )
        self.show()
        self.agent.start()

    def use(self) -> pb.GpuUse:
        return self.controller.asked(NODE).use

    def show(self, *processes: int) -> None:
        """The node's GPUs, with these processes on the first one."""
        self.agent.show(Scenario(cuda=12080, gpus=(card(0, processes), card(1))))

    def printed(self, *options: str) -> str:
        """What `gpuwarden node show` prints."""
        command = (sys.executable, "-m", "gpuwarden.cli", "node", "show", NODE, *options)
        server = f"unix:{self.controller.socket}"
        done = subprocess.run(
            [*command, "--server", server],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        return done.stdout

    def close(self) -> None:
        self._site.close()


def card(index: int, processes: tuple[int, ...] = ()) -> FakeGpu:
    made = h100_sxm(index, NODE)
    return FakeGpu(**{**_fields(made), "uuid": DEVICES[index], "compute_pids": processes})


def _fields(made: FakeGpu) -> dict[str, Any]:
    return {name: getattr(made, name) for name in made.__struct_fields__}


@pytest.fixture
def warden(lab: Lab, plugin: DevicePlugin) -> Iterator[Warden]:
    del plugin
    claim = Claim.take()
    try:
        with InsecureWorkloadApi(claim.folder, TRUST_DOMAIN) as workloads:
            made = Warden(lab, claim.folder, workloads)
            try:
                yield made
            finally:
                made.close()
    finally:
        claim.release()


@pytest.fixture
def job(lab: Lab, plugin: DevicePlugin) -> Iterator[str]:
    """A pod that holds one device."""
    del plugin
    start(lab, "job", 1)
    yield "job"
    lab.pods.delete("job")


def test_a_pods_device_and_process_are_seen_in_verified_evidence(
    lab: Lab, warden: Warden, job: str
) -> None:
    uid = lab.pods.get(job)["metadata"]["uid"]
    process = process_of(uid)
    warden.show(process, warden.agent.pid)

    def seen() -> pb.GpuUse | None:
        use = warden.use()
        return use if use.allocations and use.processes else None

    use = until("the controller has seen both", seen)
    (held,) = use.allocations
    assert (held.namespace, held.pod, held.container) == ("default", job, "main")
    assert (held.resource, held.device, held.uuid) == (RESOURCE, held.device, held.device)
    assert held.device in DEVICES
    assert {x.pid: x.pod_uid for x in use.processes} == {process: uid, warden.agent.pid: ""}
    node = warden.controller.node(NODE)
    assert (node.state, list(node.warnings)) == ("eligible", [])
    told = json.loads(warden.printed("-o", "json"))["use"]
    assert [(x["pod"], x["device"]) for x in told["allocations"]] == [(job, held.device)]
    lines = [line.split() for line in warden.printed().splitlines()]
    assert ["default", job, "main", RESOURCE, short_uuid(held.device)] in lines
    assert [str(process), short_uuid(DEVICES[0]), uid] in lines


def test_use_comes_and_goes_and_the_node_stays_what_it_is(lab: Lab, warden: Warden) -> None:
    until("nothing is allocated", lambda: idle(warden.use()))
    before = warden.controller.node(NODE)
    start(lab, "brief", 2)
    until("both are allocated", lambda: len(warden.use().allocations) == len(DEVICES))
    lab.pods.delete("brief")
    until("nothing is allocated again", lambda: idle(warden.use()))
    after = warden.controller.node(NODE)
    assert (after.state, after.attestation_hash) == ("eligible", before.attestation_hash)
    assert after.node_identity == before.node_identity


def test_without_kubelet_the_node_stays_and_says_so(
    lab: Lab, plugin: DevicePlugin, warden: Warden
) -> None:
    until("nothing is allocated", lambda: idle(warden.use()))
    lab.node.kubelet.stop()
    try:
        until("it is not read", lambda: not warden.use().allocations_read)
        node = warden.controller.node(NODE)
        assert (node.state, list(node.warnings)) == ("eligible", ["not read: allocations"])
        assert "Allocated by kubelet:\nNot read.\n" in warden.printed()
    finally:
        lab.node.kubelet.resume_service()
        plugin.register()
    until("it is read again", lambda: idle(warden.use()), timeout_s=60)


def test_the_pod_is_found_from_within_a_cgroup_namespace(lab: Lab, job: str) -> None:
    """As an agent in a container sees it that has a namespace of its own."""
    uid = lab.pods.get(job)["metadata"]["uid"]
    start(lab, "other", 0)
    other = process_of(lab.pods.get("other")["metadata"]["uid"])
    process = process_of(uid)
    entered = "".join(f"echo $$ > {group}/cgroup.procs; " for group in groups_of(other))
    seen = subprocess.run(
        ["sh", "-c", f"{entered} exec unshare --cgroup cat /proc/{process}/cgroup"],  # noqa: S607 - its place differs
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout
    lab.pods.delete("other")
    assert "/.." in seen
    assert "kubepods" not in seen
    assert pod_uid(seen) == uid


def idle(use: pb.GpuUse) -> bool:
    return use.allocations_read and not use.allocations


def groups_of(process: int) -> list[Path]:
    """The pod's cgroup that a process is in, in every hierarchy."""
    lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    paths = {line.split(":", 2)[2].lstrip("/") for line in lines if "kubepods" in line}
    found = (top / path for top in cgroups.hierarchies() for path in paths)
    return [group for group in found if group.is_dir()]
