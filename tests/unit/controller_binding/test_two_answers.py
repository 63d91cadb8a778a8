"""Two replicas answer for one pod at once, with different GPUs: what becomes of the lost answer.

That the pod is bound under an authentic id for other GPUs does not show with which GPUs its
containers were started: annotations can change under them, where etcd is put back or no policy
stands in the way. So the GPU of the lost answer is kept until the pod has ended.
"""

from typing import Any

import pytest

from controller.admission.review import Verdict
from controller.ledger.claim import open_attempt
from controller.ledger.record import ReservationSubject
from controller.ledger.store import LedgerSnapshot, MemoryLedgerStore
from gpuwarden.reasons import ReasonCode
from tests.builders.admitted_pods import documents
from tests.builders.bindings import IDS, NODE, binding
from tests.fakes.binding_world import BindingWorld, Replica
from tests.fakes.json_patch import applied

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
        await me.follower.round()
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
        await me.follower.round()
        world.report()
    assert world.states() == {shown: ["Confirmed"], used: ["Releasing"]}
    world.pod("next")
    assert [x.code for x in (await me.bind("next")).refusals] == [ReasonCode.GPU_BUSY]
    await end_of(world, me, POD)
    assert world.lands("next", await me.bind("next"))
