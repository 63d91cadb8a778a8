"""`gpuwarden audit verify|prove|consistency|begin-new`: is a log whole, and what does it prove.

Needs no controller.
"""

import re
import sys
from base64 import b64encode
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cyclopts import Parameter

from gpuwarden.audit.chain import Head, Verified
from gpuwarden.audit.checkpoint import (
    MAX_CHECKPOINT,
    Checkpoint,
    TreeHead,
    open_checkpoint,
    unverified_checkpoint,
)
from gpuwarden.audit.files import (
    Report,
    log_files,
    verify_collected_files,
    verify_files,
)
from gpuwarden.audit.new_log import LogInUseError
from gpuwarden.audit.new_log import begin_new as begun_in
from gpuwarden.audit.note import NoteError, VerifierKey
from gpuwarden.audit.proofs import NoProofError, VerifiedLog
from gpuwarden.audit.tree_check import TreeFacts, Wanted
from gpuwarden.cli.connection.options import Output
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.text.output import STRUCTURED, Format, printed, structured
from gpuwarden.cli.text.terminal import STANDARD_INPUT, facts, shown
from gpuwarden.counted import counted
from gpuwarden.regular_file import NotRegularError, open_to_read

_MAX_KEY: Final = 16 * 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_NO_KEY: Final = "expected an Ed25519 public key in PEM, or a verifier key NAME+KEYID+BASE64"


def verify(
    *paths: Path,
    expect: str = "",
    checkpoint: Path | None = None,
    key: Path | None = None,
    pin: str = "",
    collected: Annotated[bool, Parameter(negative="")] = False,
    output: Output = Format.TABLE,
) -> ExitCode:
    """Verify an audit log: chain, tree, signatures; exits with 3 if it is broken or empty.

    Parameters
    ----------
    paths
        Regular files of one log in order, folders that hold `audit-*.jsonl`, or `-` for standard
        input.
    expect
        Head that the log must contain, `SEQ:DIGEST`.
    checkpoint
        File with a checkpoint that the log must continue, such as an agent has kept.
    key
        File with the log's public key: PEM, or a C2SP verifier key.
    pin
        SHA-256 of the log's raw public key in hex, or its verifier key.
    collected
        The files are a log collector's output: find the records among other lines.
    output
        How to print; `name` gives the head of the log.

    """
    if not paths:
        raise CliError(ExitCode.USAGE, "audit verify needs a file or folder")
    try:
        wanted = Wanted(_pinned(key, pin), _expected(checkpoint))
        reports = _reports(paths, _head(expect), wanted, collected=collected)
    except NotRegularError as error:
        hint = ", or - for standard input" if Path(error.filename) in paths else ""
        raise CliError(ExitCode.USAGE, shown(str(error)) + hint) from None
    except OSError as error:
        raise unreadable(error) from None
    heads = (_outcome(report)["head"] for report in reports.values())
    found = [_plain(origin, report) for origin, report in reports.items()]
    text = printed(found, output, names=heads, text=lambda: "\n".join(map(_for_people, found)))
    sys.stdout.write(text)
    if not reports:
        raise CliError(ExitCode.FINDING, "no audit records found")
    return ExitCode.OK if all(map(_is_whole, reports.values())) else ExitCode.FINDING


def _is_whole(report: Report) -> bool:
    return isinstance(report.result, Verified) and not report.result.order.appended.count


def prove(seq: int, *paths: Path, output: Output = Format.TABLE) -> ExitCode:
    """Prove that a record is in the log of its last checkpoint; exits with 3 if not.

    Parameters
    ----------
    seq
        Number of the record.
    paths
        Files of one log in order, or folders that hold `audit-*.jsonl`.
    output
        How to print.

    """
    found = _log(paths, "prove")
    try:
        proof = found.inclusion(seq)
    except NoProofError as error:
        raise CliError(ExitCode.FINDING, shown(str(error))) from None
    plain = {
        "log": found.found.origin,
        "record": proof.record,
        "leafIndex": proof.record - 1,
        "leafHash": _base64(proof.leaf),
        "checkpoint": proof.note,
        "proof": [_base64(one) for one in proof.proof],
    }
    sys.stdout.write(_proof_text(plain, output))
    return ExitCode.OK


