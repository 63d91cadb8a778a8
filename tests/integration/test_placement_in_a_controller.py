"""What people ask a whole controller about placement, with the real command line."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from gpuwarden.evidence.model import GpuProcess
from tests.fakes.cluster import GPUS, FakeCluster, LiveCluster
from tests.fakes.eventually import eventually


async def ask(socket: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of the command line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuwarden.cli", *arguments, "--server", f"unix:{socket}"),
        *("--timeout", "60"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def told(here: LiveCluster, *arguments: str, wanted: int | None = 0) -> Any:
    """What it says for programs."""
    socket = here.controller.addresses.local
    code, out, err = await ask(socket, *arguments, "-o", "json")
    assert code == wanted or wanted is None, err
    return json.loads(out)


async def test_who_holds_which_gpu(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        given = {}
        for name in ("train-0", "train-1"):
            here.create(name)
            given[name] = await here.bound(name)
            await here.state_of(given[name], "Confirmed")
        assert set(given.values()) < set(GPUS)

        async def summed_up() -> bool | None:
            objects = cluster.api.objects.all("gpureservations").values()
            statuses = [x.get("status", {}) for x in objects]
            return {x.get("pod") for x in statuses} == {f"team-a/{x}" for x in given} or None

        await eventually(summed_up, "the leader has written what kubectl get shows")
        found = (await told(here, "reservations", "--namespace", "team-a"))["reservations"]
        assert {x["pod"]: x["gpus"][0]["uuid"] for x in found} == given
        assert {(x["state"], x["node"], x["origin"]) for x in found} == {
            ("Confirmed", "node-1", "binding")
        }
        assert all(x["ageS"] > 0 for x in found)
        assert (await told(here, "reservations", "--node", "node-2"))["reservations"] == []


async def test_without_a_ledger_the_list_is_an_error_not_empty(cluster: FakeCluster) -> None:
    async with cluster.controller() as here:
        code, out, err = await ask(here.addresses.local, "reservations")
        assert (code, out) == (1, "")
        assert "LEDGER_UNAVAILABLE: this controller reserves nothing" in err


def states(found: Any) -> dict[str, str]:
    return {x["name"]: x["state"] for x in found["stages"]}


async def test_a_pod_s_way_from_its_requirement_to_its_processes(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        uid = here.create("train-0")["metadata"]["uid"]

        async def passes() -> Any:
            found = await told(here, "explain", "pod", "team-a/train-0", wanted=None)
            return found if found["passing"] else None

        waiting = await eventually(passes, "the pod waits for a scheduler alone")
        assert states(waiting) == {
            "required": "reached",
            "reserved": "waiting",
            "bound": "waiting",
            "kubelet": "waiting",
            "nvml": "waiting",
        }
        assert waiting["passingNodes"] == ["node-1"]
        given = await here.bound("train-0")
        await here.state_of(given, "Confirmed")
        here.agent.processes = (GpuProcess(given, 7, uid),)
        await here.agent.some_rounds()
        found = await told(here, "explain", "pod", "team-a/train-0")
        assert states(found) == {
            "required": "reached",
            "reserved": "reached",
            "bound": "reached",
            "kubelet": "unneeded",
            "nvml": "reached",
        }
        by_name = {x["name"]: x for x in found["stages"]}
        assert [by_name[x]["gpus"] for x in ("reserved", "bound", "nvml")] == [[given]] * 3
        shown = (await told(here, "node", "show", "node-1"))["evidenceDigest"]
        assert len(by_name["nvml"]["evidenceDigest"]) == len(shown) == 64
        assert len(by_name["bound"]["evidenceDigest"]) == 64
        assert by_name["reserved"]["at"]
        assert (found["guaranteeGiven"], found["guarantee"]) == ("node", "node")
        assert found["guaranteeLimit"] == "protection is off"

        async def logged() -> Any:
            found = await told(here, "explain", "pod", "team-a/train-0")
            kinds = {x["kind"]: x for x in found["records"]}
            return kinds if "reservation.confirmed" in kinds else None

        kinds = await eventually(logged, "the audit log tells of it")
        assert kinds["reservation.reserved"]["gpus"] == [given]
        here.agent.processes = (GpuProcess(given, 7, uid), GpuProcess(given, 8, None))
        await here.agent.some_rounds()
        found = await told(here, "explain", "pod", "team-a/train-0", wanted=3)
        assert states(found)["nvml"] == "mismatch"
        assert f"process 8 of no pod uses {given} too" in found["stages"][4]["findings"]


async def test_why_a_pod_waits_and_what_is_left_of_one_that_is_gone(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        for number in range(len(GPUS) + 1):
            here.create(f"train-{number}")
        uid = cluster.api.objects.get("pods", "team-a/train-0")["metadata"]["uid"]
        given = [await here.bound(f"train-{number}") for number in range(len(GPUS))]
        last = f"team-a/train-{len(GPUS)}"
        found = await told(here, "explain", "pod", last, wanted=3)
        assert [(x["code"], x["nodes"]) for x in found["rejections"]] == [("GPU_BUSY", ["node-1"])]
        waiting = cluster.api.objects.get("pods", last)
        filtered = await here.controller.filtered(waiting)
        text = filtered["FailedAndUnresolvableNodes"]["node-1"]
        constant = text.removeprefix("gpuwarden: GPU_BUSY ")
        assert found["rejections"][0]["detail"] == f"{constant}: needs 1 GPU, node has 3, 0 free"
        await here.state_of(given[0], "Confirmed")
        here.agent.processes = (GpuProcess(given[0], 7, uid),)
        cluster.api.delete("pods", "team-a/train-0")
        await here.state_of(given[0], "Releasing")
        gone = await told(here, "explain", "pod", "team-a/train-0")
        assert (gone["phase"], states(gone)["reserved"]) == ("", "reached")
        assert gone["uid"] == uid
        code, _, err = await ask(here.controller.addresses.local, "explain", "pod", "team-a/never")
        assert code == 1
        assert "POD_UNKNOWN: no pod team-a/never; neither ledger nor audit log know" in err


async def test_pods_that_protection_evicts(cluster: FakeCluster) -> None:
    async with cluster.live() as here:
        here.create("train-0")
        await here.bound("train-0")  # with the toleration that admission gives
        spec = {"containers": [{"name": "main"}], "nodeName": "node-1"}
        metadata = {"namespace": "spire-server", "name": "spire-server-0"}
        cluster.api.create("pods", {"metadata": metadata, "spec": spec})

        async def listed() -> Any:
            found = await told(here, "protection", "check", wanted=None)
            return found if found["pods"] else None

        assert await eventually(listed, "the pod is known") == {
            "nodes": 1,
            "pods": [
                {
                    "node": "node-1",
                    "namespace": "spire-server",
                    "name": "spire-server-0",
                    "afterS": 0,
                }
            ],
        }
        code, _, err = await ask(here.controller.addresses.local, "protection", "check", "gone")
        assert code == 1
        assert "NODE_UNKNOWN: the cluster has no node gone" in err


async def test_reservations_outlive_the_key_of_their_ids(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """An installation that comes back without its Secret."""
    another = tmp_path / "another-key"
    another.write_text(f"k1 {'cd' * 32}\n")
    async with cluster.live() as here:
        here.create("train-0")
        given = await here.bound("train-0")
        await here.state_of(given, "Confirmed")
    async with cluster.live(admission__idKeys=str(another)) as here:
        others = [here.create(f"next-{n}")["metadata"]["name"] for n in range(len(GPUS) - 1)]
        assert {await here.bound(name) for name in others} == set(GPUS) - {given}
        found = await told(here, "explain", "pod", "team-a/train-0")
        bound = next(x for x in found["stages"] if x["name"] == "bound")
        assert bound["state"] == "reached"
        assert any("by no key of admission.idKeys" in x for x in bound["findings"])
        here.create("late")
        assert not (await here.bind("late"))["allowed"]
