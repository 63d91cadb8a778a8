from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from controller.binding.decision import (
    UNTOUCHED,
    BindingView,
    Decision,
    InFlight,
    Placed,
    Refused,
    Reserve,
    asked_before,
    decide_binding,
    held_back,
)
from controller.binding.request import BindingRequest, StoredPod
from controller.binding.turns import OTHERS_FIRST, no_turns
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.ledger.record import HolderState, Origin, PodRef, ShareGroup
from controller.ledger.reservation_id import ReservationSubject
from controller.placement.keys import RequirementRules
from controller.placement.snapshot import Scene
from controller.placement.static_hashes import InsecureStaticHashes
from controller.policy import Level, NodeMode, NodePool, Policy
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.admitted_pods import Document, container, new_pod, variable
from tests.builders.bindings import IDS, NODE, UID, asked, binding, binding_view, env_pod, stored
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    gpu,
    hash_of,
    healthy,
    mig_slice,
    node,
)
from tests.builders.ledger import holder, record
from tests.builders.scenes import scene

# --- What the binding webhook decides about a Binding: every way to be refused, and what is written

GPUS = tuple(f"GPU-{NODE}-{index}" for index in range(8))
OWNER = [{"kind": "StatefulSet", "name": "train", "uid": "set-1", "controller": True}]


def decided(
    request: BindingRequest | None = None,
    pod: StoredPod | None = None,
    view: BindingView | None = None,
    *,
    enforced: bool = True,
) -> Decision:
    return decide_binding(
        request or asked(), pod or stored(), view or binding_view(), enforced=enforced
    )


def refused(decision: Decision) -> Refusal:
    assert isinstance(decision, Refused), decision
    return decision.refusals[0]


def reserve(decision: Decision) -> Reserve:
    assert isinstance(decision, Reserve), decision
    return decision


def held(gpu_uuid: str, uid: str = "somebody", owner: str | None = None, **more: Any) -> Any:
    part = holder(gpu_uuid, pod=PodRef("team-a", "other", uid, owner), **more)
    return replace(record(part, gpu=gpu_uuid), node=NODE)


def test_a_managed_pod_gets_a_gpu_and_its_annotations_name_it() -> None:
    found = reserve(decided())
    subject = ReservationSubject("team-a", NODE, (GPUS[0],), UID)
    assert found.gpus == (GPUS[0],)
    assert found.pod == PodRef("team-a", "train-0", UID, None)
    assert found.evidence == "e" * 64
    assert found.share is None
    assert IDS.is_authentic(found.reservation, subject)
    assert found.annotations == {
        "gpuwarden.dev/gpu-uuids-assigned": GPUS[0],
        "gpuwarden.dev/reservation-id": found.reservation,
        "gpuwarden.dev/node": NODE,
        "gpuwarden.dev/attestation-hash": hash_of("a"),
        "gpuwarden.dev/guarantee-given": "node",
        "gpuwarden.dev/guarantee-limit": "protection is off",
    }


@pytest.mark.parametrize(
    ("managed", "honours", "told"),
    [
        (True, True, {"gpuwarden.dev/guarantee-given": "exact"}),
        (
            True,
            False,
            {
                "gpuwarden.dev/guarantee-given": "node",
                "gpuwarden.dev/guarantee-limit": "the policy does not say that the node's"
                " container runtime honours the variable",
            },
        ),
        (
            False,
            True,
            {
                "gpuwarden.dev/guarantee-given": "node",
                "gpuwarden.dev/guarantee-limit": "the node lacks the taint"
                " gpuwarden.dev/managed:NoExecute",
            },
        ),
    ],
)
def test_what_is_promised_where_nobody_but_us_gives_the_gpu(
    managed: bool, honours: bool, told: dict[str, str]
) -> None:
    pools = (NodePool(NODE, honours_variable=honours),)
    found = reserve(
        decided(view=binding_view(scene=guarding(Policy(pools=pools), managed=managed)))
    )
    said = {key: x for key, x in found.annotations.items() if "/guarantee-" in key}
    assert said == told


def guarding(policy: Policy, *, managed: bool = True, mode: NodeMode = NodeMode.ENV) -> Scene:
    """An installation that protects its tainted nodes."""
    nodes = DirectorySnapshot({NODE: KnownNode("u", managed)})
    return replace(scene(healthy(NODE, mode=mode), policy=policy), nodes=nodes, protected=True)


