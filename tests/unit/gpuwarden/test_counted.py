"""Numbers of things as people write them."""

import pytest

from gpuwarden.counted import counted


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (11, "11 nodes")]
)
def test_one_alone_is_no_plural(count: int, text: str) -> None:
    assert counted(count, "node") == text
