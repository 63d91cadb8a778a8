"""Words and bounds that stand on the wire are those that docs/protocol.md gives other parties."""

from pathlib import Path

import pytest

from gpuwarden.evidence.model import MAX_FAILURES, WANT_FAILURES, WANT_PODS

PROTOCOL = (Path(__file__).resolve().parents[4] / "docs" / "protocol.md").read_text()


@pytest.mark.parametrize("word", [WANT_PODS, WANT_FAILURES])
def test_what_a_challenge_may_want(word: str) -> None:
    table = PROTOCOL.partition("| `want` | asks for |\n")[2].partition("\n\n")[0]
    assert f'| `"{word}"` |' in table


def test_how_many_failures_one_message_may_have() -> None:
    assert f"`failures` instead: 1 to {MAX_FAILURES} entries" in PROTOCOL