def test_several_gpus_in_the_pod_s_order_are_claimed_in_the_one_order() -> None:
    requirement = {"gpuwarden.dev/gpu-uuids": f"{GPUS[5]},{GPUS[2]}"}
    found = reserve(decided(pod=stored(env_pod(requirement))))
    assert found.gpus == (GPUS[2], GPUS[5])
    told = found.annotations["gpuwarden.dev/gpu-uuids-assigned"]
    assert told == f"{GPUS[5]},{GPUS[2]}"


def test_the_seeds_spelling_is_answered_in_kind() -> None:
    pod = env_pod({}, labels={"fudo.org/gpu.assign": "true"})
    found = reserve(decided(pod=stored(pod))).annotations
    assert found["fudo.org/gpu.uuid"] == found["gpuwarden.dev/gpu-uuids-assigned"] == GPUS[0]
    assert found["fudo.org/gpu.reservation-id"] == found["gpuwarden.dev/reservation-id"]
    assert found["fudo.org/gpu.node"] == NODE


def plugin_pod(**annotations: str) -> Document:
    document = new_pod(
        container(gpus=1),
        annotations={f"gpuwarden.dev/{key.replace('_', '-')}": x for key, x in annotations.items()},
    )
    made = env_pod()
    made["spec"] = document["spec"] | {
        "schedulerName": "gpuwarden",
        "tolerations": [
            {"key": "gpuwarden.dev/managed", "operator": "Exists", "effect": "NoExecute"}
        ],
    }
    made["metadata"]["annotations"] = document["metadata"]["annotations"]
    return made


@pytest.mark.parametrize(
    ("accepts", "managed", "guarantee", "limit"),
    [
        ({}, False, "node", "the node lacks the taint gpuwarden.dev/managed:NoExecute"),
        ({}, True, "set", "kubelet chooses the GPU"),
        ({"guarantee": "set"}, True, "set", "kubelet chooses the GPU"),
        ({"guarantee": "node"}, True, "node", "the pod accepts less"),
    ],
)
def test_nothing_is_claimed_where_kubelet_chooses(
    accepts: dict[str, str], managed: bool, guarantee: str, limit: str
) -> None:
    where = guarding(Policy(), managed=managed, mode=NodeMode.PLUGIN)
    view = binding_view(scene=where)
    found = decided(pod=stored(plugin_pod(min_level="L0", **accepts)), view=view)
    assert isinstance(found, Placed)
    assert found.evidence == "e" * 64
    assert found.annotations == {
        "gpuwarden.dev/node": NODE,
        "gpuwarden.dev/attestation-hash": hash_of("a"),
        "gpuwarden.dev/guarantee-given": guarantee,
        "gpuwarden.dev/guarantee-limit": limit,
    }


RELEASING = {"state": HolderState.RELEASING}


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({}, True),
        ({"state": HolderState.CONFIRMED, "restored": True}, True),
        (RELEASING, True),
        ({"state": HolderState.CONFIRMED, "origin": Origin.KUBELET, "restored": True}, False),
        (RELEASING | {"restored": True}, False),
    ],
)
def test_kubelet_gives_nothing_while_claims_from_another_mode_are_there(
    more: dict[str, Any], waits: bool
) -> None:
    where = guarding(Policy(), mode=NodeMode.PLUGIN)
    view = binding_view(scene=where, records=(held(GPUS[3], **more),))
    found = decided(pod=stored(plugin_pod(min_level="L0")), view=view)
    if waits:
        assert refused(found).code is ReasonCode.NODE_MODE
    else:
        assert isinstance(found, Placed)
    about_the_node = stored(env_pod({"gpuwarden.dev/min-level": "L0"}))
    assert isinstance(decided(pod=about_the_node, view=view), Placed)


def test_nothing_is_claimed_for_a_requirement_about_the_node_alone() -> None:
    pod = env_pod({"gpuwarden.dev/min-level": "L0"})
    assert isinstance(decided(pod=stored(pod), view=binding_view(ids=None)), Placed)


