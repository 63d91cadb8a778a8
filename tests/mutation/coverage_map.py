"""Which test executes which line, and how long it takes."""

from dataclasses import dataclass, field
from pathlib import Path

import coverage

from tests.mutation.mutant import Mutant


@dataclass(slots=True)
class CoverageMap:
    """Of one package."""

    on_import: dict[str, frozenset[int]] = field(default_factory=dict)
    """Path below the root -> lines that run when the tests are collected."""
    by_line: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    """Path below the root -> line -> tests."""
    seconds: dict[str, float] = field(default_factory=dict)

    def executing(self, mutant: Mutant) -> list[str]:
        """Tests that execute its statement, quickest first."""
        lines = self.by_line.get(mutant.key.path, {})
        wanted = range(mutant.first_line, mutant.last_line + 1)
        found = {x for line in wanted for x in lines.get(line, ()) if x in self.seconds}
        return sorted(found, key=lambda x: self.seconds[x])

    def all_for(self, mutant: Mutant) -> list[str]:
        """All tests, first those that execute anything of its source, quickest first."""
        lines = self.by_line.get(mutant.key.path, {})
        touching = {x for tests in lines.values() for x in tests}
        return sorted(self.seconds, key=lambda x: (x not in touching, self.seconds[x]))

    def runs_on_import(self, mutant: Mutant) -> bool:
        """Whether its statement also runs while the tests are collected."""
        lines = self.on_import.get(mutant.key.path, frozenset())
        return any(x in lines for x in range(mutant.first_line, mutant.last_line + 1))


class Tracer:
    """Records executed lines of some sources, by test."""

    def __init__(self, root: Path, package: str) -> None:
        self._root = root
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, include=[str(root / package / "*")]
        )

    def start(self) -> None:
        """Record from now on."""
        self._coverage.start()

    def stop(self) -> None:
        """Record no more."""
        self._coverage.stop()

    def test(self, name: str) -> None:
        """What runs from now on belongs to this test."""
        self._coverage.switch_context(name)

    def lines(self) -> dict[str, frozenset[int]]:
        """Path below the root -> executed lines."""
        found = self._coverage.get_data()
        return {
            str(Path(file).relative_to(self._root)): frozenset(found.lines(file) or ())
            for file in found.measured_files()
        }

    def by_line(self) -> dict[str, dict[int, list[str]]]:
        """Path below the root -> line -> tests."""
        self.stop()
        found = self._coverage.get_data()
        return {
            str(Path(file).relative_to(self._root)): found.contexts_by_lineno(file)
            for file in found.measured_files()
        }
