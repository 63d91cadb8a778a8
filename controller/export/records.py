"""What is exported: one record per GPU and change, its key, and its texts. Pure.

A record says what accepted evidence showed about one GPU. Its key follows from the GPU, from what
is said and from how many records of this GPU came before, and from nothing else. So another
replica, or the same one after a restart, gives the same change the same key.
"""

import csv
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final, Self

import msgspec

from controller.fleet.view import Acceptance, GpuView
from gpuwarden.moment import rfc3339

NO_MACHINE: Final = "na"
NO_CHASSIS: Final = "unknown"
_NO_VALUE: Final = frozenset({"", "0", "N/A"})
"""What drivers say of a serial that there is none."""
_DIGEST: Final = 16
_KEY: Final = 32
_KEY_TAG: Final = "gpuwarden.dev/export/v1"
_SCALE_SET_MEMBER: Final = 3
"""Digits at most of a number that names a VM inside its scale set only."""


class RecordTextError(ValueError):
    """A text is no record; says which."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What one accepted evidence shows about one GPU. The last two do not make a change."""

    node: str
    machine: str
    """From the Node's provider ID, which nobody attests; `na` where it has none."""
    source: str
    """SPIFFE ID of the agent that signed."""
    chassis: str
    gpu: str
    """Serial; the UUID where the card has none, so that no two cards are one."""
    uuid: str
    product: str
    class_hash: str
    level: str
    evidence: str
    """Digest of the evidence that showed it first."""
    time: str
    """When the controller accepted that, RFC 3339 UTC."""

    @property
    def digest(self) -> str:
        """Equal for equal facts, whenever and by whichever evidence they were shown."""
        return _hash(_what_counts(self), _DIGEST)


@dataclass(frozen=True, slots=True)
class ExportRecord:
    """Facts with their place among the records of the GPU. The first seven are the seed's."""

    cluster: str
    node: str
    machine: str
    source: str
    chassis: str
    gpu: str
    time: str
    uuid: str
    product: str
    class_hash: str
    evidence: str
    level: str
    change: int
    """1 for the first record of this GPU, then one more each."""
    key: str
    """The same for the same change, whoever exports it and however often."""

    @classmethod
    def of(cls, cluster: str, facts: Facts, change: int) -> Self:
        """The record of these facts as the GPU's `change`-th."""
        key = _hash((_KEY_TAG, cluster, facts.uuid, change, facts.digest), _KEY)
        return cls(
            cluster=cluster,
            node=facts.node,
            machine=facts.machine,
            source=facts.source,
            chassis=facts.chassis,
            gpu=facts.gpu,
            time=facts.time,
            uuid=facts.uuid,
            product=facts.product,
            class_hash=facts.class_hash,
            evidence=facts.evidence,
            level=facts.level,
            change=change,
            key=key,
        )

    @property
    def facts(self) -> Facts:
        """What it says."""
        return Facts(*_facts_in(self))


_NUMBER: Final = re.compile(r"[0-9]{1,19}")
_CHANGES: Final = range(1, 1 << 63)
COLUMNS: Final = tuple(x.name for x in fields(ExportRecord))
"""In the order of CSV: the seed's seven first, so that its readers find them."""
_NAMES: Final = tuple(x.name for x in fields(Facts))
_facts_in: Final = attrgetter(*_NAMES)
_what_counts: Final = attrgetter(*_NAMES[:-2])
_values: Final = attrgetter(*COLUMNS)
"""Several times as fast as `astuple` and `asdict`, which copy every text."""


def as_dict(record: ExportRecord) -> dict[str, str | int]:
    """Field -> value, in the order of COLUMNS."""
    return dict(zip(COLUMNS, _values(record), strict=True))


def facts_of(
    node: str, acceptance: Acceptance, *, source: str, provider_id: str | None
) -> Iterator[Facts]:
    """What an acceptance shows about each GPU that answers; a lost one is not attested."""
    time = rfc3339(acceptance.accepted_wall_ns)
    machine = machine_of(provider_id)
    for gpu in acceptance.gpus:
        if gpu.lost is None:
            yield _facts_of_gpu(
                gpu, acceptance, node=node, machine=machine, source=source, time=time
            )


