"""docs/reference/audit.md, made from the record's definition. Pure."""

from gpuwarden.audit.record import FORMAT, GENESIS, MAX_RECORD_BYTES, RecordKind

_KINDS = {
    RecordKind.EVIDENCE_ACCEPTED: "first, changed or regained acceptance of a node",
    RecordKind.EVIDENCE_REFUSED: "refused evidence; the same refusal again is counted instead",
    RecordKind.EVIDENCE_ROUND: "rounds or repeated refusals of one node within an hour: `count`",
    RecordKind.NODE_STATE: "a node became stale, revoked, quarantined; repeats of an hour: `count`",
    RecordKind.NODE_OPERATOR: "an operator's act, with its reason",
    RecordKind.SPIRE_STATUS: "what the SPIRE server says about an agent changed",
    RecordKind.FILTER_DECISION: "an answer to the scheduler; counts per code",
    RecordKind.BIND_DECISION: "an answer of the binding gate",
    RecordKind.RESERVATION_RESERVED: "a GPU was reserved",
    RecordKind.RESERVATION_CONFIRMED: "kubelet or NVML shows the reserved GPU in use",
    RecordKind.RESERVATION_RELEASED: "the node says that the GPU is free",
    RecordKind.RESERVATION_EXPIRED: "nobody came for the GPU",
    RecordKind.RESERVATION_REVOKED: "a reservation was taken back",
    RecordKind.CONFIG_CHANGE: "settings or policy in force, by digest",
    RecordKind.LOG_START: "the log was opened; `healed` says what a crash had left behind",
    RecordKind.LOG_ROTATE: "first record of a further file; `deleted` names files past retention",
    RecordKind.LOG_STOP: "the log was closed in order",
    RecordKind.LOG_KEY: "the key of checkpoints changed",
    RecordKind.LOG_GAP: "records were lost (`lost`), or an outage ended (`cause`)",
    RecordKind.LOG_ALARM: "an agent accuses a log, with the two checkpoints that it saw",
    RecordKind.CHECKPOINT: "a signed checkpoint over all records before it",
}


def audit_page() -> str:
    """Return the page."""
    kinds = "\n".join(f"| `{kind.value}` | {_KINDS[kind]} |" for kind in RecordKind)
    return f"""\
# Audit log

Generated from the code (`gpuwarden/audit`); a test fails when it is out of date.

Each controller replica keeps an append-only log in `audit.dir`: files
`audit-<number of the first record>.jsonl`, one record per line, each line RFC 8785 JSON of at
most {MAX_RECORD_BYTES} bytes. Every durable record is also written to standard output, byte for
byte, so that a log collector alone is enough to audit.

## Record

| field | holds |
|---|---|
| `v` | `{FORMAT}`; by this a record is recognised among other lines |
| `seq` | number, from 1, without gaps, across files and restarts |
| `ts` | when it happened: the controller's wall clock, RFC 3339, UTC, milliseconds |
| `boot` | boot id of the machine |
| `origin` | whose log this is: `cluster/replica` |
| `instance` | id of the process |
| `kind` | see below |
| `actor` | who caused it |
| `subject` | what it is about |
| `decision` | the outcome in one word |
| `codes` | reason codes |
| `refs` | digests, counts and names; long lists become count, digest and first items |
| `prev` | SHA-256 of the line before without line feed, lower-case hex; at first `{GENESIS}` |

## Kinds

| kind | says |
|---|---|
{kinds}

## Verifying

`gpuwarden audit verify` names the first number at which the chain is broken: a record that was
changed, deleted, inserted, repeated or moved. A changed record is told from a changed link by the
line after it. What a crash leaves behind the last whole line is reported apart and is no fault.

The chain alone cannot show that its tail was cut off, or that its very last record was changed:
compare the head it prints (`SEQ:DIGEST`) with one noted elsewhere, or give that one as
`--expect SEQ:DIGEST`. Where older files are past retention, the chain starts later and says
where.

## What is durable when

A grant (acceptance of a node, a reservation, an operator's act) takes effect only after its
record has been synced to disk; where that fails or takes longer than two seconds it is refused
with `AUDIT_UNAVAILABLE`. Refusals and revocations take effect at once, and are written with the
next group (at most 64 records or 5 ms). When the volume is full, ordinary records
(`filter.decision`, `evidence.round`) are dropped and counted, and the space kept by
`audit.reserve` is spent on the rest. When nothing can be written, grants are refused until the
log is writable again; a `log.gap` record then says so, and how many records were lost.
"""
