"""`python -m tests.mutation.in_copy`, run in the copy: tries the mutants and judges the run."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.mutation import package_run, report, survivors
from tests.mutation.forks import End
from tests.mutation.mutant import Mutant
from tests.mutation.places import mutants_of
from tests.mutation.subjects import SUBJECTS, Subject
from tests.mutation.survivors import Listed, Verdict

_EVERY_S: Final = 30.0


class NotTriedError(Exception):
    """The tests of a package cannot be run without a mutant."""

    def __init__(self, problems: list[str], verdicts: list[Verdict]) -> None:
        super().__init__("\n".join(problems))
        self.verdicts = verdicts
        """Of the other packages."""


class _Progress:
    """A line for each survivor, and from time to time; counts again for what shows on import."""

    def __init__(self) -> None:
        self._tried = self._left = 0
        self._next = time.monotonic() + _EVERY_S

    def ended(self, mutant: Mutant, end: End) -> None:
        self._tried += 1
        if end is End.SURVIVED:
            self._left += 1
            key = mutant.key
            say(f"survived: {key.path} {key.function}\n    -{key.before}\n    +{key.after}")
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY_S
            say(f"{self._tried} tried, {self._left} survived")


def say(text: str) -> None:
    """Tell how far the run is; unbuffered, since forks would write a buffer again."""
    os.write(sys.stderr.fileno(), f"mutation: {text}\n".encode())


def tried(
    root: Path,
    subjects: Sequence[Subject],
    only: Sequence[str],
    jobs: int,
    entries: Sequence[Listed] = (),
) -> list[Verdict]:
    """Try the mutants of all subjects, or of the packages and sources in `only`.

    A package whose tests cannot be run is told at the end: the others are tried first.

    Raises:
        NotTriedError: with the verdicts of the packages that were tried.
    """
    expected = frozenset(entry.key for entry in entries)
    not_tried: list[str] = []
    verdicts: list[Verdict] = []
    for subject in subjects:
        sources = subject.sources(root, only)
        if sources:
            say(f"{subject.package}: {len(sources)} sources")
            try:
                verdicts += package_run.verdicts(
                    root, subject, sources, jobs, _Progress().ended, expected=expected
                )
            except package_run.RunError as error:
                say(str(error))
                not_tried.append(str(error))
    if not_tried:
        raise NotTriedError(not_tried, verdicts)
    return verdicts


def judged(
    root: Path, subjects: Sequence[Subject], verdicts: list[Verdict], entries: list[Listed]
) -> int:
    """Report; exit status 0 where the score holds and the list is exact."""
    found = survivors.scores(verdicts, [x.package for x in subjects])
    mutated = {path for subject in subjects for path in subject.sources(root)}
    new = survivors.new_survivors(verdicts, entries)
    problems = [
        *(survivors.as_diff(key) for key in new),
        *survivors.faults(verdicts, entries),
        *survivors.unknown_paths(entries, mutated),
        *survivors.below_floor(found, _in_part(root, subjects, verdicts)),
    ]
    if new:
        problems.append(
            f"{len(new)} survivors are not in {survivors.LIST.name}. Write a test, or add:\n"
        )
        problems += [survivors.as_entry(key, times) for key, times in new.items()]
    sys.stdout.write("\n".join([*problems, report.table(found)]))
    return 1 if problems else 0


def _in_part(root: Path, subjects: Sequence[Subject], verdicts: list[Verdict]) -> set[str]:
    """Packages that were not tried as a whole, of which the score says little."""
    tried_paths = {verdict.key.path for verdict in verdicts}
    parts = set()
    for subject in subjects:
        mine = (x for x in subject.sources(root) if any(mutants_of(x, (root / x).read_text())))
        if set(mine) - tried_paths:
            parts |= {subject.package, survivors.ALL}
    return parts


def main() -> int:
    """Read the arguments; the folder is the copy."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("only", nargs="*", help="packages or sources; everything without")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    root = Path.cwd()
    entries = survivors.listed(survivors.LIST.read_text())
    try:
        verdicts = tried(root, SUBJECTS, arguments.only, arguments.jobs, entries)
    except NotTriedError as error:
        judged(root, SUBJECTS, error.verdicts, entries)
        say(str(error))
        return 1
    if not verdicts:
        parser.error(f"nothing to mutate in {' '.join(arguments.only)}")
    return judged(root, SUBJECTS, verdicts, entries)


if __name__ == "__main__":
    sys.exit(main())