def test_a_node_with_a_static_hash() -> None:
    static = InsecureStaticHashes({"old-1": "blessed"})
    view = binding_view(scene=scene(static=static))
    view = replace(view, rules=replace(view.rules, requirements=_opaque()))
    pod = env_pod({"gpuwarden.dev/required-hash": hash_of("b")})
    pod["metadata"]["annotations"]["gpuwarden.dev/required-hash"] = "blessed"
    found = decided(asked(binding(node="old-1")), stored(pod), view)
    assert isinstance(found, Placed)
    assert found.annotations["gpuwarden.dev/attestation-hash"] == "blessed"
    assert found.evidence == ""


def _opaque() -> Any:
    return RequirementRules(opaque_hashes=True)


def test_pods_that_ask_for_nothing_are_untouched() -> None:
    plain = env_pod({}, enforced=False)
    assert decided(pod=stored(plain), enforced=False) == UNTOUCHED
    injected = env_pod({})
    assert decided(pod=stored(injected)) == UNTOUCHED
    assert decided(pod=stored(injected), view=binding_view(not_ready="first round")) == UNTOUCHED


FORGED = [
    "gpuwarden.dev/gpu-uuids-assigned",
    "gpuwarden.dev/min-level",
    "gpuwarden.dev/gpu.big",
    "fudo.org/gpu.uuid",
    "gpu-scheduling-map",
    "attestation-hash.my-company.com/required-hash",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
    "cdi.k8s.io/gpu",
    "nvidia.cdi.k8s.io/container.main",
]


@pytest.mark.parametrize("place", ["annotations", "labels"])
@pytest.mark.parametrize("key", FORGED)
@pytest.mark.parametrize("old", [False, True])
def test_keys_of_ours_in_a_binding_are_refused(key: str, place: str, old: bool) -> None:
    request = asked(
        binding() | {"metadata": {"name": "train-0", place: {key: "x", "example.org/mine": "y"}}},
        old=old,
    )
    refusal = refused(decided(request))
    assert refusal.code is ReasonCode.BINDING_FORGED
    assert refusal.detail.startswith(f"{key} is not")
    plain = stored(env_pod({}, enforced=False))
    assert refused(decided(request, plain, enforced=False)).code is ReasonCode.BINDING_FORGED


def test_others_keys_in_a_binding_stay() -> None:
    reserve(decided(asked(binding(annotations={"example.org/a": "x"}, labels={"b": "y"}))))


@pytest.mark.parametrize(
    ("request_", "changes", "text"),
    [
        (asked(binding(uid="another")), {}, "another one"),
        (asked(binding(resourceVersion="6")), {}, "has changed"),
        (asked(), {"node": "gpu-2"}, "bound already"),
        (asked(), {"node": NODE}, "bound already"),
        (asked(), {"has_ended": True}, "has ended"),
        (asked(), {"pod": None}, "not to be bound"),
    ],
)
def test_stale_bindings(request_: BindingRequest, changes: dict[str, Any], text: str) -> None:
    found = decided(request_, stored(**changes))
    assert isinstance(found, Refused)
    assert not found.managed
    refusal = refused(found)
    assert refusal.code is ReasonCode.BINDING_STALE
    assert text in refusal.detail


def test_a_binding_made_by_hand_may_lack_the_uid() -> None:
    reserve(decided(asked(binding(uid=None), old=True)))
    reserve(decided(asked(binding(resourceVersion="7"))))


def test_a_pod_that_nobody_knows() -> None:
    found = decide_binding(asked(), None, binding_view(), enforced=False)
    assert refused(found).code is ReasonCode.POD_UNKNOWN


def privileged(pod: Document) -> None:
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}


def every_card(pod: Document) -> None:
    pod["spec"]["containers"][0]["env"] = [variable("NVIDIA_VISIBLE_DEVICES", "all")]


def uninjected(pod: Document) -> None:
    del pod["spec"]["containers"][0]["env"]


def brings_results(pod: Document) -> None:
    pod["metadata"]["annotations"]["gpuwarden.dev/gpu-uuids-assigned"] = "GPU-x"


def unreadable(pod: Document) -> None:
    pod["metadata"]["annotations"]["gpuwarden.dev/gpu-selector"] = "??"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (privileged, ReasonCode.BYPASS_PRIVILEGED),
        (every_card, ReasonCode.BYPASS_UNINJECTED),
        (uninjected, ReasonCode.BYPASS_UNINJECTED),
        (brings_results, ReasonCode.BYPASS_ANNOTATION),
        (unreadable, ReasonCode.REQ_INVALID),
    ],
)
def test_bypasses_of_the_stored_pod(change: Callable[[Document], None], code: ReasonCode) -> None:
    pod = env_pod()
    change(pod)
    found = decided(pod=stored(pod))
    assert refused(found).code is code
    assert isinstance(found, Refused)
    assert found.managed