def consistency(old: str, new: str, *paths: Path, output: Output = Format.TABLE) -> ExitCode:
    """Prove that a log only grew between two states of it; exits with 3 if it did not.

    Parameters
    ----------
    old
        The earlier state: a number of records, or a file with a checkpoint.
    new
        The later state, likewise.
    paths
        Files of one log in order, or folders that hold `audit-*.jsonl`.
    output
        How to print.

    """
    found = _log(paths, "consistency")
    before, after = _state(old, found), _state(new, found)
    try:
        proof = found.consistency(before.size, after.size)
    except NoProofError as error:
        raise CliError(ExitCode.FINDING, shown(str(error))) from None
    for asked, head in ((before, proof.old), (after, proof.new)):
        if asked.root not in {b"", head.root}:
            records = counted(head.size, "record")
            text = f"the checkpoint of {records} is not of this log: its root differs"
            raise CliError(ExitCode.FINDING, text)
    plain = {
        "log": found.found.origin,
        "old": {"size": proof.old.size, "root": _base64(proof.old.root)},
        "new": {"size": proof.new.size, "root": _base64(proof.new.root)},
        "proof": [_base64(one) for one in proof.proof],
    }
    sys.stdout.write(_proof_text(plain, output))
    return ExitCode.OK


def _reports(
    paths: tuple[Path, ...], expect: Head | None, wanted: Wanted, *, collected: bool
) -> Mapping[str, Report]:
    if sum(map(_is_input, paths)) > 1:
        raise CliError(ExitCode.USAGE, "standard input can be read once")
    files = [x for path in paths for x in ([path] if _is_input(path) else log_files(path))]
    if collected:
        return verify_collected_files(files, expect=expect, wanted=wanted, opening=_opened)
    report = verify_files(files, expect=expect, wanted=wanted, opening=_opened)
    return {getattr(report.result, "origin", ""): report}


def _is_input(path: Path) -> bool:
    return str(path) == STANDARD_INPUT


def _opened(path: Path) -> AbstractContextManager[BinaryIO]:
    if not _is_input(path):
        return open_to_read(path)
    if sys.stdin.isatty():
        text = "standard input is a terminal; pipe a log into it, or name a file or folder"
        raise CliError(ExitCode.USAGE, text)
    return nullcontext(sys.stdin.buffer)


def begin_new(folder: Path) -> None:
    """Begin a new log in place of one that cannot go on; the old folder is kept.

    Parameters
    ----------
    folder
        Folder of the log that cannot go on, as `audit.dir`.

    """
    try:
        begun = begun_in(folder)
    except LogInUseError as error:
        text = f"{shown(str(error))}; if its log cannot be opened, try again"
        raise CliError(ExitCode.ERROR, text) from None
    except OSError as error:
        raise unreadable(error) from None
    names = (
        "nothing: no checkpoint can be read, so agents raise LOG_RESET"
        if begun.prev is None
        else f"{counted(begun.prev.head.size, 'record')} of {begun.prev.origin}"
    )
    kept = "no folder of an old log is here" if begun.kept is None else str(begun.kept)
    sys.stdout.write(_for_people({"kept": kept, "names": names}))


def _log(paths: tuple[Path, ...], command: str) -> VerifiedLog:
    if not paths:
        raise CliError(ExitCode.USAGE, f"audit {command} needs a file or folder")
    if any(map(_is_input, paths)):
        text = f"audit {command} reads the log twice; name files or folders, not standard input"
        raise CliError(ExitCode.USAGE, text)
    try:
        return VerifiedLog([file for path in paths for file in log_files(path)])
    except OSError as error:
        raise unreadable(error) from None
    except NoProofError as error:
        raise CliError(ExitCode.FINDING, shown(str(error))) from None


def _head(text: str) -> Head | None:
    try:
        return Head.parse(text) if text else None
    except ValueError as error:
        raise CliError(ExitCode.USAGE, f"--expect: {error}") from None


