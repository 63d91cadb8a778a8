"""`gpuwarden audit reverify`: whether archived evidence was validly signed when it arrived."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from gpuwarden.audit.archived_evidence import (
    FOLDER,
    MAX_ARCHIVED_EVIDENCE_BYTES,
    ArchivedEvidence,
    ArchivedEvidenceError,
    read_archived_evidence,
    reverify,
)
from gpuwarden.audit.files import lines_of, log_files
from gpuwarden.audit.record import LogRecord, RecordError, decode_record
from gpuwarden.cli.exit_codes import CliError, ExitCode
from gpuwarden.cli.options import Output
from gpuwarden.cli.output import Format, printed
from gpuwarden.cli.terminal import facts, shown
from gpuwarden.evidence.canonical import sha256_hex
from gpuwarden.regular_file import open_to_read

DEFAULT_STORE: Final = Path("/var/lib/gpuwarden/audit")
_MAX_BUNDLE: Final = 1 << 20
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class _Arrival:
    """When the evidence arrived, and its audit record."""

    at: datetime
    record: LogRecord | None


def reverify_(
    digest: str,
    *,
    store: Path = DEFAULT_STORE,
    bundle: Path | None = None,
    output: Output = Format.TABLE,
) -> ExitCode:
    """Verify archived evidence as of its arrival; exits with 3 if it was not valid.

    Parameters
    ----------
    digest
        Evidence digest, as records have it.
    store
        Folder of the audit log, with its folder `evidence`.
    bundle
        PEM file with the roots to verify against, instead of the archived ones.
    output
        How to print.

    """
    if not _DIGEST.fullmatch(digest):
        raise CliError(ExitCode.USAGE, "expected an evidence digest, 64 lower-case hex digits")
    try:
        evidence = _archived_evidence(store, digest)
        arrival = _arrival(store, digest, evidence)
        signer = _verified(evidence, digest, arrival, _roots(bundle))
    except OSError as error:
        raise CliError(ExitCode.ERROR, shown(str(error))) from None
    except ArchivedEvidenceError as error:
        raise CliError(ExitCode.FINDING, f"{digest}: {shown(str(error))}") from None
    found = _plain(evidence, digest, signer, arrival)
    text = printed(found, output, names=(digest,), text=lambda: _text(found))
    sys.stdout.write(text)
    return ExitCode.OK


def _archived_evidence(store: Path, digest: str) -> ArchivedEvidence:
    for path in sorted((store / FOLDER).glob(f"*/{digest}.json")):
        with open_to_read(path) as file:
            return read_archived_evidence(file.read(MAX_ARCHIVED_EVIDENCE_BYTES + 1))
    raise CliError(ExitCode.FINDING, f"{store / FOLDER} holds no evidence {digest}")


def _arrival(store: Path, digest: str, evidence: ArchivedEvidence) -> _Arrival:
    record = _record(store, digest)
    if record is None:
        return _Arrival(datetime.fromtimestamp(evidence.received_ms / 1000, UTC), None)
    return _Arrival(datetime.strptime(record.ts, "%Y-%m-%dT%H:%M:%S.%f%z"), record)


def _record(store: Path, digest: str) -> LogRecord | None:
    """The first record about this evidence."""
    mark = f'"evidence":"{digest}"'.encode()
    try:
        files = log_files(store)
    except FileNotFoundError:
        return None
    for line in lines_of(files):
        if mark in line:
            try:
                record = decode_record(line.removesuffix(b"\n"))
            except RecordError as error:
                raise ArchivedEvidenceError(f"its record cannot be read: {error}") from error
            if record.refs.get("evidence") == digest:
                return record
    return None


def _verified(
    evidence: ArchivedEvidence,
    digest: str,
    arrival: _Arrival,
    roots: Sequence[x509.Certificate] | None,
) -> str:
    signer = reverify(evidence, digest, arrival.at, roots)
    refs = arrival.record.refs if arrival.record else {}
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


def _plain(
    evidence: ArchivedEvidence, digest: str, signer: str, arrival: _Arrival
) -> dict[str, Any]:
    record = arrival.record
    return {
        "evidence": digest,
        "result": "valid then",
        "at": f"{arrival.at:%Y-%m-%dT%H:%M:%S}.{arrival.at.microsecond // 1000:03d}Z",
        "signer": signer,
        "leaf": sha256_hex(evidence.chain[0]),
        "bundle": evidence.bundle,
        "payloadType": evidence.payload_type,
        "record": record.seq if record else None,
        "kind": record.kind if record else None,
        "decision": record.decision if record else None,
        "codes": list(record.codes) if record else [],
    }


def _text(plain: dict[str, Any]) -> str:
    record = plain["record"]
    known = f"{record}, {plain['kind']}: {plain['decision']} {' '.join(plain['codes'])}".rstrip()
    return facts(
        (
            ("Evidence", plain["evidence"]),
            ("Result", "signature and chain were valid at that time"),
            ("Then", plain["at"]),
            ("Signer", plain["signer"]),
            ("Certificate", plain["leaf"]),
            ("Bundle", plain["bundle"]),
            (
                "Record",
                known if record else "none in the log; time and bundle are those of the archive",
            ),
        )
    )
