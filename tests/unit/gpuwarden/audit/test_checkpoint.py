"""Signed notes, checkpoints and changes of key: the forms of C2SP, and nothing else."""

from base64 import b64encode
from hashlib import sha256

import pytest

from gpuwarden.audit.checkpoint import (
    Checkpoint,
    KeyChange,
    TreeHead,
    log_id,
    open_checkpoint,
    sign_change,
    successor,
    unverified_checkpoint,
)
from gpuwarden.audit.merkle import EMPTY_ROOT
from gpuwarden.audit.note import NoteError, VerifierKey, open_note, sign_note
from tests.builders.log_keys import ORIGIN, checkpoint, signer

ONE, TWO, THREE = signer(1), signer(2), signer(3)
ROOT = b64encode(b"r" * 32).decode()
TEXT = f"{ORIGIN}\n5\n{ROOT}\nlog {'1f' * 16}\n"

NO_TEXT = len(sign_note("\n", [ONE]))

GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "\u2014 PeterNeumann"
    " x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJ"
    "nAM=\n"
)
"""The example in the documentation of golang.org/x/mod/sumdb/note."""


def test_a_checkpoint_has_the_form_of_tlog_checkpoint() -> None:
    note = checkpoint().signed(ONE)
    body, _, below = note.partition("\n\n")

    assert f"{body}\n" == TEXT
    assert below.startswith(f"\u2014 {ORIGIN} ")
    assert open_checkpoint(note, ONE.key) == checkpoint()
    assert unverified_checkpoint(note) == checkpoint()


def test_a_note_of_another_implementation_is_read_and_written() -> None:
    key = VerifierKey.parse(GO_KEY)
    assert str(key) == GO_KEY
    assert key.digest == sha256(key.public).hexdigest()
    assert open_note(GO_NOTE, key) == GO_NOTE.partition("\n\n")[0] + "\n"
    with pytest.raises(NoteError, match="does not hold"):
        open_note(GO_NOTE.replace("you", "we"), key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000+" + b64encode(b"\x01" + b"k" * 32).decode(),
        str(ONE.key)[:-1] + "!",
        str(ONE.key)[:-1],
        str(ONE.key)[:-4] + "====",
        f"{ORIGIN}+{ONE.key.key_id.hex()}+" + b64encode(b"\x02" + ONE.key.public).decode(),
        str(ONE.key).replace(ORIGIN, "other"),
    ],
)
def test_what_is_no_verifier_key_is_refused(text: str) -> None:
    with pytest.raises(NoteError, match="key"):
        VerifierKey.parse(text)


def test_every_flipped_character_of_a_note_is_noticed() -> None:
    note = checkpoint().signed(ONE)
    for at, character in enumerate(note):
        changed = note[:at] + chr(ord(character) ^ 1) + note[at + 1 :]
        with pytest.raises(NoteError):
            open_checkpoint(changed, ONE.key)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "text\n",
        "text\n\n",
        "text\n\nno signature\n",
        "text\n\n\u2014 name !\n",
        "text\n\n\u2014 name AAAA\n",
        "text\n\n\u2014 name AAAAAA==\n",
        "text\n\n\u2014 name AAAAAAAB\n\u2014 name AAAAAA\n",
        sign_note("text\n", [ONE]) + "more",
        sign_note("text\twith a tab\n", [ONE]),
        sign_note("text\n", [ONE] * 17),
        sign_note("x" * (16 * 1024 + 1 - NO_TEXT) + "\n", [ONE]),
    ],
)
def test_what_is_no_note_is_refused(note: str) -> None:
    with pytest.raises(NoteError):
        open_note(note)


@pytest.mark.parametrize(
    "note",
    [
        "text\n\n\u2014 name AAAAAAA=\n",
        sign_note("text\n", [ONE] * 16),
        sign_note("x" * (16 * 1024 - NO_TEXT) + "\n", [ONE]),
    ],
    ids=["shortest-signature", "most-signatures", "longest"],
)
def test_a_note_may_be_as_large_as_the_bounds_say(note: str) -> None:
    assert note.startswith(open_note(note))


def test_signatures_of_others_are_passed_over() -> None:
    note = sign_note("text\n", [TWO, ONE, THREE])
    assert open_note(note, ONE.key) == open_note(note, ONE.key, TWO.key) == "text\n"
    with pytest.raises(NoteError, match="not signed by the key"):
        open_note(sign_note("text\n", [TWO]), ONE.key)


def test_a_second_signature_of_one_key_must_hold_too() -> None:
    other = sign_note("other\n", [ONE]).partition("\n\n")[2]
    with pytest.raises(NoteError, match="does not hold"):
        open_note(sign_note("text\n", [ONE]) + other, ONE.key)


def test_a_key_that_is_no_point_verifies_nothing() -> None:
    assert not VerifierKey("name", b"short").verifies("text\n", b"s" * 64)