def test_a_plain_pod_whose_namespace_was_enforced_later() -> None:
    pod = env_pod({}, enforced=False)
    every_card(pod)
    assert decided(pod=stored(pod), enforced=False) == UNTOUCHED
    found = decided(pod=stored(pod), enforced=True)
    assert refused(found).code is ReasonCode.BYPASS_ENV
    assert isinstance(found, Refused)
    assert not found.managed


@pytest.mark.parametrize(
    ("late", "code"),
    [
        ({"securityContext": {"privileged": True}}, ReasonCode.BYPASS_EPHEMERAL),
        ({"env": [variable("NVIDIA_VISIBLE_DEVICES", "all")]}, ReasonCode.BYPASS_EPHEMERAL),
        ({}, ReasonCode.BYPASS_UNINJECTED),
    ],
)
def test_an_ephemeral_container_from_before_its_namespace_was_enforced(
    late: dict[str, Any], code: ReasonCode
) -> None:
    pod = env_pod({}, ephemeralContainers=[container("debug", **late)])
    assert decided(pod=stored(pod), enforced=False) == UNTOUCHED
    assert refused(decided(pod=stored(pod))).code is code


def test_an_ephemeral_container_that_was_judged_is_no_obstacle() -> None:
    void = [variable("NVIDIA_VISIBLE_DEVICES", "void")]
    pod = env_pod({}, ephemeralContainers=[container("debug", env=void)])
    assert decided(pod=stored(pod)) == UNTOUCHED


STALE = acceptance(hash_of("a"), [gpu(0)], issued_ns=NOW_NS - LEASE_NS)
FRESH = acceptance(hash_of("a"), [gpu(0)])


@pytest.mark.parametrize(
    ("requirement", "view", "code"),
    [
        ({}, binding_view(not_ready="first round"), ReasonCode.CONTROLLER_NOT_READY),
        ({}, binding_view(healthy("other")), ReasonCode.NODE_NO_EVIDENCE),
        ({}, binding_view(node(NODE, STALE)), ReasonCode.NODE_STALE),
        (
            {},
            binding_view(node(NODE, FRESH, blocked=ReasonCode.SIG_INVALID)),
            ReasonCode.NODE_REFUSED,
        ),
        (
            {},
            binding_view(node(NODE, FRESH, blocked=ReasonCode.INVENTORY_CHANGED)),
            ReasonCode.NODE_QUARANTINED,
        ),
        ({"required-hash": hash_of("b")}, binding_view(), ReasonCode.HASH_MISMATCH),
        ({"attestation-class": "gold"}, binding_view(), ReasonCode.CLASS_UNKNOWN),
        (
            {},
            binding_view(scene=scene(healthy(NODE), policy=Policy(allowed_hashes=frozenset()))),
            ReasonCode.CLASS_NOT_ALLOWED,
        ),
        ({"min-level": "L1"}, binding_view(), ReasonCode.LEVEL_TOO_LOW),
        (
            {},
            binding_view(scene=scene(healthy(NODE), policy=Policy(min_level=Level.L2))),
            ReasonCode.LEVEL_TOO_LOW,
        ),
        ({}, binding_view(healthy(NODE, mode=NodeMode.PLUGIN)), ReasonCode.NODE_MODE),
        ({}, binding_view(healthy(NODE, mode=NodeMode.DRA)), ReasonCode.NODE_MODE),
        ({"gpu-scheduling-map": "0=gpu-2:0"}, binding_view(), ReasonCode.MAP_ELSEWHERE),
        ({"gpu-selector": "memory>=1Ti"}, binding_view(), ReasonCode.GPU_NO_MATCH),
        (
            {},
            binding_view(node(NODE, acceptance(hash_of("a"), [gpu(0, lost=True)]))),
            ReasonCode.GPU_LOST,
        ),
        (
            {},
            binding_view(node(NODE, acceptance(hash_of("a"), [gpu(0)], processes={"GPU-0": 1}))),
            ReasonCode.GPU_BUSY,
        ),
        ({}, binding_view(records=tuple(map(held, GPUS))), ReasonCode.GPU_BUSY),
        (
            {},
            binding_view(claiming=dict.fromkeys(GPUS, InFlight(PodRef("team-a", "b", "x")))),
            ReasonCode.GPU_BUSY,
        ),
        ({}, binding_view(ids=None), ReasonCode.LEDGER_UNAVAILABLE),
        (
            {},
            binding_view(ledger=replace(binding_view().ledger, fresh_until_ns=NOW_NS)),
            ReasonCode.LEDGER_UNAVAILABLE,
        ),
        (
            {},
            binding_view(
                grant_refusal=lambda _node, _gpus: Refusal(ReasonCode.CONTROLLER_NOT_READY, "read")
            ),
            ReasonCode.CONTROLLER_NOT_READY,
        ),
        ({}, binding_view(quota=1, records=(held(GPUS[0]),)), ReasonCode.QUOTA_EXCEEDED),
        (
            {},
            binding_view(quota=1, claiming={"GPU-elsewhere": InFlight(PodRef("team-a", "b", "x"))}),
            ReasonCode.QUOTA_EXCEEDED,
        ),
        ({"gpu-count": "2"}, binding_view(quota=1), ReasonCode.QUOTA_EXCEEDED),
    ],
)
def test_every_reason_against_a_place(
    requirement: dict[str, str], view: BindingView, code: ReasonCode
) -> None:
    prefixed = {
        key if key == "gpu-scheduling-map" else f"gpuwarden.dev/{key}": text
        for key, text in requirement.items()
    }
    pod = env_pod({"gpuwarden.dev/gpu-selector": "memory>=1Gi"} | prefixed)
    found = decided(pod=stored(pod), view=view)
    assert refused(found).code is code
    assert isinstance(found, Refused)
    assert found.managed


