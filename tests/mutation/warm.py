"""Tries mutants in forks of a process that has collected the tests of a package.

A changed function is put in place in the fork (`swap.py`), so that a mutant costs no import.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.mutation import collected, forks
from tests.mutation.coverage_map import CoverageMap, Tracer
from tests.mutation.forks import Announce, End
from tests.mutation.mutant import Mutant
from tests.mutation.swap import Loaded

_UNCHANGED_S: Final = 120.0
_LEAST_S: Final = 5.0
_SLOWER: Final = 10.0
"""A test that takes so many times as long as without a mutant hangs."""

Items = dict[str, pytest.Item]


class TestsFailError(Exception):
    """A test fails without any mutant; says which."""


@dataclass(frozen=True, slots=True)
class _Measured:
    by_line: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]
    failed: str


def limit(seconds: float) -> float:
    """How long a test may take that took so long without a mutant."""
    return _LEAST_S + _SLOWER * seconds


def measured(tracer: Tracer, items: Items, on_import: dict[str, frozenset[int]]) -> CoverageMap:
    """Run all tests once for their lines, and once more for their times, quickest first."""
    traced = _unchanged(list(items), items, tracer)
    timed = _unchanged(sorted(items, key=traced.seconds.__getitem__), items, None)
    return CoverageMap(on_import, traced.by_line, timed.seconds)


def trial(
    mutant: Mutant, items: Items, known: CoverageMap, loaded: Loaded
) -> Callable[[Announce, Path], End]:
    """What a fork does to try a mutant."""
    chosen = [(items[name], limit(known.seconds[name])) for name in known.executing(mutant)]

    def work(announce: Announce, folder: Path) -> End:
        if chosen:
            collected.in_folder(chosen[0][0].session, folder)
        if not loaded.swap(mutant):
            return End.UNFIT
        if collected.first_failure(chosen, announce):
            return End.KILLED
        # What ran before the change was made must run again with it.
        return End.UNFIT if known.runs_on_import(mutant) else End.SURVIVED

    return work


def _unchanged(order: list[str], items: Items, tracer: Tracer | None) -> _Measured:
    """Run the tests in a child, without a mutant."""

    def work(announce: Announce, folder: Path) -> bytes:
        begun: list[tuple[str, float]] = []

        def around(name: str) -> None:
            begun.append((name, time.monotonic()))
            if tracer is not None:
                tracer.test(name)

        collected.in_folder(items[order[0]].session, folder)
        if tracer is not None:
            tracer.start()
        chosen = [(items[x], _UNCHANGED_S) for x in order]
        failed = collected.first_failure(chosen, announce, around)
        ends = [*(at for _, at in begun[1:]), time.monotonic()]
        lines = tracer.by_line() if tracer is not None else {}
        seconds = {name: end - at for (name, at), end in zip(begun, ends, strict=True)}
        return msgspec.msgpack.encode(_Measured(lines, seconds, failed))

    found = forks.answer(work)
    if found is None:
        raise TestsFailError("the tests did not end, without any mutant")
    result = msgspec.msgpack.decode(found, type=_Measured)
    if result.failed:
        raise TestsFailError(f"a test fails without any mutant: {result.failed}")
    return result
