import asyncio
from dataclasses import replace
from typing import Any

import pytest

from controller.admission.review import Verdict
from controller.ledger.claim import Claim, Claimant, open_attempt
from controller.ledger.record import HolderState, Origin, PodRef
from controller.ledger.reservation_id import ReservationSubject
from controller.ledger.store import LedgerSnapshot
from gpuwarden.audit.record import RecordKind
from gpuwarden.reasons import ReasonCode, Refusal
from sandbox.kube.json_patch import applied
from tests.builders.admitted_pods import documents
from tests.builders.bindings import IDS, NODE, binding, env_pod, review_request
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.eventually import eventually
from tests.fakes.ledger_store import FaultyLedgerStore, MemoryLedgerStore

# --- The binding webhook's shell: which questions it asks, what it leaves behind, how it ends

GPUS = tuple(f"GPU-{NODE}-{index}" for index in range(8))
UNSURE = Refusal(ReasonCode.CONTROLLER_NOT_READY, "the ledger and the pods are being read")


def foreign(gpu: str, uid: str = "somebody") -> Claim:
    pod = PodRef("team-b", "other", uid)
    return Claim(f"v1.k.{uid}", pod, NODE, (gpu,), Origin.BINDING_WEBHOOK, "abcdef0123456789")


async def test_a_pod_is_bound_together_with_its_gpu() -> None:
    world = BindingWorld()
    me = await world.replica()
    name = world.pod("train-0")
    verdict = await me.bind(name)
    assert verdict.result == "patched"
    assert world.lands(name, verdict)
    assert world.assigned() == {name: (GPUS[0],)}
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert world.pods.reads == []
    (record,) = me.audit.granted
    assert record.kind is RecordKind.RESERVATION_RESERVED
    assert record.refs["gpus"] == [GPUS[0]]
    (decision,) = me.sink.decisions
    assert record.refs["evidence"] == decision.evidence == "e" * 64
    assert (decision.word, decision.gpus, decision.uid) == ("allowed", (GPUS[0],), "uid-train-0")
    await me.reconciler.round()
    assert world.states() == {GPUS[0]: ["Confirmed"]}


async def test_a_dry_run_claims_nothing_and_leaves_nothing_behind() -> None:
    world = BindingWorld()
    me = await world.replica()
    verdict = await me.bind(world.pod("train-0"), dryRun=True)
    told = documents(verdict.patch)[-1]["value"]
    assert told["gpuwarden.dev/gpu-uuids-assigned"] == GPUS[0]
    assert told["gpuwarden.dev/reservation-id"] == "dry-run"
    assert world.states() == {}
    assert (me.sink.decisions, me.audit.granted) == ([], [])
    me.changes = {"not_ready": "first round"}
    assert (await me.bind("train-0", dryRun=True)).refusals
    assert me.sink.decisions == []
    assert len(me.denials) == 0