def test_where_a_lost_log_had_ended_is_said() -> None:
    after = Checkpoint(ORIGIN, "2e" * 16, TreeHead(1, b"a" * 32), prev=TreeHead(5, b"r" * 32))
    note = after.signed(ONE)

    assert f"\nprev 5 {ROOT}\n" in note
    assert open_checkpoint(note, ONE.key) == after


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{ORIGIN}\n5\n{ROOT}\n",
        f"with space\n5\n{ROOT}\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n05\n{ROOT}\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n{2**53 + 1}\n{ROOT}\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n5\n{ROOT[:-2]}=\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n5\n!{ROOT[1:]}\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n5\n{ROOT[:-2]}J=\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n0\n{ROOT}\nlog {'1f' * 16}\n",
        f"{ORIGIN}\n5\n{ROOT}\nlog {'1F' * 16}\n",
        f"{TEXT}log {'1f' * 16}\n",
        f"{TEXT}prev 5\n",
        f"{TEXT}prev x {ROOT}\n",
        f"{TEXT}\n",
        TEXT.removesuffix("\n"),
    ],
)
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        Checkpoint.parse(text)


@pytest.mark.parametrize("text", ["", f"{ORIGIN}\n5\n", f"{ORIGIN}\n5\n{ROOT}\n"])
def test_a_checkpoint_that_lacks_lines_says_which_there_are(text: str) -> None:
    with pytest.raises(NoteError, match="origin, size, root and log id are expected"):
        Checkpoint.parse(text)


def test_lines_of_later_versions_are_passed_over() -> None:
    assert Checkpoint.parse(f"{TEXT}something new\n") == checkpoint()


def test_an_empty_log_has_a_checkpoint_too() -> None:
    empty = checkpoint(0, EMPTY_ROOT)
    assert Checkpoint.parse(empty.text()) == empty


def test_a_key_speaks_for_its_own_log_only() -> None:
    foreign = signer(1, "lab/controller-1")
    with pytest.raises(NoteError, match="under a key of"):
        open_checkpoint(checkpoint().signed(foreign), foreign.key)


def test_a_checkpoint_is_bounded() -> None:
    short = sign_note(f"{TEXT}x\n", [ONE])
    longest = sign_note(f"{TEXT}{'x' * (4096 - len(short) + 1)}\n", [ONE])
    assert len(longest) == 4096
    assert unverified_checkpoint(longest) == checkpoint()
    with pytest.raises(NoteError, match="at most 4096"):
        unverified_checkpoint(sign_note(f"{TEXT}{'x' * (4097 - len(short) + 1)}\n", [ONE]))


def test_the_largest_size_of_a_checkpoint() -> None:
    assert Checkpoint.parse(TEXT.replace("\n5\n", f"\n{2**53}\n")).head.size == 2**53


def test_the_id_of_a_log_comes_from_its_first_record() -> None:
    assert log_id(b"\x1f" * 32) == "1f" * 16


def test_a_change_of_key_is_signed_by_both() -> None:
    note = sign_change(ONE, TWO)
    assert KeyChange.open(note) == KeyChange(ONE.key, TWO.key)
    assert note.startswith(f"gpuwarden.dev/log-key/v1\n{ONE.key}\n{TWO.key}\n\n")
    text = note.partition("\n\n")[0] + "\n"
    for signers in ([ONE], [TWO], [THREE]):
        with pytest.raises(NoteError, match="not signed"):
            KeyChange.open(sign_note(text, signers))


@pytest.mark.parametrize(
    "text",
    [
        "other\n",
        f"other\n{ONE.key}\n{TWO.key}\n",
        f"gpuwarden.dev/log-key/v1\n{ONE.key}\n{TWO.key}\nmore\n",
        f"gpuwarden.dev/log-key/v1\n{ONE.key}\nno key\n",
        f"gpuwarden.dev/log-key/v1\n{ONE.key}\n{signer(2, 'lab/other').key}\n",
    ],
)
def test_what_is_no_change_of_key_is_refused(text: str) -> None:
    with pytest.raises(NoteError):
        KeyChange.open(sign_note(text, [ONE, TWO, signer(2, "lab/other")]))


def test_the_latest_sixteen_changes_are_followed() -> None:
    changes = [sign_change(signer(x), signer(x + 1)) for x in range(1, 18)]
    assert successor(signer(2).key, signer(18).key, changes) == signer(18).key
    with pytest.raises(NoteError, match="nothing leads to it"):
        successor(signer(1).key, signer(18).key, changes)


def test_a_pinned_key_leads_to_its_successors_only() -> None:
    statements = [sign_change(ONE, TWO), "no note", sign_change(TWO, THREE)]
    assert successor(ONE.key, ONE.key, statements) == ONE.key
    assert successor(ONE.key, THREE.key, statements) == THREE.key
    assert successor(TWO.key, THREE.key, statements) == THREE.key
    for pinned, offered, known in (
        (ONE, TWO, []),
        (ONE, THREE, statements[:1]),
        (ONE, THREE, statements[2:]),
        (THREE, ONE, statements),
        (ONE, TWO, [sign_change(ONE, TWO), *["no note"] * 16]),
    ):
        with pytest.raises(NoteError, match="nothing leads to it"):
            successor(pinned.key, offered.key, known)