def test_of_all_that_is_wrong_the_first_is_said() -> None:
    """In the order of the page of the binding webhook."""
    view = binding_view(
        node(NODE, STALE),
        not_ready="first round",
        ledger=replace(binding_view(records=(held(GPUS[0]),)).ledger, fresh_until_ns=NOW_NS),
        quota=1,
        turn_refusal=lambda uid: OTHERS_FIRST if uid == UID else None,
        grant_refusal=lambda _node, _gpus: Refusal(ReasonCode.GPU_BUSY, "somebody has it"),
    )
    repairs: tuple[dict[str, Any], ...] = (
        {"not_ready": None},
        {"scene": scene(node(NODE, FRESH))},
        {"ledger": binding_view(records=(held(GPUS[0]),)).ledger},
        {"turn_refusal": no_turns},
        {"quota": None},
    )
    codes = [refused(decided(view=view)).code]
    for repair in repairs:
        view = replace(view, **repair)
        codes.append(refused(decided(view=view)).code)
    assert codes == [
        ReasonCode.CONTROLLER_NOT_READY,
        ReasonCode.NODE_STALE,
        ReasonCode.LEDGER_UNAVAILABLE,
        ReasonCode.RESERVATION_EXPIRED,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.GPU_BUSY,
    ]


def test_kubelet_s_choice_does_not_do_for_named_gpus() -> None:
    view = binding_view(healthy(NODE, mode=NodeMode.PLUGIN))
    found = decided(pod=stored(plugin_pod(gpu_uuids=GPUS[0])), view=view)
    assert refused(found).code is ReasonCode.EXACT_UNAVAILABLE


def test_a_quota_counts_one_namespace_and_not_the_pod_itself() -> None:
    other = replace(held(GPUS[0]), holders=(holder(GPUS[0], pod=PodRef("team-b", "x", "y")),))
    own = held(GPUS[1], UID)
    reserve(decided(view=binding_view(quota=1, records=(other, own))))
    claiming = {
        GPUS[0]: InFlight(PodRef("team-b", "x", "y")),
        GPUS[1]: InFlight(PodRef("team-a", "train-0", UID)),
    }
    reserve(decided(view=binding_view(quota=1, claiming=claiming)))


def test_a_refusal_for_the_quota_says_how_much_is_held_and_allowed() -> None:
    refusal = refused(decided(view=binding_view(quota=2, records=(held(GPUS[0]), held(GPUS[1])))))
    assert refusal.detail == "the namespace holds 2 GPUs and may hold 2"
    reserve(decided(view=binding_view(quota=2, records=(held(GPUS[0]),))))


