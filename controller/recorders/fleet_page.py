"""The page `/metrics/fleet`: series for every node and GPU, to join with other exporters' series.

Made from one snapshot at each scrape, so that what is gone has no series. As text from
the start: as objects of the metrics library, the GPUs of a large fleet would take seconds. Pure.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Final

from controller.binding.idle import Account, idle_by_namespace
from controller.binding.use import ToRecord, nothing_to_record
from controller.binding.use_reconciler import UseNow
from controller.fleet.view import Acceptance, FleetSnapshot, GpuView, NodeState, NodeView
from controller.ledger.record import key_of
from controller.ledger.store import LedgerSnapshot
from gpuwarden.evidence.use_rules import device_uuid
from gpuwarden.telemetry import names
from gpuwarden.telemetry.names import Metric

NODE_STATES: Final = tuple(x.value for x in NodeState)
GPU_STATES: Final = ("usable", "lost", "unhealthy", "stale", "revoked", "quarantined")
USES: Final = ("free", "idle", "used", "unreserved")
_SPECIAL: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_NS_PER_S: Final = 1_000_000_000

Accepted = tuple[NodeView, Acceptance]
Card = tuple[NodeView, Acceptance, GpuView]


def fleet_page(
    fleet: FleetSnapshot,
    ledger: LedgerSnapshot | None,
    use: UseNow,
    now_ns: int,
    *,
    to_record: ToRecord = nothing_to_record,
) -> bytes:
    """The text exposition.

    `ledger` is None where nothing is reserved; `to_record` says what kubelet gave as it should, and
    has no record yet.
    """
    nodes = [fleet.nodes[name] for name in sorted(fleet.nodes)]
    accepted = [(x, x.acceptance) for x in nodes if x.acceptance is not None]
    cards = _cards(accepted, now_ns)
    parts = (
        _family(names.NODE_INFO, (_node_info(*x) for x in accepted)),
        _family(names.NODE_STATE, _node_states(nodes, now_ns)),
        _family(names.NODE_EVIDENCE_TIME, (_evidence_time(*x) for x in accepted)),
        _family(names.GPU_INFO, _gpu_infos(cards)),
        _family(names.GPU_STATE, _gpu_states(cards, now_ns)),
        _family(names.GPU_USE, _gpu_uses(cards, ledger, now_ns, to_record)),
        _family(names.NAMESPACE_RESERVED, _times(names.NAMESPACE_RESERVED, use, _reserved)),
        _family(names.NAMESPACE_IDLE, _times(names.NAMESPACE_IDLE, use, _idle)),
        _family(names.NAMESPACE_IDLE_GPUS, _idle_gpus(use)),
    )
    return "".join(line for part in parts for line in part).encode()


def _family(metric: Metric, samples: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type.value}\n"
    yield from samples


def _label(text: str | None) -> str:
    return "" if text is None else text.translate(_SPECIAL)


def _info(metric: Metric, *values: str | None) -> str:
    pairs = zip(metric.labels, values, strict=True)
    labels = ",".join(f'{label}="{_label(value)}"' for label, value in pairs)
    return f"{metric.name}{{{labels}}} 1\n"


def _state_set(metric: Metric, states: tuple[str, ...]) -> Callable[[str, str], str]:
    """One sample for each state of something that is called by its first label."""
    subject, word = metric.labels

    def samples(name: str, now: str) -> str:
        start = f'{metric.name}{{{subject}="{_label(name)}",{word}="'
        return "".join(f'{start}{state}"}} {int(state == now)}\n' for state in states)

    return samples


# --- nodes


def _node_info(node: NodeView, acceptance: Acceptance) -> str:
    return _info(
        names.NODE_INFO,
        node.name,
        acceptance.level.value,
        node.mode.value,
        acceptance.attestation_hash,
        acceptance.host.driver,
        acceptance.agent_version,
    )


def _node_states(nodes: Iterable[NodeView], now_ns: int) -> Iterator[str]:
    samples = _state_set(names.NODE_STATE, NODE_STATES)
    return (samples(x.name, x.state(now_ns).value) for x in nodes)


def _evidence_time(node: NodeView, acceptance: Acceptance) -> str:
    at_s = acceptance.accepted_wall_ns // _NS_PER_S
    return f'{names.NODE_EVIDENCE_TIME.name}{{node="{_label(node.name)}"}} {at_s}\n'


# --- GPUs


def _cards(accepted: Iterable[Accepted], now_ns: int) -> tuple[Card, ...]:
    """Each GPU once: one that has moved is shown where it is, not where it was."""
    found: dict[str, tuple[tuple[bool, int], Card]] = {}
    for node, acceptance in accepted:
        weight = node.state(now_ns) is NodeState.ELIGIBLE, acceptance.accepted_wall_ns
        for gpu in acceptance.gpus:
            known = found.get(gpu.uuid)
            if known is None or known[0] < weight:
                found[gpu.uuid] = weight, (node, acceptance, gpu)
    return tuple(card for _, card in found.values())


def _gpu_infos(cards: Iterable[Card]) -> Iterator[str]:
    for node, _, gpu in cards:
        yield _info(
            names.GPU_INFO,
            gpu.uuid,
            gpu.serial,
            node.name,
            str(gpu.index),
            gpu.pci_bus_id,
            gpu.product,
            gpu.vbios,
        )


def _gpu_states(cards: Iterable[Card], now_ns: int) -> Iterator[str]:
    samples = _state_set(names.GPU_STATE, GPU_STATES)
    for node, _, gpu in cards:
        yield samples(gpu.uuid, _state(gpu, node.state(now_ns)))


def _state(gpu: GpuView, of_node: NodeState) -> str:
    if gpu.lost is not None:
        return "lost"
    if gpu.unhealthy is not None:
        return "unhealthy"
    return "usable" if of_node is NodeState.ELIGIBLE else of_node.value


def _gpu_uses(
    cards: Iterable[Card], ledger: LedgerSnapshot | None, now_ns: int, to_record: ToRecord
) -> Iterator[str]:
    """Kubelet gives a GPU to a pod that may not run yet, so a gift alone is no use of it.

    Without a fresh ledger nobody knows who holds a GPU, so nothing is shown.
    """
    if ledger is None or now_ns >= ledger.fresh_until_ns:
        return
    samples = _state_set(names.GPU_USE, USES)
    following: dict[str, Container[str]] = {}
    for node, acceptance, gpu in cards:
        parts = (gpu.uuid, *(x.uuid for x in gpu.mig_devices))
        if node.name not in following:
            following[node.name] = to_record(node)
        is_given = any(device_uuid(x.device) in parts for x in acceptance.allocations or ())
        has_process = any(x in acceptance.processes_by_gpu for x in parts)
        soon = following[node.name]
        if any(ledger.get(x) is not None or key_of(x) in soon for x in parts):
            use = "used" if has_process else "idle"
        else:
            use = "unreserved" if has_process or is_given else "free"
        yield samples(gpu.uuid, use)


# --- namespaces


def _reserved(account: Account) -> int:
    return account.reserved_ns


def _idle(account: Account) -> int:
    return account.idle_ns


def _times(metric: Metric, use: UseNow, time_ns: Callable[[Account], int]) -> Iterator[str]:
    for namespace, account in sorted(use.accounts.items()):
        yield f'{metric.name}{{namespace="{_label(namespace)}"}} {time_ns(account) // _NS_PER_S}\n'


def _idle_gpus(use: UseNow) -> Iterator[str]:
    """A namespace that holds GPUs has a series, with 0 where none is idle."""
    counts = {**dict.fromkeys(use.accounts, 0), **idle_by_namespace(use.idle)}
    for namespace, count in sorted(counts.items()):
        name = names.NAMESPACE_IDLE_GPUS.name
        yield f'{name}{{namespace="{_label(namespace)}"}} {count}\n'
