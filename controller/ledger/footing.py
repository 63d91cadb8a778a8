"""Whether this replica may grant GPUs yet: at its start, and after history went backwards. Pure.

A store that was put back to an old copy, or records that somebody removed by force, may say
that a GPU is free which a pod runs on. So nothing is granted before the ledger and the pods
were read anew, every live pod with an id of ours has its record again, and the node itself
was heard about use. What a report shows of pods on GPUs without a record blocks those.
"""

from dataclasses import dataclass

from controller.ledger.pod_use import Holders, has_stranger, use_of
from controller.ledger.record import key_of
from controller.ledger.release import UseReport
from controller.ledger.store import Entry, LedgerSnapshot
from gpuwarden.reasons import ReasonCode, Refusal


@dataclass(frozen=True, slots=True)
class Footing:
    """What this replica stands on; begun anew when history is found to have gone backwards."""

    since_ns: int
    """CLOCK_BOOTTIME at which it began."""
    ledger_read_ns: int | None = None
    """When the last reading of all records that succeeded was asked for."""
    pods_read_ns: int | None = None
    """The same of the pods."""
    unrecorded: frozenset[str] = frozenset()
    """Nodes with a live pod of ours that the ledger lacks (`sweep`), or with a reservation that
    only a log has (`lost_grants`)."""
    owed: frozenset[str] = frozenset()
    """`key_of` the GPUs of those, whatever node shows them now."""
    recalled: bool = True
    """Whether the audit log from before the start was read."""


def uncertainty(footing: Footing) -> str | None:
    """What is not known yet, for people; None where grants have nothing but nodes to wait for."""
    reads = (footing.ledger_read_ns, footing.pods_read_ns)
    if not footing.recalled:
        return "the audit log from before the start was not read yet"
    if any(x is None or x < footing.since_ns for x in reads):
        return "the ledger and the pods are being read"
    if footing.unrecorded:
        return f"{len(footing.unrecorded)} nodes wait for records that the ledger had lost"
    return None


@dataclass(frozen=True, slots=True)
class Known:
    """What use is judged by."""

    ledger: LedgerSnapshot
    report: UseReport | None
    """The node's last, whose freshness whoever judges the node's evidence demands."""
    now_ns: int


def grant_refusal(
    footing: Footing, node: str, gpus: tuple[str, ...], known: Known
) -> Refusal | None:
    """What is against granting GPUs of a node now, besides their records.

    A pod that has a record of the GPU may use it: who may share it with that pod is the ledger's
    to say (`claim_on`). Whoever chooses goes by the same rule about use (`pod_use`), so this
    refuses only what was not to be chosen.
    """
    report, now_ns = known.report, known.now_ns
    reads = (footing.ledger_read_ns, footing.pods_read_ns)
    if any(x is None or not footing.since_ns <= x <= now_ns for x in reads):
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "the ledger and the pods are being read")
    if not footing.recalled:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "the audit log was not read yet")
    if report is None or report.asked_ns <= footing.since_ns or report.users is None:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "the node was not heard about use yet")
    if node in footing.unrecorded:
        return Refusal(ReasonCode.CONTROLLER_NOT_READY, "a pod of the node has no record yet")
    if any(key_of(gpu) in footing.owed for gpu in gpus):
        return Refusal(ReasonCode.GPU_BUSY, "a reservation that the ledger has lost has the GPU")
    found = (_taken(gpu, report, known.ledger) for gpu in gpus)
    return next((x for x in found if x is not None), None)


def _taken(gpu: str, report: UseReport, ledger: LedgerSnapshot) -> Refusal | None:
    """What the node itself says against granting a GPU: a use that no record of it explains."""
    use = use_of(report, gpu)
    if use is None:
        return None
    if has_stranger(use, Holders(ledger.entries)):
        return Refusal(ReasonCode.GPU_BUSY, f"a pod without a reservation uses {gpu}")
    if use.is_given:
        return Refusal(ReasonCode.GPU_BUSY, f"kubelet has given {gpu} to a pod")
    return None


def went_back(known: LedgerSnapshot, now: LedgerSnapshot) -> frozenset[str]:
    """GPUs whose record is an earlier version of the one that was known: history went back.

    A record that was made anew in between has parts of other calls, whatever its version.
    """
    return frozenset(
        entry.record.gpu
        for key, entry in known.entries.items()
        if (found := now.entries.get(key)) is not None
        and found.record.version < entry.record.version
        and _calls(found) & _calls(entry)
    )


def _calls(entry: Entry) -> frozenset[str]:
    return frozenset(x.call for x in entry.record.holders)
