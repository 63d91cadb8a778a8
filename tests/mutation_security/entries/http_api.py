"""Security mutations of `controller/http_api`: who may ask, and what is answered."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import (
    API_CALLERS,
    API_FINALIZE,
    API_REVIEWS,
    API_TLS,
    PEOPLE,
)

ENTRIES: Final = (
    one(
        "api-authentication",
        "controller/web/api/api.py",
        "        if isinstance(caller, Refusal):\n",
        "        if isinstance(caller, Refusal):\n"
        '            return ApiCaller("anybody", reads=True, operates=True)\n',
        f"{API_TLS}::test_nobody_else_confirms",
        f"{API_TLS}::test_who_reads",
    ),
    one(
        "api-body-last",
        "controller/web/api/api.py",
        "                caller = await self._admit(described, request)\n",
        "                await self._bodies.receive(request)\n"
        "                caller = await self._admit(described, request)\n",
        f"{API_TLS}::test_nothing_of_a_body_is_read_before_the_caller_may_call",
    ),
    one(
        "api-readers",
        "controller/web/api/operations.py",
        "(access is Access.READER and caller.reads)",
        "access is Access.READER",
        f"{API_TLS}::test_who_reads",
        f"{API_CALLERS}::test_matrix",
    ),
    one(
        "api-own-pod",
        "controller/web/api/operations.py",
        "if caller.operates or caller.pod == pod:",
        "if caller.operates or caller.pod is not None:",
        f"{API_CALLERS}::test_a_token_speaks_for_its_own_pod_alone",
        f"{API_TLS}::test_nobody_else_confirms",
    ),
    one(
        "api-wrong-gpu",
        "controller/web/api/finalize.py",
        "    if theirs and key_of(request.gpu_uuid) not in theirs:\n",
        "    if False:\n",
        f"{API_FINALIZE}::test_what_does_not_fit_changes_nothing",
    ),
    one(
        "api-forged-id",
        "controller/web/api/finalize.py",
        "    return ids is not None and ids.is_authentic(held.reservation, subject)",
        "    return ids is not None and bool(subject)",
        f"{API_FINALIZE}::test_a_reservation_that_is_over_has_expired_and_a_forged_one_is_unknown",
    ),
    one(
        "api-roots-of-now",
        "controller/web/api/authentication.py",
        "        found = caller_of(\n            facts,\n            self._roots(),\n",
        '        self._first = getattr(self, "_first", None) or self._roots()\n'
        "        found = caller_of(\n            facts,\n            self._first,\n",
        f"{API_TLS}::test_intermediates_are_followed_and_roots_are_those_of_now",
    ),
    one(
        "api-time-of-now",
        "controller/web/api/authentication.py",
        "            at=self._wall(),\n",
        "            at=datetime.now().astimezone(),\n",
        f"{API_TLS}::test_a_connection_outlives_no_certificate",
    ),
    one(
        "api-review-memory",
        "controller/people/reviews.py",
        "        while len(kept) >= self._limits.kept:\n",
        "        while False:\n",
        f"{API_REVIEWS}::test_no_token_is_kept_and_the_memory_is_bounded",
    ),
    one(
        "api-reviews-at-once",
        "controller/people/reviews.py",
        "            len(self._running) - known >= self._limits.at_once\n",
        "            False\n",
        f"{API_REVIEWS}::test_the_same_token_is_asked_about_once_at_a_time",
    ),
    one(
        "api-reviews-of-one-address",
        "controller/people/reviews.py",
        "            or self._asking[stranger] >= self._limits.at_once_from_one_address\n",
        "            or False\n",
        f"{API_REVIEWS}::test_one_address_does_not_take_what_others_need",
    ),
    one(
        "api-known-callers-beside-strangers",
        "controller/people/reviews.py",
        "            stranger = None if digest in self._accepted else address\n",
        "            stranger = address\n",
        f"{API_REVIEWS}::test_who_was_accepted_before_waits_for_no_stranger",
    ),
    one(
        "api-reviews-of-the-known",
        "controller/people/reviews.py",
        "            return known >= self._limits.at_once\n",
        "            return False\n",
        f"{API_REVIEWS}::test_who_was_accepted_before_is_bounded_too",
    ),
    one(
        "api-roles-beside-tenants",
        "controller/people/reviews.py",
        "            kept = self._roles if right in CLUSTER_ROLES else self._others\n",
        "            kept = self._others\n",
        f"{PEOPLE}/test_roles.py::test_tenants_take_nothing_from_those_who_have_a_role",
    ),
    one(
        "api-accepted-tokens-stay",
        "controller/people/reviews.py",
        "        kept = self._refused if found is None else self._accepted\n",
        "        kept = self._accepted\n",
        f"{API_REVIEWS}::test_invented_tokens_push_no_good_one_out",
    ),
    one(
        "api-rate",
        "controller/web/api/api.py",
        "        if limited is not None:\n",
        "        if False:\n",
        f"{API_TLS}::test_a_pod_that_floods_is_slowed_and_others_are_not",
    ),
    one(
        "api-rate-of-the-refused",
        "controller/web/api/operations.py",
        "not (access is Access.READER and self.reads)",
        "access is Access.HOLDER",
        f"{API_TLS}::test_a_pod_that_may_not_read_gets_no_more_for_being_refused",
        f"{API_CALLERS}::test_a_pod_that_reads_is_counted_as_a_reader_where_it_reads",
    ),
)
