"""Claims of several GPUs: whole or not at all, whatever the store does meanwhile."""

import asyncio
from dataclasses import replace

import pytest

from controller.ledger.claim import MOST_ERRORS, Claim, Claimant, Claimed
from controller.ledger.record import HolderState, RecordInvalidError
from controller.ledger.store import MemoryLedgerStore
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.ledger import OTHER_POD, SHARE, claim
from tests.fakes.ledger_store import FaultyLedgerStore

GPUS = ("GPU-a", "GPU-b", "GPU-c")
MINE = claim(*GPUS)
THEIRS = claim("GPU-b", pod=OTHER_POD, call="f" * 16)


@pytest.fixture
def store() -> MemoryLedgerStore:
    return MemoryLedgerStore()


def held(store: MemoryLedgerStore) -> dict[str, list[str]]:
    """GPU -> reservations."""
    entries = store.snapshot().entries.values()
    return {x.record.gpu: [y.reservation for y in x.record.holders] for x in entries}


async def refused(claimant: Claimant, asked: Claim) -> ReasonCode:
    answer = await claimant.claim(asked)
    assert isinstance(answer, Refusal)
    return answer.code


WHOLE = {gpu: [MINE.reservation] for gpu in GPUS}


async def test_all_of_them_in_order(store: MemoryLedgerStore) -> None:
    watched = FaultyLedgerStore(store)
    assert await Claimant(watched).claim(MINE) == Claimed(MINE)
    assert held(store) == WHOLE
    assert [gpu for gpu, _ in watched.writes] == list(GPUS)


async def test_none_where_one_is_taken(store: MemoryLedgerStore) -> None:
    assert isinstance(await Claimant(store).claim(THEIRS), Claimed)
    assert await refused(Claimant(store), MINE) is ReasonCode.LEDGER_CONFLICT
    assert held(store) == {"GPU-b": [THEIRS.reservation]}


async def test_the_same_again_is_counted_in(store: MemoryLedgerStore) -> None:
    await Claimant(store).claim(MINE)
    again = replace(MINE, call="e" * 16)
    assert await Claimant(store).claim(again) == Claimed(again)
    assert [x.record.holders[0].answers for x in store.snapshot().entries.values()] == [2, 2, 2]
    assert held(store) == WHOLE


async def test_a_group_shares(store: MemoryLedgerStore) -> None:
    first, second = replace(MINE, share=SHARE), claim(*GPUS, pod=OTHER_POD, call="e" * 16)
    await Claimant(store).claim(first)
    assert isinstance(await Claimant(store).claim(replace(second, share=SHARE)), Claimed)
    assert held(store) == {gpu: ["v1.k.uid-0", "v1.k.uid-1"] for gpu in GPUS}
    assert sorted(await Claimant(store).withdraw(first)) == sorted(GPUS)
    assert await Claimant(store).withdraw(first) == ()
    assert held(store) == {gpu: ["v1.k.uid-1"] for gpu in GPUS}


async def test_a_rollback_leaves_what_another_relies_on(store: MemoryLedgerStore) -> None:
    """The first call is overtaken by a retry, then meets somebody else."""
    slow = FaultyLedgerStore(store)
    again = claim("GPU-a", "GPU-b", "GPU-c", call="e" * 16)

    async def others() -> None:
        await Claimant(FaultyLedgerStore(store, "ok", "before", "before", "before")).claim(again)
        await Claimant(store).claim(THEIRS)

    slow.meanwhile[1] = others
    assert await refused(Claimant(slow), MINE) is ReasonCode.LEDGER_CONFLICT
    assert held(store) == {"GPU-a": [MINE.reservation], "GPU-b": [THEIRS.reservation]}
    assert store.snapshot().entries["gpu-a"].record.holders[0].answers == 2


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("at", range(3))
async def test_a_lost_answer_is_no_answer(store: MemoryLedgerStore, lost: str, at: int) -> None:
    faulty = FaultyLedgerStore(store, *["ok"] * at, lost)
    assert await Claimant(faulty).claim(MINE) == Claimed(MINE)
    assert held(store) == WHOLE
    assert {x.record.holders[0].answers for x in store.snapshot().entries.values()} == {1}


