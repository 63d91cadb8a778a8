"""Judges each replica of the controller, and joins the verdicts into one that names them. Pure.

Replicas are named where they differ, and where one has not answered: then a verdict is about the
others alone, and says so.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import IntEnum

from gpuwarden.doctor.check import Outcome, Verdict, not_checked
from gpuwarden.doctor.facts import Facts, Replica, Replicas, UnknownError


class _Rank(IntEnum):
    """How much a verdict on one replica counts for all: the highest is that on all."""

    NOTHING = 0
    """There is nothing to check, which may be otherwise on another replica."""
    PASSED = 1
    UNKNOWN = 2
    """A fact is missing: with it the check does not pass."""
    WARNING = 3
    FAILED = 4


_RANKS = {
    Outcome.NOT_CHECKED: _Rank.NOTHING,
    Outcome.PASSED: _Rank.PASSED,
    Outcome.WARNING: _Rank.WARNING,
    Outcome.FAILED: _Rank.FAILED,
}


def of_each(facts: Facts, judge: Callable[[Replica], Verdict]) -> Verdict:
    """The worst that `judge` finds on a replica, with all replicas that have it.

    Raises UnknownError where no replica has answered.
    """
    replicas = facts.replicas.get()
    found = [(one.name, *_judged(judge, one)) for one in replicas.asked]
    worst = max(rank for _, rank, _ in found)
    verdicts = {name: verdict for name, rank, verdict in found if rank is worst}
    texts: dict[str, list[str]] = {}
    for name, verdict in verdicts.items():
        texts.setdefault(verdict.seen, []).append(name)
    seen = "; ".join(f"{_prefix(replicas, names)}{text}" for text, names in texts.items())
    if worst < _Rank.WARNING:
        seen += not_asked(replicas)
    pod, first = next(iter(verdicts.items()))
    command = first.command
    if len(texts[first.seen]) < len(found) and command.startswith("gpuwarden "):
        # It asks one replica: here it has to be this one.
        command = facts.in_pod(pod, command)
    return replace(first, seen=seen, command=command)


def _judged(judge: Callable[[Replica], Verdict], replica: Replica) -> tuple[_Rank, Verdict]:
    try:
        verdict = judge(replica)
    except UnknownError as error:
        return _Rank.UNKNOWN, not_checked(str(error))
    return _RANKS[verdict.outcome], verdict


def where(replicas: Replicas, names: Iterable[str]) -> str:
    """These replicas; empty where they are all that there are."""
    found = list(names)
    if not replicas.unheard and {one.name for one in replicas.asked} == set(found):
        return ""
    return ", ".join(found)


def _prefix(replicas: Replicas, names: Iterable[str]) -> str:
    text = where(replicas, names)
    return f"{text}: " if text else ""


def not_asked(replicas: Replicas) -> str:
    """The end of a text that is not about all replicas; empty where it is."""
    return f"; not asked: {', '.join(replicas.unheard)}" if replicas.unheard else ""
