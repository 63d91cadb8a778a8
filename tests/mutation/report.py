"""What a person reads of a run. Pure."""

from collections.abc import Iterable

from tests.mutation.survivors import Score


def table(scores: Iterable[Score]) -> str:
    """One line for each package."""
    lines = [f"{'':22} {'mutants':>8} {'killed':>8} {'hung':>6} {'left':>6} {'score':>8}"]
    lines += [
        f"{x.name:22} {x.mutants:8} {x.killed:8} {x.timed_out:6} {x.mutants - x.killed:6}"
        f" {x.percent:6.1f} %"
        for x in scores
    ]
    return "\n".join(lines) + "\n"
