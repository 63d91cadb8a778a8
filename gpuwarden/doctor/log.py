"""Checks of the audit log: it takes records, verifies, and no agent accuses it. Pure.

A log on this machine is verified whole, that of a replica at its end: what `AuditService` gives.
"""

from collections.abc import Sequence
from dataclasses import replace
from shlex import quote
from string import ascii_lowercase
from typing import Final

from gpuwarden.audit.chain import Broken, Verified, verify_lines
from gpuwarden.audit.checkpoint import CHECKPOINT_RECORDS
from gpuwarden.audit.record import RecordKind
from gpuwarden.audit.tree_check import Wanted
from gpuwarden.counted import counted
from gpuwarden.doctor.check import Check, Group, Verdict, failed, passed, warned
from gpuwarden.doctor.each_replica import of_each
from gpuwarden.doctor.facts import Fact, Facts, Logs, LogVerdict, Replica, UnknownError, some
from gpuwarden.telemetry import names

END_RECORDS: Final = 2 * CHECKPOINT_RECORDS
"""Of the end of a replica's log; so many have a checkpoint among them."""
ALL_KINDS: Final = tuple(ascii_lowercase)
"""Beginnings of all kinds of records, those of a newer gpuwarden too: no record may be left out."""
NAMES_KEY: Final = (
    RecordKind.LOG_KEY.value,
    RecordKind.LOG_ROTATE.value,
    RecordKind.LOG_START.value,
)
"""Kinds of records that name the key of checkpoints."""
_FOLDER: Final = "/var/lib/gpuwarden/audit"
_SIGNED: Final = "checkpoints, and a record that names the key which has signed them"
_WHOLE: Final = "`gpuwarden audit verify` checks a whole log"


def log_takes_records(facts: Facts) -> Verdict:
    """Whether grants can be recorded."""
    return of_each(facts, lambda replica: _taken_by(facts, replica))


def _taken_by(facts: Facts, replica: Replica) -> Verdict:
    metrics = replica.metrics.get()
    available = metrics.value(names.AUDIT_AVAILABLE)
    if available is None:
        raise UnknownError(f"{names.AUDIT_AVAILABLE.name} is not among the controller's metrics")
    if not available:
        expected = "a log that can be written"
        return failed("the log takes no grants", expected, facts.log_of(replica.name))
    return passed(counted(int(metrics.value(names.AUDIT_SEQUENCE) or 0), "record"))


def log_verifies(facts: Facts) -> Verdict:
    """Whether the logs, or their ends, are as they were written."""
    found = facts.logs.get()
    broken = [one for one in found.verdicts if one.broken]
    if broken:
        seen = "; ".join(f"{one.name}: {one.broken}" for one in broken)
        return failed(seen, "a log that nobody has changed", _verify(facts, broken[0]))
    texts = [_seen(one) for one in found.verdicts]
    if found.elsewhere:
        texts.append(f"not read from here: {', '.join(found.elsewhere)}")
    if any(one.records < one.last and not one.folder for one in found.verdicts):
        texts.append(_WHOLE)
    if found.unread:
        seen = "; ".join([f"not read: {'; '.join(found.unread)}", *texts])
        command = f"kubectl -n {facts.namespace} get pods -l app.kubernetes.io/component=controller"
        return warned(seen, "the log of every replica", command)
    unsigned = [one for one in found.verdicts if _unsigned(one)]
    if unsigned:
        seen = "; ".join([f"{one.name}: {_unsigned(one)}" for one in unsigned] + texts)
        return warned(seen, _SIGNED, _verify(facts, unsigned[0]))
    return passed("; ".join(texts))


def _unsigned(one: LogVerdict) -> str:
    """Why no signature was verified, where there must be one; else empty."""
    if not one.has_key:
        return "no signature verified, as no record that was read names the key"
    if not one.checkpoints and one.records >= CHECKPOINT_RECORDS:
        return f"no signature verified, as {counted(one.records, 'record')} have no checkpoint"
    return ""


