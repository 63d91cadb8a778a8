"""One controller and its fleet in numbers, for people. Pure; decides nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from controller.fleet.view import FleetSnapshot, GpuView, NodeState
from controller.operations.readiness import ListenerState, Readiness
from controller.spire.facts import SpireCondition
from gpuwarden import __version__
from gpuwarden.evidence.model import PROTOCOL
from gpuwarden.wire.v1 import fleet_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What this controller is a part of."""

    cluster: str
    replica: str
    enforcement: str
    protection: str
    replicas: tuple[str, ...] = ()
    """All that the cluster runs; empty without a cluster."""
    leads: bool = False
    evaluation: bool = False
    """Whether GPUs may be made up and nothing is proven."""
    alarms: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Nodes whose agents accuse an audit log, with the codes."""
    listeners: tuple[ListenerState, ...] = ()
    spire: SpireCondition = field(default_factory=lambda: SpireCondition(configured=False))


def status_message(
    here: Installation, fleet: FleetSnapshot, state: Readiness, now_ns: int
) -> pb.GetStatusResponse:
    """All of it as of `now_ns` (CLOCK_BOOTTIME)."""
    accepted = [x.acceptance for x in fleet.nodes.values() if x.acceptance is not None]
    return pb.GetStatusResponse(
        cluster=here.cluster,
        replica=here.replica,
        version=__version__,
        protocol=PROTOCOL,
        not_ready="; ".join(state.reasons),
        warnings=state.warnings,
        replicas=here.replicas,
        leads=here.leads,
        enforcement=here.enforcement,
        protection=here.protection,
        nodes=_in_order_of_states(x.state(now_ns) for x in fleet.nodes.values()),
        gpus=_sorted(gpu_health(gpu) for one in accepted for gpu in one.gpus),
        agents=_sorted(one.agent_version for one in accepted),
        alarms=[
            pb.WitnessAlarm(node=node, codes=here.alarms[node]) for node in sorted(here.alarms)
        ],
        listeners=[_listener(one) for one in here.listeners],
        spire=pb.SpireServer(
            configured=here.spire.configured,
            error=here.spire.error or "",
            excessive=here.spire.excessive,
            unregistered=here.spire.unregistered,
        ),
    )


def _listener(state: ListenerState) -> pb.Listener:
    ends = state.client_ends
    return pb.Listener(
        name=state.name,
        certificates=state.certificates,
        demands_certificate=state.demands_certificate,
        client_ends="" if ends is None else ends.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def gpu_health(gpu: GpuView) -> str:
    """ok, lost or unhealthy."""
    if gpu.lost is not None:
        return "lost"
    return "unhealthy" if gpu.unhealthy else "ok"


def _in_order_of_states(states: Iterable[NodeState]) -> list[pb.Count]:
    found = Counter(states)
    return [pb.Count(name=x.value, count=found[x]) for x in NodeState if found[x]]


def _sorted(names: Iterable[str]) -> list[pb.Count]:
    found = Counter(names)
    return [pb.Count(name=name, count=found[name]) for name in sorted(found)]