@pytest.mark.parametrize("at", range(3))
async def test_too_many_of_them_end_it_and_nothing_stays(store: MemoryLedgerStore, at: int) -> None:
    faulty = FaultyLedgerStore(store, *["ok"] * at, *["before"] * (MOST_ERRORS + 1))
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_UNAVAILABLE
    assert held(store) == {}


@pytest.mark.parametrize("at", range(3))
async def test_a_write_that_was_done_unseen_is_taken_back_too(
    store: MemoryLedgerStore, at: int
) -> None:
    faulty = FaultyLedgerStore(store, *["ok"] * at, *["before"] * MOST_ERRORS, "after")
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_UNAVAILABLE
    assert held(store) == {}


async def test_a_dead_store_ends_it_and_leaves_an_attempt(store: MemoryLedgerStore) -> None:
    faulty = FaultyLedgerStore(store)

    async def dies() -> None:
        faulty.is_dead = True

    faulty.meanwhile[2] = dies
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_UNAVAILABLE
    assert held(store) == {"GPU-a": [MINE.reservation], "GPU-b": [MINE.reservation]}
    states = {x.record.holders[0].state for x in store.snapshot().entries.values()}
    assert states == {HolderState.PROPOSED}


async def test_an_answer_lost_in_the_rollback_is_asked_for_again(
    store: MemoryLedgerStore,
) -> None:
    await Claimant(store).claim(claim("GPU-c", pod=OTHER_POD, call="f" * 16))
    faulty = FaultyLedgerStore(store, "ok", "ok", "after", "before")
    assert await refused(Claimant(faulty), MINE) is ReasonCode.LEDGER_CONFLICT
    assert held(store) == {"GPU-c": ["v1.k.uid-1"]}


async def test_others_that_are_always_faster_end_it(store: MemoryLedgerStore) -> None:
    """A share group's record changes under a claim each time."""
    faulty = FaultyLedgerStore(store)
    names = [f"uid-{n}" for n in range(10, 30)]

    def another(uid: str) -> Claim:
        pod = replace(OTHER_POD, uid=uid)
        return claim("GPU-a", pod=pod, call="f" * 16, share=SHARE)

    await Claimant(store).claim(another("uid-9"))
    for n, uid in enumerate(names):
        asked = another(uid)
        faulty.meanwhile[n] = lambda asked=asked: Claimant(store).claim(asked)  # type: ignore[misc] # bound now
    code = await refused(Claimant(faulty), claim("GPU-a", share=SHARE))
    assert code is ReasonCode.LEDGER_CONFLICT
    assert "v1.k.uid-0" not in held(store)["GPU-a"]


async def test_of_many_claims_at_once_each_gpu_has_one_holder(store: MemoryLedgerStore) -> None:
    pods = [replace(OTHER_POD, uid=f"uid-{n:02}") for n in range(30)]
    asked = [
        claim(GPUS[n % 3], GPUS[2], pod=pod, call=f"{n:08x}")
        if n % 3 < 2
        else claim(*GPUS, pod=pod, call=f"{n:08x}")
        for n, pod in enumerate(pods)
    ]
    answers = await asyncio.gather(*(Claimant(store).claim(x) for x in asked))
    won = [x.claim for x in answers if isinstance(x, Claimed)]
    taken = [gpu for x in won for gpu in x.gpus]
    assert len(taken) == len(set(taken)) > 0
    assert held(store) == {gpu: [x.reservation] for x in won for gpu in x.gpus}


async def test_what_cannot_be_a_claim_is_an_error(store: MemoryLedgerStore) -> None:
    with pytest.raises(RecordInvalidError, match="sorted"):
        await Claimant(store).claim(claim("GPU-b", "GPU-a"))
    with pytest.raises(RecordInvalidError, match="call"):
        await Claimant(store).claim(claim("GPU-a", call="no"))
