"""The verified fleet as protobuf messages: views in, messages out, and nothing decided.

Absent facts become empty strings, as the protocol says. Pure; `now_ns` is
CLOCK_BOOTTIME of this controller.
"""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from msgspec.structs import astuple

from controller.fleet.view import Acceptance, GpuView, NodeState, NodeView, PastRefusal
from controller.scheduling.promise import Promise
from gpuwarden.evidence.use_rules import device_uuid
from gpuwarden.reasons import ReasonCode
from gpuwarden.wire.v1 import fleet_pb2 as pb

LabelsOf = Callable[[NodeView, GpuView], tuple[str, ...]]
"""Policy labels that hold for a GPU, sorted."""
PromiseOf = Callable[[NodeView], Promise | None]
"""The most that a node promises pods."""

_MS = 1_000_000
_U32 = 2**32 - 1
_MAX_REFUSALS = 20

_CODE_OF_STATE = {
    NodeState.UNKNOWN: ReasonCode.NODE_NO_EVIDENCE,
    NodeState.STALE: ReasonCode.NODE_STALE,
}


def no_labels(_node: NodeView, _gpu: GpuView) -> tuple[str, ...]:
    """For answers in which labels play no part."""
    return ()


def no_promise(_node: NodeView) -> Promise | None:
    """For answers in which guarantees play no part."""
    return None


def node_message(
    node: NodeView,
    now_ns: int,
    labels_of: LabelsOf = no_labels,
    promise_of: PromiseOf = no_promise,
) -> pb.Node:
    """One node with its GPUs as of `now_ns`."""
    state = node.state(now_ns)
    code, detail = _why(node, state)
    message = pb.Node(
        name=node.name, state=state.value, code=code, detail=detail, mode=node.mode.value
    )
    message.warnings.extend(node.warnings)
    if node.acceptance is not None:
        _add_acceptance(message, node.acceptance)
        if state is NodeState.ELIGIBLE:
            message.fresh_for_ms = _remaining_ms(node.acceptance, now_ns)
            _add_promise(message, promise_of(node))
        message.gpus.extend(gpu_messages(node, labels_of))
    return message


def gpu_messages(node: NodeView, labels_of: LabelsOf = no_labels) -> list[pb.Gpu]:
    """The GPUs of the last accepted evidence of `node`, in PCI bus order."""
    if node.acceptance is None:
        return []
    return [_gpu(node, gpu, labels_of) for gpu in node.acceptance.gpus]


def use_message(accepted: Acceptance | None) -> pb.GpuUse | None:
    """Allocations and processes of the last accepted evidence."""
    if accepted is None:
        return None
    message = pb.GpuUse(
        allocations_read=accepted.allocations is not None,
        processes_read=accepted.processes is not None,
    )
    message.allocations.extend(
        pb.Allocation(
            namespace=one.namespace,
            pod=one.pod,
            container=one.container,
            resource=one.resource,
            device=one.device,
            uuid=device_uuid(one.device) or "",
        )
        for one in sorted(accepted.allocations or (), key=astuple)
    )
    message.processes.extend(
        pb.GpuProcess(gpu=one.gpu, pid=one.pid, pod_uid=one.pod_uid or "")
        for one in sorted(accepted.processes or (), key=lambda x: (x.gpu, x.pid))
    )
    return message


def refusal_messages(refusals: Iterable[PastRefusal]) -> list[pb.PastRefusal]:
    """Past refusals, newest first, as many as a person reads."""
    return [
        pb.PastRefusal(
            at=rfc3339(refusal.wall_ns),
            code=refusal.code.value,
            detail=refusal.detail,
            step=refusal.step,
            count=min(refusal.count, _U32),
        )
        for refusal in tuple(refusals)[:_MAX_REFUSALS]
    ]


def rfc3339(wall_ns: int) -> str:
    """Nanoseconds since the epoch as RFC 3339 UTC with milliseconds."""
    seconds, rest = divmod(wall_ns // _MS, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


def _why(node: NodeView, state: NodeState) -> tuple[str, str]:
    if state is NodeState.ELIGIBLE:
        return "", ""
    if node.blocked is not None:
        return node.blocked.code.value, node.blocked.detail
    last = node.refusals[0] if node.refusals else None
    if state is NodeState.REFUSED and last is not None:
        return last.code.value, last.detail
    detail = f"last refusal: {last.code} {last.detail}".rstrip() if last else ""
    return _CODE_OF_STATE[state].value, detail


def _add_acceptance(message: pb.Node, accepted: Acceptance) -> None:
    message.level = accepted.level.value
    message.attestation_hash = accepted.attestation_hash
    message.driver = accepted.host.driver or ""
    message.cuda = accepted.host.cuda or ""
    message.arch = accepted.host.arch
    message.cc = accepted.host.cc or ""
    message.system_uuid = accepted.host.system_uuid or ""
    message.gpu_count = len(accepted.gpus)
    message.lost_gpu_count = sum(gpu.lost is not None for gpu in accepted.gpus)
    message.products.extend(sorted({gpu.product for gpu in accepted.gpus if gpu.product}))
    message.evidence_digest = accepted.evidence_digest
    message.node_identity = accepted.identity_digest
    message.instance_id = accepted.instance_id
    message.boot_id = accepted.boot_id
    message.agent_version = accepted.agent_version
    message.accepted_at = rfc3339(accepted.accepted_wall_ns)
    message.warnings.extend(accepted.warnings)


def _add_promise(message: pb.Node, promise: Promise | None) -> None:
    if promise is not None:
        message.guarantee = promise.guarantee.value
        message.guarantee_limit = "" if promise.limit is None else promise.limit.value


def _remaining_ms(accepted: Acceptance, now_ns: int) -> int:
    return min(max(accepted.fresh_until_ns - now_ns, 0) // _MS, _U32)


def _gpu(node: NodeView, gpu: GpuView, labels_of: LabelsOf) -> pb.Gpu:
    message = pb.Gpu(
        node=node.name,
        index=gpu.index,
        uuid=gpu.uuid,
        serial=gpu.serial or "",
        board_part_number=gpu.board_part_number or "",
        product=gpu.product or "",
        pci_bus_id=gpu.pci_bus_id,
        pci=gpu.pci or "",
        subsystem=gpu.subsystem or "",
        vbios=gpu.vbios or "",
        gsp=gpu.gsp or "",
        memory_mib=gpu.memory_mib or 0,
        ecc=_on_off(gpu.ecc),
        mig=_on_off(gpu.mig),
        virt=gpu.virt or "",
        compute_capability=gpu.compute_capability or "",
        architecture=gpu.architecture or "",
        health=_health(gpu),
        chassis_serial=gpu.chassis_serial or "",
        fabric=gpu.fabric_kind or "",
        compute_mode=gpu.compute_mode or "",
        persistence_mode=_on_off(gpu.persistence_mode),
        nvlinks_active=sum(link.active for link in gpu.nvlinks),
        nvlinks_total=len(gpu.nvlinks),
        module_id=-1 if gpu.module_id is None else gpu.module_id,
    )
    message.labels.extend(labels_of(node, gpu))
    message.mig_devices.extend(
        pb.MigDevice(uuid=mig.uuid, profile=mig.profile or "", memory_mib=mig.memory_mib or 0)
        for mig in gpu.mig_devices
    )
    return message


def _health(gpu: GpuView) -> str:
    if gpu.lost is not None:
        return "lost"
    return "unhealthy" if gpu.unhealthy else "ok"


def _on_off(mode: bool | None) -> str:  # noqa: FBT001 - a value to render, not a switch
    return "" if mode is None else ("on" if mode else "off")
