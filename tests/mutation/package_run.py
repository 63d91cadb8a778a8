"""Tries all mutants of a package, in the copy of the sources.

This process imports no source and no test: it forks one that collects the tests of the package
and tries there what can be put in place (`warm.py`). What only shows on import, as a constant of
a module does, is tried in forks of this process, which has the libraries loaded by then.
"""

import gc
import importlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.mutation import changed_import, collected, forks, warm
from tests.mutation.coverage_map import CoverageMap, Tracer
from tests.mutation.forks import Announce, End, Job
from tests.mutation.mutant import Key, Mutant
from tests.mutation.places import mutants_of
from tests.mutation.subjects import Subject
from tests.mutation.survivors import Verdict
from tests.mutation.swap import Loaded

_DAY_S: Final = 86400.0
_RETRIES: Final = 2

Progress = Callable[[Mutant, End], None]


@dataclass(frozen=True, slots=True)
class _Warm:
    """What the collecting process found out."""

    known: CoverageMap
    ends: dict[int, int]
    libraries: list[str]
    problem: str | None = None


class RunError(Exception):
    """The tests cannot be run without a mutant; says why."""


def verdicts(
    root: Path,
    subject: Subject,
    sources: Iterable[str],
    at_once: int,
    progress: Progress,
    *,
    expected: Collection[Key] = (),
) -> list[Verdict]:
    """Try every mutant of `sources`, which lie in the subject's package.

    Those that are `expected` to survive are tried again if they do not: on a busy machine a
    test may fail for want of time.
    """
    mutants = [m for path in sources for m in mutants_of(path, (root / path).read_text())]
    found = _in_collecting_child(root, subject, mutants, at_once, progress)
    ends = {number: End(end) for number, end in found.ends.items() if end != End.UNFIT}
    for name in found.libraries:
        with suppress(ImportError):
            importlib.import_module(name)

    def ended(number: int, end: End) -> None:
        ends[number] = end
        progress(mutants[number], end)

    left = [(i, m) for i, m in enumerate(mutants) if i not in ends]
    if left:
        _check_import(root, subject, left[0][1], found.known)
    for _ in range(1 + _RETRIES):
        trials = (Job(i, _on_import(root, subject, m, found.known)) for i, m in left)
        forks.run(trials, at_once, ended)
        left = [
            (i, m)
            for i, m in enumerate(mutants)
            if m.key in expected and ends[i] is not End.SURVIVED
        ]
    return [
        Verdict(mutant.key, ends[i] is End.SURVIVED, ends[i] is End.TIMED_OUT)
        for i, mutant in enumerate(mutants)
    ]


def _in_collecting_child(
    root: Path, subject: Subject, mutants: Sequence[Mutant], at_once: int, progress: Progress
) -> _Warm:
    def work(announce: Announce, _: Path) -> bytes:
        announce(_DAY_S)
        answers: list[_Warm] = []
        tracer = Tracer(root, subject.package)
        tracer.start()

        def tried(session: pytest.Session) -> None:
            tracer.stop()
            items = {item.nodeid: item for item in session.items}
            try:
                known = warm.measured(Tracer(root, subject.package), items, tracer.lines())
            except warm.TestsFailError as error:
                answers.append(_Warm(CoverageMap(), {}, [], str(error)))
                return
            ends: dict[int, int] = {}

            def ended(number: int, end: End) -> None:
                ends[number] = end
                if end is not End.UNFIT:
                    progress(mutants[number], end)

            forks.run(_jobs(root, mutants, items, known), at_once, ended)
            answers.append(_Warm(known, ends, _libraries(root)))

        status = collected.collect(subject.tests, tried)
        nothing = _Warm(CoverageMap(), {}, [], f"pytest cannot collect, exit status {status}")
        return msgspec.msgpack.encode(answers[0] if answers else nothing)

    answer = forks.answer(work)
    if answer is None:
        raise RunError(f"{subject.package}: the tests could not be collected")
    found = msgspec.msgpack.decode(answer, type=_Warm)
    if found.problem is not None:
        raise RunError(f"{subject.package}: {found.problem}")
    return found


def _jobs(
    root: Path, mutants: Sequence[Mutant], items: warm.Items, known: CoverageMap
) -> Iterator[Job]:
    loaded = Loaded(root)
    # What is here stays: forks need not look at it, and share its pages for longer.
    gc.collect()
    gc.freeze()
    for number, mutant in enumerate(mutants):
        if mutant.outermost is not None:
            yield Job(number, warm.trial(mutant, items, known, loaded))


def _check_import(root: Path, subject: Subject, mutant: Mutant, known: CoverageMap) -> None:
    """A source that is imported with the text that it has must survive."""
    same = replace(mutant, text=(root / mutant.key.path).read_text())
    ends: list[End] = []
    work = _on_import(root, subject, same, known, tell=sys.stderr.write)
    forks.run([Job(0, work, heard=True)], 1, lambda _, end: ends.append(end))
    if ends != [End.SURVIVED]:
        raise RunError(f"{subject.package}: the tests fail when {same.key.path} is imported again")


def _on_import(
    root: Path,
    subject: Subject,
    mutant: Mutant,
    known: CoverageMap,
    tell: Callable[[str], object] = lambda _: None,
) -> Callable[[Announce, Path], End]:
    def work(announce: Announce, folder: Path) -> End:
        changed_import.change(root, mutant.key.path, mutant.text)
        ends: list[End] = []

        def tried(session: pytest.Session) -> None:
            items = {item.nodeid: item for item in session.items}
            collected.in_folder(session, folder)
            names = [name for name in known.all_for(mutant) if name in items]
            if len(names) < len(known.seconds):
                # A parametrised test has other names now: that is noticed too.
                ends.append(End.KILLED)
                return
            chosen = [(items[name], warm.limit(known.seconds[name])) for name in names]
            failure = collected.first_failure(chosen, announce)
            tell(failure)
            ends.append(End.KILLED if failure else End.SURVIVED)

        collected.collect(subject.tests, tried)
        # Where a test file cannot be imported, pytest does not get so far.
        return ends[0] if ends else End.KILLED

    return work


def _libraries(root: Path) -> list[str]:
    """What is loaded from elsewhere than the copy, in the order in which it was.

    In another order some modules end up in halves: `_asyncio` before `asyncio` does.
    """
    files = {name: getattr(x, "__file__", None) for name, x in sys.modules.items()}
    return [name for name, file in files.items() if file and not Path(file).is_relative_to(root)]
