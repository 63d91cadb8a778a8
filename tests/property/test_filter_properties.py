"""The fast filter equals the plain question to every node, over random fleets and pods."""

import itertools
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.fleet.view import GpuView, NodeView
from controller.placement.filter_and_score import (
    MAX_REASONS,
    MAX_SCORE,
    filter_nodes,
    prioritize_nodes,
)
from controller.placement.gpu_map import Place
from controller.placement.node_verdict import Judge
from controller.placement.requirements import Guarantee, Requirements
from controller.placement.snapshot import placement_policy
from controller.placement.static_hashes import NO_STATIC_HASHES, InsecureStaticHashes
from controller.placement.verdict_cache import PlacementMemory
from controller.policy import AttestationClass, ClassHash, Level, NodeMode, Policy
from controller.web.extender.scheduler_messages import decode_args, encode_filter_result
from gpuwarden.policy.selector import parse_selector
from gpuwarden.reasons import ReasonCode
from tests.builders.fleet_views import (
    LEASE_NS,
    NOW_NS,
    acceptance,
    gpu,
    hash_of,
    mig_slice,
    node,
    past,
)
from tests.builders.pods import pod_json
from tests.builders.scenes import scene

NAMES = [f"n{i}" for i in range(8)]
HASHES = [hash_of(letter) for letter in "abc"]
BLOCKS = [None, None, None, ReasonCode.NODE_DENIED, ReasonCode.INVENTORY_CHANGED]


@st.composite
def gpus(draw: st.DrawFn) -> list[GpuView]:
    kinds = draw(st.lists(st.sampled_from(["good", "small", "lost", "sick", "mig"]), max_size=4))
    made: dict[str, Callable[[int], GpuView]] = {
        "good": gpu,
        "small": lambda i: gpu(i, memory_mib=20_000),
        "lost": lambda i: gpu(i, lost=True),
        "sick": lambda i: gpu(i, unhealthy="xid 79"),
        "mig": lambda i: gpu(i, mig=True, mig_devices=[mig_slice(f"MIG-{i}")]),
    }
    return [made[kind](index) for index, kind in enumerate(kinds)]


@st.composite
def nodes(draw: st.DrawFn) -> NodeView:
    name = draw(st.sampled_from(NAMES))
    mode = draw(st.sampled_from(list(NodeMode)[:2] * 4 + list(NodeMode)))
    if draw(st.integers(0, 5)) == 0:
        return node(name, refused=draw(st.sampled_from([None, ReasonCode.SIG_INVALID])), mode=mode)
    accepted = acceptance(
        draw(st.sampled_from(HASHES)),
        draw(gpus()),
        level=draw(st.sampled_from([Level.L0, Level.L1, Level.L2])),
        issued_ns=NOW_NS - draw(st.sampled_from([0, 0, 0, LEASE_NS - 1, LEASE_NS])),
        processes=draw(st.sampled_from([{}, {}, {"GPU-0": 1}])),
    )
    return node(name, accepted, blocked=draw(st.sampled_from(BLOCKS)), mode=mode)


FLEETS = st.lists(nodes(), max_size=8, unique_by=lambda view: view.name)
SELECTORS = st.sampled_from([None, None, "memory>=40Gi", "mig=true", "model!=x"])


@st.composite
def pods(draw: st.DrawFn) -> Requirements:
    place = draw(
        st.sampled_from([None, None, None, Place("n1", (0,)), Place("n2", ("GPU-1", "GPU-0"))])
    )
    count = len(place.devices) if place else draw(st.integers(0, 3))
    text = draw(SELECTORS)
    hashes = st.one_of(st.none(), st.frozensets(st.sampled_from([*HASHES, "abc"]), min_size=1))
    return Requirements(
        managed=True,
        hashes=draw(hashes),
        attestation_class=draw(st.sampled_from([None, None, None, "prod", "unknown"])),
        min_level=draw(st.sampled_from([Level.NONE, Level.NONE, Level.L1])),
        selector=None if text is None else parse_selector(text),
        labels=draw(st.sampled_from([frozenset(), frozenset(), frozenset({"big"})])),
        mapped=place is not None,
        place=place,
        accepts=draw(st.sampled_from([None, Guarantee.SET, Guarantee.NODE])),
        count=count,
        requests=(("nvidia.com/gpu", count),) if count and draw(st.booleans()) else (),
    )


