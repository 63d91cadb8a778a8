"""docs/reference/audit.md, made from the record's definition. Pure."""

from controller.audit.held_evidence import MAX_HELD_BYTES, PER_NODE
from gpuwarden.audit.checkpoint import CHECKPOINT_RECORDS
from gpuwarden.audit.record import (
    FORMAT,
    FORMER_KINDS,
    GENESIS,
    MAX_RECORD_BYTES,
    RecordKind,
)


def audit_page() -> str:
    """Return the page."""
    kinds = "\n".join(f"| `{kind.value}` | {_says(kind)} |" for kind in RecordKind)
    former = "\n".join(f"| `{was}` | `{kind.value}` |" for was, kind in FORMER_KINDS.items())
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
| `v` | `{FORMAT}`; marks a record among other lines |
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

Records are never changed, so the log of a replica that was upgraded keeps the names that a kind had
before:

| was | is |
|---|---|
{former}

**A record may be of a kind that only another version knows.** It counts in chain, tree and
checkpoints as all others do, and is shown as it is. Nothing is decided by it, with one exception: a
record `reservation.…` of an unknown kind holds the GPUs that it names until its node shows that
they are free. `log.…` and `checkpoint` keep their names. `v` changes when the form of records does;
a log with a record of another `v` is not written to, and nothing of it is cut off.

## Tree and checkpoints

The records form a Merkle tree as in RFC 6962: leaf `n - 1` is the line of record `n`
without its line feed. At the start, every 10 s or {CHECKPOINT_RECORDS} records if something
changed, when a file is finished and at the end, the controller signs a checkpoint, a signed note
of C2SP (`tlog-checkpoint`, `signed-note`):

```
lab/controller-0                                origin: cluster/replica
4711                                            records it covers
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=    root
log 382b4aa1a84e00702b78287d67db8675            id of the log: beginning of its first leaf's hash
prev 815 qqqq...=                               only if this log replaces a lost one

— lab/controller-0 H8Wwo0...
```

Only what is durable is signed, and a checkpoint is shown to others once its own record is durable
too: `checkpoint` holds it in `refs.checkpoint` and covers all records before it. `log.rotate`
holds one as well, with the tree's `frontier`, so that the tree goes on when older files are
deleted, and that the rest of a log can still be verified.

## Key

The key is Ed25519 and signs nothing else: `audit.key`, else `log-key.pem` in `audit.dir`, made
there when there is none. `log.start` and `log.rotate` name it (`refs.key`). To change it, put the
new key before the old one in the file and restart: `log.key` then holds a statement that both
have signed, and the old one can go. A log never goes on under a key that the former one has not
named: grants are refused until it is put right. Keep the key off the log's volume (`audit.key`)
where you can.

## Witnesses

Every challenge carries the last checkpoint and proves that it continues the one the agent knows.
Agents keep the last one of each origin and the key of first use, across restarts, and put the
checkpoints into what they sign. Whoever rewrites a log has to do it on every agent too.

* `CHECKPOINT_INCONSISTENT`: the log contradicts what was seen of it, is shorter, or is signed by a
  key that the known key has not named.
* `LOG_RESET`: a new log under the same origin, which does not name the old one.

An alarm stops nothing: the node stays accepted, and the alarm stays. The agent reports it in
`/readyz`, log and metric at every start, and in its evidence. The controller reports it in log and
metric, and as `log.alarm` in its audit log. It ends when somebody has examined it and removes the
agent's state file [while the agent does not run](../troubleshooting.md#agents-accuse-an-audit-log):
it writes the file again when it ends. An agent without state accepts the first checkpoint that it
is shown.

