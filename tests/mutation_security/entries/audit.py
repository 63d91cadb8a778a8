"""Security mutations of the audit log: chain, tree, checkpoints and witnesses, on both sides."""

from typing import Final

from tests.mutation_security.security_mutation import Edit, SecurityMutation, one
from tests.mutation_security.shown_by import (
    ARCHIVED_EVIDENCE,
    AUDIT_CHAIN,
    AUDIT_FILES,
    AUDIT_OPENING,
    AUDIT_ORDER,
    AUDIT_TREE,
    AUDIT_WRITER,
    COUNTING,
    REVERIFY,
    WITNESS,
)

ENTRIES: Final = (
    one(
        "log-of-one-node",
        "controller/audit/repeats.py",
        "        self._count(record, wall_ns, 1 if known else 0)\n        return known",
        "        self._count(record, wall_ns, 1 if known else 0)\n        return False",
        f"{COUNTING}::test_first_refusal_is_logged_and_repeats_are_counted",
        f"{COUNTING}::test_what_a_peer_can_bring_about_again_and_again_is_counted",
    ),
    one(
        "log-chain",
        "gpuwarden/audit/chain.py",
        "elif record.prev != self.head.digest:",
        "elif False:",
        f"{AUDIT_CHAIN}::test_any_flipped_bit_is_found_with_its_number",
    ),
    SecurityMutation(
        "log-order",
        (
            Edit("gpuwarden/audit/chain.py", "if record.seq != self._due:", "if False:"),
            Edit(
                "gpuwarden/audit/chain.py", "elif record.prev != self.head.digest:", "elif False:"
            ),
        ),
        (
            f"{AUDIT_CHAIN}::test_any_other_order_is_found",
            f"{AUDIT_CHAIN}::test_any_missing_records_are_found",
            f"{AUDIT_CHAIN}::test_any_repeated_record_is_found",
        ),
    ),
    one(
        "log-appended",
        "controller/audit/opening.py",
        "    if after == head.seq or (after + 1 == head.seq and stops):\n",
        "    if True:\n",
        f"{AUDIT_OPENING}::test_what_was_appended_while_the_controller_was_down_is_reported",
        f"{AUDIT_OPENING}::test_a_checkpoint_of_another_key_covers_nothing",
    ),
    one(
        "log-behind-its-end",
        "gpuwarden/audit/order_check.py",
        "if self._closed and record.kind not in _BEGINS:",
        "if False:",
        f"{AUDIT_ORDER}::test_records_behind_the_end_of_a_log_were_appended",
    ),
    one(
        "log-cut-off",
        "controller/audit/files.py",
        "            if not _is_object(line):\n",
        "            if True:\n",
        f"{AUDIT_FILES}::test_what_a_crash_cannot_leave_is_not_touched",
    ),
    one(
        "log-without-records",
        "gpuwarden/audit/chain.py",
        "if self.fault is None and self._records == 0:",
        "if False:",
        "tests/unit/gpuwarden/audit/test_chain.py::test_a_log_without_records_is_not_verified",
    ),
    one(
        "log-regular-files",
        "gpuwarden/regular_file.py",
        "    if not stat.S_ISREG(mode):\n",
        "    if False:\n",
        "tests/unit/gpuwarden/test_regular_file.py::test_anything_else_is_refused_at_once",
    ),
    one(
        "log-age",
        "controller/audit/age.py",
        "return seconds + (self._clock.boottime_ns() - since) // NS_PER_S",
        "return self._clock.wall_ns() // NS_PER_S",
        f"{AUDIT_WRITER}::test_a_wall_clock_that_jumps_makes_nothing_old",
    ),
    one(
        "log-root",
        "gpuwarden/audit/tree_check.py",
        "if self._frontier is not None and self._frontier.root() != head.root:",
        "if False:",
        f"{AUDIT_TREE}::test_a_log_that_was_rewritten_as_a_whole_is_found",
        f"{AUDIT_TREE}::test_the_fault_is_at_the_first_checkpoint_behind_the_change",
    ),
    one(
        "log-witness",
        "gpuwarden/audit/witness.py",
        "    except ProofError:\n        return False\n",
        "    except ProofError:\n        return True\n",
        f"{WITNESS}::test_no_fork_before_the_last_checkpoint_is_ever_believed",
    ),
    one(
        "log-reset",
        "gpuwarden/audit/witness.py",
        "    if prev is None:\n        return _reset(",
        "    if prev is None:\n        return fresh, None\n        _reset(",
        f"{WITNESS}::test_a_new_log_without_a_name_is_a_reset",
    ),
    one(
        "log-key",
        "gpuwarden/audit/witness.py",
        "        successor(known.key, key, shown.key_changes)\n",
        "        pass\n",
        f"{WITNESS}::test_another_key_for_the_same_log_is_inconsistent",
    ),
    one(
        "log-accusations",
        "controller/recorders/trust.py",
        "if not is_bounded or self._recorded[key] >= MAX_RECORDS:",
        "if False:",
        "tests/unit/controller/recorders/test_trust.py::test_what_nodes_say_fills_no_log",
    ),
    one(
        "kept-evidence",
        "gpuwarden/audit/archived_evidence.py",
        "    if archived_evidence.digest != digest:\n",
        "    if False:\n",
        f"{ARCHIVED_EVIDENCE}::test_no_change_of_it_passes",
    ),
    one(
        "removed-evidence",
        "gpuwarden/cli/commands/reverify.py",
        "    if due is not None:\n",
        "    if False:\n",
        f"{REVERIFY}::test_evidence_that_something_rests_on_and_that_is_not_there_is_a_finding",
    ),
)
