"""Security mutations of `controller/fleet`: enrolled GPUs, claims and the trust in a node."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import CLOCKS, DECISIONS, HOSTILE, RECONCILER, TRUST

ENTRIES: Final = (
    one(
        "owners-unharmed",
        "controller/fleet/registry.py",
        "            *self._apply(refused.node, event),\n",
        "            *self._apply(refused.node, event),\n"
        "            *(c for x in refused.contested for c in self._apply(x.owner, Quarantine(\n"
        "                refused.code, refused.detail, now_ns, wall_ns))),\n",
        f"{HOSTILE}::test_claiming_the_whole_fleet_harms_nobody_else",
    ),
    one(
        "lease",
        "controller/fleet/view.py",
        "if now_ns >= self.acceptance.fresh_until_ns:",
        "if False:",
        f"{CLOCKS}::test_a_suspended_controller_believes_no_lease_from_before",
    ),
    one(
        "denials-in-the-log-at-once",
        "controller/fleet/quarantine.py",
        "            self._note(node, denial)\n",
        "",
        f"{RECONCILER}::test_a_denial_of_ours_is_noted_at_once_and_once",
    ),
    one(
        "acts-on-what-was-shown",
        "controller/fleet/quarantine.py",
        "    if expected == shown.version:",
        "    if True:",
        f"{DECISIONS}::test_something_else_than_what_was_shown_is_not_accepted",
    ),
    one(
        "news-wins",
        "controller/fleet/trust.py",
        "if view.blocked is not None and issued <= record.blocked_ns:",
        "if False:",
        f"{TRUST}::test_evidence_asked_for_before_a_revocation_does_not_end_it",
    ),
)
