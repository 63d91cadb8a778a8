"""Who may do what over the HTTP API."""

import pytest

from controller.access import BoundPod, Caller, CallerKind, TokenIdentity
from controller.web.api.documents import FinalizeRequest
from controller.web.api.operations import (
    Access,
    ApiCaller,
    access_refusal,
    holder_refusal,
    svid_caller,
    token_caller,
)
from gpuwarden.reasons import ReasonCode
from tests.fakes.token_reviewer import token_of

POD = token_caller(token_of("team-a", "train-0", "uid-0"), ())
SHOP, SHOPS = "system:serviceaccount:monitoring:shop", ("monitoring/shop",)
READER = token_caller(TokenIdentity(SHOP, None), SHOPS)
READING_POD = token_caller(TokenIdentity(SHOP, BoundPod("monitoring", "shop-0", "uid-7")), SHOPS)
NOBODY = token_caller(TokenIdentity("jane", None), ("jane", "monitoring/shop"))


def of_kind(kind: CallerKind) -> ApiCaller:
    return svid_caller(Caller(kind, f"spiffe://example.org/gpuwarden/{kind}/x", None))


CALLED = set(Access) - {Access.VIEWER}
"""What callers of the API do; of v1 `Viewers` tells."""


@pytest.mark.parametrize(
    ("caller", "allowed"),
    [
        (of_kind(CallerKind.OPERATOR), {Access.ANYBODY, Access.READER, Access.HOLDER}),
        (of_kind(CallerKind.INSPECTOR), {Access.ANYBODY, Access.READER}),
        (of_kind(CallerKind.AGENT), {Access.ANYBODY}),
        (of_kind(CallerKind.CONTROLLER), {Access.ANYBODY}),
        (POD, {Access.ANYBODY, Access.HOLDER}),
        (READER, {Access.ANYBODY, Access.READER}),
        (READING_POD, CALLED),
        (NOBODY, {Access.ANYBODY}),
    ],
    ids=["operator", "inspector", "agent", "controller", "pod", "reader", "reader's pod", "nobody"],
)
def test_matrix(caller: ApiCaller, allowed: set[Access]) -> None:
    refusals = {access: access_refusal(caller, access) for access in CALLED}
    assert {access for access, refusal in refusals.items() if refusal is None} == allowed
    codes = {refusal.code for refusal in refusals.values() if refusal is not None}
    assert codes <= {ReasonCode.ROLE_DENIED}


@pytest.mark.parametrize(
    ("caller", "as_pod"),
    [
        (POD, CALLED),
        (READING_POD, {Access.ANYBODY, Access.HOLDER}),
        (READER, set()),
        (of_kind(CallerKind.OPERATOR), set()),
    ],
    ids=["pod", "reader's pod", "reader", "operator"],
)
def test_a_pod_that_reads_is_counted_as_a_reader_where_it_reads(
    caller: ApiCaller, as_pod: set[Access]
) -> None:
    assert {x for x in CALLED if caller.speaks_as_pod(x)} == as_pod


def test_the_same_account_in_another_namespace_reads_nothing() -> None:
    for name in ("system:serviceaccount:other:shop", "monitoring:shop", "monitoring/shop"):
        assert not token_caller(TokenIdentity(name, None), ("monitoring/shop",)).reads


@pytest.mark.parametrize(
    "other",
    [
        ("team-b", "train-0", "uid-0"),
        ("team-a", "train-1", "uid-0"),
        ("team-a", "train-0", "uid-1"),
    ],
)
def test_a_token_speaks_for_its_own_pod_alone(other: tuple[str, str, str]) -> None:
    mine = FinalizeRequest("team-a", "train-0", "uid-0", "v1.k.x", "GPU-1")
    theirs = FinalizeRequest(*other, "v1.k.x", "GPU-1")
    assert holder_refusal(POD, mine) is None
    refusal = holder_refusal(POD, theirs)
    assert refusal is not None
    assert refusal.code is ReasonCode.ROLE_DENIED
    assert holder_refusal(of_kind(CallerKind.OPERATOR), theirs) is None
    assert holder_refusal(of_kind(CallerKind.INSPECTOR), theirs) is not None
