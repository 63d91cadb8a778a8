"""Weakenings of `controller/binding`: the gate, early reservations, settlement, use on nodes."""

from typing import Final

from tests.weakened.shown_by import (
    EARLY,
    ELSEWHERE,
    GATE,
    GATE_DECISION,
    LOST,
    RESTORED_GROUP,
    SEEN_THROUGH,
    SETTLEMENT,
    USE_FAULTS,
)
from tests.weakened.weakening import Edit, Weakening, one

ENTRIES: Final = (
    one(
        "gate-forged-keys",
        "controller/binding/forgery.py",
        "if keys.is_ours(key) or key in keys.ordinals or is_device:",
        "if is_device:",
        f"{GATE_DECISION}::test_keys_of_ours_in_a_binding_are_refused",
    ),
    one(
        "gate-doors",
        "controller/binding/decision.py",
        "    if judged.refusals:\n",
        "    if False:\n",
        f"{GATE_DECISION}::test_doors_of_the_stored_pod",
        f"{GATE_DECISION}::test_a_plain_pod_whose_namespace_was_enforced_later",
    ),
    one(
        "gate-plain-pods",
        "controller/binding/gate.py",
        "return Verdict(patch=same_pod_patch(stored))",
        "return _UNTOUCHED",
        f"{GATE}::test_a_binding_without_a_uid_holds_for_the_pod_that_was_judged_alone",
    ),
    one(
        "pods-that-are-there-again",
        "controller/binding/follower.py",
        "return PodGone() if sight is None and pod.uid in self._gone else sight",
        "return PodGone() if pod.uid in self._gone else sight",
        f"{SEEN_THROUGH}::test_a_pod_that_is_there_again_keeps_its_gpu",
    ),
    one(
        "gate-footing",
        "controller/binding/decision.py",
        "return over or view.grant_refusal(case.node, gpus)",
        "return over",
        f"{GATE_DECISION}::test_what_blocks_a_grant_is_asked_about_the_very_gpus",
    ),
    Weakening(
        "use-of-shared-gpus",
        (
            Edit(
                "controller/binding/decision.py",
                "return over or view.grant_refusal(case.node, gpus)",
                "alone = tuple(x for x in gpus if x not in case.scene.shared)\n"
                "    return over or view.grant_refusal(case.node, alone)",
            ),
            Edit(
                "controller/scheduling/device_use.py",
                "if use.card not in busy and is_taken(use, holders)",
                "if False",
            ),
        ),
        (
            f"{GATE_DECISION}::test_what_blocks_a_grant_is_asked_about_the_very_gpus",
            f"{RESTORED_GROUP}::test_a_stranger_without_a_record_is_seen_on_a_shared_gpu",
        ),
    ),
    one(
        "gate-preconditions",
        "controller/binding/results.py",
        'Operation(Verb.ADD, pointer("metadata", "resourceVersion"), stored.version),',
        "",
        "tests/unit/controller_binding/test_binding_request.py"
        "::test_the_patch_fits_whatever_is_there",
        f"{GATE}::test_a_retry_finds_its_own_claim_and_looks_anew",
    ),
    one(
        "gate-waits-for-its-record",
        "controller/binding/granting.py",
        "await ports.audit.grant(reservation_record(reserved))",
        "reservation_record(reserved)",
        f"{GATE}::test_no_reservation_without_its_record",
        f"{EARLY}::test_no_reservation_without_its_record",
    ),
    one(
        "gate-takes-late-claims-back",
        "controller/binding/granting.py",
        'await self._revoke(claim, "its answer came too late")',
        "return",
        f"{GATE}::test_an_answer_that_comes_too_late_takes_its_claim_back",
    ),
    one(
        "gate-stands-on-firm-ground",
        "controller/binding/granting.py",
        "refusal = ports.grant_refusal(claim.node, ())",
        "refusal = None",
        f"{GATE}::test_no_answer_stands_on_a_ledger_that_went_backwards_meanwhile",
    ),
    one(
        "gate-adopts-what-is-authentic",
        "controller/binding/footing_keeper.py",
        "return ids.is_authentic(live.reservation, subject)",
        "return True",
        f"{SEEN_THROUGH}::test_a_pod_that_only_says_so_is_not_adopted",
    ),
    one(
        "gate-new-kubelet",
        "controller/binding/use_reports.py",
        "return frozenset() if asked_ns - since_ns >= SETTLES_NS else None",
        "return frozenset()",
        "tests/unit/controller_binding/test_use_reports.py"
        "::test_a_kubelet_that_names_nothing_may_have_just_started",
    ),
    one(
        "gate-dry-run",
        "controller/binding/gate.py",
        "if not isinstance(decision, Reserve) or asked.dry_run or view.report:",
        "if not isinstance(decision, Reserve) or view.report:",
        f"{GATE}::test_a_dry_run_claims_nothing_and_leaves_nothing_behind",
    ),
    one(
        "early-one-per-owner",
        "controller/binding/early.py",
        "            if not await self._is_there(holder.pod):",
        "            if False:",
        f"{EARLY}::test_the_owner_of_a_pod_over_its_quota_gets_no_second_gpu",
    ),
    one(
        "early-may-still-come",
        "controller/binding/followup.py",
        "{} if part.origin is Origin.ADMISSION else looks",
        "looks",
        f"{EARLY}::test_what_was_reserved_is_kept_while_the_pod_may_come_and_then_let_go",
    ),
    one(
        "early-on-its-node-alone",
        "controller/binding/decision.py",
        "    if early is not None and granted is not None and granted.node != request.node:",
        "    if False:",
        f"{EARLY}::test_the_gate_refuses_every_other_node",
    ),
    one(
        "early-dry-run",
        "controller/binding/early.py",
        "            if isinstance(found, Refusal) or ask.dry_run:",
        "            if isinstance(found, Refusal):",
        f"{EARLY}::test_a_dry_run_is_answered_alike_and_leaves_nothing",
    ),
    one(
        "grants-of-the-log",
        "controller/binding/footing_keeper.py",
        "settled = _by_key([x for x in lost if await self._hold(x)])",
        "settled = _by_key(lost)",
        f"{LOST}::test_what_the_log_gave_away_is_held_until_the_node_shows_no_use",
    ),
    one(
        "grants-wait-for-another-node",
        "controller/binding/footing_keeper.py",
        "                return record is None\n",
        "                return True\n",
        f"{ELSEWHERE}::test_what_only_the_log_knows_is_not_forgotten_meanwhile",
        f"{ELSEWHERE}::test_one_that_is_deleted_before_is_held_until_its_node_shows_its_end",
    ),
    one(
        "live-pods-are-remembered",
        "controller/binding/footing_keeper.py",
        "        self._remembered = {**self._remembered, **missing}\n",
        "",
        f"{ELSEWHERE}::test_one_that_is_deleted_before_is_held_until_its_node_shows_its_end",
        f"{ELSEWHERE}::test_a_pod_that_the_api_server_does_not_answer_for_is_remembered_too",
    ),
    one(
        "waiting-pods-are-touched",
        "controller/binding/footing_keeper.py",
        "                await ports.pods.touch(grant.pod)\n",
        "                pass\n",
        f"{LOST}::test_a_pod_that_waits_again_is_touched_and_its_old_gpu_let_go_when_unused",
    ),
    one(
        "live-pods-keep-their-gpus",
        "controller/binding/footing_keeper.py",
        "return refusal or self._held_by_pods(gpus)",
        "return refusal",
        f"{LOST}::test_a_record_that_is_ended_by_hand_gives_a_live_pods_gpu_to_nobody",
    ),
    one(
        "pods-put-back-are-proven-so",
        "controller/binding/apart.py",
        "if holder.reservation in self._proven:",
        "if True:",
        "tests/unit/controller_binding/test_apart.py"
        "::test_it_counts_as_gone_once_the_api_server_has_said_so",
    ),
    one(
        "settles-own-gpus",
        "controller/binding/settlement.py",
        "        if gpu is None or gpu not in shown.gpus:\n",
        "        if gpu is None:\n",
        f"{SETTLEMENT}::test_only_the_node_s_own_gpus_and_its_guarded_pods",
    ),
    one(
        "settles-known-pods",
        "controller/binding/settlement.py",
        "if since_ns < report.asked_ns)",
        "if since_ns)",
        f"{SETTLEMENT}::test_a_report_counts_once_the_pod_was_known_before_it_was_asked_for",
    ),
    one(
        "use-compared",
        "controller/binding/use_faults.py",
        "            elif not any(_holds(case, card, uid) for card in cards):\n",
        "            elif not case.pods.with_uid(uid):\n",
        f"{USE_FAULTS}::test_a_reserved_pod_with_another_gpu",
        f"{USE_FAULTS}::test_a_settled_pod_that_uses_more_than_it_was_given",
    ),
)
