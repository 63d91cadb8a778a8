"""Security mutations of `controller/admission`: bypass checks, webhooks, what they write."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import (
    BINDING_DECISION,
    BYPASS_CHECKS,
    EARLY,
    HINT_CANDIDATES,
    POD_SIZE,
    WEBHOOKS,
    WEBHOOKS_HTTP,
)

ENTRIES: Final = (
    *(
        one(
            f"bypass-{bypass}",
            "controller/admission/bypass_checks.py",
            f"    {bypass},\n",
            "",
            f"{BYPASS_CHECKS}::test_an_open_bypass_is_named",
        )
        for bypass in (
            "environment",
            "runtime_devices",
            "host_paths",
            "device_lists",
            "privileged",
            "host_processes",
            "foreign_scheduler",
            "node_name",
            "runtime_class",
            "claims",
            "unmanaged_gpus",
        )
    ),
    one(
        "bypass-new-name-of-a-runtimes-key",
        "controller/placement/keys.py",
        '    "devices.crio.io",\n',
        "",
        f"{BYPASS_CHECKS}::test_an_open_bypass_is_named",
    ),
    one(
        "requirements-only-where-a-binding-webhook-is",
        "controller/admission/bypass_checks.py",
        "if case.needs.managed and case.rules.only_enforced and not case.enforced:",
        "if False:",
        "tests/unit/controller/admission/test_mutation.py"
        "::test_outside_enforced_namespaces_a_requirement_is_refused",
    ),
    one(
        "binding-webhook-late-ephemeral-containers",
        "controller/admission/validation.py",
        "    yield from islice(ephemeral(case, _NONE_KNOWN), MOST_OF_A_CHECK)\n",
        "",
        f"{BINDING_DECISION}::test_an_ephemeral_container_from_before_its_namespace_was_enforced",
    ),
    one(
        "host-paths-as-written",
        "controller/admission/bypass_checks.py",
        "if host is not None and host.path not in case.rules.host_paths:",
        "if host is not None and not host.path.startswith(tuple(case.rules.host_paths) or '//'):",
        f"{BYPASS_CHECKS}::test_a_host_path_is_listed_as_it_is_written_or_refused",
    ),
    one(
        "room-for-ours",
        "controller/admission/validation.py",
        "found = (unreservable(needs), overfull(pod))",
        "found = (unreservable(needs),)",
        f"{BYPASS_CHECKS}::test_a_managed_pod_leaves_room_for_what_we_write",
    ),
    one(
        "early-keys-are-ours",
        "controller/admission/early_reservation.py",
        "    return ids.is_authentic(found.reservation, subject)",
        "    return True",
        f"{EARLY}::test_what_is_changed_behind_our_back_is_refused",
    ),
    one(
        "early-bypass-checks-first",
        "controller/admission/validation.py",
        "        if against:\n            return Judged(concerned=True, refusals=against)",
        "        if False:\n            return Judged(concerned=True, refusals=against)",
        f"{EARLY}::test_a_pod_that_we_refuse_afterwards_holds_nothing",
    ),
    one(
        "early-node-name",
        "controller/admission/bypass_checks.py",
        "and name and (granted is None or granted.node != name):",
        "and name and granted is None:",
        f"{EARLY}::test_another_node_name_than_the_reserved_one_is_refused",
    ),
    one(
        "early-on-protected-nodes",
        "controller/admission/node_selection.py",
        "        if ours is OurToleration.INJECTED and taint.effect == MANAGED_EFFECT:",
        "        if True:",
        f"{EARLY}::test_outside_enforced_namespaces_nothing_is_reserved_on_a_protected_node",
    ),
    one(
        "early-with-a-toleration-that-is-refused",
        "controller/admission/node_selection.py",
        "    return OurToleration.REFUSED if protected else OurToleration.AS_GIVEN",
        "    return OurToleration.AS_GIVEN",
        f"{EARLY}::test_a_toleration_of_its_own_counts_where_no_policy_refuses_it",
    ),
    one(
        "early-without-its-gpu-on-its-node",
        "controller/admission/pod_webhooks.py",
        "if self._early is None or granted is not None or pod.spec.node_name:",
        "if self._early is None or granted is not None:",
        f"{EARLY}::test_a_pod_that_names_its_node_does_not_wait",
    ),
    one(
        "bypass-env-from",
        "controller/admission/bypass_checks.py",
        "if container.env_from and is_last and any(",
        "if False and any(",
        f"{BYPASS_CHECKS}::test_an_open_bypass_is_named",
    ),
    one(
        "bypass-checks-for-managed-pods",
        "controller/admission/validation.py",
        "    concerned = needs.managed or enforced\n",
        "    concerned = enforced\n",
        f"{BYPASS_CHECKS}::test_outside_enforced_namespaces_only_managed_pods_are_asked",
    ),
    one(
        "bypass-ephemeral",
        "controller/admission/bypass_checks.py",
        "        if container.name in known:",
        "        if True:",
        f"{BYPASS_CHECKS}::test_an_ephemeral_container_opens_no_bypass",
    ),
    one(
        "bypass-results",
        "controller/admission/bypass_checks.py",
        "RESULT_KEYS & {*annotations, *pod.labels}",
        "RESULT_KEYS & {*annotations}",
        "tests/unit/controller/admission/test_mutation.py"
        "::test_keys_that_only_we_write_are_refused_wherever_they_stand",
    ),
    one(
        "pod-size",
        "controller/admission/validation.py",
        "+ sum(map(_parts_of, containers))",
        "+ 0",
        f"{POD_SIZE}::test_everything_that_is_judged_counts",
    ),
    one(
        "refusals-of-a-bypass",
        "controller/admission/validation.py",
        "        yield from islice(bypass(case), MOST_OF_A_CHECK)",
        "        yield from bypass(case)",
        f"{POD_SIZE}::test_a_thousand_open_bypasses_are_reported_a_few_times_each",
    ),
    one(
        "uninjected",
        "controller/admission/validation.py",
        "            refusals += _uninjected((*missing, *late))",
        "            pass",
        f"{BYPASS_CHECKS}::test_a_pod_that_the_mutating_webhook_has_not_seen_is_refused",
    ),
    one(
        "void",
        "controller/admission/gpu_supply.py",
        "return Supply.REFERENCE if is_env_pod(needs) else Supply.NONE",
        "return Supply.REFERENCE if is_env_pod(needs) else Supply.KUBELET",
        "tests/property/test_admission_properties.py"
        "::test_no_container_of_a_managed_pod_is_left_to_its_image",
    ),
    one(
        "namespace-seen-by-the-api-server",
        "controller/admission/pod_webhooks.py",
        "marked or self._is_enforced(request.namespace)",
        "self._is_enforced(request.namespace)",
        f"{WEBHOOKS}::test_what_the_api_server_says_about_a_namespace_is_enough",
    ),
    one(
        "webhook-failure",
        "controller/web/webhook.py",
        'return Verdict((refusal,), result="failed")',
        'return Verdict(result="failed")',
        f"{WEBHOOKS_HTTP}"
        "::test_what_is_not_decided_in_time_is_refused_before_the_api_server_gives_up",
        f"{WEBHOOKS_HTTP}::test_a_failure_is_a_refusal_that_tells_nothing",
    ),
    one(
        "hints-a-label-that-lies-draws-pods",
        "controller/admission/hints/candidates.py",
        "        if first is not None and not others:\n",
        "        if first is not None:\n",
        f"{HINT_CANDIDATES}::test_a_label_that_two_types_have_tells_neither",
    ),
    one(
        "hints-a-type-that-was-no-candidate",
        "controller/admission/hints/score.py",
        "or not named <= {*candidates}:",
        "or False:",
        "tests/unit/controller/admission/hints/test_score.py"
        "::test_a_type_that_was_no_candidate_is_a_lie",
    ),
    one(
        "hints-stale-evidence-makes-candidates",
        "controller/admission/hints/candidates.py",
        "    if view.state(scene.now.boottime_ns) is not NodeState.ELIGIBLE:\n",
        "    if False:\n",
        f"{HINT_CANDIDATES}::test_evidence_must_be_fresh",
    ),
    one(
        "hints-runs-on-unproven-hardware-are-reported",
        "controller/runs/observation.py",
        "    if node is None or node.acceptance is None or"
        " node.state(now_ns) is not NodeState.ELIGIBLE:\n",
        "    if node is None or node.acceptance is None:\n",
        "tests/unit/controller/runs/test_observation.py"
        "::test_without_valid_evidence_nothing_is_reported",
    ),
    one(
        "hints-change-the-pods-own-priority",
        "controller/admission/hints/patch.py",
        "        return LeftOut.PRIORITY_KEPT\n",
        "        pass\n",
        "tests/unit/controller/admission/hints/test_patch.py::test_a_class_that_the_pod_names_stays",
    ),
    one(
        "prioritize-a-hint-moves-nodes-that-cannot-pass",
        "controller/placement/filter_and_score.py",
        "    offer = judge.offer(name) if judge.passes(name) else None\n",
        "    offer = judge.offer(name)\n",
        "tests/unit/controller/placement/test_filter_and_score.py"
        "::test_the_chosen_type_comes_first_among_nodes_that_pass",
    ),
)
