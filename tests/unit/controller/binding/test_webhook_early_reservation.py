"""Reservation at a pod's creation: webhooks, ledger, binding webhook and reconciler as a whole."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from controller.admission.pod_webhooks import MUTATE, VALIDATE
from controller.admission.review import Verdict, encode_answer
from controller.fleet.directory import KnownNode, Taint
from controller.ledger.record import HolderState
from controller.ledger.store import MOST_LOST
from controller.policy import NodeMode
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import request_of, review_json, review_of
from tests.builders.admitted_pods import Document, container, documents, new_pod
from tests.builders.bindings import NODE
from tests.fakes.admission import AdmissionWorld
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore
from tests.fakes.pod_creation import EARLY, Creation, early_pod, owned

GPUS = tuple(f"GPU-{NODE}-{index}" for index in range(8))
ASSIGNED = "gpuwarden.dev/gpu-uuids-assigned"
RESERVATION = "gpuwarden.dev/reservation-id"
OWNER = "owner-a"


async def stage(*gpus: int) -> tuple[BindingWorld, Replica, Creation]:
    world = BindingWorld(*gpus)
    me = await world.replica()
    return world, me, Creation(world, me, me)


def told(pod: Document | None, key: str = ASSIGNED) -> str:
    assert pod is not None
    text: str = pod["metadata"]["annotations"][key]
    return text


def pinned(pod: Document) -> list[Any]:
    terms = pod["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]["nodeSelectorTerms"]
    return [x for term in terms for x in term["matchFields"]]


async def test_from_creation_to_its_node() -> None:
    world, me, api = await stage()
    pod = await api.create(early_pod(), "train-0")
    assert pod is not None
    assert told(pod) == GPUS[0]
    assert told(pod, "gpuwarden.dev/node") == NODE
    assert pinned(pod) == [{"key": "metadata.name", "operator": "In", "values": [NODE]}]
    assert "nodeName" not in pod["spec"]
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert {x.kind for x in me.audit.granted} == {RecordKind.RESERVATION_RESERVED}
    assert [(x.refs["gpus"], x.refs["uid"], x.refs["cause"]) for x in me.audit.granted] == [
        ([GPUS[0]], None, "admission"),
        ([GPUS[0]], pod["metadata"]["uid"], "creation"),
    ]
    (decision,) = api.told.decisions
    assert (decision.word, decision.gpus) == ("admitted", (GPUS[0],))
    assert decision.reservation == told(pod, RESERVATION)
    assert me.sink.early == [("ACCEPTED", True)]
    verdict = await me.bind("train-0")
    assert verdict.refusals == ()
    assert world.lands("train-0", verdict)
    assert world.assigned() == {"train-0": (GPUS[0],)}
    assert told(world.pods.stored["train-0"], RESERVATION) == told(pod, RESERVATION)
    assert world.states() == {GPUS[0]: ["Proposed"]}
    await me.reconciler.round()
    assert world.states() == {GPUS[0]: ["Confirmed"]}


async def test_the_seeds_marker_is_answered_in_kind() -> None:
    _, _, api = await stage()
    made = await api.create(early_pod({}, labels={"fudo.org/gpu.assign": "true"}), "train-0")
    assert told(made, "fudo.org/gpu.uuid") == told(made) == GPUS[0]
    assert told(made, "fudo.org/gpu.node") == NODE
    assert told(made, "fudo.org/gpu.reservation-id") == told(made, RESERVATION)
    assert told(made, "cdi.k8s.io/gpu-assignment") == f"nvidia.com/gpu={GPUS[0]}"


async def test_several_gpus_are_one_reservation() -> None:
    world, _, api = await stage()
    made = await api.create(early_pod(EARLY | {"gpuwarden.dev/gpu-count": "3"}), "train-0")
    assert told(made) == ",".join(GPUS[:3])
    assert world.states() == {gpu: ["Proposed"] for gpu in GPUS[:3]}


async def test_what_a_user_wrote_stays() -> None:
    _, _, api = await stage()
    made = await api.create(early_pod(EARLY | {"example.org/x": "y"}), "train-0")
    assert told(made, "example.org/x") == "y"


async def test_a_pod_that_names_its_node_is_admitted_with_a_gpu_of_just_that_node() -> None:
    world, me, api = await stage(1, 1)
    requirement = {"gpuwarden.dev/gpu-selector": "memory>=1Gi"}
    made = await api.create(early_pod(requirement, nodeName="gpu-2"), "train-0")
    assert told(made) == "GPU-gpu-2-0"
    assert made is not None
    assert "affinity" not in made["spec"]
    assert world.states() == {"GPU-gpu-2-0": ["Proposed"]}
    await me.reconciler.round()
    assert world.states() == {"GPU-gpu-2-0": ["Confirmed"]}


async def test_another_node_name_than_the_reserved_one_is_refused() -> None:
    _, _, api = await stage(1, 1)
    made = await api.mutated(early_pod())
    assert made is not None
    made["spec"]["nodeName"] = "gpu-2"
    assert await api.stored(made, "train-0") is None
    assert api.refusals == ["BYPASS_NODE_NAME"]


async def test_without_a_free_gpu_on_the_node_that_it_names_a_pod_is_refused() -> None:
    _, _, api = await stage(1, 8)
    assert await api.create(early_pod(nodeName=NODE), "train-0")
    assert await api.create(early_pod(nodeName=NODE), "train-1") is None
    assert api.refusals == ["GPU_BUSY"]


@pytest.mark.parametrize(
    ("pod", "code"),
    [
        (early_pod(nodeName="gpu-9"), "NODE_NO_EVIDENCE"),
        (new_pod(container(gpus=1), annotations={}, nodeName=NODE), "BYPASS_NODE_NAME"),
        (early_pod({"gpuwarden.dev/min-level": "L0"}, nodeName=NODE), "BYPASS_NODE_NAME"),
    ],
    ids=["unknown", "kubelet chooses", "about the node alone"],
)
async def test_what_cannot_be_reserved_on_the_node_that_is_named_is_refused(
    pod: Document, code: str
) -> None:
    world, _, api = await stage()
    assert await api.create(pod, "train-0") is None
    assert api.refusals == [code]
    assert world.states() == {}


async def test_of_200_admissions_8_get_a_gpu_each_and_192_wait() -> None:
    """As the API server reads the answers; two replicas, each asked about every other pod."""
    world, me, api = await stage(8)
    other = await world.replica("b")
    pod = early_pod()

    async def answered(number: int) -> tuple[Any, str | None]:
        verdict = await api.ask(MUTATE, (me, other)[number % 2], pod)
        response = json.loads(encode_answer(review_of(review_json(pod)), verdict))["response"]
        assert response["allowed"]
        made = applied(pod, documents(verdict.patch))
        gpu = made["metadata"]["annotations"].get(ASSIGNED)
        return " ".join(response.get("warnings", [])).split(":")[0:2], gpu

    answers = await asyncio.gather(*map(answered, range(200)))
    waiting = [said for said, gpu in answers if gpu is None]
    assert len(waiting) == 192
    assert {said[1].split()[0] for said in waiting} == {"GPU_BUSY"}
    assert sorted(gpu for _, gpu in answers if gpu is not None) == sorted(GPUS)
    assert world.states() == {gpu: ["Proposed"] for gpu in GPUS}


async def test_where_none_is_free_the_pod_is_created_and_waits() -> None:
    world, me, api = await stage(1)
    first = await api.create(early_pod(), "train-0")
    verdict = await api.ask(MUTATE, me, early_pod())
    assert (verdict.refusals, verdict.result) == ((), "patched")
    (warning,) = verdict.warnings
    assert warning == (
        "gpuwarden: GPU_BUSY Too few matching GPUs of the node are free:"
        " no GPU is reserved for the pod yet; it waits, and gets its GPUs when it is bound"
    )
    assert me.sink.early == [("ACCEPTED", True), ("GPU_BUSY", False)]
    assert first is not None
    assert world.lands("train-0", await me.bind("train-0"))


async def test_a_pod_that_waits_gets_the_gpu_that_comes_free_without_its_owner_s_next_attempt() -> (
    None
):
    """A ReplicaSet that was refused would try again after up to 1000 s."""
    world, me, api = await stage(1)
    await api.create(early_pod(), "train-0")
    assert world.lands("train-0", await me.bind("train-0"))
    await me.reconciler.round()
    assert await api.mutated(owned(early_pod(), OWNER)) is None
    assert api.kept is not None
    waiting = await api.stored(api.kept, "train-1")
    assert waiting is not None
    assert ASSIGNED not in waiting["metadata"]["annotations"]
    assert "affinity" not in waiting["spec"]
    (refusal,) = (await me.bind("train-1")).refusals
    assert refusal.code is ReasonCode.GPU_BUSY
    entry = world.store.snapshot().get(GPUS[0])
    assert entry is not None
    for state in (HolderState.RELEASING, HolderState.RELEASED):
        entry = world.store.snapshot().get(GPUS[0])
        assert entry is not None
        (holder,) = entry.record.holders
        await world.store.compare_and_set(entry, entry.record.moved(holder.reservation, state))
    del world.pods.stored["train-0"]
    world.pods.catch_up()
    assert world.lands("train-1", await me.bind("train-1"))
    assert world.assigned() == {"train-1": (GPUS[0],)}


async def test_a_pod_that_names_its_node_does_not_wait() -> None:
    """It would run at once, without the binding webhook."""
    world, me, api = await stage(1)
    await api.create(early_pod(), "train-0")
    verdict = await api.ask(MUTATE, me, early_pod(nodeName=NODE))
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_BUSY]
    made = {**early_pod(nodeName=NODE)}
    made["metadata"] = {**made["metadata"], "name": "train-1", "uid": "uid-1"}
    refused = await api.ask(VALIDATE, me, made)
    assert ReasonCode.BYPASS_UNINJECTED in {x.code for x in refused.refusals}
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_what_waiting_does_not_cure_is_refused_at_creation() -> None:
    _, me, api = await stage(1)
    never = early_pod(EARLY | {"gpuwarden.dev/gpu-selector": "memory>=9Ti"})
    verdict = await api.ask(MUTATE, me, never)
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_NO_MATCH]


async def test_the_same_request_gets_the_same() -> None:
    world, _, api = await stage()
    once = await api.mutated(early_pod(), uid="the-same")
    assert once == await api.mutated(early_pod(), uid="the-same")
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_the_same_request_gets_the_same_also_when_its_pod_has_come() -> None:
    world, _, api = await stage()
    once = await api.mutated(early_pod(), uid="the-same")
    assert once is not None
    await api.stored(once, "train-0")
    assert once == await api.mutated(early_pod(), uid="the-same")
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_a_pod_that_was_here_before_is_left_as_it_is() -> None:
    world, me, api = await stage()
    once = await api.mutated(early_pod())
    assert once is not None
    again = await api.ask(MUTATE, me, once)
    assert (again.refusals, again.patch) == ((), ())
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_the_next_pod_of_an_owner_whose_pod_was_refused_before_it_had_a_uid() -> None:
    world, me, api = await stage()
    first = await api.mutated(owned(early_pod(), OWNER))
    second = await api.mutated(owned(early_pod(), OWNER))
    assert told(first, RESERVATION) == told(second, RESERVATION)
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert me.sink.early == [("ACCEPTED", True), ("ACCEPTED", False)]
    other = await api.mutated(owned(early_pod(), "owner-b"))
    assert told(other) == GPUS[1]


async def test_without_an_owner_the_name_gets_the_same() -> None:
    world, _, api = await stage()
    named = early_pod()
    named["metadata"] |= {"name": "alone", "generateName": None}
    first, second = await api.mutated(named), await api.mutated(named)
    assert told(first, RESERVATION) == told(second, RESERVATION)
    assert len(world.states()) == 1


@pytest.mark.parametrize(
    ("owner", "name", "waits"), [(None, None, False), (OWNER, None, True), (None, "alone", True)]
)
async def test_pods_without_owner_and_name_do_not_wait_for_each_other(
    owner: str | None, name: str | None, *, waits: bool
) -> None:
    _, me, api = await stage()
    pod = early_pod() if owner is None else owned(early_pod(), owner)
    if name is not None:
        pod["metadata"] |= {"name": name, "generateName": None}
    me.audit.held = held = asyncio.Event()
    first = asyncio.create_task(api.mutated(pod))
    await me.audit.asked.wait()
    me.audit.held = None
    second = asyncio.create_task(api.mutated(pod))
    for _ in range(100):  # nothing but the first one's turn keeps it waiting
        await asyncio.sleep(0)
    assert second.done() is not waits
    held.set()
    assert (told(await first) == told(await second)) is waits


async def test_two_replicas_give_an_owner_the_same() -> None:
    world, me, _ = await stage()
    other = await world.replica("b")
    pods = [owned(early_pod(), OWNER) for _ in range(2)]
    made = await asyncio.gather(
        Creation(world, me, me).mutated(pods[0]),
        Creation(world, other, other).mutated(pods[1]),
    )
    assert told(made[0], RESERVATION) == told(made[1], RESERVATION)
    assert len(world.states()) == 1


async def test_the_owner_of_a_pod_over_its_quota_gets_no_second_gpu() -> None:
    world, _, api = await stage()
    pod = owned(early_pod(), OWNER)
    assert await api.create(pod, "train-0", over_quota=True) is None
    for number in range(14):
        assert await api.create(pod, f"train-{number}", over_quota=True) is None
        assert api.refusals == ["RESERVATION_PENDING"]
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_what_was_reserved_is_kept_while_the_pod_may_come_and_then_let_go() -> None:
    world, me, api = await stage()
    pod = owned(early_pod(), OWNER)
    await api.create(pod, "train-0", over_quota=True)
    await me.reconciler.round()
    world.report(after_s=119)
    await me.reconciler.round()
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert world.pods.reads == []
    world.report(after_s=2)
    for _ in range(3):
        await me.reconciler.round()
    assert world.states() == {GPUS[0]: ["Releasing"]}
    await me.reconciler.round()
    for _ in range(2):
        world.report()
        await me.reconciler.round()
    assert world.states() == {}
    assert await api.create(pod, "train-1")


async def test_once_a_pod_has_come_the_next_gets_its_own() -> None:
    world, _, api = await stage()
    pod = owned(early_pod(), OWNER)
    first, second = await api.create(pod, "train-0"), await api.create(pod, "train-1")
    assert (told(first), told(second)) == (GPUS[0], GPUS[1])
    world.pods.copy = {}
    assert told(await api.create(pod, "train-2")) == GPUS[2]
    assert world.pods.reads


async def test_of_two_pods_with_one_reservation_one_is_created() -> None:
    world, _, api = await stage()
    first = await api.mutated(owned(early_pod(), OWNER))
    second = await api.mutated(owned(early_pod(), OWNER))
    assert first is not None
    assert second is not None
    assert await api.stored(first, "train-0")
    assert await api.stored(second, "train-1") is None
    assert api.refusals == ["RESERVATION_CONFLICT"]
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_the_validating_replica_asks_past_its_copy() -> None:
    world, me, _ = await stage()

    class Lagging(MemoryLedgerStore):
        """Knows nothing that it has not been asked for."""

        def __init__(self) -> None:
            super().__init__()
            self.asked: set[str] = set()

        def snapshot(self) -> Any:
            found = world.store.snapshot()
            for key in found.entries:
                if key not in self.asked:
                    found = found.with_entry(key, None)
            return found

        async def read(self, gpu: str) -> Any:
            self.asked.add(gpu.lower())
            return await world.store.read(gpu)

        async def compare_and_set(self, old: Any, new: Any) -> bool:
            self.asked.add(new.key)
            return await world.store.compare_and_set(old, new)

    other = await world.replica("b", Lagging())
    pod = await Creation(world, me, other).create(early_pod(), "train-0")
    assert told(pod) == GPUS[0]
    other.store.asked.clear()  # type: ignore[attr-defined] # a store of our own
    verdict = await other.bind("train-0")
    assert world.lands("train-0", verdict)
    assert world.assigned() == {"train-0": (GPUS[0],)}
    assert list(world.states()) == [GPUS[0]]


async def test_keys_without_an_id_of_ours_are_refused() -> None:
    world, _, api = await stage()
    forged = {ASSIGNED: GPUS[0], "gpuwarden.dev/node": NODE, RESERVATION: "v1.k1." + "0" * 64}
    for extra in (forged, {ASSIGNED: GPUS[0]}, {"fudo.org/gpu.uuid": GPUS[0]}):
        assert await api.create(early_pod(EARLY | extra), "train-0") is None
        assert set(api.refusals) == {"BYPASS_ANNOTATION"}
    assert world.states() == {}


def with_entries(number: int) -> Document:
    """A pod whose container has so many entries of a variable that is ours."""
    entry = {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}
    return new_pod(container(env=[entry] * number), annotations=EARLY)


REFUSED = {
    "bypass": (early_pod(hostPID=True), "BYPASS_HOST_PID"),
    "bypass, on the node that it names": (
        early_pod(hostPID=True, nodeName=NODE),
        "BYPASS_HOST_PID",
    ),
    "runtime's key": (early_pod(EARLY | {"cdi.k8s.io/gpu-assignment": "x"}), "BYPASS_CDI"),
    "ephemeral container": (
        early_pod(ephemeralContainers=[container("debug")]),
        "BYPASS_UNINJECTED",
    ),
    "too much to put right": (with_entries(66), "BYPASS_UNINJECTED"),
    "no room": (early_pod(volumes=[{"name": f"v{x}"} for x in range(9_980)]), "REQ_INVALID"),
}


@pytest.mark.parametrize(("pod", "code"), REFUSED.values(), ids=REFUSED)
async def test_a_pod_that_we_refuse_afterwards_holds_nothing(pod: Document, code: str) -> None:
    world, me, api = await stage()
    assert await api.create(pod, "train-0") is None
    assert api.refusals == [code]
    assert (world.states(), me.sink.early) == ({}, [])
    (decision,) = api.told.decisions
    assert decision.word == "refused"


@pytest.mark.parametrize(
    "pod",
    [
        with_entries(65),
        early_pod(EARLY | {f"example.org/{x}": "" for x in range(898)}),
        early_pod(EARLY | {"example.org/x": "x" * ((192 << 10) - 200)}),
        early_pod(volumes=[{"name": f"v{x}"} for x in range(9_965)]),
    ],
    ids=["entries", "keys", "bytes", "parts"],
)
async def test_what_is_reserved_for_is_admitted_afterwards(pod: Document) -> None:
    _, _, api = await stage()
    assert told(await api.create(pod, "train-0")) == GPUS[0]


SEEDS_POD = early_pod({}, labels={"fudo.org/gpu.assign": "true"})


@pytest.mark.parametrize(
    ("pod", "key", "value", "code"),
    [
        (early_pod(), ASSIGNED, GPUS[1], "BYPASS_ANNOTATION"),
        (early_pod(), "gpuwarden.dev/node", "gpu-2", "BYPASS_ANNOTATION"),
        (SEEDS_POD, "fudo.org/gpu.uuid", GPUS[1], "BYPASS_ANNOTATION"),
        (SEEDS_POD, "cdi.k8s.io/gpu-assignment", f"nvidia.com/gpu={GPUS[1]}", "BYPASS_ANNOTATION"),
        (SEEDS_POD, "cdi.k8s.io/other", f"nvidia.com/gpu={GPUS[0]}", "BYPASS_CDI"),
    ],
)
async def test_what_is_changed_behind_our_back_is_refused(
    pod: Document, key: str, value: str, code: str
) -> None:
    _, _, api = await stage()
    made = await api.mutated(pod)
    assert made is not None
    made["metadata"]["annotations"][key] = value
    assert await api.stored(made, "train-0") is None
    assert code in api.refusals


async def test_a_copy_of_another_pods_keys_is_refused() -> None:
    world, _, api = await stage()
    made = await api.create(early_pod(), "train-0")
    assert made is not None
    copied = early_pod(made["metadata"]["annotations"])
    assert await api.create(copied, "train-1") is None
    assert api.refusals == ["RESERVATION_EXPIRED"]
    missed = made | {"metadata": {k: x for k, x in made["metadata"].items() if k != "uid"}}
    assert await api.stored(missed, "train-1") is None
    assert api.refusals == ["RESERVATION_CONFLICT"]
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_a_copy_on_a_pod_that_does_not_ask_for_it_is_refused() -> None:
    _, _, api = await stage()
    made = await api.mutated(early_pod())
    assert made is not None
    del made["metadata"]["annotations"]["gpuwarden.dev/reserve"]
    assert await api.stored(made, "train-0") is None
    assert set(api.refusals) == {"BYPASS_ANNOTATION"}


async def test_a_pod_whose_reservation_was_taken_from_it_is_reserved_for_when_it_is_bound() -> None:
    world, me, api = await stage()
    made = await api.mutated(early_pod())
    assert made is not None
    for key in (ASSIGNED, RESERVATION, "gpuwarden.dev/node"):
        del made["metadata"]["annotations"][key]
    for key in ("gpuwarden.dev/attestation-hash", "gpuwarden.dev/guarantee-given"):
        made["metadata"]["annotations"].pop(key, None)
    made["metadata"]["annotations"].pop("gpuwarden.dev/guarantee-limit", None)
    assert await api.stored(made, "train-0") is not None
    assert world.lands("train-0", await me.bind("train-0"))
    assert len(world.assigned()["train-0"]) == 1


async def test_a_dry_run_is_answered_alike_and_leaves_nothing() -> None:
    world, me, api = await stage()
    made = await api.mutated(early_pod(), dry_run=True)
    assert made is not None
    assert (told(made), told(made, RESERVATION)) == (GPUS[0], "dry-run")
    assert await api.stored(made, "train-0", dry_run=True) is None
    assert api.refusals == []
    assert (world.states(), me.sink.early, api.told.decisions) == ({}, [], [])
    again = await api.ask(MUTATE, me, made, dry_run=True)
    assert (again.refusals, again.patch) == ((), ())
    assert await api.stored(made, "train-0") is None
    assert set(api.refusals) == {"BYPASS_ANNOTATION"}


async def test_report_only_mode_says_what_it_would_come_to() -> None:
    world, me, api = await stage(1)
    await api.create(early_pod(), "train-0")
    api.report = True
    pod = early_pod()
    pod["metadata"] |= {"name": "train-1", "uid": "uid-1"}
    assert await api.ask(VALIDATE, me, pod) == Verdict(result="admitted")
    assert await api.ask(MUTATE, me, pod) == Verdict(result="untouched")
    assert len(world.states()) == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "disk", "operator": "In", "values": ["ssd"]}
                                ]
                            }
                        ]
                    }
                }
            }
        },
    ],
    ids=["selector", "affinity"],
)
async def test_a_pods_node_selectors_count(spec: Document) -> None:
    world, _, api = await stage(1, 1)
    world.nodes["gpu-2"] = KnownNode("u", labels={"disk": "ssd"})
    made = await api.create(early_pod(**spec), "train-0")
    assert told(made, "gpuwarden.dev/node") == "gpu-2"
    assert await api.create(early_pod(**spec), "train-1") is None
    assert api.refusals == ["GPU_BUSY"]


async def test_a_cordoned_node_is_left_out() -> None:
    world, _, api = await stage(1, 1)
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    world.nodes[NODE] = KnownNode("u", taints=(cordon,))
    assert told(await api.create(early_pod(), "train-0"), "gpuwarden.dev/node") == "gpu-2"


@pytest.mark.parametrize("spec", [{}, {"nodeName": NODE}], ids=["any", "named"])
async def test_a_node_that_the_cluster_lacks_is_left_out(spec: Document) -> None:
    world, _, api = await stage()
    world.nodes.clear()
    assert await api.create(early_pod(**spec), "train-0") is None
    assert api.refusals == ["NODE_NO_EVIDENCE"]


MANAGED = Taint("gpuwarden.dev/managed", "", "NoExecute")
OURS = {"key": "gpuwarden.dev/managed", "operator": "Exists", "effect": "NoExecute"}


async def protected_stage(*gpus: int) -> tuple[BindingWorld, Replica, Creation]:
    """As `stage`; the first node has our taint."""
    world, me, api = await stage(*gpus)
    world.nodes[NODE] = KnownNode("u", managed=True, taints=(MANAGED,))
    return world, me, api


async def test_a_protected_node_is_for_pods_of_enforced_namespaces() -> None:
    world, me, api = await protected_stage(1, 8)
    api.enforced = False
    assert told(await api.create(early_pod(), "train-0"), "gpuwarden.dev/node") == "gpu-2"
    api.enforced = True
    made = await api.create(early_pod(), "train-1")
    assert told(made, "gpuwarden.dev/node") == NODE
    assert made is not None
    assert OURS in made["spec"]["tolerations"]
    assert world.states() == {"GPU-gpu-2-0": ["Proposed"], GPUS[0]: ["Proposed"]}
    assert me.sink.early == [("ACCEPTED", True)] * 2


@pytest.mark.parametrize(
    ("spec", "code"),
    [({}, "NODE_NO_EVIDENCE"), ({"nodeName": NODE}, "BYPASS_NODE_NAME")],
    ids=["any", "named"],
)
async def test_outside_enforced_namespaces_nothing_is_reserved_on_a_protected_node(
    spec: Document, code: str
) -> None:
    world, _, api = await protected_stage(8)
    api.enforced = False
    assert await api.create(early_pod(**spec), "train-0") is None
    assert api.refusals == [code]
    assert world.states() == {}


@pytest.mark.parametrize("protected", [False, True])
@pytest.mark.parametrize("spec", [{}, {"nodeName": NODE}], ids=["any", "named"])
async def test_a_toleration_of_its_own_counts_where_no_policy_refuses_it(
    spec: Document, *, protected: bool
) -> None:
    world, me, api = await protected_stage(8)
    api.enforced = False
    me.changes = {"scene": replace(me.scenes.now(), protected=protected)}
    made = await api.create(early_pod(tolerations=[OURS], **spec), "train-0")
    assert (made is None) is protected
    assert world.states() == ({} if protected else {GPUS[0]: ["Proposed"]})


@pytest.mark.parametrize(
    ("effect", "taken"), [("NoSchedule", True), ("NoExecute", False)], ids=["cordoned", "evicting"]
)
async def test_a_pod_that_names_its_node_gets_what_kubelet_lets_it_use(
    effect: str, *, taken: bool
) -> None:
    world, _, api = await stage(1)
    world.nodes[NODE] = KnownNode("u", taints=(Taint("maintenance", "", effect),))
    made = await api.create(early_pod(nodeName=NODE), "train-0")
    assert (made is not None) is taken
    assert api.refusals == ([] if taken else ["BYPASS_NODE_NAME"])


async def test_the_tightest_node_comes_first() -> None:
    _, _, api = await stage(8, 1)
    assert told(await api.create(early_pod(), "train-0"), "gpuwarden.dev/node") == "gpu-2"


async def test_where_kubelet_chooses_there_is_nothing_to_reserve() -> None:
    world, _, api = await stage()
    view = world.fleet.nodes[NODE]
    plugin = replace(view, mode=NodeMode.PLUGIN)
    world.fleet = replace(world.fleet, nodes={NODE: plugin})
    assert await api.create(early_pod(), "train-0") is None
    assert api.refusals == ["NODE_MODE"]
    asking = new_pod(container(gpus=1), annotations={"gpuwarden.dev/reserve": "admission"})
    assert await api.create(asking, "train-0") is None
    assert api.refusals == ["EXACT_UNAVAILABLE"]
    less = {"gpuwarden.dev/reserve": "admission", "gpuwarden.dev/guarantee": "node"}
    assert await api.create(new_pod(container(gpus=1), annotations=less), "train-0")
    assert world.states() == {}


async def test_the_binding_webhook_refuses_every_other_node() -> None:
    world, me, api = await stage(1, 1)
    made = await api.create(early_pod(), "train-0")
    other = {"gpu-1": "gpu-2", "gpu-2": "gpu-1"}[told(made, "gpuwarden.dev/node")]
    for not_ready in (None, "first round"):
        me.changes = {"not_ready": not_ready}
        verdict = await me.bind("train-0", other)
        assert [x.code for x in verdict.refusals] == [ReasonCode.RESERVATION_CONFLICT]
    assert len(world.states()) == 1


async def test_what_is_over_is_reserved_again_at_the_binding_webhook() -> None:
    world, me, api = await stage()
    made = await api.create(early_pod(), "train-0")
    await expire(world, me)
    assert world.states() == {}
    verdict = await me.bind("train-0")
    assert world.lands("train-0", verdict)
    after = world.pods.stored["train-0"]
    assert told(after, RESERVATION) != told(made, RESERVATION)
    await me.reconciler.round()
    assert world.states() == {told(after): ["Confirmed"]}


async def test_what_is_over_is_refused_where_another_has_it_by_now() -> None:
    world, me, api = await stage(1)
    await api.create(early_pod(), "train-0")
    await expire(world, me)
    await api.create(early_pod(), "train-1")
    verdict = await me.bind("train-0")
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_BUSY]


async def test_a_gpu_that_was_lost_meanwhile_is_not_given() -> None:
    world, me, api = await stage(2)
    await api.create(early_pod(), "train-0")
    acceptance = world.fleet.nodes[NODE].acceptance
    assert acceptance is not None
    less = replace(acceptance, gpus=acceptance.gpus[1:])
    view = replace(world.fleet.nodes[NODE], acceptance=less)
    world.fleet = replace(world.fleet, nodes={NODE: view})
    verdict = await me.bind("train-0")
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_LOST]


async def test_a_waiting_pod_keeps_what_it_has_until_max_pending() -> None:
    world, me, api = await stage()
    await api.create(early_pod(), "train-0")
    await me.reconciler.round()
    world.report(after_s=590)
    await me.reconciler.round()
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert world.pods.requeues == []


async def expire(world: BindingWorld, me: Replica) -> None:
    await me.reconciler.round()
    world.report(after_s=601)
    for _ in range(3):
        await me.reconciler.round()
    assert world.pods.requeues == ["train-0"]


async def test_unborn_ones_count_in_the_quota() -> None:
    _, me, api = await stage()
    me.changes = {"quota": 1}
    assert await api.mutated(early_pod())
    assert await api.mutated(early_pod()) is None
    assert api.refusals == ["QUOTA_EXCEEDED"]


async def test_what_is_taken_up_counts_once_in_the_quota() -> None:
    world, me, api = await stage()
    me.changes = {"quota": 1}
    assert await api.mutated(owned(early_pod(), OWNER))
    made = await api.create(owned(early_pod(), OWNER), "train-0")
    assert made is not None
    assert world.lands("train-0", await me.bind("train-0"))


async def test_no_reservation_without_its_record() -> None:
    world, me, api = await stage()
    me.audit.broken = True
    assert await api.mutated(early_pod()) is None
    assert api.refusals == ["AUDIT_UNAVAILABLE"]
    assert world.states() == {}
    me.audit.broken = False
    made = await api.mutated(early_pod())
    assert made is not None
    me.audit.broken = True
    assert await api.stored(made, "train-0") is None
    assert api.refusals == ["AUDIT_UNAVAILABLE"]


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"not_ready": "first round"}, "CONTROLLER_NOT_READY"), ({"ids": None}, "LEDGER_UNAVAILABLE")],
)
async def test_what_is_not_known_is_refused(changes: dict[str, Any], code: str) -> None:
    _, me, api = await stage()
    me.changes = changes
    assert await api.mutated(early_pod()) is None
    assert api.refusals == [code]


def test_the_patch_is_small() -> None:
    """What is written into the pod: annotations, variables, the scheduler and the node."""
    paths: list[str] = []

    async def look() -> None:
        _, me, api = await stage()
        verdict = await api.ask(MUTATE, me, early_pod())
        paths.extend(x["path"] for x in documents(verdict.patch))

    asyncio.run(look())
    assert [x for x in paths if not x.startswith("/metadata/annotations/gpuwarden.dev~1")] == [
        "/spec/containers/0/env",
        "/spec/schedulerName",
        "/spec/tolerations",
        "/spec/affinity",
    ]


async def test_a_store_that_does_not_answer_reserves_nothing() -> None:
    world = BindingWorld()
    store = FaultyLedgerStore(world.store)
    me = await world.replica("a", store)
    api = Creation(world, me, me)
    made = await api.mutated(early_pod())
    assert made is not None
    store.is_dead = True
    assert await api.mutated(early_pod()) is None
    assert api.refusals == ["LEDGER_UNAVAILABLE"]
    assert await api.stored(made, "train-0") is None
    assert api.refusals == ["LEDGER_UNAVAILABLE"]
    store.is_dead = False
    store.faults = ["before"] * (MOST_LOST + 1)
    assert await api.stored(made, "train-1") is None
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_what_was_written_without_an_answer_is_read_again() -> None:
    world = BindingWorld()
    store = FaultyLedgerStore(world.store)
    me = await world.replica("a", store)
    api = Creation(world, me, me)
    made = await api.mutated(early_pod())
    assert made is not None
    store.faults = ["before", "after"]
    assert await api.stored(made, "train-0")
    assert world.states() == {GPUS[0]: ["Proposed"]}


async def test_who_cannot_be_asked_about_an_earlier_pod_gets_nothing() -> None:
    world, _, api = await stage()
    pod = owned(early_pod(), OWNER)
    await api.create(pod, "train-0", over_quota=True)
    world.pods.down = True
    assert await api.create(pod, "train-1") is None
    assert api.refusals == ["LEDGER_UNAVAILABLE"]


async def test_others_that_are_faster_at_a_record_are_looked_at_again() -> None:
    world = BindingWorld()
    store = FaultyLedgerStore(world.store)
    me, other = await world.replica("a", store), await world.replica("b")
    api = Creation(world, me, me)
    made = await api.mutated(owned(early_pod(), OWNER))
    assert made is not None
    again = Creation(world, other, other)
    twin = owned(early_pod(), OWNER)
    store.meanwhile[len(store.writes)] = lambda: again.mutated(twin)
    assert await api.stored(made, "train-0")
    assert world.states() == {GPUS[0]: ["Proposed"]}
    late = await again.mutated(twin)
    assert late is not None
    assert told(late) == GPUS[1]


async def test_of_many_nodes_what_says_most_is_reported() -> None:
    world, me, api = await stage(1, 1, 1)
    stale = world.fleet.nodes["gpu-3"]
    nodes = {**world.fleet.nodes, "gpu-3": replace(stale, mode=NodeMode.PLUGIN)}
    world.fleet = replace(world.fleet, nodes=nodes)
    nothing = early_pod(EARLY | {"gpuwarden.dev/gpu-count": "2"})
    (refusal,) = (await api.ask(MUTATE, me, nothing)).refusals
    text = "no node has what the pod asks for: 2 GPU_NO_MATCH, 1 NODE_MODE"
    example = "gpu-1: too few GPUs are as the pod asks: needs 2 GPUs, node has 1, 1 free"
    assert refusal == Refusal(ReasonCode.GPU_NO_MATCH, f"{text}; {example}")
    await api.mutated(early_pod())
    await api.mutated(early_pod())
    (warning,) = (await api.ask(MUTATE, me, early_pod())).warnings
    assert warning.startswith("gpuwarden: GPU_BUSY Too few matching")
    assert "gpu-1" not in warning


async def test_a_pod_that_is_not_like_the_one_before_waits_for_it() -> None:
    _, _, api = await stage()
    assert await api.mutated(owned(early_pod(), OWNER))
    more = owned(early_pod(EARLY | {"gpuwarden.dev/gpu-count": "2"}), OWNER)
    assert await api.mutated(more) is None
    assert api.refusals == ["RESERVATION_PENDING"]


async def test_without_a_ledger_nothing_is_reserved() -> None:
    world, me, _ = await stage()
    webhooks = AdmissionWorld({"team-a"}).webhooks()
    found = await webhooks.mutate(request_of(review_json(early_pod())))
    assert [x.code for x in found.refusals] == [ReasonCode.LEDGER_UNAVAILABLE]
    unnamed = await Creation(world, me, me).mutated(early_pod())
    assert unnamed is not None
    verdict = await Creation(world, me, me).ask(VALIDATE, me, unnamed)
    assert [x.code for x in verdict.refusals] == [ReasonCode.ADMISSION_FAILED]
