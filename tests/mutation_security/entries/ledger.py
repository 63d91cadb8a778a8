"""Security mutations of `controller/ledger`: claim, confirmation and release of GPUs."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import (
    API_FINALIZE,
    EARLY,
    ELSEWHERE,
    LOST,
    RELEASE,
    RELEASE_SERVICE,
    RESTORED_GROUP,
    SETTLED,
    SPOKEN_FOR,
    TURNS,
    WITHOUT_RECORD,
)

ENTRIES: Final = (
    one(
        "claims-after-kubelet-gave",
        "controller/ledger/occupancy.py",
        "            card in by_kubelet,\n",
        "            False,\n",
        "tests/unit/controller/ledger/test_occupancy.py"
        "::test_a_gpu_that_kubelet_has_given_away_is_not_granted",
        f"{WITHOUT_RECORD}::test_where_none_is_left_both_say_why",
    ),
    one(
        "claims-where-a-stranger-runs",
        "controller/ledger/occupancy.py",
        "    return use.is_given or has_stranger(use, holders)\n",
        "    return use.is_given\n",
        f"{WITHOUT_RECORD}::test_one_of_the_gpus_without_unreserved_use_is_given",
    ),
    one(
        "early-is-one-pod-s",
        "controller/ledger/claim.py",
        "    if mine.pod.uid not in {None, pod.uid} or pod.uid is None:",
        "    if pod.uid is None:",
        f"{EARLY}::test_of_two_pods_with_one_reservation_one_is_created",
        f"{EARLY}::test_a_copy_of_another_pods_keys_is_refused",
    ),
    one(
        "ledger-requeue",
        "controller/ledger/attempt.py",
        "    if watch.requeue_answer is None or watch.requeued_ns < until_ns:\n"
        "        return Requeue()\n",
        "",
        "tests/unit/controller/ledger/test_claim.py::test_then_the_pod_is_requeued",
    ),
    one(
        "ledger-requeue-since",
        "controller/ledger/attempt.py",
        "    if watch.requeue_answer is None or watch.requeued_ns < until_ns:",
        "    if watch.requeue_answer is None:",
        "tests/unit/controller/ledger/test_claim.py"
        "::test_a_requeue_from_before_its_time_was_over_does_not_count",
    ),
    one(
        "ledger-time-from-the-first-answer",
        "controller/ledger/attempt.py",
        "    return AttemptWatch(parts, watch.since_ns if watch is not None and is_same else "
        "now_ns)\n",
        "    return AttemptWatch(parts, now_ns)\n",
        f"{TURNS}::test_a_binding_that_is_refused_for_ever_holds_its_gpu_for_its_time_alone",
    ),
    one(
        "ledger-requeue-after-the-last-answer",
        "controller/ledger/attempt.py",
        "    return AttemptWatch(parts, watch.since_ns if watch is not None and is_same else "
        "now_ns)\n",
        "    if watch is not None and is_same:\n"
        "        return replace(watch, parts=parts)\n"
        "    return AttemptWatch(parts, now_ns)\n",
        "tests/unit/controller/ledger/test_claim.py"
        "::test_a_further_answer_makes_a_requeue_void_and_does_not_begin_the_time_again",
    ),
    one(
        "ledger-others-first",
        "controller/binding/turns.py",
        "return OTHERS_FIRST if found is not None and now_ns < found[1].until_ns else None",
        "return None",
        f"{TURNS}::test_whose_turn_is_over_is_refused_by_every_replica_and_then_tried_again",
    ),
    one(
        "ledger-lost-answer",
        "controller/ledger/attempt.py",
        'Move(HolderState.RELEASING, "its pod is bound under another reservation")',
        'Move(HolderState.REVOKED, "its pod is bound under another reservation")',
        "tests/unit/controller/binding/test_webhook.py"
        "::test_what_a_pod_was_started_with_is_kept_though_its_id_is_for_another",
    ),
    one(
        "ledger-reports-after-the-end",
        "controller/ledger/release.py",
        "    if report.asked_ns <= max(watch.since_ns, watch.last_asked_ns):",
        "    if report.asked_ns <= watch.last_asked_ns:",
        "tests/unit/controller/ledger/test_release.py"
        "::test_what_was_asked_before_the_end_does_not_count",
    ),
    one(
        "ledger-two-reports",
        "controller/ledger/release.py",
        "_ENOUGH: Final = 2",
        "_ENOUGH: Final = 1",
        "tests/unit/controller/ledger/test_release.py::test_one_does_not",
    ),
    one(
        "ledger-share-group",
        "controller/ledger/claim.py",
        "    if claim.share is None or not record.is_shared_by(claim.share):",
        "    if claim.share is not None and not record.is_shared_by(claim.share):",
        "tests/unit/controller/ledger/test_claim.py::test_nobody_else_does",
        "tests/property/test_ledger_machine.py::test_what_is_held_is_what_was_granted",
    ),
    one(
        "share-group-strangers",
        "controller/ledger/record.py",
        "share.includes(x.pod) and x.origin is not Origin.KUBELET for x in",
        "x.origin for x in",
        "tests/unit/controller/ledger/test_claim.py::test_no_claim_joins_a_pod_outside_its_share_group",
        "tests/unit/controller/ledger/test_occupancy.py::test_but_unreserved_use_beside_it_does",
        "tests/unit/controller/ledger/test_release.py"
        "::test_two_holders_are_drift_unless_they_share",
        f"{RESTORED_GROUP}::test_the_group_waits_until_a_restored_pod_outside_it_has_ended",
    ),
    one(
        "share-group-by-its-entry",
        "controller/ledger/restore.py",
        "part if live.share == record.share else part.without_owner()",
        "part",
        "tests/unit/controller/ledger/test_claim.py"
        "::test_beside_a_share_group_only_its_own_are_of_it",
    ),
    one(
        "attempts-beside-strangers",
        "controller/ledger/claim.py",
        "    return len(record.holders) > 1 and not record.is_shared_by(share)\n",
        "    return False\n",
        "tests/unit/controller/ledger/test_claim.py"
        "::test_an_attempt_beside_a_pod_outside_its_group_is_not_reused",
    ),
    one(
        "ledger-rollback",
        "controller/ledger/claim.py",
        "    if record is None or mine != claim.part():",
        "    if record is None or mine is None:",
        "tests/unit/controller/ledger/test_claim.py::test_nothing_else_is",
        "tests/unit/controller/ledger/test_claim.py::test_a_rollback_leaves_what_another_relies_on",
    ),
    one(
        "reservation-id-pod",
        "controller/ledger/reservation_id.py",
        '            "pod": subject.pod_uid if nonce is None else None,',
        '            "pod": None,',
        "tests/unit/controller/ledger/test_record.py"
        "::test_a_copy_on_another_subject_is_known_as_one",
    ),
    one(
        "attempts-that-were-bound",
        "controller/ledger/restore.py",
        "    return grant.bound and held.state is HolderState.PROPOSED\n",
        "    return False\n",
        f"{LOST}::test_an_attempt_of_the_copy_whose_pod_was_bound_after_it_does_not_expire",
    ),
    one(
        "restored-on-its-own-node",
        "controller/ledger/restore.py",
        "    if record.node != live.node:\n        return None\n",
        "",
        "tests/unit/controller/ledger/test_claim.py"
        "::test_no_part_is_added_to_a_record_of_another_node",
        f"{ELSEWHERE}::test_a_live_pod_is_restored_once_the_other_record_has_ended",
        f"{ELSEWHERE}::test_one_that_is_deleted_before_is_held_until_its_node_shows_its_end",
    ),
    one(
        "held-on-its-own-node",
        "controller/ledger/restore.py",
        "    elif record.node != grant.node:",
        "    elif False:",
        "tests/property/test_lost_reservations.py::test_nothing_in_force_is_lost",
        f"{ELSEWHERE}::test_what_only_the_log_knows_is_not_forgotten_meanwhile",
    ),
    one(
        "lost-gpus-are-owed",
        "controller/ledger/occupancy.py",
        "    if any(key_of(gpu) in reconciliation.owed for gpu in gpus):",
        "    if False:",
        "tests/unit/controller/ledger/test_occupancy.py"
        "::test_a_gpu_of_a_lost_reservation_is_not_granted_on_any_node",
    ),
    one(
        "log-is-read-first",
        "controller/ledger/occupancy.py",
        "    if not reconciliation.log_replayed:\n        return Refusal(",
        "    if False:\n        return Refusal(",
        f"{LOST}::test_before_the_log_was_read_nothing_is_granted",
    ),
    one(
        "api-bound-pod",
        "controller/ledger/attempt.py",
        "refusal = _against(holder, pod) or _against_place(record, holder, pod)",
        "refusal = None",
        f"{API_FINALIZE}::test_only_a_live_pod_that_is_bound_under_the_id_counts",
    ),
    one(
        "allocation-after-the-earlier-pod",
        "controller/ledger/release.py",
        "    return report.may_run(holder.pod.uid)",
        "    return False",
        f"{SETTLED}::test_a_pod_waits_for_an_earlier_one_of_its_name",
    ),
    one(
        "release-waits-for-the-cgroup",
        "controller/ledger/release.py",
        "        if self.users is None or self.pods is None or uid in self.pods:\n",
        "        if self.users is None:\n",
        f"{RELEASE}::test_use_and_what_cannot_be_read_begin_the_count_again",
    ),
    one(
        "operator-only-releasing",
        "controller/ledger/release.py",
        "    if holder.state is not HolderState.RELEASING:",
        "    if False:",
        f"{SPOKEN_FOR}::test_only_what_is_being_released_is",
    ),
    one(
        "operator-pod-lives",
        "controller/ledger/release.py",
        "    if not is_over(known.pod):",
        "    if False:",
        f"{SPOKEN_FOR}::test_a_pod_that_may_live_keeps_its_gpu",
        f"{RELEASE_SERVICE}::test_a_pod_that_lives_keeps_its_gpu_and_so_while_nobody_can_say",
    ),
    one(
        "operator-contradicts-the-node",
        "controller/ledger/release.py",
        "    if shown is not None:",
        "    if False:",
        f"{SPOKEN_FOR}::test_a_node_that_shows_the_pod_is_not_contradicted",
        f"{RELEASE_SERVICE}::test_a_node_that_shows_the_pod_is_not_contradicted",
    ),
    one(
        "operator-process-elsewhere",
        "controller/ledger/release.py",
        "    if pod.uid is not None and pod.uid in (report.pods or ()):",
        "    if False:",
        f"{SPOKEN_FOR}::test_a_node_that_shows_the_pod_is_not_contradicted",
    ),
    one(
        "operator-given-by-kubelet",
        "controller/ledger/release.py",
        "    if not succeeded and any(card_of(x.device) == gpu for x in given):",
        "    if False:",
        f"{SPOKEN_FOR}::test_a_node_that_shows_the_pod_is_not_contradicted",
    ),
)