def _expected(path: Path | None) -> Checkpoint | None:
    if path is None:
        return None
    try:
        return unverified_checkpoint(_note(path))
    except NoteError as error:
        raise CliError(ExitCode.USAGE, f"--checkpoint: {shown(str(error))}") from None


def _state(text: str, log: VerifiedLog) -> TreeHead:
    """A number, whose root is left empty, or a checkpoint that one of the log's keys has signed."""
    if text.isascii() and text.isdigit():
        return TreeHead(int(text), b"")
    try:
        note = _note(Path(text))
    except OSError as error:
        raise unreadable(error) from None
    for key in log.found.tree.keys:
        try:
            return open_checkpoint(note, key).head
        except NoteError:
            continue
    raise CliError(ExitCode.FINDING, f"{shown(text)}: no checkpoint signed by a key of this log")


def _note(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(2 * MAX_CHECKPOINT).decode("utf-8", "replace")


def _proof_text(plain: dict[str, Any], output: Format) -> str:
    if output in STRUCTURED:
        return structured(plain, output)
    lines = {
        name: f"{counted(value['size'], 'record')}, root {value['root']}"
        if isinstance(value, dict)
        else value
        for name, value in plain.items()
    }
    count = len(plain["proof"])
    hashes = "1 hash" if count == 1 else f"{count} hashes"
    lines["proof"] = f"{hashes}, verified; -o json gives them"
    if "checkpoint" in plain:
        lines["checkpoint"] = " ".join(plain["checkpoint"].split("\n")[:3])
    return _for_people(lines)


def _for_people(plain: dict[str, Any]) -> str:
    pairs = ((name.capitalize(), str(value)) for name, value in plain.items() if value is not None)
    return facts(pairs)


def _plain(origin: str, report: Report) -> dict[str, Any]:
    return {"log": origin or None, **_outcome(report)}


def _outcome(report: Report) -> dict[str, Any]:
    result = report.result
    if isinstance(result, Verified):
        return {
            "result": "verified" if _is_whole(report) else "appended to",
            "records": result.records,
            "first": result.first_seq,
            "head": str(result.head),
            **_certified(result.tree),
            "torn": f"{counted(result.torn_bytes, 'byte')} of an unfinished line at the end"
            if result.torn_bytes
            else None,
            "appended": str(result.order.appended) or None,
            "unsigned": str(result.order.unsigned) or None,
            "backwards": str(result.order.backwards) or None,
            "unknown": str(result.unknown) or None,
        }
    where = f"{report.at.path}:{report.at.line}" if report.at else f"line {result.line}"
    return {
        "result": "broken",
        "record": result.seq,
        "where": where,
        "what": result.what,
        "head": str(result.intact),
    }


def _certified(tree: TreeFacts) -> dict[str, Any]:
    key = tree.keys[-1] if tree.keys else None
    return {
        "checkpoints": tree.checkpoints,
        "certified": tree.certified,
        "root": _base64(tree.root) if tree.root is not None else None,
        "key": str(key) if key else None,
        "pin": key.digest if key else None,
    }


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


# --- the public key that --key and --pin give


def _pinned(key: Path | None, pin: str) -> str:
    """SHA-256 of the raw public key in hex, empty if none was given; raises OSError, CliError."""
    if key is not None and pin:
        raise CliError(ExitCode.USAGE, "give either --key or --pin")
    if key is not None:
        with key.open("rb") as file:
            return _digest_of(file.read(_MAX_KEY), f"--key {key}")
    if not pin or _DIGEST.fullmatch(pin):
        return pin
    try:
        return VerifierKey.parse(pin).digest
    except NoteError as error:
        text = f"--pin: expected 64 lower-case hex digits or a verifier key: {error}"
        raise CliError(ExitCode.USAGE, text) from None


def _digest_of(data: bytes, what: str) -> str:
    if b"-----BEGIN" not in data:
        try:
            return VerifierKey.parse(data.decode("utf-8", "replace").strip()).digest
        except NoteError:
            raise CliError(ExitCode.USAGE, f"{what}: {_NO_KEY}") from None
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise CliError(ExitCode.USAGE, f"{what}: {_NO_KEY}")
    return VerifierKey("", key.public_bytes_raw()).digest
