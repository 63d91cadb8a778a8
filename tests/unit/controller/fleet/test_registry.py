from dataclasses import replace

import pytest

from controller.fleet.attestation_result import Accepted, FailureNoticeAccepted, Refused, refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.enrollment import ContestedClaim
from controller.fleet.registry import FleetRegistry
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import EMPTY_FLEET, NodeState
from controller.policy import Consequence, NodeMode, NodePool, Policy
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ca import SpiffeCa
from tests.builders.evidence import WALL, Scene, failure
from tests.builders.inventory import gpu, gpu_uuid, inventory, lost_gpu

CA = SpiffeCa(at=WALL)
S = 1_000_000_000
K = ChangeKind


def scene_of(node: str) -> Scene:
    return Scene(node=node, ca=CA, directory=DirectorySnapshot({node: KnownNode()}))


@pytest.fixture(scope="module")
def good() -> dict[str, Accepted]:
    """One acceptance each of three nodes; the third is of another class."""
    result = {x: scene_of(x).accepted() for x in ("gpu-1", "gpu-2")}
    odd = scene_of("gpu-3")
    odd.evidence["inventory"] = inventory(gpu(0, vbios="other"))
    return result | {"gpu-3": odd.accepted()}


def later(accepted: Accepted, seconds: int, **changes: object) -> Accepted:
    moved = replace(
        accepted,
        challenge_issued_ns=accepted.challenge_issued_ns + seconds * S,
        fresh_until_ns=accepted.fresh_until_ns + seconds * S,
    )
    return replace(moved, **changes)  # type: ignore[arg-type] # names vary


def kinds(changes: tuple[TrustChange, ...]) -> list[tuple[str, ChangeKind]]:
    return [(x.node, x.kind) for x in changes]


def accept(registry: FleetRegistry, accepted: Accepted) -> tuple[TrustChange, ...]:
    now = accepted.challenge_issued_ns + S
    return registry.accept(accepted, now_ns=now, wall_ns=5)


def refusal(code: ReasonCode, node: str | None = "gpu-1") -> Refused:
    return refused(Refusal(code, "why"), node)


def test_it_starts_empty() -> None:
    assert FleetRegistry().snapshot() is EMPTY_FLEET