def _facts_of_gpu(
    gpu: GpuView, acceptance: Acceptance, *, node: str, machine: str, source: str, time: str
) -> Facts:
    return Facts(
        node=node,
        machine=machine,
        source=source,
        chassis=_known(gpu.chassis_serial) or NO_CHASSIS,
        gpu=_known(gpu.serial) or gpu.uuid,
        uuid=gpu.uuid,
        product=_printable(gpu.product or ""),
        class_hash=acceptance.attestation_hash,
        level=acceptance.level.value,
        evidence=acceptance.evidence_digest,
        time=time,
    )


def machine_of(provider_id: str | None) -> str:
    """The VM or machine behind a node: the last part of its provider ID.

    A member of a scale set is a number there, the same in every set: so the set comes before it.
    """
    parts = [x for x in (provider_id or "").partition(":")[2].split("/") if x]
    if not parts:
        return NO_MACHINE
    last = parts[-1]
    if last.isdigit() and len(last) <= _SCALE_SET_MEMBER and len(parts) > _SCALE_SET_MEMBER:
        return f"{parts[-3]}_{last}"
    return last


def _known(text: str | None) -> str | None:
    shown = _printable(text or "")
    return None if shown in _NO_VALUE else shown


def _printable(text: str) -> str:
    """Without what would end a line of CSV or cannot be stored in PostgreSQL."""
    return "".join(x for x in text if x.isprintable()).strip()


def _hash(parts: tuple[object, ...], digits: int) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:digits]


def batch_digest(records: Iterable[ExportRecord]) -> str:
    """Names what is in a batch: the same for the same records in the same order."""
    return _hash(tuple(x.key for x in records), _KEY)


# --- texts


def json_line(record: ExportRecord) -> str:
    """The record as one line of JSON, without its line feed."""
    return msgspec.json.encode(as_dict(record)).decode()


def json_array(records: Iterable[ExportRecord]) -> bytes:
    """The records as a JSON array."""
    return b"[" + ",".join(map(json_line, records)).encode() + b"]"


def ndjson(records: Iterable[ExportRecord]) -> bytes:
    """The records as lines of JSON."""
    return "".join(f"{json_line(x)}\n" for x in records).encode()


def csv_rows(records: Iterable[ExportRecord]) -> bytes:
    """The records as CSV without a header, columns as in COLUMNS."""
    lines = _Lines()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerows(map(_values, records))
    return "".join(lines.texts).encode()


class _Lines:
    """What `csv` writes to."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def write(self, text: str) -> None:
        """Keep it."""
        self.texts.append(text)


def read_ndjson(data: bytes) -> tuple[ExportRecord, ...]:
    """The records of lines of JSON; raises RecordTextError."""
    return tuple(map(read_json, _lines(data)))


def read_json(line: str) -> ExportRecord:
    """The record of one line; further fields are ignored. Raises RecordTextError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise RecordTextError("a line is no JSON") from None
    if not isinstance(found, dict):
        raise RecordTextError("a line is no JSON object")
    return _record(found)


def read_csv(data: bytes) -> tuple[ExportRecord, ...]:
    """The records of CSV without a header; raises RecordTextError."""
    rows = csv.reader(_lines(data))
    try:
        return tuple(_record(dict(zip(COLUMNS, row, strict=True))) for row in rows)
    except (csv.Error, ValueError):
        raise RecordTextError(f"a row has not the {len(COLUMNS)} columns of a record") from None


def _lines(data: bytes) -> list[str]:
    """Split at line feeds only: other separators may be part of a name."""
    lines = data.decode(errors="replace").split("\n")
    return lines if lines[-1] else lines[:-1]


def _record(found: Mapping[str, object]) -> ExportRecord:
    """Refuses what nobody could write again: text that is no UTF-8, numbers beyond 64 bits."""
    values: dict[str, str | int] = {}
    for name in COLUMNS:
        value = found.get(name)
        if name == "change" and isinstance(value, str) and _NUMBER.fullmatch(value):
            value = int(value)
        wanted = int if name == "change" else str
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise RecordTextError(f"{name} of a record is missing or no {wanted.__name__}")
        if value not in _CHANGES if isinstance(value, int) else not _is_utf8(value):
            raise RecordTextError(f"{name} of a record is nothing that was exported")
        values[name] = value
    return ExportRecord(**values)  # type: ignore[arg-type] # checked above, one by one


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