def _seen(one: LogVerdict) -> str:
    if one.folder:
        return f"{counted(one.records, 'record')} in {one.folder}"
    if one.records < one.last:
        records = f"the last {one.records} of {counted(one.last, 'record')}"
    else:
        records = f"all of {counted(one.records, 'record')}"
    return f"{one.log}: {records}, {counted(one.checkpoints, 'signed checkpoint')}"


def _verify(facts: Facts, one: LogVerdict) -> str:
    """The command that verifies all of it."""
    if one.folder:
        return f"gpuwarden audit verify {quote(one.folder)}"
    return _in_pod(facts, one.log.rpartition("/")[2])


def _in_pod(facts: Facts, pod: str) -> str:
    return facts.in_pod(pod, f"gpuwarden audit verify {_FOLDER}")


def nobody_accuses_the_log(facts: Facts) -> Verdict:
    """Whether agents have seen the log shrink or change."""

    def judge(replica: Replica) -> Verdict:
        alarms = replica.status.alarms
        if not alarms:
            return passed("no alarms")
        return failed(
            some(f"{one.node} reports {', '.join(one.codes)}" for one in alarms),
            "no alarms of agents",
            _in_pod(facts, replica.name),
        )

    return of_each(facts, judge)


# --- what verifying finds


def verdict_of(result: Verified | Broken, *, log: str = "", folder: str = "") -> LogVerdict:
    """Of a log in a folder, or of the end of a replica's `log`."""
    if isinstance(result, Broken):
        return LogVerdict(log, folder=folder, broken=f"record {result.seq}: {result.what}")
    origin, appended = result.origin, result.order.appended
    broken = f"records behind its end: {appended}" if appended.count else ""
    if log and origin != log:
        broken = f"record {result.first_seq}: it is of {origin}"
    return LogVerdict(
        log or origin,
        result.records,
        result.head.seq,
        result.tree.checkpoints,
        broken,
        folder,
        has_key=bool(result.tree.keys),
    )


def verdict_of_end(log: str, lines: Sequence[bytes], naming: Sequence[bytes]) -> LogVerdict:
    """Of the last lines of a replica's log.

    `naming` is the last line that names the log's key, if there is one; it may be far before them.
    Where a file begins among the lines, or they are the whole log, roots of checkpoints are
    compared from there on.
    """
    result = verify_lines(lines)
    if isinstance(result, Verified) and not result.tree.keys and naming:
        named = verify_lines(naming)
        if isinstance(named, Verified) and named.tree.keys:
            result = verify_lines(lines, wanted=Wanted(key_before=named.tree.keys[-1]))
        elif isinstance(named, Broken):
            result = named
    return verdict_of(result, log=log)


def joined(here: Fact[LogVerdict], there: Fact[Logs], *, is_wanted: bool) -> Fact[Logs]:
    """The log on this machine and those of replicas.

    Whether one here is missed depends on whether somebody wanted it.
    """
    if here.value is None:
        if there.value is None:
            return Fact(why=here.why) if is_wanted else there
        unread = (here.why,) if is_wanted else ()
        return Fact(replace(there.value, unread=(*unread, *there.value.unread)))
    found = there.value or Logs()
    others = (x for x in found.verdicts if x.log != here.value.log)
    return Fact(replace(found, verdicts=(here.value, *others)))


LOG: Final = Group(
    "log",
    "Audit log",
    (
        Check(
            "log-available",
            "the audit log takes records",
            "Otherwise nothing new is granted.",
            log_takes_records,
            "troubleshooting.md#the-audit-log-cannot-be-written",
        ),
        Check(
            "log-verifies",
            "the audit log verifies",
            f"The last {END_RECORDS} records of each replica's log: form, chain, and the signatures"
            " of checkpoints; roots only where the whole log or a file of it begins there. A log on"
            " this machine is verified whole. A warning: no signature was verified, because no"
            f" record of the last 64 MiB names the key, or {CHECKPOINT_RECORDS} or more have no"
            " checkpoint.",
            log_verifies,
            "troubleshooting.md#the-audit-log-is-broken",
        ),
        Check(
            "log-witnesses",
            "no agent accuses the log",
            "Each keeps a checkpoint that the log must continue.",
            nobody_accuses_the_log,
            "troubleshooting.md#agents-accuse-an-audit-log",
        ),
    ),
)
