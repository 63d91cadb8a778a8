"""A controller as it is put together and not yet started: everything that its life needs.

Must make nothing itself; see assembly.py.
"""

from dataclasses import dataclass

from controller.audit.durable_log import DurableLog
from controller.binding.assembly import BindingParts
from controller.conditions import Conditions
from controller.denial_follower import DenialFollower
from controller.fleet.registry import FleetRegistry
from controller.http_server import HttpServer
from controller.kube.cluster import Cluster
from controller.kube.node_hints import NodeHints
from controller.policy_in_force import PolicyInForce
from controller.rpc.attestation_service import AttestationService
from controller.rpc.fleet_service import FleetService
from controller.rpc.known_fleet import KnownFleet
from controller.rpc.operator_service import OperatorService
from controller.rpc.placement_service import PlacementService
from controller.rpc.stream_table import StreamTable
from controller.scheduling.extender import ExtenderServer
from controller.settings import ControllerSettings
from controller.spire.assembly import SpireParts
from controller.spire.revocation import Revocation
from controller.store.opening import ChosenStore
from controller.support.recent_refusals import RecentRefusals
from controller.trust_journal import TrustJournal
from gpuwarden.clock import Clock
from gpuwarden.identity.svid import SvidSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A controller, not yet started."""

    settings: ControllerSettings
    clock: Clock
    cluster: Cluster | None
    """The Kubernetes side; None without one."""
    conditions: Conditions
    audit: DurableLog
    store: ChosenStore
    denials: DenialFollower
    registry: FleetRegistry
    policy: PolicyInForce
    svids: SvidSource
    journal: TrustJournal
    refusals: RecentRefusals
    table: StreamTable
    known_fleet: KnownFleet
    attestation: AttestationService
    fleet: FleetService
    operator: OperatorService
    placement: PlacementService
    extender: ExtenderServer
    admission: HttpServer | None
    """The webhooks' listener; None where there are none."""
    api: HttpServer | None
    """The HTTP API's listener; None without `api.tls`."""
    hints: NodeHints | None
    """What labels nodes for schedulers without the extender; None where there is one."""
    binding: BindingParts | None
    """The binding gate; None without a cluster or webhooks."""
    spire: SpireParts
    revocation: Revocation
