"""Weakenings of `controller/admission`: the doors, the webhooks, what they write."""

from typing import Final

from tests.weakened.shown_by import DOORS, EARLY, GATE_DECISION, POD_SIZE, WEBHOOKS, WEBHOOKS_HTTP
from tests.weakened.weakening import one

ENTRIES: Final = (
    *(
        one(
            f"door-{door}",
            "controller/admission/bypass_checks.py",
            f"    {door},\n",
            "",
            f"{DOORS}::test_an_open_door_is_named",
        )
        for door in (
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
        "door-new-name-of-a-runtimes-key",
        "controller/placement/pod.py",
        '    "devices.crio.io",\n',
        "",
        f"{DOORS}::test_an_open_door_is_named",
    ),
    one(
        "wishes-only-where-a-gate-is",
        "controller/admission/bypass_checks.py",
        "if case.needs.guarded and case.rules.only_enforced and not case.enforced:",
        "if False:",
        "tests/unit/controller/admission/test_mutation.py"
        "::test_outside_enforced_namespaces_a_wish_is_refused",
    ),
    one(
        "gate-late-ephemeral-containers",
        "controller/admission/validation.py",
        "    yield from islice(ephemeral(case, _NONE_KNOWN), MOST_OF_A_DOOR)\n",
        "",
        f"{GATE_DECISION}::test_an_ephemeral_container_from_before_its_namespace_was_enforced",
    ),
    one(
        "host-paths-as-written",
        "controller/admission/bypass_checks.py",
        "if host is not None and host.path not in case.rules.host_paths:",
        "if host is not None and not host.path.startswith(tuple(case.rules.host_paths) or '//'):",
        f"{DOORS}::test_a_host_path_is_listed_as_it_is_written_or_refused",
    ),
    one(
        "room-for-ours",
        "controller/admission/validation.py",
        "found = (unreservable(needs), overfull(pod))",
        "found = (unreservable(needs),)",
        f"{DOORS}::test_a_guarded_pod_leaves_room_for_what_we_write",
    ),
    one(
        "early-keys-are-ours",
        "controller/admission/mutation.py",
        "    return ids.is_authentic(found.reservation, subject)",
        "    return True",
        f"{EARLY}::test_what_is_changed_behind_our_back_is_refused",
    ),
    one(
        "early-doors-first",
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
        "controller/admission/mutation.py",
        "        if ours is OurToleration.INJECTED and taint.effect == MANAGED_EFFECT:",
        "        if True:",
        f"{EARLY}::test_outside_enforced_namespaces_nothing_is_reserved_on_a_protected_node",
    ),
    one(
        "early-with-a-toleration-that-is-refused",
        "controller/admission/mutation.py",
        "    return OurToleration.REFUSED if protected else OurToleration.AS_GIVEN",
        "    return OurToleration.AS_GIVEN",
        f"{EARLY}::test_a_toleration_of_its_own_counts_where_no_policy_refuses_it",
    ),
    one(
        "early-uninjected",
        "controller/admission/review.py",
        '            return Refusal(ReasonCode.DOOR_UNINJECTED, "no GPU was reserved for it")',
        "            return None",
        f"{EARLY}::test_a_pod_that_the_mutating_webhook_missed_is_refused",
    ),
    one(
        "door-env-from",
        "controller/admission/bypass_checks.py",
        "if container.env_from and is_last and any(",
        "if False and any(",
        f"{DOORS}::test_an_open_door_is_named",
    ),
    one(
        "doors-for-guarded-pods",
        "controller/admission/validation.py",
        "    concerned = needs.guarded or enforced\n",
        "    concerned = enforced\n",
        f"{DOORS}::test_outside_enforced_namespaces_only_guarded_pods_are_asked",
    ),
    one(
        "door-ephemeral",
        "controller/admission/bypass_checks.py",
        "        if container.name in known:",
        "        if True:",
        f"{DOORS}::test_an_ephemeral_container_opens_no_door",
    ),
    one(
        "door-results",
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
        "refusals-of-a-door",
        "controller/admission/validation.py",
        "        yield from islice(door(case), MOST_OF_A_DOOR)",
        "        yield from door(case)",
        f"{POD_SIZE}::test_a_thousand_open_doors_are_told_a_few_times_each",
    ),
    one(
        "uninjected",
        "controller/admission/validation.py",
        "            refusals += _uninjected((*missing, *late))",
        "            pass",
        f"{DOORS}::test_a_pod_that_the_mutating_webhook_has_not_seen_is_refused",
    ),
    one(
        "void",
        "controller/admission/pod_view.py",
        "return Supply.NONE if enforced else Supply.UNTOUCHED",
        "return Supply.UNTOUCHED",
        "tests/property/test_admission_properties.py"
        "::test_in_an_enforced_namespace_no_container_is_left_to_its_image",
    ),
    one(
        "namespace-seen-by-the-api-server",
        "controller/admission/review.py",
        "marked or ports.is_enforced(request.namespace)",
        "ports.is_enforced(request.namespace)",
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
)