def test_filter_asks_the_same_about_turn_and_quota() -> None:
    view = binding_view(quota=2, records=(held(GPUS[0]),))
    assert held_back(view, "team-a", UID, 1) is None
    over = held_back(view, "team-a", UID, 2)
    assert over == Refusal(ReasonCode.QUOTA_EXCEEDED, "the namespace holds 1 GPU and may hold 2")
    assert over == refused(
        decided(pod=stored(env_pod({"gpuwarden.dev/gpu-count": "2"})), view=view)
    )
    assert held_back(view, "team-b", UID, 2) is None
    lost = replace(view, turn_refusal=lambda uid: OTHERS_FIRST if uid == UID else None)
    assert held_back(lost, "team-a", UID, 2) is OTHERS_FIRST
    assert held_back(lost, "team-a", "uid-1", 1) is None
    assert held_back(replace(view, quota=None), "team-a", UID, 9) is None


def test_what_a_pod_has_attempted_already_is_no_more_than_before() -> None:
    """The quota was kept when that was reserved, and may have been lowered since."""
    lowered = binding_view(quota=1, records=(held(GPUS[0]), held(GPUS[1], UID)))
    assert held_back(lowered, "team-a", UID, 1) is None
    reserve(decided(view=lowered))
    more = held_back(lowered, "team-a", UID, 2)
    assert more is not None
    assert more.detail == "the namespace holds 1 GPU and may hold 1"
    confirmed = held(GPUS[1], UID)
    holders = (replace(confirmed.holders[0], state=HolderState.CONFIRMED),)
    bound = binding_view(quota=1, records=(replace(confirmed, holders=holders),))
    assert held_back(bound, "team-a", UID, 1) is not None


SPLIT = gpu(0, mig=True, mig_devices=[mig_slice("MIG-a"), mig_slice("MIG-b")])
MIG = {"gpuwarden.dev/gpu-selector": "mig=true"}


def test_a_gpu_that_was_split_while_a_pod_has_it_is_that_pod_s() -> None:
    """Its container is idle, or the GPU could not be split; it has the device file all the same."""
    split = node(NODE, acceptance(hash_of("a"), [SPLIT]))
    assert reserve(decided(pod=stored(env_pod(MIG)), view=binding_view(split))).gpus == ("MIG-a",)
    view = binding_view(split, records=(held("GPU-0"),))
    assert refused(decided(pod=stored(env_pod(MIG)), view=view)).code is ReasonCode.GPU_BUSY
    named = {"gpuwarden.dev/gpu-uuids": "MIG-b"}
    assert refused(decided(pod=stored(env_pod(named)), view=view)).code is ReasonCode.GPU_BUSY


def test_no_gpu_is_given_whole_while_a_pod_has_a_part_that_is_not_shown() -> None:
    whole = node(NODE, acceptance(hash_of("a"), [gpu(0), gpu(1)]))
    view = binding_view(whole, records=(held("MIG-a"),))
    assert refused(decided(view=view)).code is ReasonCode.GPU_BUSY
    own = binding_view(whole, records=(held("MIG-a", UID),))
    assert reserve(decided(view=own)).gpus == ("GPU-0",)
    elsewhere = binding_view(whole, records=(replace(held("MIG-a"), node="gpu-2"),))
    assert reserve(decided(view=elsewhere)).gpus == ("GPU-0",)
    shown = binding_view(
        node(NODE, acceptance(hash_of("a"), [SPLIT, gpu(1)])), records=(held("MIG-a"),)
    )
    assert reserve(
        decided(pod=stored(env_pod({"gpuwarden.dev/gpu-selector": "mig=false"})), view=shown)
    ).gpus == ("GPU-1",)


def test_a_retry_gets_the_same_gpus() -> None:
    own = held(GPUS[3], UID)
    assert reserve(decided(view=binding_view(records=(own,)))).gpus == (GPUS[3],)
    claiming = {GPUS[4]: InFlight(PodRef("team-a", "train-0", UID))}
    assert reserve(decided(view=binding_view(claiming=claiming))).gpus == (GPUS[4],)
    everything = (*map(held, GPUS[:3]), own, *map(held, GPUS[4:]))
    assert reserve(decided(view=binding_view(records=everything))).gpus == (GPUS[3],)


