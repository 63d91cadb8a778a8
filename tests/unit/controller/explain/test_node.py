from types import MappingProxyType

import pytest

from controller.explain.classes import find_class, list_classes
from controller.explain.node import RecentRefusals
from controller.fleet.view import EMPTY_FLEET
from controller.policy import DEFAULT_POLICY, AttestationClass, ClassHash, Level, Policy
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.node_views import HASH_A, HASH_B, S, acceptance, fleet_of, node_view
from tests.fakes.clock import FakeClock

HASH_AB = "v1:sha256:" + "a" * 10 + "b" * 54
HASH_C = "v1:sha256:" + "c" * 64

POLICY = Policy(
    classes=MappingProxyType(
        {
            "training": AttestationClass(
                "training", (ClassHash(HASH_A), ClassHash(HASH_C)), min_level=Level.L1
            )
        }
    )
)


FLEET = fleet_of(
    node_view("n2"),
    node_view("n1"),
    node_view("old", acceptance=acceptance(fresh_until_ns=20 * S)),
    node_view("other", acceptance=acceptance(attestation_hash=HASH_B)),
    node_view("third", acceptance=acceptance(attestation_hash=HASH_AB)),
    node_view("bare", acceptance=None),
)
NOW = 50 * S


def _found(reference: str) -> pb.Class:
    found = find_class(FLEET, POLICY, reference, NOW)
    assert isinstance(found, pb.Class)
    return found


def _refused(reference: str) -> Refusal:
    found = find_class(FLEET, POLICY, reference, NOW)
    assert isinstance(found, Refusal)
    return found


def test_classes_are_sorted_and_policy_only_hashes_are_there() -> None:
    listed = list_classes(FLEET, POLICY, NOW)
    assert [one.attestation_hash for one in listed] == [HASH_A, HASH_AB, HASH_B, HASH_C, ""]
    assert list(listed[-1].names) == ["training"]
    assert list_classes(EMPTY_FLEET, DEFAULT_POLICY, NOW) == []


def test_a_hash_shows_its_document_and_only_nodes_that_are_eligible_now() -> None:
    message = _found(HASH_A)
    assert list(message.nodes) == ["n1", "n2"]
    assert (message.gpu_count, message.level, message.document) == (4, "L0", '{"level":"L0"}')
    assert list(message.names) == ["training"]


def test_a_hash_nobody_has_shown_has_no_document() -> None:
    message = _found(HASH_C)
    assert (message.document, list(message.nodes), message.gpu_count) == ("", [], 0)


def test_a_named_class_lists_hashes_in_policy_order_and_their_nodes() -> None:
    message = _found("training")
    assert list(message.hashes) == [HASH_A, HASH_C]
    assert list(message.nodes) == ["n1", "n2"]
    assert (message.level, message.gpu_count, message.attestation_hash) == ("L1", 4, "")


@pytest.mark.parametrize("reference", ["a" * 11, "v1:sha256:" + "a" * 11, HASH_A])
def test_a_unique_prefix_is_enough(reference: str) -> None:
    assert _found(reference).attestation_hash == HASH_A


def test_an_ambiguous_prefix_is_refused_with_advice() -> None:
    refusal = _refused("a" * 10)
    assert refusal.code is ReasonCode.REQ_INVALID
    assert "begins 2 hashes; give more digits" in refusal.detail


@pytest.mark.parametrize("reference", ["aaaaaaa", "deadbeef", "A" * 11, "nobody"])
def test_what_is_not_there_is_unknown(reference: str) -> None:
    assert _refused(reference).code is ReasonCode.CLASS_UNKNOWN


@pytest.mark.parametrize("reference", ["", "x" * 254, "a\x1b[31m"])
def test_bad_input_names_the_field_and_is_escaped(reference: str) -> None:
    refusal = _refused(reference)
    assert refusal.code is ReasonCode.REQ_INVALID
    assert "class_ref" in refusal.detail
    assert "\x1b" not in refusal.detail


def test_a_node_that_left_between_index_and_list_is_skipped() -> None:
    fleet = fleet_of(node_view("n1"))
    torn = type(fleet)(fleet.nodes, MappingProxyType({HASH_A: frozenset({"n1", "gone"})}), 2)
    (message, named) = (find_class(torn, POLICY, ref, NOW) for ref in (HASH_A, "training"))
    assert isinstance(message, pb.Class)
    assert isinstance(named, pb.Class)
    assert list(message.nodes) == list(named.nodes) == ["n1"]


# --- The last refusals: counted while they repeat, newest first, and bounded


def test_what_repeats_is_counted_and_comes_first() -> None:
    clock = FakeClock(wall=10)
    refusals = RecentRefusals(clock.wall_ns)
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 13)
    clock.wall = 20
    refusals.note("evidence", "b", ReasonCode.SIG_INVALID, 13)
    clock.wall = 30
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 13)
    first, second = refusals.newest_first()
    assert (first.subject, first.count, first.first_ns, first.last_ns) == ("a", 2, 10, 30)
    assert (second.subject, second.count, second.first_ns) == ("b", 1, 20)


def test_each_code_step_and_subject_is_a_refusal_of_its_own() -> None:
    refusals = RecentRefusals(lambda: 1)
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 13)
    refusals.note("evidence", "a", ReasonCode.SIG_INVALID, 14)
    refusals.note("evidence", "a", ReasonCode.NONCE_REUSED, 13)
    refusals.note("evidence", None, ReasonCode.SIG_INVALID, 13)
    refusals.note("/x/Y", "a", ReasonCode.SIG_INVALID, 13)
    assert [one.count for one in refusals.newest_first()] == [1] * 5


def test_whoever_floods_pushes_out_only_the_oldest() -> None:
    refusals = RecentRefusals(lambda: 1, kept=3)
    for number in range(9):
        refusals.note("evidence", f"n{number}", ReasonCode.SIG_INVALID)
        refusals.note("evidence", "seen again and again", ReasonCode.SIG_INVALID)
    names = [one.subject for one in refusals.newest_first()]
    assert names == ["seen again and again", "n8", "n7"]