async def test_a_refusal_is_reported_and_remembered() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    await me.claims.claim(foreign(GPUS[0]))
    verdict = await me.bind(world.pod("train-0"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_BUSY]
    assert verdict.result == "refused"
    assert verdict.patch == ()
    assert me.denials.nodes("uid-train-0", world.clock.boottime_ns()) == {NODE}
    assert [x.word for x in me.sink.decisions] == ["refused"]


async def test_pods_that_ask_for_nothing_leave_nothing_behind() -> None:
    world = BindingWorld()
    me = await world.replica()
    world.pods.put(env_pod({}, name="plain", uid="uid-plain"))
    verdict = await me.bind("plain")
    assert (verdict.result, verdict.patch, verdict.refusals) == ("untouched", (), ())
    assert me.sink.decisions == []
    world.pods.stored["plain"]["spec"]["hostPID"] = True
    verdict = await me.bind("plain")
    assert [x.code for x in verdict.refusals] == [ReasonCode.BYPASS_HOST_PID]
    assert len(me.denials) == 0


async def test_a_binding_without_a_uid_holds_for_the_pod_that_was_judged_alone() -> None:
    """A pod of this name that asks for GPUs may have come, and the copy does not know yet."""
    world = BindingWorld()
    me = await world.replica()
    world.pods.put(env_pod({}, name="train-0", uid="uid-plain"))
    lagging = dict(world.pods.copy)
    world.pod("train-0")
    world.pods.copy = lagging
    by_hand = review_request(binding("train-0", uid=None))
    verdict = await me.binding_webhook.decide(by_hand)
    told = [{"op": "add", "path": "/metadata/uid", "value": "uid-plain"}]
    assert (verdict.result, documents(verdict.patch)) == ("untouched", told)
    me.changes = {"report": True}
    assert (await me.binding_webhook.decide(by_hand)).patch == ()


async def test_what_is_no_binding_is_refused() -> None:
    me = await BindingWorld().replica()
    request = review_request(binding(), operation="UPDATE")
    verdict = await me.binding_webhook.decide(request)
    assert [x.code for x in verdict.refusals] == [ReasonCode.REQ_INVALID]
    me.changes = {"report": True}
    verdict = await me.binding_webhook.decide(request)
    assert (verdict.refusals, verdict.result) == ((), "reported")
    assert "REQ_INVALID" in verdict.warnings[0]


async def test_forged_bindings_need_no_look_at_the_pod() -> None:
    world = BindingWorld()
    me = await world.replica()
    forged = review_request(binding("nobody", annotations={"gpuwarden.dev/node": "gpu-1"}))
    verdict = await me.binding_webhook.decide(forged)
    assert [x.code for x in verdict.refusals] == [ReasonCode.BINDING_FORGED]
    assert world.pods.reads == []
    assert [x.word for x in me.sink.decisions] == ["refused"]


async def test_the_api_server_is_asked_where_the_copy_cannot_know() -> None:
    world = BindingWorld()
    me = await world.replica()
    name = world.pod("train-0")
    world.pods.copy = {}
    assert (await me.bind(name)).patch
    assert world.pods.reads == [name]
    assert [x.code for x in (await me.bind("nobody")).refusals] == [ReasonCode.POD_UNKNOWN]
    world.pods.down = True
    world.pods.copy = {}
    verdict = await me.bind(name)
    assert [x.code for x in verdict.refusals] == [ReasonCode.POD_UNKNOWN]
    assert "away" in verdict.refusals[0].detail


async def test_a_copy_that_lags_is_not_relied_on() -> None:
    world = BindingWorld()
    me = await world.replica()
    old = env_pod(name="train-0", uid="uid-old")
    world.pods.put(old)
    world.pods.copy = dict(world.pods.stored)
    lagging = dict(world.pods.copy)
    name = world.pod("train-0")
    world.pods.copy = lagging
    verdict = await me.bind(name)
    assert world.pods.reads == [name]
    assert world.lands(name, verdict)


async def test_a_retry_finds_its_own_claim_and_looks_again() -> None:
    world = BindingWorld()
    me = await world.replica()
    name = world.pod("train-0")
    first = await me.bind(name)
    world.pods.put(world.pods.stored[name])
    assert not world.lands(name, first)
    lagging = {name: world.pods.stored[name]}
    world.pods.put(world.pods.stored[name])
    world.pods.copy = lagging
    second = await me.bind(name)
    assert world.pods.reads == [name]
    assert world.lands(name, second)
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert world.assigned() == {name: (GPUS[0],)}


async def test_where_another_replica_is_faster_others_are_chosen() -> None:
    world = BindingWorld(3)
    store = FaultyLedgerStore(world.store)
    me = await world.replica(store=store)
    others = Claimant(world.store)
    store.meanwhile = {
        0: lambda: others.claim(foreign(GPUS[0], "x")),
        1: lambda: others.claim(foreign(GPUS[1], "y")),
    }
    name = world.pod("train-0")
    assert world.lands(name, await me.bind(name))
    assert world.assigned() == {name: (GPUS[2],)}


async def test_in_the_end_the_others_have_them_all() -> None:
    world = BindingWorld(1)
    store = FaultyLedgerStore(world.store)
    me = await world.replica(store=store)
    store.meanwhile = {0: lambda: Claimant(world.store).claim(foreign(GPUS[0]))}
    verdict = await me.bind(world.pod("train-0"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.GPU_BUSY]
    many = BindingWorld(8)
    store = FaultyLedgerStore(many.store)
    me = await many.replica(store=store)
    claimant = Claimant(many.store)
    store.meanwhile = {
        n: lambda n=n: claimant.claim(foreign(GPUS[n], f"x{n}"))  # type: ignore[misc] # mypy cannot infer the default
        for n in range(8)
    }
    verdict = await me.bind(many.pod("train-0"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.LEDGER_CONFLICT]


async def test_a_store_that_is_dead_refuses_at_once() -> None:
    world = BindingWorld()
    store = FaultyLedgerStore(world.store)
    me = await world.replica(store=store)
    store.is_dead = True
    verdict = await me.bind(world.pod("train-0"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.LEDGER_UNAVAILABLE]


async def test_no_reservation_without_its_record() -> None:
    world = BindingWorld()
    me = await world.replica()
    me.audit.broken = True
    verdict = await me.bind(world.pod("train-0"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.AUDIT_UNAVAILABLE]
    assert world.states() == {}


async def until_idle(me: Replica) -> None:
    await asyncio.gather(*me.granting.tasks)


async def test_an_answer_that_comes_too_late_takes_its_claim_back() -> None:
    world = BindingWorld()
    me = await world.replica()
    me.audit.held = asyncio.Event()
    name = world.pod("train-0")
    asking = asyncio.ensure_future(me.bind(name))
    await me.audit.asked.wait()
    assert world.states() == {GPUS[0]: ["Proposed"]}
    assert list(me.granting.gpus) == [GPUS[0]]
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    me.audit.held.set()
    await until_idle(me)
    assert world.states() == {}
    assert me.granting.gpus == {}
    (change,) = me.sink.changes
    assert (change.state, change.gpus) == (HolderState.REVOKED, (GPUS[0],))
    assert change.cause == "its answer came too late"
    assert me.woken == [NODE]


async def test_no_answer_relies_on_a_ledger_that_was_rolled_back_meanwhile() -> None:
    world = BindingWorld()
    me = await world.replica()
    me.audit.held = asyncio.Event()
    asking = asyncio.ensure_future(me.bind(world.pod("train-0")))
    await me.audit.asked.wait()
    me.changes = {"grant_refusal": lambda _node, _gpus: UNSURE}
    me.audit.held.set()
    verdict = await asking
    assert verdict.refusals == (UNSURE,)
    assert (verdict.patch, world.states()) == ((), {})
    (change,) = me.sink.changes
    assert (change.state, change.gpus) == (HolderState.REVOKED, (GPUS[0],))


async def claims(me: Replica, count: int) -> bool | None:
    return True if len(me.granting.gpus) == count else None


async def test_gpus_that_are_being_claimed_are_taken() -> None:
    world = BindingWorld(2)
    me = await world.replica()
    me.audit.held = asyncio.Event()
    first = asyncio.ensure_future(me.bind(world.pod("train-0")))
    await me.audit.asked.wait()
    again = asyncio.ensure_future(me.bind("train-0"))
    second = asyncio.ensure_future(me.bind(world.pod("train-1")))
    await eventually(lambda: claims(me, 2), "two pods' claims are on their way")
    third = await me.bind(world.pod("train-2"))
    assert [x.code for x in third.refusals] == [ReasonCode.GPU_BUSY]
    me.audit.held.set()
    verdicts = await asyncio.gather(first, again, second)
    told = [documents(x.patch)[-1]["value"]["gpuwarden.dev/gpu-uuids-assigned"] for x in verdicts]
    assert told == [GPUS[0], GPUS[0], GPUS[1]]


async def test_report_only_mode_shows_and_does_nothing() -> None:
    world = BindingWorld(1)
    me = await world.replica()
    me.changes = {"report": True}
    name = world.pod("train-0")
    verdict = await me.bind(name)
    assert (verdict.result, verdict.patch, verdict.warnings) == ("reported", (), ())
    await me.claims.claim(foreign(GPUS[0]))
    verdict = await me.bind(name)
    assert (verdict.result, verdict.refusals) == ("reported", ())
    (text,) = verdict.warnings
    assert text.startswith("would be denied: gpuwarden: GPU_BUSY ")
    assert [x.word for x in me.sink.decisions] == ["allowed", "reported"]
    assert len(me.denials) == 0
    assert list(world.states().values()) == [["Proposed"]]


async def test_the_namespace_comes_from_the_api_server() -> None:
    world = BindingWorld()
    me = await world.replica()
    plain = env_pod({}, name="plain", uid="uid-plain", enforced=False)
    world.pods.put(plain)
    webhook = replace(me.binding_webhook, is_enforced=lambda _namespace: False)
    assert (await webhook.decide(me.asked("plain"))).result == "untouched"
    verdict = await replace(webhook, marked=True).decide(me.asked("plain"))
    assert [x.code for x in verdict.refusals] == [ReasonCode.BYPASS_UNINJECTED]


async def test_a_new_replica_grants_nothing_before_it_knows() -> None:
    world = BindingWorld()
    me = Replica(world, MemoryLedgerStore(), "f")
    name = world.pod("train-0")
    verdict = await me.bind(name)
    assert [x.code for x in verdict.refusals] == [ReasonCode.CONTROLLER_NOT_READY]
    await me.stand()
    verdict = await me.bind(name)
    assert "heard about use" in verdict.refusals[0].detail
    world.report()
    assert (await me.bind(name)).patch


# --- Two replicas answer for one pod at once, with different GPUs: what becomes of the lost answe

POD, UID = "train-0", "uid-train-0"
ASSIGNED, RESERVATION = "gpuwarden.dev/gpu-uuids-assigned", "gpuwarden.dev/reservation-id"


def annotations_of(answer: Verdict) -> dict[str, str]:
    made: dict[str, str] = applied(binding(POD, uid=None), documents(answer.patch))["metadata"][
        "annotations"
    ]
    return made


async def two_answers(world: BindingWorld) -> tuple[Verdict, Verdict]:
    """The answer that a further claim of the pod would not take up again, and the one it would."""
    one, other = await world.replica("a"), await world.replica("b")
    world.pod("before")
    assert world.lands("before", await one.bind("before"))
    then = world.store.snapshot()
    await end_of(world, one, "before")
    world.pod(POD)
    first = await one.bind(POD)
    other.changes = {"ledger": then}  # which is what it knows at that moment
    answers = {annotations_of(x)[ASSIGNED]: x for x in (first, await other.bind(POD))}
    assert len(answers) == 2
    again = open_attempt(world.store.snapshot(), UID, NODE)
    assert again is not None
    taken_up = answers.pop(again.gpus[0])
    return answers.popitem()[1], taken_up


async def end_of(world: BindingWorld, me: Replica, name: str) -> None:
    del world.pods.stored[name]
    world.pods.catch_up()
    for _ in range(5):
        await me.reconciler.round()
        world.report()
    assert world.states() == {}


async def put_back(world: BindingWorld, copy: LedgerSnapshot, waiting: dict[str, Any]) -> None:
    """The records and the pod are what they were before the Binding."""
    world.store = MemoryLedgerStore()
    for entry in copy.entries.values():
        assert await world.store.compare_and_set(None, entry.record)
    world.pods.put(waiting)


@pytest.mark.parametrize("how", ["put back", "edited"])
async def test_what_a_pod_was_started_with_is_kept_though_its_id_is_for_another(how: str) -> None:
    """Put back: and bound again before its kubelet saw it unbound; the containers run on.

    Edited: by somebody whom no policy stops, while no controller runs.
    """
    world = BindingWorld(2)
    started, taken_up = await two_answers(world)
    copy, waiting = world.store.snapshot(), world.pods.stored[POD]
    assert world.lands(POD, started)
    (used,) = world.assigned()[POD]
    if how == "put back":
        await put_back(world, copy, waiting)
        me = await world.replica("c")
        assert world.lands(POD, await me.bind(POD))
    else:
        bound = world.pods.stored[POD]
        metadata = bound["metadata"] | {"annotations": annotations_of(taken_up)}
        world.pods.put(bound | {"metadata": metadata})
        me = await world.replica("c")
    (shown,) = world.assigned()[POD]
    assert shown != used
    subject = ReservationSubject("team-a", NODE, (shown,), UID)
    stored = world.pods.stored[POD]["metadata"]["annotations"][RESERVATION]
    assert IDS.is_authentic(stored, subject)
    for _ in range(5):  # idle containers: no report shows them
        await me.reconciler.round()
        world.report()
    assert world.states() == {shown: ["Confirmed"], used: ["Releasing"]}
    world.pod("next")
    assert [x.code for x in (await me.bind("next")).refusals] == [ReasonCode.GPU_BUSY]
    await end_of(world, me, POD)
    assert world.lands("next", await me.bind("next"))
