"""Security mutations of `controller/spire`: what the SPIRE server says of an agent."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import SPIRE, SPIRE_TRUST

ENTRIES: Final = (
    one(
        "spire-revokes",
        "controller/spire/poller.py",
        "            if view.acceptance is not None and view.blocked is None:",
        "            if view.acceptance is None:",
        f"{SPIRE_TRUST}::test_the_next_look_ends_trust_and_streams_while_the_svid_is_valid",
    ),
    one(
        "spire-node",
        "controller/spire/verification.py",
        "if text := mismatch(agent, question.node_name, question.node.uid):",
        "if text := '':",
        f"{SPIRE}::test_selectors_that_name_another_node",
        f"{SPIRE}::test_the_directory_has_another_uid",
    ),
    one(
        "spire-entries",
        "controller/spire/verification.py",
        "            if not _has(entry, wanted):",
        "            if not any(_has(x, wanted) for x in entries):",
        f"{SPIRE}::test_one_weak_entry_is_enough",
    ),
    one(
        "spire-age",
        "controller/spire/verification.py",
        "    if agents_ns < limits.age_ns and entries_ns < max(limits.age_ns, ENTRIES_AGE_NS):",
        "    if agents_ns >= 0:",
        f"{SPIRE}::test_the_last_snapshot_counts_for_the_grace_and_no_longer",
    ),
)
