import pytest

from agent.witness import MAX_ORIGINS, CheckpointWitness
from gpuwarden.evidence.model import WitnessedCheckpoint

ROOT = "A" * 43 + "="


def note(origin: str, size: int, extra: str = "\n— key c2lnbmF0dXJl\n") -> str:
    return f"{origin}\n{size}\n{ROOT}\n{extra}"


def witness(*known: WitnessedCheckpoint) -> tuple[CheckpointWitness, list[None]]:
    changes: list[None] = []
    return CheckpointWitness(known, lambda: changes.append(None)), changes


def test_the_largest_tree_of_every_origin_is_kept() -> None:
    kept, changes = witness()
    for text in (note("main/1", 5), note("main/0", 7), note("main/1", 9), note("main/1", 8)):
        kept.witness(text)
    assert kept.checkpoints() == (
        WitnessedCheckpoint(origin="main/0", checkpoint=note("main/0", 7)),
        WitnessedCheckpoint(origin="main/1", checkpoint=note("main/1", 9)),
    )
    assert len(changes) == 3


def test_what_an_earlier_process_saw_counts() -> None:
    kept, changes = witness(WitnessedCheckpoint(origin="o", checkpoint=note("o", 5)))
    kept.witness(note("o", 4))
    assert changes == []
    kept.witness(note("o", 6))
    assert kept.checkpoints()[0].checkpoint == note("o", 6)


def test_a_kept_text_that_is_no_checkpoint_gives_way() -> None:
    kept, _ = witness(WitnessedCheckpoint(origin="o", checkpoint="junk"))
    kept.witness(note("o", 0))
    assert kept.checkpoints()[0].checkpoint == note("o", 0)


@pytest.mark.parametrize(
    "text", ["", "o\n", f"o\n-1\n{ROOT}\n", f"o\n01\n{ROOT}\n", note("o", 1, "x" * 5000)]
)
def test_what_is_no_checkpoint_is_left_out(text: str) -> None:
    kept, changes = witness()
    kept.witness(text)
    assert kept.checkpoints() == ()
    assert changes == []


def test_origins_are_bounded() -> None:
    kept, _ = witness()
    for number in range(MAX_ORIGINS + 1):
        kept.witness(note(f"o{number}", 1))
    assert len(kept.checkpoints()) == MAX_ORIGINS
