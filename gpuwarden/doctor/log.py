"""Checks of the audit log: it takes records, verifies, and no agent accuses it. Pure."""

from typing import Final

from gpuwarden.counted import counted
from gpuwarden.doctor.check import Check, Group, Verdict, failed, passed
from gpuwarden.doctor.facts import Facts, UnknownError, some
from gpuwarden.telemetry import names


def log_takes_records(facts: Facts) -> Verdict:
    """Whether grants can be recorded."""
    metrics = facts.metrics.get()
    available = metrics.value(names.AUDIT_AVAILABLE)
    if available is None:
        raise UnknownError(f"{names.AUDIT_AVAILABLE.name} is not among the controller's metrics")
    if not available:
        command = f"kubectl -n {facts.namespace} logs gpuwarden-controller-0 --tail=100"
        return failed("the log takes no grants", "a log that can be written", command)
    return passed(counted(int(metrics.value(names.AUDIT_SEQUENCE) or 0), "record"))


def log_verifies(facts: Facts) -> Verdict:
    """Whether the log on this machine is whole."""
    found = facts.log.get()
    command = f"gpuwarden audit verify {found.folder}"
    if found.broken:
        return failed(found.broken, "a log that nobody has changed", command)
    return passed(f"{counted(found.records, 'record')} in {found.folder}")


def nobody_accuses_the_log(facts: Facts) -> Verdict:
    """Whether agents have seen the log shrink or change."""
    alarms = facts.status.get().alarms
    if not alarms:
        return passed("no alarms")
    return failed(
        some(f"{one.node} reports {', '.join(one.codes)}" for one in alarms),
        "no alarms of agents",
        f"kubectl -n {facts.namespace} exec gpuwarden-controller-0 --"
        " gpuwarden audit verify /var/lib/gpuwarden/audit",
    )


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
            "Only where the log is on this machine: in a controller's pod, or with `--audit-log`.",
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
