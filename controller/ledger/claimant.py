"""Claims several GPUs for one pod over a store: all of them, or none that stays.

GPUs are claimed one after the other in one order, each by compare-and-set. Whoever meets
somebody else's takes back what it added. Nothing is concluded from an error of the store:
the record is read again, and what this call wrote is known by its `call`. What a crash or a
dead store leaves behind is an attempt that expires.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.ledger.claim import Claim, Held, Taken, Write, claim_on, rolled_back
from controller.ledger.store import LedgerStore, LedgerUnavailableError
from gpuwarden.reasons import ReasonCode, Refusal

MOST_RACES: Final = 8
"""Times that others may be faster at one GPU, before the claim is given up."""
MOST_ERRORS: Final = 2
"""Answers in a row that may get lost at one GPU."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """All GPUs of the claim are held by its reservation, and were at one moment together."""

    claim: Claim


class Claimant:
    """One per process; claims may run side by side."""

    def __init__(self, store: LedgerStore) -> None:
        self._store = store

    async def claim(self, claim: Claim) -> Claimed | Refusal:
        """Reserve all GPUs, or none.

        Refused with LEDGER_CONFLICT, LEDGER_UNAVAILABLE, or RESERVATION_EXPIRED where its pod
        has ended. The same reservation for the same pod again succeeds. Raises
        RecordInvalidError for a claim that cannot be one.
        """
        claim.part().demand_valid()
        for position, gpu in enumerate(claim.gpus):
            refusal = await self._claim_one(claim, gpu)
            if refusal is not None:
                await self._take_back(claim, reversed(claim.gpus[: position + 1]))
                return refusal
        return Claimed(claim)

    async def withdraw(self, claim: Claim) -> tuple[str, ...]:
        """Take back what `claim` added, after its answer was not given after all.

        The GPUs that were taken back. What somebody else relies on stays, and so does what
        cannot be reached: it expires.
        """
        return await self._take_back(claim, reversed(claim.gpus))

    async def _claim_one(self, claim: Claim, gpu: str) -> Refusal | None:
        errors = 0
        for _ in range(MOST_RACES):
            entry = self._store.snapshot().get(gpu)
            verdict = claim_on(None if entry is None else entry.record, claim, gpu)
            match verdict:
                case Held():
                    return None
                case Taken():
                    return verdict.refusal
                case Write():
                    pass
            try:
                if await self._store.compare_and_set(entry, verdict.record):
                    return None
                errors = 0
            except LedgerUnavailableError as error:
                errors += 1
                if errors > MOST_ERRORS or not await self._is_read(gpu):
                    return Refusal(ReasonCode.LEDGER_UNAVAILABLE, str(error))
        return Refusal(ReasonCode.LEDGER_CONFLICT, f"{gpu}: too many others claim it")

    async def _take_back(self, claim: Claim, gpus: Iterable[str]) -> tuple[str, ...]:
        return tuple([gpu for gpu in gpus if await self._take_one_back(claim, gpu)])

    async def _take_one_back(self, claim: Claim, gpu: str) -> bool:
        for _ in range(MOST_RACES):
            entry = self._store.snapshot().get(gpu)
            less = rolled_back(None if entry is None else entry.record, claim)
            if entry is None or less is None:
                return False
            try:
                if await self._store.compare_and_set(entry, less):
                    return True
            except LedgerUnavailableError:
                if not await self._is_read(gpu):
                    return False
        return False

    async def _is_read(self, gpu: str) -> bool:
        """Whether the store told what is there now."""
        try:
            await self._store.read(gpu)
        except LedgerUnavailableError:
            return False
        return True
