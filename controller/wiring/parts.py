"""Parts.

Holds: parts, surroundings.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controller.audit.log import DurableLog
from controller.audit.sealing import LogIdentity
from controller.explain.node import RecentRefusals
from controller.fleet.enrollment import NodeDirectory
from controller.fleet.registry import Changes, FleetRegistry
from controller.kube.client import Exchange
from controller.kube.node_hints import NodeHints
from controller.operations.conditions import Conditions
from controller.operations.fleet import DenialFollower
from controller.placement.texts import WishRules
from controller.policies.file import PolicyFinding, PolicyInvalidError
from controller.policies.in_force import PolicyInForce, PolicySource, policy_file
from controller.recorders.trust import TrustJournal
from controller.rpc.attestation import AttestationService, StreamTable
from controller.rpc.fleet import FleetService, KnownFleet
from controller.rpc.services import OperatorService, PlacementService
from controller.settings import ControllerSettings, PolicyOrigin, StoreKind
from controller.spire.poller import Revocation
from controller.web.extender import ExtenderServer
from controller.web.server import HttpServer
from controller.wiring.binding import OPEN_TO_THE_NETWORK, BindingParts
from controller.wiring.cluster import Cluster
from controller.wiring.stores import MEMORY_WARNING, ChosenStore, SpireParts
from gpuwarden.clock import Clock
from gpuwarden.identity.svid import SvidSource
from gpuwarden.telemetry.metrics import Instruments

# --- parts
# A controller as it is put together and not yet started: everything that its life needs.
#
# Must make nothing itself; see assembly.py.


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


# --- surroundings
# What a controller finds around it: cluster, node directory, policy, machine, settings' warnings.
#
# Must not know the parts that use them.

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class NodesUnknownError(Exception):
    """There is no node directory: a controller that knows no nodes could accept nobody."""


def kubernetes_cluster(
    settings: ControllerSettings, exchange: Exchange | None, clock: Clock, instruments: Instruments
) -> Cluster | None:
    """None where the Kubernetes API is not used."""
    if exchange is None:
        return None
    return Cluster(
        settings.kubernetes,
        exchange,
        replica=settings.replica,
        rules=wish_rules(settings),
        clock=clock,
        instruments=instruments,
        has_policy=settings.policy.source is PolicyOrigin.CLUSTER,
    )


def node_directory(directory: NodeDirectory | None, cluster: Cluster | None) -> NodeDirectory:
    """The one that was given, else the cluster's; raises NodesUnknownError."""
    if directory is not None:
        return directory
    if cluster is None:
        raise NodesUnknownError("nobody says which nodes exist")
    return cluster.nodes


def policy_source(settings: ControllerSettings, cluster: Cluster | None) -> PolicySource | None:
    """File or cluster; raises PolicyInvalidError where there is no such place."""
    if settings.policy.source is PolicyOrigin.FILE:
        return policy_file(settings.policy.file, opaque_hashes=settings.insecure_static_hashes)
    if cluster is None or cluster.policy is None:
        expected = "file, where the Kubernetes API is not used"
        raise PolicyInvalidError((PolicyFinding("policy.source", "cluster", expected),))
    return cluster.policy


def wish_rules(settings: ControllerSettings) -> WishRules:
    """Which wishes pods may express, and in which keys."""
    return WishRules(
        hash_keys=settings.required_hash_keys,
        managed_resources=settings.managed_resources,
        opaque_hashes=settings.insecure_static_hashes,
    )


def enforced_by(cluster: Cluster | None) -> Callable[[str], bool]:
    """Whether a namespace is enforced; without a cluster none is."""
    return _nowhere if cluster is None else cluster.namespaces.is_enforced


def tell_of_changes(cluster: Cluster | None, conditions: Conditions) -> Callable[[Changes], None]:
    """Whom changes of trust concern in the cluster.

    Until the first round is over nothing is decided, so pods are tried anew without us.
    """

    def tell(changes: Changes) -> None:
        if cluster is None:
            return
        cluster.tell(changes)
        if conditions.not_ready() is None:
            cluster.wake(changes)

    return tell


def insecure_warnings(settings: ControllerSettings, directory: NodeDirectory) -> tuple[str, ...]:
    """One text for each stand-in that would be wrong in production."""
    warnings = [directory.warning()]
    if settings.store.kind is StoreKind.MEMORY:
        warnings.append(MEMORY_WARNING)
    if settings.insecure_static_hashes:
        warnings.append(
            f"InsecureStaticHashes: {len(settings.static_hashes)} nodes have hashes that"
            " nobody attested; never use this in production"
        )
    if settings.admission.tls.cert is not None and settings.admission.tls.client_ca is None:
        warnings.append(OPEN_TO_THE_NETWORK)
    return tuple(text for text in warnings if text)


def log_identity(settings: ControllerSettings) -> LogIdentity:
    """Whose log it is: the origin, this boot, this process."""
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else "unknown"
    return LogIdentity(settings.origin, boot, secrets.token_hex(16))


def _nowhere(_namespace: str) -> bool:
    return False
