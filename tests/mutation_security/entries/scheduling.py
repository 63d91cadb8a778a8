"""Security mutations of `controller/scheduling`: the extender and what it lets pass."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import (
    BINDING_DECISION,
    COPIED,
    EXTENDER_HTTP,
    EXTENDER_TLS,
    LIKE_THE_BINDING_WEBHOOK,
    PROMISE,
    VERBS,
    VERDICTS,
    WEBHOOKS_HTTP,
    WITHOUT_RECORD,
)

ENTRIES: Final = (
    one(
        "misplaced-labels",
        "controller/placement/requirements.py",
        "        if key.startswith(_OURS) and",
        "        if key.startswith(PREFIX) and",
        "tests/unit/controller/placement/test_requirements.py"
        "::test_a_misplaced_or_misspelled_key_is_never_skipped",
    ),
    one(
        "misspelled-labels",
        "controller/placement/requirements.py",
        "        elif key.startswith(PREFIX) and",
        "        elif False and",
        "tests/unit/controller/placement/test_requirements.py"
        "::test_a_misplaced_or_misspelled_key_is_never_skipped",
    ),
    one(
        "node-objects-say-nothing",
        "controller/web/verbs.py",
        "if name in passed]",
        'if name in passed or b"attestation-hash" in bytes(node)]',
        f"{COPIED}::test_a_node_that_carries_the_claims_of_another_is_what_its_evidence_says",
    ),
    one(
        "no-report",
        "controller/placement/node_verdict.py",
        "        if own is None or self.accepted is None:\n"
        "            return ReasonCode.NODE_NO_EVIDENCE",
        "        if own is None or self.accepted is None:\n            return None",
        f"{COPIED}::test_a_node_without_evidence_passes_for_no_managed_pod",
        f"{VERDICTS}::test_a_name_that_nobody_knows_has_no_evidence",
    ),
    one(
        "lease-at-each-decision",
        "controller/placement/node_verdict.py",
        "if self._scene.now.boottime_ns >= acceptance.fresh_until_ns:",
        "if False:",
        f"{VERDICTS}::test_freshness_is_asked_at_each_decision",
    ),
    one(
        "extender-mtls",
        "controller/web/server.py",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        f"{EXTENDER_TLS}::test_nobody_else_is",
        f"{WEBHOOKS_HTTP}::test_only_certificates_of_the_ca_may_call",
    ),
    one(
        "promise-needs-protection",
        "controller/placement/node_verdict.py",
        "    if not scene.protected:",
        "    if False:",
        f"{PROMISE}::test_an_unprotected_node_promises_itself_alone",
    ),
    one(
        "promise-needs-the-taint",
        "controller/placement/node_verdict.py",
        "return None if node is not None and node.managed else Limit.NO_TAINT",
        "return None",
        f"{PROMISE}::test_an_unprotected_node_promises_itself_alone",
    ),
    one(
        "promise-needs-a-runtime",
        "controller/placement/node_verdict.py",
        "if scene.policy.policy.honours_variable(name):",
        "if True:",
        f"{PROMISE}::test_a_protected_node_promises_what_its_mode_can_give",
    ),
    one(
        "map-names-before-labels",
        "controller/placement/snapshot.py",
        "if name in self.nodes.nodes:",
        "if False:",
        "tests/unit/controller/placement/test_filter_and_score.py"
        "::test_a_map_names_a_node_by_its_name_or_its_label",
    ),
    one(
        "split-gpus",
        "controller/placement/devices.py",
        "    return device.uuid in busy or device.gpu.uuid in busy\n",
        "    return device.uuid in busy\n",
        f"{BINDING_DECISION}::test_a_gpu_that_was_split_while_a_pod_has_it_is_that_pod_s",
    ),
    one(
        "parts-that-are-not-shown",
        "controller/placement/node_verdict.py",
        "if not any(x not in shown and (x in ask.busy or x in ask.shared) for x in held):\n",
        "if True:\n",
        f"{BINDING_DECISION}::test_no_gpu_is_given_whole_while_a_pod_has_a_part_that_is_not_shown",
        f"{LIKE_THE_BINDING_WEBHOOK}::test_both_say_the_same",
    ),
    one(
        "chosen-by-what-is-used",
        "controller/placement/devices.py",
        "if use.card not in busy and is_taken(use, holders)",
        "if False",
        f"{WITHOUT_RECORD}::test_of_the_others_one_is_given",
        f"{WITHOUT_RECORD}::test_no_early_reservation_of_a_gpu_in_unreserved_use",
        "tests/property/test_filter_and_binding_webhook.py::test_filter_and_binding_webhook_agree",
    ),
    one(
        "kubelet-gives-after-claims",
        "controller/placement/node_verdict.py",
        " or self._could_give_again(node.mode, acceptance):",
        ":",
        f"{BINDING_DECISION}::test_kubelet_gives_nothing_while_claims_from_another_mode_are_there",
        f"{LIKE_THE_BINDING_WEBHOOK}::test_both_say_the_same",
    ),
    one(
        "filter-knows-what-is-held",
        "controller/web/verbs.py",
        "return self.scenes.now(use)",
        "return self.scenes.now()",
        f"{VERBS}::test_what_the_ledger_holds_is_busy_but_for_its_own_pod",
    ),
    one(
        "extender-address",
        "controller/web/extender.py",
        "if address.is_loopback or (tls is not None and tls.client_ca is not None):",
        "if True:",
        f"{EXTENDER_HTTP}::test_an_open_address_without_a_client_ca_is_refused",
        f"{EXTENDER_TLS}::test_an_open_address_needs_the_client_ca_and_not_only_a_certificate",
    ),
    one(
        "extender-tickets",
        "controller/web/server.py",
        "context.num_tickets = 0",
        "context.num_tickets = 2",
        f"{EXTENDER_TLS}::test_a_session_cannot_be_resumed",
    ),
    one(
        "requirements-fail-closed",
        "controller/placement/requirements.py",
        "return PodRequirements(asks=True, needs=RequirementsInvalid(tuple(findings)))",
        "return PodRequirements(asks=True, needs=needs)",
        f"{VERBS}::test_invalid_requirements_fail_every_node_and_say_why",
    ),
    one(
        "not-ready",
        "controller/web/verbs.py",
        "        if reason is not None:\n            text = ",
        "        if reason is None and self is None:\n            text = ",
        f"{VERBS}::test_managed_pods_get_an_error_until_ready",
    ),
    one(
        "level-of-the-pod",
        "controller/placement/node_verdict.py",
        "if acceptance.level not in self._levels:",
        "if False:",
        f"{VERDICTS}::test_level_by_pod_class_and_cluster",
    ),
)
