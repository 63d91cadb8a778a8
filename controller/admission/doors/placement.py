"""Doors past the scheduler and its runtime. Pure."""

from collections.abc import Iterator

from controller.admission.doors.case import Case
from controller.admission.rules import DEFAULT_SCHEDULER
from controller.scheduling.finding import shown
from gpuwarden.reasons import ReasonCode, Refusal


def foreign_scheduler(case: Case) -> Iterator[Refusal]:
    """A guarded pod that names a scheduler which does not ask us.

    The default one is what the mutating webhook replaces; that it did, the injection check says.
    """
    name = case.pod.spec.scheduler_name
    known = {None, "", DEFAULT_SCHEDULER, case.rules.scheduler_name}
    if case.needs.guarded and name not in known and not case.rules.by_affinity:
        text = f"schedulerName {shown(name or '')}, expected {case.rules.scheduler_name}"
        yield Refusal(ReasonCode.DOOR_SCHEDULER, text)


def without_gate(case: Case) -> Iterator[Refusal]:
    """A wish where nobody would look at its pod's binding."""
    if case.needs.guarded and case.rules.only_enforced and not case.enforced:
        text = "wishes are for enforced namespaces: elsewhere no scheduler here asks us"
        yield Refusal(ReasonCode.DOOR_SCHEDULER, text)


def node_name(case: Case) -> Iterator[Refusal]:
    """A guarded pod that is on its node already: it never meets the gate.

    Unless its GPUs on just that node were reserved for it before, or are now.
    """
    name, granted = case.pod.spec.node_name, case.granted
    if case.to_be_reserved:
        return
    if case.needs.guarded and name and (granted is None or granted.node != name):
        yield Refusal(ReasonCode.DOOR_NODE_NAME, f"nodeName {shown(name)}")


def runtime_class(case: Case) -> Iterator[Refusal]:
    """A runtime that may give devices by rules of its own."""
    name = case.pod.spec.runtime_class_name
    if name and name not in case.rules.runtime_classes:
        allowed = " or ".join(case.rules.runtime_classes)
        text = f"runtimeClassName {shown(name)}, expected {allowed} (admission.runtimeClasses)"
        yield Refusal(ReasonCode.DOOR_RUNTIME_CLASS, text)
