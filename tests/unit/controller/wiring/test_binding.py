from pathlib import Path

import pytest

from controller.ledger.reservation_id import ReservationSubject
from controller.wiring.binding import IdKeysError, read_ids

# --- The file of keys that all replicas share

OLD, NEW = "ab" * 32, "cd" * 40
SUBJECT = ReservationSubject("team-a", "gpu-1", ("GPU-a",), "uid-1")


def test_the_first_key_writes_and_all_read(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"k1 {OLD}\n")
    old = read_ids("lab", file)
    file.write_text(f"# of this year\n\n  k2   {NEW}\nk1 {OLD}\n")
    new = read_ids("lab", file)
    made = new.make(SUBJECT)
    assert made.startswith("v1.k2.")
    assert new.is_authentic(old.make(SUBJECT), SUBJECT)
    assert not old.is_authentic(made, SUBJECT)
    assert not read_ids("another", file).is_authentic(made, SUBJECT)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "expected one or more"),
        (b"k1\n", "line 1: expected a key id"),
        (b"k1 xyz\n", "line 1: expected a key id"),
        (b"k1 abcd\n", "line 1: expected a key id"),
        (f"K1 {OLD}\n".encode(), "line 1: expected a key id"),
        (f"k1 {OLD}\nk1 {NEW}\n".encode(), "a name of its own"),
        ("k1 ä\n".encode(), "expected ASCII"),
        (b"#" * 65_537, "more than 65536 bytes"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(IdKeysError, match=text) as caught:
        read_ids("lab", file)
    assert str(file) in str(caught.value)
    assert "abab" not in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(IdKeysError, match="No such file"):
        read_ids("lab", tmp_path / "none")
