"""Security mutations of `controller/kube`: what is read from the API server and written to it."""

from typing import Final

from tests.mutation_security.security_mutation import one
from tests.mutation_security.shown_by import REVIEW_ANSWERS

ENTRIES: Final = (
    one(
        "taint-that-kubelet-heeds",
        "controller/kube/nodes/nodes.py",
        "return taint.key == MANAGED_TAINT and taint.effect == MANAGED_EFFECT",
        "return taint.key == MANAGED_TAINT",
        "tests/unit/controller/kube/api/test_resources.py::test_what_is_kept_of_a_node",
    ),
    one(
        "map-names-one-node",
        "controller/kube/nodes/nodes.py",
        "if len(holders) == 1:",
        "if holders:",
        "tests/unit/controller/kube/nodes/test_nodes.py"
        "::test_of_two_nodes_with_one_name_neither_is_meant",
    ),
    one(
        "hints-go",
        "controller/kube/nodes/node_hints.py",
        "LabelChange(name, frozenset(keys - node.hints), node.hints - keys)",
        "LabelChange(name, frozenset(keys - node.hints), frozenset())",
        "tests/unit/controller/kube/nodes/test_node_hints.py"
        "::test_what_fits_no_longer_is_taken_away_first",
    ),
    one(
        "large-events",
        "controller/kube/api/transport.py",
        "partial(self._content.readline, max_line_length=MAX_LINE_BYTES)",
        "self._content.readline",
        "tests/integration/test_kube_list_watch.py"
        "::test_the_largest_object_that_can_be_does_not_end_a_watch",
    ),
    one(
        "large-pages",
        "controller/kube/api/client.py",
        "                if most == 1:\n",
        "                if most >= 1:\n",
        "tests/integration/test_kube_list_watch.py"
        "::test_pages_that_are_too_large_are_asked_for_in_parts",
    ),
    one(
        "reservation-removed-by-force",
        "controller/kube/objects/reservations.py",
        "            if new.key in self._objects.missing:\n"
        "                await self._repair(new.key)\n"
        "                return False\n",
        "",
        "tests/integration/test_kube_ledger_store.py::test_nobody_gets_it_meanwhile",
    ),
    one(
        "places-taken-unseen",
        "controller/kube/objects/reservations.py",
        "            and object_uid(before) != now.uid\n",
        "            and False\n",
        "tests/integration/test_kube_ledger_store.py"
        "::test_a_record_whose_place_another_took_unseen_is_reported",
    ),
    one(
        "api-audience",
        "controller/kube/access/token_review.py",
        "if not status.authenticated or audience not in (status.audiences or ()):",
        "if not status.authenticated:",
        f"{REVIEW_ANSWERS}::test_what_does_not_count",
    ),
)
