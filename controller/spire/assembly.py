"""Puts the SPIRE part of a controller together from its settings. Starts nothing."""

import asyncio
import contextlib
import random
from dataclasses import dataclass
from functools import partial
from typing import Final

from controller.clock_guard import ClockAnchor
from controller.settings import ControllerSettings
from controller.spire.condition import NO_SPIRE_SERVER, SpireConditions
from controller.spire.facts import LiveSpireFacts
from controller.spire.journal import SpireJournal
from controller.spire.judgement import SpireLimits
from controller.spire.listing import Moment
from controller.spire.poller import PollPorts, SpirePoller
from controller.spire.server_client import connected
from controller.verifier.seams import NoSpire, SpireFacts
from gpuwarden.clock import Clock
from gpuwarden.identity.spiffe_id import controller_id
from gpuwarden.identity.svid import SvidSource

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SpireParts:
    """What level L1 is made of; without a SPIRE server only the answers that say so."""

    facts: SpireFacts
    conditions: SpireConditions
    poller: SpirePoller | None

    async def first(self, seconds: float) -> None:
        """Wait a little for the first snapshot, so that agents need not come twice."""
        if self.poller is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.poller.answered.wait()

    def age_s(self, now_ns: int) -> float:
        """Age of the last snapshot, seconds; 0 where there is none."""
        if self.poller is None or self.poller.snapshot is None:
            return 0.0
        return (now_ns - self.poller.snapshot.agents_ns) / _NS


def spire_parts(
    settings: ControllerSettings,
    svids: SvidSource,
    clock: Clock,
    anchor: ClockAnchor,
    journal: SpireJournal,
) -> SpireParts:
    """The parts, not yet started."""
    spire = settings.spire
    if spire.server is None:
        return SpireParts(NoSpire(), NO_SPIRE_SERVER, None)
    limits = SpireLimits(settings.trust_domain, spire.grace.ns, spire.poll.ns * 3 // 2)
    own = controller_id(settings.trust_domain, settings.path_prefix)
    poller = SpirePoller(
        PollPorts(
            dial=partial(connected, address=spire.server),
            svids=svids,
            moment=partial(believed_moment, clock, anchor),
            jitter=random.SystemRandom().random,
            observer=journal,
        ),
        beginning=f"spiffe://{settings.trust_domain}{settings.path_prefix}/",
        poll_s=spire.poll.seconds,
    )
    facts = LiveSpireFacts(poller, limits, str(own))
    return SpireParts(facts, facts, poller)


def believed_moment(clock: Clock, anchor: ClockAnchor) -> Moment:
    """Both clocks, the wall clock no later than the time since the start allows.

    A wall clock that jumps ahead would make every SPIRE agent look expired, and that revokes.
    """
    boottime_ns, wall_ns = clock.boottime_ns(), clock.wall_ns()
    ahead_ns = max(0, anchor.offset_ns(boottime_ns, wall_ns))
    return Moment(boottime_ns, wall_ns - ahead_ns)
