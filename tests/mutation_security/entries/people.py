"""Security mutations of `controller/people`, and of what people with a kubeconfig go through."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import PEOPLE, PEOPLE_CALLERS, TENANT_VIEW, TENANTS

ENTRIES: Final = (
    one(
        "person-right",
        "controller/people/roles.py",
        "            if found:\n                return way.kind\n",
        "            if way:\n                return way.kind\n",
        f"{PEOPLE}/test_roles.py::test_a_refusal_names_the_rule_that_is_missing",
    ),
    one(
        "tenant-namespace",
        "controller/people/roles.py",
        "        if found:\n            return None\n        text = f",
        "        if right:\n            return None\n        text = f",
        f"{PEOPLE}/test_roles.py::test_a_tenant_asks_about_the_pods_that_they_may_read",
    ),
    one(
        "person-fails-closed",
        "controller/people/roles.py",
        "            return Refusal(ReasonCode.ACCESS_REVIEW_UNAVAILABLE, str(error))\n",
        "            return bool(str(error))\n",
        f"{PEOPLE}/test_roles.py::test_an_api_server_that_does_not_answer_gives_no_role",
    ),
    one(
        "person-name",
        "controller/people/roles.py",
        '    return f"{USER}{person.username}"\n',
        "    return person.username\n",
        f"{PEOPLE}/test_roles.py::test_a_name_cannot_be_read_as_another_kind_of_caller",
    ),
    one(
        "person-certificate-authority",
        "controller/people/identity.py",
        "    verifier.verify(leaf, above)\n",
        "    assert verifier and above is not leaf\n",
        f"{PEOPLE}/test_identity.py::test_what_is_no_certificate_of_a_user",
        f"{PEOPLE_CALLERS}::test_the_client_ca_is_that_of_now",
    ),
    one(
        "person-certificate-usage",
        "controller/people/identity.py",
        "    if not _CLIENT & set(usages):\n",
        "    if not usages:\n",
        f"{PEOPLE}/test_identity.py::test_what_is_no_certificate_of_a_user",
    ),
    one(
        "person-anonymous",
        "controller/people/identity.py",
        "    if username == ANONYMOUS or UNAUTHENTICATED in groups:\n",
        "    if not username:\n",
        f"{PEOPLE}/test_identity.py::test_who_is_nobody",
    ),
    one(
        "person-resumed-session",
        "controller/rpc/people.py",
        "        if facts.resumed:\n",
        "        if not facts:\n",
        f"{PEOPLE_CALLERS}::test_a_resumed_session_and_none_at_all_are_nobody",
    ),
    one(
        "person-one-token",
        "controller/rpc/people.py",
        "    if found is None or len(found[1]) > MAX_TOKEN_BYTES:\n",
        "    if found is None:\n",
        f"{PEOPLE_CALLERS}::test_what_is_no_token_is_shown_to_nobody",
    ),
    one(
        "tenant-demands-pods",
        "controller/rpc/services.py",
        "        return await demand_pods(context, self._about_pods, namespace)\n",
        "        return present_caller().kind is CallerKind.TENANT\n",
        f"{TENANTS}::test_a_tenant_lists_one_namespace_and_others_all",
    ),
    one(
        "tenant-trace",
        "controller/explain/tenant_messages.py",
        "    if one.name not in _OWN_FINDINGS and findings:\n",
        "    if not one.name and findings:\n",
        f"{TENANTS}::test_a_trace_names_no_other_pod",
    ),
    one(
        "tenant-holders",
        "controller/explain/tenant_messages.py",
        "holders=x.holders if counts else 1)",
        "holders=x.holders if x else 1)",
        f"{TENANTS}::test_holders_are_counted_within_a_share_group_alone",
    ),
    one(
        "tenant-texts",
        "controller/explain/tenant_view.py",
        "    if refusal.code in _OWN:\n",
        "    if refusal.code:\n",
        f"{TENANT_VIEW}::test_only_texts_about_the_pod_itself_stay",
        f"{TENANT_VIEW}::test_verdicts_have_no_score_and_no_numbers",
    ),
    one(
        "tenant-warnings",
        "controller/admission/pod_webhooks.py",
        "    cause = refusal.detail if is_own else EXPLANATIONS",
        "    cause = refusal.detail if refusal else EXPLANATIONS",
        "tests/unit/controller/admission/test_pod_webhooks.py"
        "::test_who_makes_a_pod_that_waits_learns_nothing_of_others_gpus",
    ),
    one(
        "tenant-scores",
        "controller/explain/tenant_view.py",
        "    return replace(one, refusal=refusal, score=0)\n",
        "    return replace(one, refusal=refusal)\n",
        f"{TENANT_VIEW}::test_verdicts_have_no_score_and_no_numbers",
    ),
    one(
        "access-review-denied",
        "controller/kube/access/access_review.py",
        "    return status.allowed and not status.denied\n",
        "    return status.allowed or not status.denied\n",
        "tests/unit/controller/kube/access/test_access_review.py::test_what_counts",
    ),
    one(
        "kubeconfig-verified-server",
        "gpuwarden/cli/connection/kubeconfig.py",
        '    if cluster.get("insecure-skip-tls-verify"):\n',
        '    if cluster.get("insecure-skip-tls-verify") == "never":\n',
        "tests/unit/gpuwarden/cli/connection/test_kubeconfig.py"
        "::test_what_is_less_safe_than_it_looks_is_an_error",
    ),
    one(
        "kubeconfig-own-identity",
        "gpuwarden/cli/connection/kubeconfig.py",
        "    if borrowed:\n",
        "    if not user:\n",
        "tests/unit/gpuwarden/cli/connection/test_kubeconfig.py"
        "::test_what_is_less_safe_than_it_looks_is_an_error",
    ),
)