def test_accepted_nodes_are_found_by_name_and_by_class(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    for accepted in good.values():
        accept(registry, accepted)
    fleet = registry.snapshot()
    assert sorted(fleet.nodes) == ["gpu-1", "gpu-2", "gpu-3"]
    assert fleet.nodes_by_hash == {
        good["gpu-1"].attestation_hash: {"gpu-1", "gpu-2"},
        good["gpu-3"].attestation_hash: {"gpu-3"},
    }
    assert registry.snapshot() is fleet


def test_one_node_is_shown_without_a_snapshot(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    assert registry.view("gpu-1") is registry.snapshot().nodes["gpu-1"]
    assert registry.view("gpu-2") is None


def test_a_snapshot_never_changes(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    fleet = registry.snapshot()
    nodes, index = dict(fleet.nodes), dict(fleet.nodes_by_hash)
    accept(registry, later(good["gpu-1"], 25, attestation_hash="v1:other"))
    registry.forget("gpu-1")
    assert (dict(fleet.nodes), dict(fleet.nodes_by_hash)) == (nodes, index)
    assert registry.snapshot().version > fleet.version
    assert dict(registry.snapshot().nodes_by_hash) == {}


def test_an_unchanged_round_leaves_the_index_as_it_is(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    name = good["gpu-1"].attestation_hash
    before = registry.snapshot().nodes_by_hash[name]
    accept(registry, later(good["gpu-1"], 25))
    assert registry.snapshot().nodes_by_hash[name] is before


def test_a_node_that_changes_class_moves(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    for accepted in good.values():
        accept(registry, accepted)
    target = good["gpu-3"].attestation_hash
    accept(registry, later(good["gpu-1"], 25, attestation_hash=target))
    index = registry.snapshot().nodes_by_hash
    assert index[target] == {"gpu-1", "gpu-3"}
    assert index[good["gpu-2"].attestation_hash] == {"gpu-2"}


def test_grants_are_asked_for_without_swapping_anything(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accepted = good["gpu-1"]
    assert registry.needs_grant(accepted, accepted.challenge_issued_ns)
    assert registry.snapshot() is EMPTY_FLEET
    accept(registry, accepted)
    following = later(accepted, 25)
    assert not registry.needs_grant(following, following.challenge_issued_ns)


def test_a_refusal_is_reported_with_the_owners_it_left_unharmed(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    claim = ContestedClaim(gpu_uuid(1), "gpu-2", "gpu-1")
    denied = replace(refusal(ReasonCode.GPU_CLAIMED_TWICE, "gpu-2"), contested=(claim,))
    changes = registry.refuse(denied, now_ns=1, wall_ns=1)
    assert kinds(changes) == [("gpu-2", K.REVOKED), ("gpu-1", K.CLAIM_REPELLED)]
    assert (changes[1].gpu, changes[1].detail) == (gpu_uuid(1), "claimed by gpu-2")
    now = good["gpu-1"].challenge_issued_ns
    assert registry.snapshot().nodes["gpu-1"].state(now) is NodeState.ELIGIBLE
    assert registry.snapshot().nodes["gpu-2"].state(now) is NodeState.REFUSED


def test_lost_gpus_of_a_refusal_are_taken_away(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    empty = replace(refusal(ReasonCode.INVENTORY_EMPTY), lost=(lost_gpu(0),))
    changes = registry.refuse(empty, now_ns=1, wall_ns=1)
    assert kinds(changes) == [("gpu-1", K.REFUSED), ("gpu-1", K.GPU_UNHEALTHY)]


def test_names_that_nobody_confirmed_are_not_remembered(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    assert registry.refuse(refusal(ReasonCode.TLS_RESUMED, None), now_ns=1, wall_ns=1) == ()
    assert registry.refuse(refusal(ReasonCode.NODE_UNKNOWN), now_ns=1, wall_ns=1) == ()
    assert registry.snapshot() is EMPTY_FLEET
    accept(registry, good["gpu-1"])
    changes = registry.refuse(refusal(ReasonCode.NODE_UNKNOWN), now_ns=1, wall_ns=1)
    assert kinds(changes) == [("gpu-1", K.REFUSED)]


def test_bad_news_are_said_in_words(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    scene = Scene(ca=CA, failure_notice=True, evidence={"gpu": gpu_uuid(1), "detail": "fell\noff"})
    news = scene.run()
    assert isinstance(news, FailureNoticeAccepted)
    changes = registry.failure_notice(news, now_ns=1, wall_ns=1)
    assert [(x.kind, x.detail, x.gpu) for x in changes] == [
        (K.GPU_UNHEALTHY, "xid 79: fell\\noff", gpu_uuid(1))
    ]
    scene.evidence = {"kind": "driver-reload", "xid": None, "detail": ""}
    reload = scene.run()
    assert isinstance(reload, FailureNoticeAccepted)
    changes = registry.failure_notice(reload, now_ns=2, wall_ns=2)
    assert [(x.kind, x.detail) for x in changes] == [(K.REVOKED, "driver-reload")]


def test_an_xid_without_consequence_takes_nothing_away(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    before = registry.snapshot()
    scene = Scene(ca=CA, failure_notice=True, evidence={"failures": (failure(31), failure(13))})
    news = scene.run()
    assert isinstance(news, FailureNoticeAccepted)
    assert registry.failure_notice(news, now_ns=1, wall_ns=1) == ()
    assert registry.snapshot() is before
    registry.set_policy(Policy(xids={31: Consequence.RESET}))
    changes = registry.failure_notice(news, now_ns=1, wall_ns=1)
    assert [(x.kind, x.detail) for x in changes] == [(K.GPU_UNHEALTHY, "xid 31")]


def test_quarantine_and_release(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    now = good["gpu-1"].challenge_issued_ns + 2 * S
    code = ReasonCode.NODE_QUARANTINED
    changes = registry.quarantine("gpu-1", code=code, reason="why", now_ns=now, wall_ns=1)
    assert kinds(changes) == [("gpu-1", K.QUARANTINED)]
    assert registry.snapshot().nodes["gpu-1"].state(now) is NodeState.QUARANTINED
    changes = registry.release("gpu-1", reason="why", now_ns=now, wall_ns=1)
    assert kinds(changes) == [("gpu-1", K.RELEASED)]
    assert registry.release("gpu-9", reason="why", now_ns=now, wall_ns=1) == ()
    assert "gpu-9" not in registry.snapshot().nodes


def test_ends_of_leases_are_reported_once_each(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    first, second = good["gpu-1"], later(good["gpu-2"], 10)
    accept(registry, first)
    accept(registry, second)
    assert registry.tick(first.fresh_until_ns - 1) == ()
    assert kinds(registry.tick(first.fresh_until_ns)) == [("gpu-1", K.LEASE_ENDED)]
    assert registry.tick(first.fresh_until_ns) == ()
    assert kinds(registry.tick(second.fresh_until_ns)) == [("gpu-2", K.LEASE_ENDED)]


def test_renewed_and_restored_leases_end_when_they_end(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accepted = good["gpu-1"]
    accept(registry, accepted)
    renewed = later(accepted, 25)
    accept(registry, renewed)
    assert registry.tick(accepted.fresh_until_ns) == ()
    assert kinds(registry.tick(renewed.fresh_until_ns)) == [("gpu-1", K.LEASE_ENDED)]
    restored = later(accepted, 200)
    accept(registry, restored)
    assert kinds(registry.tick(restored.fresh_until_ns)) == [("gpu-1", K.LEASE_ENDED)]


def test_a_blocked_node_has_no_lease_to_end(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    registry.refuse(refusal(ReasonCode.GPU_DENIED), now_ns=1, wall_ns=1)
    assert registry.tick(good["gpu-1"].fresh_until_ns) == ()


def test_a_forgotten_node_starts_again(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    accept(registry, good["gpu-1"])
    registry.forget("gpu-1")
    registry.forget("gpu-1")
    assert dict(registry.snapshot().nodes) == {}
    assert registry.tick(good["gpu-1"].fresh_until_ns) == ()
    assert kinds(accept(registry, good["gpu-1"])) == [("gpu-1", K.FIRST_ACCEPTED)]


def test_modes_come_from_policy_and_follow_it(good: dict[str, Accepted]) -> None:
    pools = (NodePool("gpu-1", NodeMode.DRA), NodePool("gpu-*"))
    registry = FleetRegistry(Policy(pools=pools, default_mode=NodeMode.PLUGIN))
    for node in ("gpu-1", "gpu-2"):
        accept(registry, good[node])
    modes = {name: node.mode for name, node in registry.snapshot().nodes.items()}
    assert modes == {"gpu-1": NodeMode.DRA, "gpu-2": NodeMode.PLUGIN}
    registry.set_policy(Policy(default_mode=NodeMode.PLUGIN))
    assert registry.snapshot().nodes["gpu-1"].mode is NodeMode.PLUGIN


def test_listeners_hear_changes_until_they_leave(good: dict[str, Accepted]) -> None:
    registry = FleetRegistry()
    heard: list[str] = []
    leave_first = registry.subscribe(lambda: heard.append("first"))
    leave_second = registry.subscribe(lambda: heard.append("second"))
    accept(registry, good["gpu-1"])
    leave_first()
    leave_first()
    accept(registry, later(good["gpu-1"], 25))
    accept(registry, good["gpu-1"])  # older: nothing changes, nobody is told
    leave_second()
    accept(registry, later(good["gpu-1"], 50))
    assert heard == ["first", "second", "second"]