`gpuwarden audit begin-new FOLDER` begins a log in place of one that cannot go on
([how](../audit-log.md#begin-a-new-log)). For one that got lost, put the last known checkpoint (from
the collector's copies, or an agent's state file) into the new folder as `prev-log`, and keep the
key: the new log then names it, and agents that had seen as much or less raise no alarm.

## Evidence

What changes something when it arrives is archived in `audit.dir/evidence/YYYYMMDD`, as
`<evidence digest>.json`: first, changed and refused evidence, and failure notices that took trust
away. The file holds what was signed, the signature, the certificates and the trust bundle of that
time.

Unchanged evidence and repeated refusals are counted and not archived, unless something is granted
by them. The last {PER_NODE} messages of each node stay in memory, {MAX_HELD_BYTES >> 20} MiB of
all nodes at most. When a record names one of them in `refs.evidence`, it is archived in
`audit.dir/evidence-cited/YYYYMMDD`. These records do:

| record | names the evidence |
|---|---|
| `bind.decision`, `reservation.reserved` | by which the node passed |
| `reservation.allocated` | that showed kubelet's allocation |
| `reservation.released` | the second of the reports that showed nothing of the pod |
| `reservation.operator` | the last of the node when an operator released the GPU |
| `node.operator` | of the hardware that an operator accepted |

Both folders are kept for `audit.evidenceRetention`, and each up to half of `audit.evidenceBytes`;
the oldest is removed first (see [Retention](#retention)). So a busy cluster's Bindings push no
refused evidence out. It is written without waiting: a power cut can cost the evidence of the last
seconds, but never its record. The record of an arrival names the digests of evidence, leaf and
bundle, so a changed archive is detected. A record of a grant names the evidence alone.

`gpuwarden audit reverify DIGEST` verifies signature and chain as of the arrival. The beginning of a
digest is enough (4 digits or more) where only one digest begins so.

| exit code | means |
|---|---|
| 0 | it was validly signed then |
| 3 | it was not; or a record rests on it and it is not there: past retention, lost, or removed |
| 6 | not kept: nothing was granted by it, or another replica received it |

A bundle's
digest is SHA-256 over the sorted SHA-256 digests of its certificates, in lower-case hex, one a
line.

## Retention

Finished files are deleted after `audit.retention`, and days of evidence a day after
`audit.evidenceRetention`. Both count the time for which a controller had this log open, by a clock
that cannot be set (`CLOCK_BOOTTIME`): a wall clock that jumps deletes nothing, and while no
controller runs nothing becomes older. `log.start`, `log.rotate`, `log.stop` and `checkpoint` state
this age of the log in seconds (`refs.age`), and the next process goes on from there.
The file `ages` beside the days of evidence holds the age at which each was last begun. What has no
known age counts from now.

## Verifying

`gpuwarden audit verify` names the first number at which the chain is broken: a record that was
changed, deleted, inserted, repeated or moved. The line after it shows whether the record or its
link was changed. A log that was chained again does not fit the next checkpoint: its root is that of
other records. What a crash leaves after the last whole line is reported apart and is no fault;
the controller cuts it off when it opens the log. It never cuts off a whole line of JSON.
A log without any record is broken: verified is only what is there. Only regular files are read; a
named pipe or device ends the command with 1. `-` is standard input, for a log that comes from
elsewhere: `kubectl logs POD | gpuwarden audit verify --collected -`.

Four things break no chain and are printed all the same:

* `appended`: records behind a `log.stop` that no `log.start` precedes. The controller does not do
  that; somebody has appended them. The result is `appended to`, the exit code 3.
* `unsigned`: a `log.start` found records that no checkpoint covered (`refs.unsigned`: `first`,
  `last`, and whether they were `appended` behind the log's end). A crash leaves those of the last
  seconds, and so does whoever appends a record that fits while the controller is down: compare them
  with the collector's copies. The controller reports them at its start, as `audit.unsigned`, or as
  the error `audit.appended`.
* `backwards`: a record's time is more than 5 s before that of an earlier one, so the controller's
  wall clock was set back.
* `unknown`: records of kinds that only another version of gpuwarden knows.

A log cannot show that its tail was cut off, nor that all of it, keys included, is another one.
Compare with what was noted elsewhere: `--expect SEQ:DIGEST` (the head it prints), `--checkpoint
FILE` (as agents keep them), `--pin` or `--key` (the key). Where older files are past retention,
the log starts later and says where.

`gpuwarden audit prove SEQ` proves that a record is in the log that the last checkpoint is about;
`gpuwarden audit consistency A B` that it only grew between two sizes or checkpoints. Both give
the proof with `-o json`, for any implementation of RFC 6962.

## Files

| file in `audit.dir` | holds | when lost |
|---|---|---|
| `audit-*.jsonl` | the records | history |
| `log-key.pem` | the key, unless `audit.key` names one | the log cannot go on: begin a new one |
| `tree` | hashes of the tree, 64 bytes a record, never deleted | made again from the records left |
| `key-changes` | statements of former keys | agents that know one of those raise an alarm |
| `evidence/`, `evidence-cited/` | archived evidence, and `ages` | evidence; records stay |
| `prev-log` | put there by you, see above | |
| `reserve`, `lock` | space for grants; who writes | made again |

At its start the controller reads the last file in full. Older files are read only if `tree` is
missing or does not fit; `audit verify` reads all.

## What is durable when

A grant (acceptance of a node, a reservation, an operator's act) takes effect only after its
record has been synced to disk; where that fails or takes longer than two seconds it is refused
with `AUDIT_UNAVAILABLE`. Refusals and revocations take effect immediately, and are written with the
next group (at most 64 records or 5 ms). When the volume is full, ordinary records
(`filter.decision`, `evidence.repeated`) are dropped and counted, and the space kept by
`audit.reserve` is spent on the rest. When nothing can be written, grants are refused until the
log is writable again; a `log.gap` record then says so, and how many records were lost.
"""


def _says(kind: RecordKind) -> str:
    return kind.meaning if kind.written else f"{kind.meaning} (not written by this version)"
