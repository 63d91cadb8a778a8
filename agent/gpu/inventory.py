"""From what one pass found to the inventory that is signed, the failed reads, and the processes.

A GPU that was there before and no longer answers, or no longer with its name, is reported as
lost under its last UUID and keeps its place, so that no other GPU's index moves. One that has
no name that is known is a failed read: the Verifier knows which enrolled GPU is missing. A GPU
that answers with another UUID in the same place replaces it: the Verifier decides what that means.

Pure: what was known before goes in, what is known now comes out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from agent.claims.host import HostFacts
from agent.gpu.decode import bus_order
from agent.gpu.facts import DeviceSurvey, Failed, GpuFacts, Outcome, PciAddress, Platform, Survey
from gpuwarden.evidence.model import FailedRead, Gpu, GpuProcess, Host, Inventory, LostGpu

T = TypeVar("T")

MAX_PROCESSES: Final = 1000
"""Of all GPUs together; what is beyond is left out and said to be."""

_NOT_FOUND: Final = "GPU_NOT_FOUND"
_LISTING: Final = "nvmlDeviceGetComputeRunningProcesses"


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A GPU as this process last saw it."""

    uuid: str
    bus_id: str
    nvml_index: int


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What one pass comes to."""

    inventory: Inventory
    failed_reads: tuple[FailedRead, ...]
    processes: tuple[GpuProcess, ...] | None
    known: tuple[KnownGpu, ...]


@dataclass(slots=True)
class _Failures:
    """Failed reads, collected while values are taken."""

    reads: list[FailedRead] = field(default_factory=list)

    def take(self, fact: str, gpu: str | None, outcome: Outcome[T]) -> T | None:
        if isinstance(outcome, Failed):
            self.reads.append(
                FailedRead(fact=fact, gpu=gpu, call=outcome.call, error=outcome.error)
            )
            return None
        return outcome

    def note(self, fact: str, gpu: str | None, failures: Iterable[Failed]) -> None:
        for failed in failures:
            self.take(fact, gpu, failed)


@dataclass(frozen=True, slots=True)
class _Answering:
    """A GPU of this pass that answers."""

    uuid: str
    address: PciAddress
    facts: GpuFacts
    nvml_index: int


@dataclass(frozen=True, slots=True)
class _Gone:
    """A GPU that was there."""

    gpu: KnownGpu
    error: str


def conclude(
    survey: Survey,
    known: tuple[KnownGpu, ...],
    host: HostFacts,
    pod_of: Callable[[int], str | None],
) -> Conclusion:
    """`pod_of` gives the pod UID of a process id, or null."""
    failures = _Failures()
    answering = [gpu for device in survey.devices if (gpu := _answering(device))]
    gone, nameless = _lost(survey, known, answering)
    _note_nameless(nameless, failures)
    gone += _vanished(survey, known, answering, gone)
    places = _places(answering, gone, nameless)
    inventory = Inventory(
        host=_host(survey, host, failures),
        gpus=_gpus(answering, places, failures),
        lost=_lost_gpus(gone, places),
    )
    failures.take("gpus", None, survey.count)
    processes = _processes(answering, pod_of, failures)
    return Conclusion(inventory, tuple(failures.reads), processes, _known(known, answering, gone))


def nothing_known(failed: Failed, host: HostFacts) -> tuple[Inventory, tuple[FailedRead, ...]]:
    """The inventory of a node whose NVML does not answer: marked as incomplete."""
    facts = Host(driver=None, cuda=None, cc=None, arch=host.arch, system_uuid=host.system_uuid)
    read = FailedRead(fact="gpus", gpu=None, call=failed.call, error=failed.error)
    return Inventory(host=facts, gpus=(), lost=()), (read,)


def _answering(device: DeviceSurvey) -> _Answering | None:
    if isinstance(device.uuid, str) and isinstance(device.pci, PciAddress) and device.facts:
        return _Answering(device.uuid, device.pci, device.facts, device.index)
    return None


def _bus(device: DeviceSurvey) -> str | None:
    return device.pci.bus_id if isinstance(device.pci, PciAddress) else None


def _lost(
    survey: Survey, known: tuple[KnownGpu, ...], answering: list[_Answering]
) -> tuple[list[_Gone], list[DeviceSurvey]]:
    """GPUs of which nothing can be had, and those among them that nobody knows by name.

    Those with a known name or place come first. A handle that is refused reports nothing, and
    NVML's indices close up behind a GPU that is gone: it is the one that had this index, or
    else any that nothing else was seen of.
    """
    taken = {bus for device in survey.devices if (bus := _bus(device))}
    answers = {gpu.uuid for gpu in answering}
    silent = [gpu for gpu in known if gpu.uuid not in answers]
    gone: dict[str, _Gone] = {}
    nameless: list[DeviceSurvey] = []
    for device in sorted(survey.devices, key=_how_little_is_known):
        if device.lost is None:
            continue
        left = [gpu for gpu in silent if gpu.uuid not in gone]
        gpu = _last_seen(device, left, [gpu for gpu in left if gpu.bus_id not in taken])
        if gpu is None:
            nameless.append(device)
        else:
            gone[gpu.uuid] = _Gone(gpu, device.lost.error)
    return list(gone.values()), nameless


def _how_little_is_known(device: DeviceSurvey) -> int:
    return (_bus(device) is None) + (not isinstance(device.uuid, str))


def _last_seen(
    device: DeviceSurvey, silent: list[KnownGpu], unseen: list[KnownGpu]
) -> KnownGpu | None:
    bus = _bus(device)
    if bus and isinstance(device.uuid, str):
        return KnownGpu(device.uuid, bus, device.index)
    if isinstance(device.uuid, str):
        return next((gpu for gpu in silent if gpu.uuid == device.uuid), None)
    if bus:
        return next((gpu for gpu in silent if gpu.bus_id == bus), None)
    same = (gpu for gpu in unseen if gpu.nvml_index == device.index)
    return next(same, next(iter(unseen), None))


def _note_nameless(nameless: list[DeviceSurvey], failures: _Failures) -> None:
    """One failed read for each, of the first thing that would have named it."""
    for device in nameless:
        gpu = device.uuid if isinstance(device.uuid, str) else _bus(device)
        failures.take("pciBusId" if _bus(device) is None else "uuid", gpu, device.lost)


def _vanished(
    survey: Survey,
    known: tuple[KnownGpu, ...],
    answering: list[_Answering],
    gone: list[_Gone],
) -> list[_Gone]:
    """Known GPUs of which this pass saw nothing at all, in places that nobody else took."""
    if not isinstance(survey.count, int):
        return []
    uuids = {gpu.uuid for gpu in answering} | {other.gpu.uuid for other in gone}
    buses = {gpu.address.bus_id for gpu in answering} | {other.gpu.bus_id for other in gone}
    return [
        _Gone(gpu, _NOT_FOUND) for gpu in known if gpu.uuid not in uuids and gpu.bus_id not in buses
    ]


def _places(
    answering: list[_Answering], gone: list[_Gone], nameless: list[DeviceSurvey]
) -> dict[str, int]:
    buses = {gpu.address.bus_id for gpu in answering} | {other.gpu.bus_id for other in gone}
    buses |= {bus for device in nameless if (bus := _bus(device))}
    return {bus: place for place, bus in enumerate(sorted(buses, key=bus_order))}


def _lost_gpus(gone: list[_Gone], places: dict[str, int]) -> tuple[LostGpu, ...]:
    lost = (
        LostGpu(
            uuid=one.gpu.uuid,
            index=places[one.gpu.bus_id],
            pci_bus_id=one.gpu.bus_id,
            error=one.error,
        )
        for one in gone
    )
    return tuple(sorted(lost, key=lambda gpu: gpu.index))


def _known(
    known: tuple[KnownGpu, ...], answering: list[_Answering], gone: list[_Gone]
) -> tuple[KnownGpu, ...]:
    """Those of this pass, and earlier ones whose UUID and place nobody has taken."""
    now = [KnownGpu(gpu.uuid, gpu.address.bus_id, gpu.nvml_index) for gpu in answering]
    now += [one.gpu for one in gone]
    uuids, buses = {gpu.uuid for gpu in now}, {gpu.bus_id for gpu in now}
    kept = [gpu for gpu in known if gpu.uuid not in uuids and gpu.bus_id not in buses]
    return (*now, *kept)


def _host(survey: Survey, host: HostFacts, failures: _Failures) -> Host:
    return Host(
        driver=failures.take("driver", None, survey.driver),
        cuda=failures.take("cuda", None, survey.cuda),
        cc=failures.take("cc", None, survey.cc),
        arch=host.arch,
        system_uuid=host.system_uuid,
    )


def _gpus(
    answering: list[_Answering], places: dict[str, int], failures: _Failures
) -> tuple[Gpu, ...]:
    gpus = (_gpu(gpu, places[gpu.address.bus_id], failures) for gpu in answering)
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(gpu: _Answering, index: int, failures: _Failures) -> Gpu:
    facts = gpu.facts

    def take(fact: str, outcome: Outcome[T]) -> T | None:
        return failures.take(fact, gpu.uuid, outcome)

    failures.note("migDevices", gpu.uuid, facts.mig.failures)
    failures.note("nvlinks", gpu.uuid, facts.links.failures)
    memory = take("memoryBytes", facts.memory_bytes)
    platform = take("chassisSerial", facts.platform) or Platform(None, None)
    module = take("moduleId", facts.module_id)
    return Gpu(
        index=index,
        uuid=gpu.uuid,
        serial=take("serial", facts.serial),
        board_part_number=take("boardPartNumber", facts.board_part_number),
        product=take("product", facts.product),
        pci_bus_id=gpu.address.bus_id,
        pci=gpu.address.pci,
        subsystem=gpu.address.subsystem,
        vbios=take("vbios", facts.vbios),
        gsp=take("gsp", facts.gsp),
        memory_bytes=None if memory is None else str(memory),
        ecc=take("ecc", facts.ecc),
        mig=take("mig", facts.mig.mode),
        mig_devices=facts.mig.devices,
        virt=take("virt", facts.virt),
        compute_capability=take("computeCapability", facts.compute_capability),
        architecture=take("architecture", facts.architecture),
        compute_mode=take("computeMode", facts.compute_mode),
        persistence_mode=take("persistenceMode", facts.persistence_mode),
        nvlinks=facts.links.links,
        fabric=take("fabric", facts.fabric),
        chassis_serial=platform.chassis_serial,
        module_id=platform.module_id if module is None else module,
    )


def _processes(
    answering: list[_Answering], pod_of: Callable[[int], str | None], failures: _Failures
) -> tuple[GpuProcess, ...] | None:
    lists = [
        (gpu.uuid, pids)
        for gpu in answering
        if (pids := failures.take("processes", gpu.uuid, gpu.facts.pids)) is not None
    ]
    if answering and not lists:
        return None
    for gpu in answering:
        failures.note("processes", gpu.uuid, gpu.facts.pid_failures)
    pairs = sorted((uuid, pid) for uuid, pids in lists for pid in pids)
    if len(pairs) > MAX_PROCESSES:
        failures.take("processes", None, Failed(_LISTING, "TOO_MANY"))
    return tuple(
        GpuProcess(gpu=uuid, pid=pid, pod_uid=pod_of(pid)) for uuid, pid in pairs[:MAX_PROCESSES]
    )
