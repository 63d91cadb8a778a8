"""`gpuwarden audit reverify`: whether archived evidence was validly signed when it arrived."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from gpuwarden.audit.archive import archived_files, archived_in
from gpuwarden.audit.archived_evidence import (
    ArchivedEvidence,
    ArchivedEvidenceError,
    reverify,
)
from gpuwarden.audit.files import lines_of, log_files
from gpuwarden.audit.record import LogRecord, RecordError, RecordKind, decode_record, last_refs
from gpuwarden.cli.connection.options import Output
from gpuwarden.cli.exit_codes import CliError, ExitCode, unreadable
from gpuwarden.cli.text.output import Format, printed
from gpuwarden.cli.text.terminal import facts, joined, shown
from gpuwarden.evidence.canonical import sha256_hex

DEFAULT_STORE: Final = Path("/var/lib/gpuwarden/audit")
_MAX_BUNDLE: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{4,64}")
_LISTED: Final = 8
_CLOCK_STEP: Final = timedelta(seconds=5)

_OF_ARRIVAL: Final = frozenset(
    {
        RecordKind.EVIDENCE_ACCEPTED,
        RecordKind.EVIDENCE_REFUSED,
        RecordKind.NODE_STATE,
        RecordKind.NODE_ENROLLMENT,
    }
)
"""Written when the evidence arrives; `refs.bundle` says that it was archived then."""


def reverify_(
    digest: str,
    *,
    store: Path = DEFAULT_STORE,
    bundle: Path | None = None,
    output: Output = Format.TABLE,
) -> ExitCode:
    """Verify archived evidence as of its arrival; exits with 3 if it was not valid.

    Exits with 6 if the evidence was not to be kept: an unchanged round by which nothing was
    granted.

    Parameters
    ----------
    digest
        Evidence digest, as records and `explain pod` have it, or its beginning (4 digits or more).
    store
        Folder of the audit log, with its folders `evidence` and `evidence-cited`.
    bundle
        PEM file with the roots to verify against, instead of the archived ones.
    output
        How to print.

    """
    if not _DIGEST.fullmatch(digest):
        text = "expected an evidence digest: 64 lower-case hex digits, or the first 4 or more"
        raise CliError(ExitCode.USAGE, text)
    if not store.is_dir():
        raise CliError(ExitCode.USAGE, f"--store: {shown(str(store))}: no such folder")
    try:
        roots = _roots(bundle)
        digest, mentions = _meant(store, digest)
        evidence = _archived_evidence(store, digest, mentions)
        signer = _verified(evidence, digest, mentions, roots)
    except OSError as error:
        raise unreadable(error) from None
    except ArchivedEvidenceError as error:
        raise CliError(ExitCode.FINDING, f"{digest}: {shown(str(error))}") from None
    found = _plain(evidence, digest, signer, mentions)
    text = printed(found, output, names=(digest,), text=lambda: _text(found))
    sys.stdout.write(text)
    return ExitCode.OK


# --- what the log has of it


@dataclass(frozen=True, slots=True)
class _Mentions:
    """The records that name one piece of evidence."""

    arrival: LogRecord | None = None
    """Written when it arrived."""
    citing: tuple[LogRecord, ...] = ()
    """Of what was granted by it."""
    counting: LogRecord | None = None
    """Of many alike, of which it was the last."""

    def and_(self, record: LogRecord) -> "_Mentions":
        """With one more."""
        if last_refs(record) is not None:
            return _Mentions(self.arrival, self.citing, record)
        if record.kind in _OF_ARRIVAL:
            return _Mentions(self.arrival or record, self.citing, self.counting)
        return _Mentions(self.arrival, (*self.citing, record), self.counting)

    @property
    def record(self) -> LogRecord | None:
        """The one that says most."""
        return self.arrival or next(iter(self.citing), None)

    @property
    def archived_by(self) -> LogRecord | None:
        """A record whose evidence is archived; None where there is no reason to."""
        if self.arrival is not None and self.arrival.refs.get("bundle"):
            return self.arrival
        return next(iter(self.citing), None)


def _meant(store: Path, digest: str) -> tuple[str, _Mentions]:
    """The one digest that begins so, as far as archive and log know, and what names it."""
    mentions = _mentions(store, digest)
    known = sorted(mentions.keys() | {path.stem for path in archived_files(store, digest)})
    if len(known) > 1:
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        text = f"{digest} is the beginning of several digests: {', '.join(known[:_LISTED])}{more}"
        raise CliError(ExitCode.USAGE, text)
    found = known[0] if known else digest
    return found, mentions.get(found, _Mentions())


def _mentions(store: Path, digest: str) -> Mapping[str, _Mentions]:
    found: dict[str, _Mentions] = {}
    for record in _naming(store, digest):
        named = (last_refs(record) or record.refs).get("evidence")
        if isinstance(named, str) and named.startswith(digest):
            found[named] = found.get(named, _Mentions()).and_(record)
    return found


def _naming(store: Path, digest: str) -> Iterator[LogRecord]:
    mark = f'"evidence":"{digest}'.encode()
    try:
        files = log_files(store)
    except FileNotFoundError:
        return
    for line in lines_of(files):
        if mark in line:
            try:
                yield decode_record(line.removesuffix(b"\n"))
            except RecordError as error:
                text = f"its record cannot be read: {error}"
                raise ArchivedEvidenceError(text) from error


# --- the archive


def _archived_evidence(store: Path, digest: str, mentions: _Mentions) -> ArchivedEvidence:
    for path in archived_files(store, digest):
        return archived_in(path)
    due = mentions.archived_by
    if due is not None:
        raise ArchivedEvidenceError(
            f"record {due.seq} ({due.kind}) rests on it, and {store} holds no such evidence: it is"
            " past audit.evidenceRetention or audit.evidenceBytes, was lost (full disk, power cut),"
            " or somebody removed it"
        )
    raise CliError(ExitCode.NOT_KEPT, f"{digest}: not kept: {_why_not(mentions)}")


def _why_not(mentions: _Mentions) -> str:
    if mentions.counting is not None:
        counting = f"record {mentions.counting.seq} counts it among those alike"
        return f"{counting} ({mentions.counting.decision}), and nothing was granted by it"
    if mentions.arrival is not None:
        return f"record {mentions.arrival.seq} took no trust away, and nothing was granted by it"
    return (
        "neither the log nor the archive here names it: an unchanged round by which nothing was"
        " granted, or evidence that another replica received"
    )


def _arrived(evidence: ArchivedEvidence, mentions: _Mentions) -> datetime:
    """As the log says, else as the archive does."""
    if mentions.arrival is not None:
        return _time(mentions.arrival)
    at = datetime.fromtimestamp(evidence.received_ms / 1000, UTC)
    for record in mentions.citing:
        if at > _time(record) + _CLOCK_STEP:
            text = f"by the archive it arrived after record {record.seq}, which rests on it"
            raise ArchivedEvidenceError(text)
    return at


def _time(record: LogRecord) -> datetime:
    return datetime.strptime(record.ts, "%Y-%m-%dT%H:%M:%S.%f%z")


def _verified(
    evidence: ArchivedEvidence,
    digest: str,
    mentions: _Mentions,
    roots: Sequence[x509.Certificate] | None,
) -> str:
    signer = reverify(evidence, digest, _arrived(evidence, mentions), roots)
    refs = mentions.arrival.refs if mentions.arrival else {}
    if refs.get("leaf", leaf := sha256_hex(evidence.chain[0])) != leaf:
        raise ArchivedEvidenceError("the record names another certificate")
    if roots is None and refs.get("bundle", evidence.bundle) != evidence.bundle:
        raise ArchivedEvidenceError("the record names another trust bundle")
    return signer


def _roots(path: Path | None) -> list[x509.Certificate] | None:
    if path is None:
        return None
    with path.open("rb") as file:
        data = file.read(_MAX_BUNDLE)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:
        text = f"--bundle {path}: expected certificates in PEM"
        raise CliError(ExitCode.USAGE, text) from None


# --- printing


def _plain(
    evidence: ArchivedEvidence, digest: str, signer: str, mentions: _Mentions
) -> dict[str, Any]:
    record, at = mentions.record, _arrived(evidence, mentions)
    return {
        "evidence": digest,
        "result": "valid then",
        "at": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z",
        "source": "log" if mentions.arrival else "archive",
        "signer": signer,
        "leaf": sha256_hex(evidence.chain[0]),
        "bundle": evidence.bundle,
        "payloadType": evidence.payload_type,
        "record": record.seq if record else None,
        "kind": record.kind if record else None,
        "decision": record.decision if record else None,
        "codes": list(record.codes) if record else [],
        "citedBy": [f"{x.seq} {x.kind} {x.subject}" for x in mentions.citing],
    }


def _text(plain: dict[str, Any]) -> str:
    record, cited = plain["record"], plain["citedBy"]
    known = f"{record}, {plain['kind']}: {plain['decision']} {' '.join(plain['codes'])}".rstrip()
    of_archive = "" if plain["source"] == "log" else "; time and bundle are those of the archive"
    more = f" and {len(cited) - _LISTED} more" if len(cited) > _LISTED else ""
    return facts(
        (
            ("Evidence", plain["evidence"]),
            ("Result", "signature and chain were valid at that time"),
            ("Then", plain["at"]),
            ("Signer", plain["signer"]),
            ("Certificate", plain["leaf"]),
            ("Bundle", plain["bundle"]),
            ("Record", f"{known if record else 'none in the log'}{of_archive}"),
            ("Granted by it", f"{joined(cited[:_LISTED])}{more}" if cited else ""),
        )
    )
