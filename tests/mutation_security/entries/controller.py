"""Security mutations of `controller/operations`: clock, quarantine, operators' acts."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import RECONCILER

ENTRIES: Final = (
    one(
        "clock-suspect",
        "controller/operations/readiness.py",
        "return abs(self.offset_ns(boottime_ns, wall_ns)) > self.tolerance_ns + drift_ns",
        "return drift_ns < 0",
        "tests/unit/controller/operations/test_readiness.py::test_a_step_is_suspect_and_drift_is_not",
    ),
    one(
        "denials-outlive-the-process",
        "controller/operations/quarantine_reconciler.py",
        "        if denied or lost:\n",
        "        if False:\n",
        f"{RECONCILER}::test_a_denial_from_before_the_start_quarantines_with_its_cause",
    ),
    one(
        "denials-end-by-acts-alone",
        "controller/operations/quarantine_reconciler.py",
        "if record is not None and record.has_lifted(ended):",
        "if True:",
        f"{RECONCILER}::test_a_denial_that_nobody_lifted_was_lost_and_is_written_again",
        f"{RECONCILER}::test_a_denial_of_ours_that_is_lost_before_it_was_seen_is_written_again",
    ),
    one(
        "denials-of-the-log",
        "controller/operations/quarantine_reconciler.py",
        "self._denied = {**logged, **self._denied}",
        "self._denied = {**self._denied}",
        f"{RECONCILER}::test_the_log_knows_of_a_denial_that_the_store_has_lost",
    ),
    one(
        "acts-on-the-record",
        "controller/operations/operator_service.py",
        "            await self._audit.grant(_record(act, order, before, decided))\n",
        "",
        "tests/unit/controller/operations/test_operator_service.py"
        "::test_nothing_happens_before_the_record_is_durable",
    ),
)