def test_what_others_ask_for_and_what_lies_elsewhere_is_not_asked_again() -> None:
    claiming = {
        GPUS[0]: InFlight(PodRef("team-a", "other", "x")),
        GPUS[1]: InFlight(PodRef("team-a", "train-0", UID)),
        "GPU-elsewhere": InFlight(PodRef("team-a", "train-0", UID)),
    }
    assert asked_before(binding_view(claiming=claiming), NODE, UID) == (GPUS[1],)


def test_what_the_pod_once_held_is_not_a_retry() -> None:
    own = held(GPUS[0], UID, state=HolderState.RELEASING)
    assert reserve(decided(view=binding_view(records=(own,)))).gpus == (GPUS[1],)
    elsewhere = replace(held(GPUS[0], UID), node="gpu-9")
    assert reserve(decided(view=binding_view(records=(elsewhere,)))).gpus == (GPUS[0],)


MAP = f"0={NODE}:2\n1={NODE}:2\n2={NODE}:3"
SHARE = ShareGroup("team-a", "set-1", f"{NODE}:2")


def mapped(name: str, **metadata: Any) -> StoredPod:
    pod = env_pod({"gpu-scheduling-map": MAP}, name=name)
    pod["metadata"] |= {"ownerReferences": OWNER, "generateName": "train-", **metadata}
    return stored(pod)


def test_pods_of_a_share_group_claim_side_by_side() -> None:
    first = PodRef("team-a", "train-0", "first", "set-1")
    request, pod = asked(binding("train-1")), mapped("train-1")
    together = binding_view(claiming={GPUS[2]: InFlight(first, SHARE)})
    assert reserve(decided(request, pod, together)).share == SHARE
    for other in (None, replace(SHARE, owner="set-2")):
        apart = binding_view(claiming={GPUS[2]: InFlight(first, other)})
        assert refused(decided(request, pod, apart)).code is ReasonCode.GPU_BUSY


def test_pods_with_the_same_line_of_a_map_share() -> None:
    second = asked(binding("train-1"))
    alone = reserve(decided(second, mapped("train-1")))
    assert (alone.gpus, alone.share) == ((GPUS[2],), SHARE)
    assert alone.pod.owner == "set-1"
    shared = replace(held(GPUS[2], owner="set-1"), share=SHARE)
    busy = node(NODE, replace(healthy(NODE).acceptance, processes_by_gpu={GPUS[2]: 1}))  # type: ignore[type-var] # not None
    view = binding_view(busy, records=(shared,))
    assert reserve(decided(second, mapped("train-1"), view)).gpus == (GPUS[2],)
    stranger = holder(GPUS[2], pod=PodRef("team-b", "other", "x", "set-9"), restored=True)
    for theirs in (
        replace(shared, share=replace(SHARE, owner="set-2")),
        replace(held(GPUS[2], owner="set-2"), share=SHARE),
        shared.with_holder(stranger),
    ):
        view = binding_view(busy, records=(theirs,))
        assert refused(decided(second, mapped("train-1"), view)).code is ReasonCode.GPU_BUSY
    third = asked(binding("train-2"))
    assert reserve(decided(third, mapped("train-2"), binding_view())).share is None
    lonely = mapped("train-1", ownerReferences=None, generateName=None)
    orphan = reserve(decided(second, lonely, binding_view()))
    assert orphan.share is None


def test_what_blocks_a_grant_is_asked_about_the_very_gpus() -> None:
    asked_for: list[tuple[str, tuple[str, ...]]] = []

    def refusal(name: str, gpus: tuple[str, ...]) -> None:
        asked_for.append((name, gpus))

    reserve(decided(view=binding_view(grant_refusal=refusal)))
    shared = replace(held(GPUS[2], owner="set-1"), share=SHARE)
    view = binding_view(grant_refusal=refusal, records=(shared,))
    reserve(decided(asked(binding("train-1")), mapped("train-1"), view))
    assert asked_for == [(NODE, (GPUS[0],)), (NODE, (GPUS[2],))]


def test_report_only_mode_wants_no_injection() -> None:
    pod = env_pod()
    uninjected(pod)
    assert isinstance(decided(pod=stored(pod), view=binding_view(report=True)), Reserve)
