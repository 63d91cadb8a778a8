"""What a step of the demo is, and how it says that something does not hold."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from sandbox.demo.stage import Stage


class CheckFailedError(Exception):
    """The product did not do what the step claims."""


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and the steps that show it; `run` returns what was seen, in one line."""

    name: str
    claim: str
    run: Callable[[Stage], Awaitable[str]]


def demand(holds: object, message: str) -> None:
    """Raise CheckFailedError with `message` unless `holds`."""
    if not holds:
        raise CheckFailedError(message)