POLICIES = st.sampled_from(
    [
        Policy(),
        Policy(allowed_hashes=frozenset(HASHES[:2])),
        Policy(min_level=Level.L1),
        Policy(
            classes={"prod": AttestationClass("prod", (ClassHash(HASHES[0]),))},
            labels={"big": "memory>=40Gi"},
        ),
    ]
)
STATIC = st.sampled_from([NO_STATIC_HASHES, InsecureStaticHashes({"n0": "abc", "n7": "x"})])


@settings(max_examples=75)
@given(
    views=FLEETS,
    others=FLEETS,
    asked=st.lists(pods(), min_size=1, max_size=3),
    policy=POLICIES,
    static=STATIC,
    busy=st.sampled_from([(), ("GPU-0",)]),
    names=st.permutations(NAMES).flatmap(
        lambda names: st.integers(0, 8).map(lambda size: names[:size])
    ),
)
def test_fast_path_equals_the_plain_one(  # noqa: PLR0917 -- each one is a drawn value
    views: list[NodeView],
    others: list[NodeView],
    asked: list[Requirements],
    policy: Policy,
    static: InsecureStaticHashes,
    busy: tuple[str, ...],
    names: list[str],
) -> None:
    memory, compiled = PlacementMemory(), placement_policy(policy)
    denied = [replace(view, blocked=past(ReasonCode.NODE_DENIED)) for view in views[::2]]
    for fleet, needs in itertools.product([views, others, denied, views], asked):
        plain = scene(*fleet, policy=compiled, static=static, busy=busy)
        known = replace(plain, memory=memory)
        judge = Judge(needs, plain)
        verdicts = {name: judge.refusal(name) for name in names}
        outcome = filter_nodes(names, needs, known)
        assert outcome.passed == [name for name in names if verdicts[name] is None]
        assert outcome.reasons == {
            name: refusal for name, refusal in verdicts.items() if refusal is not None
        }
        totals = outcome.totals()
        assert totals.passed == len(outcome.passed)
        codes = [refusal.code for refusal in outcome.reasons.values()]
        assert totals.rejected == Counter(codes)


@settings(max_examples=60)
@given(views=FLEETS, needs=pods(), policy=POLICIES)
def test_scores_are_in_range_and_zero_where_the_filter_says_no(
    views: list[NodeView], needs: Requirements, policy: Policy
) -> None:
    where = scene(*views, policy=policy)
    scores = prioritize_nodes(NAMES, needs, where)
    passed = filter_nodes(NAMES, needs, where).passed
    assert list(scores) == NAMES
    for name, score in scores.items():
        assert type(score) is int
        assert 0 <= score <= MAX_SCORE
        assert name in passed or score == 0


@settings(max_examples=100)
@given(
    names=st.lists(st.text(min_size=1, max_size=20), max_size=20, unique=True),
    whole=st.booleans(),
    keep=st.integers(0, 20),
)
def test_any_names_survive_the_wire(names: list[str], whole: bool, keep: int) -> None:
    items = [{"metadata": {"name": name}} for name in names]
    body = {
        "Pod": pod_json(),
        "Nodes": {"items": items} if whole else None,
        "NodeNames": None if whole else names,
    }
    for separators in ((",", ":"), (", ", ": ")):
        args = decode_args(json.dumps(body, separators=separators).encode())
        assert args.names == names
        reasons = dict.fromkeys(names[keep:][:MAX_REASONS], "why")
        found = json.loads(encode_filter_result(args, names[:keep], reasons))
        assert found["FailedAndUnresolvableNodes"] == reasons
        assert found["Nodes" if whole else "NodeNames"] == (
            {"metadata": {}, "items": items[:keep]} if whole else names[:keep]
        )
