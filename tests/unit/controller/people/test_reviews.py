"""What is remembered of tokens: bounded in number, time and questions under way."""

import asyncio

import pytest

from controller.access import TokenIdentity, TokenReviewUnavailableError
from controller.people.reviews import ReviewLimits, TokenReviews
from tests.fakes.clock import FakeClock
from tests.fakes.token_reviewer import FakeTokenReviewer, token_of

POD = token_of("team-a", "train-0", "uid-0")
HERE = "192.0.2.1"


class World:
    def __init__(self, **limits: int) -> None:
        self.clock = FakeClock()
        self.reviewer = FakeTokenReviewer({"good": POD})
        self.told: list[str] = []
        self.reviews = TokenReviews(
            self.reviewer,
            boottime_ns=self.clock.boottime_ns,
            reviewed=self.told.append,
            limits=ReviewLimits(**limits),
        )

    async def all(self, *tokens: str) -> list[TokenIdentity | None]:
        return [await self.reviews.review(x, HERE) for x in tokens]


async def test_answers_of_both_kinds_are_kept_for_a_while() -> None:
    world = World()
    assert await world.all("good", "bad", "good", "bad") == [POD, None, POD, None]
    assert world.reviewer.asked == ["good", "bad"]
    assert world.told == ["accepted", "refused", "kept", "kept"]
    world.clock.advance(5)
    assert await world.all("good", "bad") == [POD, None]
    assert world.reviewer.asked == ["good", "bad", "bad"]
    world.clock.advance(5)
    del world.reviewer.known["good"]
    assert await world.all("good") == [None]


async def test_time_is_counted_from_the_question_not_from_the_answer() -> None:
    world = World()
    world.reviewer.binding_webhook = asyncio.Event()
    asking = asyncio.create_task(world.reviews.review("good", HERE))
    await world.reviewer.was_asked.wait()
    world.clock.advance(10)
    world.reviewer.binding_webhook.set()
    assert await asking == POD
    await world.all("good")
    assert world.reviewer.asked == ["good", "good"]


async def test_no_token_is_kept_and_the_memory_is_bounded() -> None:
    world = World(kept=3)
    await world.all(*(f"token-{number}" for number in range(5)))
    assert len(world.reviews._kept._refused) == 3
    assert "token-" not in repr(world.reviews._kept._refused)
    await world.all("token-0")
    assert world.reviewer.asked.count("token-0") == 2


async def test_invented_tokens_push_no_good_one_out() -> None:
    world = World(kept=3)
    await world.all("good", *(f"token-{number}" for number in range(5)), "good")
    assert world.reviewer.asked.count("good") == 1


async def test_one_address_does_not_take_what_others_need() -> None:
    world = World(at_once=3, at_once_from_one_address=2)
    world.reviewer.binding_webhook = asyncio.Event()
    flood = [asyncio.create_task(world.reviews.review(x, HERE)) for x in ("bad-1", "bad-2")]
    await asyncio.sleep(0)
    with pytest.raises(TokenReviewUnavailableError, match="too many"):
        await world.reviews.review("bad-3", HERE)
    other = asyncio.create_task(world.reviews.review("good", "192.0.2.2"))
    await asyncio.sleep(0)
    world.reviewer.binding_webhook.set()
    assert await asyncio.gather(*flood, other) == [None, None, POD]
    assert await world.all("bad-3") == [None]
    assert not world.reviews._kept._asking


async def test_who_was_accepted_before_waits_for_no_stranger() -> None:
    """Also where they come from the same address, and their answer is too old to count."""
    world = World(at_once=2, at_once_from_one_address=1)
    await world.all("good")
    world.clock.advance(10)
    world.reviewer.binding_webhook = asyncio.Event()
    flood = [
        asyncio.create_task(world.reviews.review(token, address))
        for token, address in (("bad-1", HERE), ("bad-2", "192.0.2.2"))
    ]
    await asyncio.sleep(0)
    with pytest.raises(TokenReviewUnavailableError, match="too many"):
        await world.reviews.review("bad-3", "192.0.2.3")
    known = asyncio.create_task(world.reviews.review("good", HERE))
    await asyncio.sleep(0)
    world.reviewer.binding_webhook.set()
    assert await asyncio.gather(*flood, known) == [None, None, POD]
    assert not world.reviews._kept._asking


async def test_who_was_accepted_before_is_bounded_too() -> None:
    world = World(at_once=1)
    world.reviewer.known["better"] = POD
    await world.all("good", "better")
    world.clock.advance(10)
    world.reviewer.binding_webhook = asyncio.Event()
    known = asyncio.create_task(world.reviews.review("good", HERE))
    await asyncio.sleep(0)
    with pytest.raises(TokenReviewUnavailableError, match="too many"):
        await world.reviews.review("better", HERE)
    stranger = asyncio.create_task(world.reviews.review("bad", HERE))
    await asyncio.sleep(0)
    world.reviewer.binding_webhook.set()
    assert (await known, await stranger) == (POD, None)


async def test_who_is_not_accepted_any_more_is_a_stranger_again() -> None:
    world = World(at_once=1)
    await world.all("good")
    del world.reviewer.known["good"]
    world.clock.advance(10)
    assert await world.all("good") == [None]
    world.clock.advance(5)
    world.reviewer.binding_webhook = asyncio.Event()
    stranger = asyncio.create_task(world.reviews.review("bad", HERE))
    await asyncio.sleep(0)
    with pytest.raises(TokenReviewUnavailableError, match="too many"):
        await world.all("good")
    world.reviewer.binding_webhook.set()
    assert await stranger is None


async def test_the_same_token_is_asked_about_once_at_a_time() -> None:
    world = World(at_once=1)
    world.reviewer.binding_webhook = asyncio.Event()
    asking = [asyncio.create_task(world.reviews.review("good", HERE)) for _ in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(TokenReviewUnavailableError, match="too many"):
        await world.reviews.review("other", "192.0.2.9")
    world.reviewer.binding_webhook.set()
    assert await asyncio.gather(*asking) == [POD] * 5
    assert world.reviewer.asked == ["good"]
    assert world.told == ["busy", "accepted"]


async def test_a_failure_is_not_kept() -> None:
    world = World()
    world.reviewer.down = True
    with pytest.raises(TokenReviewUnavailableError):
        await world.reviews.review("good", HERE)
    world.reviewer.down = False
    assert await world.all("good") == [POD]
    assert world.told == ["failed", "accepted"]


async def test_who_asked_may_go_and_the_answer_is_kept() -> None:
    world = World()
    world.reviewer.binding_webhook = asyncio.Event()
    asking = asyncio.create_task(world.reviews.review("good", HERE))
    await asyncio.sleep(0)
    asking.cancel()
    world.reviewer.binding_webhook.set()
    await asyncio.sleep(0.01)
    assert await world.all("good") == [POD]
    assert world.reviewer.asked == ["good"]
