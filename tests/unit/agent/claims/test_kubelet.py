"""Asking kubelet over its socket, whatever kubelet does."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from agent.claims.allocations import MAX_BYTES, AllocationReading
from agent.claims.kubelet import MAX_ANSWER_BYTES, KubeletAllocations
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.model import Allocation, FailedRead
from gpuwarden.evidence.use_rules import MAX_ALLOCATIONS
from gpuwarden.wire.kubelet import pod_resources_pb2 as pb
from tests.builders.inventory import gpu_uuid, mig_uuid
from tests.fakes.eventually import eventually
from tests.fakes.kubelet import FakeKubelet, fake_kubelet, pod_resources

WANTED = ("nvidia.com/gpu", "nvidia.com/mig-*", "gpu.nvidia.com")


@pytest.fixture
async def kubelet() -> AsyncIterator[FakeKubelet]:
    with tempfile.TemporaryDirectory() as folder:
        async with fake_kubelet(Path(folder)) as kubelet:
            yield kubelet


@pytest.fixture
async def source(kubelet: FakeKubelet) -> AsyncIterator[KubeletAllocations]:
    source = KubeletAllocations(kubelet.socket, WANTED)
    yield source
    await source.aclose()


def failed(error: str) -> tuple[FailedRead, ...]:
    return (FailedRead(fact="allocations", gpu=None, call="PodResourcesLister/List", error=error),)


def held(pod: str, device: str, resource: str = "nvidia.com/gpu") -> Allocation:
    return Allocation("team-a", pod, "main", resource, device)


async def test_gpus_of_all_containers_sorted(
    kubelet: FakeKubelet, source: KubeletAllocations
) -> None:
    kubelet.pods = [
        pod_resources("team-a", "b", devices=[gpu_uuid(2), gpu_uuid(1)]),
        pod_resources("team-a", "a", "nvidia.com/mig-1g.10gb", [mig_uuid(1)]),
        pod_resources("team-a", "c", "nvidia.com/gpu.shared", [f"{gpu_uuid(1)}::1"]),
        pod_resources("team-a", "d", "example.com/fpga", ["fpga-0"]),
        pod_resources("team-a", "e", devices=[]),
    ]
    assert await source.read() == AllocationReading(
        (
            held("a", mig_uuid(1), "nvidia.com/mig-1g.10gb"),
            held("b", gpu_uuid(1)),
            held("b", gpu_uuid(2)),
        )
    )


async def test_devices_of_claims(kubelet: FakeKubelet, source: KubeletAllocations) -> None:
    devices = [
        pb.ClaimResource(driver_name=driver, pool_name="node-1", device_name="gpu-0")
        for driver in ("gpu.nvidia.com", "gpu.example.com")
    ]
    claim = pb.DynamicResource(claim_name="c", claim_namespace="team-a", claim_resources=devices)
    container = pb.ContainerResources(name="main", dynamic_resources=[claim])
    kubelet.pods = [pb.PodResources(namespace="team-a", name="a", containers=[container])]
    read = await source.read()
    assert read.allocations == (held("a", "node-1/gpu-0", "gpu.nvidia.com"),)


async def test_nothing_allocated_is_an_answer(source: KubeletAllocations) -> None:
    assert await source.read() == AllocationReading(())


async def test_the_same_again_counts_once(kubelet: FakeKubelet, source: KubeletAllocations) -> None:
    kubelet.pods = [pod_resources("team-a", "a", devices=[gpu_uuid(1)] * 2)] * 2
    assert (await source.read()).allocations == (held("a", gpu_uuid(1)),)


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED]
)
async def test_a_refusal_is_a_failed_read(
    kubelet: FakeKubelet, source: KubeletAllocations, code: grpc.StatusCode
) -> None:
    kubelet.refusal = code
    read = await source.read()
    assert (read.allocations, read.failed_reads) == (None, failed(code.name))
    assert read.detail == f"{code.name}: kubelet says no"


async def test_a_kubelet_that_does_not_answer(kubelet: FakeKubelet) -> None:
    kubelet.silent = True
    source = KubeletAllocations(kubelet.socket, WANTED, deadline_s=0.1)
    read = await source.read()
    assert (read.allocations, read.failed_reads) == (None, failed("DEADLINE_EXCEEDED"))
    kubelet.silent = False
    kubelet.pods = [pod_resources("team-a", "a", devices=[gpu_uuid(1)])]
    source._deadline_s = 3.0
    assert (await source.read()).allocations == (held("a", gpu_uuid(1)),)
    await source.aclose()


async def test_no_kubelet_and_then_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        kubelet = FakeKubelet(Path(folder) / "kubelet.sock")
        source = KubeletAllocations(kubelet.socket, WANTED)
        read = await source.read()
        assert (read.allocations, read.failed_reads) == (None, failed("UNAVAILABLE"))
        assert read.detail.startswith("UNAVAILABLE: ")
        await source.aclose()
        await kubelet.start()
        assert await source.read() == AllocationReading(())
        await source.aclose()
        await kubelet.stop()


async def test_a_restart_is_survived(kubelet: FakeKubelet, source: KubeletAllocations) -> None:
    assert (await source.read()).failed_reads == ()
    await kubelet.stop()
    assert (await source.read()).failed_reads == failed("UNAVAILABLE")
    await kubelet.start()

    async def answer() -> AllocationReading | None:
        read = await source.read()
        return None if read.failed_reads else read

    assert await eventually(answer, "kubelet answers again") == AllocationReading(())


async def test_an_answer_beyond_the_size_is_a_failed_read(
    kubelet: FakeKubelet, source: KubeletAllocations
) -> None:
    kubelet.pods = [pod_resources("team-a", "a", devices=["x" * MAX_ANSWER_BYTES])]
    assert (await source.read()).failed_reads == failed("RESOURCE_EXHAUSTED")


async def test_more_devices_than_fit_are_said_to_be(
    kubelet: FakeKubelet, source: KubeletAllocations
) -> None:
    devices = ["d" * 300 + f"{n:04}" for n in range(300)]
    kubelet.pods = [pod_resources("team-a", "p" * 253, devices=devices)]
    read = await source.read()
    assert read.failed_reads == failed("TOO_MANY")
    assert read.allocations
    size = len(canonical_json(read.allocations)) - len("[]") + len(",")
    assert MAX_BYTES - 1000 < size <= MAX_BYTES
    assert read.allocations[0].device == devices[0]
    assert read.detail == f"{300 - len(read.allocations)} of 300 are left out"


async def test_improper_names_are_left_out_and_said_to_be(
    kubelet: FakeKubelet, source: KubeletAllocations
) -> None:
    kubelet.pods = [
        pod_resources("team-a", "a", devices=[gpu_uuid(1)]),
        pod_resources("team-a", "A\x1b", devices=[gpu_uuid(2)]),
    ]
    read = await source.read()
    assert (read.allocations, read.failed_reads) == (
        (held("a", gpu_uuid(1)),),
        failed("MALFORMED"),
    )
    assert read.detail == "1 devices have no proper names"


async def test_as_many_as_fit_are_fewer_than_a_controller_takes(kubelet: FakeKubelet) -> None:
    devices = [chr(33 + n % 90) + chr(33 + n // 90) for n in range(MAX_ALLOCATIONS + 1)]
    kubelet.pods = [pod_resources("a", "b", devices=devices, container="c", resource="gpu")]
    source = KubeletAllocations(kubelet.socket, ("gpu",))
    read = await source.read()
    await source.aclose()
    assert read.allocations
    assert 800 < len(read.allocations) < MAX_ALLOCATIONS
