"""The parser answers for every pod, and a requirement that it cannot read passes nowhere."""

import contextlib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.placement.filter_and_score import filter_nodes
from controller.placement.gpu_map import parse_gpu_map
from controller.placement.keys import REQUIRED_HASH, REQUIREMENT_ANNOTATIONS, SEED_REQUIRED_HASH
from controller.placement.requirements import UNMANAGED, Requirements, RequirementsInvalid
from gpuwarden.policy.selector import parse_selector
from gpuwarden.policy.texts import RequirementTextError, parse_dotted, parse_quantity
from tests.builders.fleet_views import hash_of, healthy
from tests.builders.pods import parsed_requirements
from tests.builders.scenes import scene

KEYS = sorted({*REQUIREMENT_ANNOTATIONS, REQUIRED_HASH, SEED_REQUIRED_HASH})
PIECES = st.sampled_from(
    [
        *"0123456789=:,|()<>! \n\t#-.",
        "memory", "model", "in", "mig", "true", "GPU-1", "MIG-2", "node1", "L1", "set",
        "40Gi", "570.86", "v1:sha256:", hash_of("a"), "admission", "é", "\x00",
    ]
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=12).map("".join))
ANNOTATIONS = st.dictionaries(st.sampled_from(KEYS), TEXTS, max_size=4)
LABELS = st.dictionaries(
    st.sampled_from(["gpuwarden.dev/gpu.big", "fudo.org/gpu.assign", "fudo.org/gpu.a/b", "x"]),
    st.sampled_from(["", "true", "false", "0", "1", "yes"]),
    max_size=3,
)
NAMES = st.sampled_from([None, "train-0", "plain"])
GPUS = st.sampled_from([None, 0, 1, 2, "3", "1.5", "-1", "x"])
NODES = (healthy("node1"), healthy("node2", "b"))


@settings(max_examples=150)
@given(annotations=ANNOTATIONS, labels=LABELS, name=NAMES, gpus=GPUS)
def test_every_pod_gets_an_answer_and_invalid_ones_pass_nowhere(
    annotations: dict[str, str], labels: dict[str, str], name: str | None, gpus: Any
) -> None:
    needs = parsed_requirements(annotations, labels=labels, name=name, gpus=gpus)
    if annotations:
        assert needs != UNMANAGED
    if isinstance(needs, RequirementsInvalid):
        assert needs.findings
        assert needs.detail().isprintable()
        assert len(needs.detail()) < 500
    if needs != UNMANAGED:
        passed = filter_nodes(["node1", "node2"], needs, scene(*NODES)).passed
        assert not (isinstance(needs, RequirementsInvalid) and passed)
        if isinstance(needs, Requirements) and needs.hashes is not None:
            assert all(
                node.acceptance is not None and node.acceptance.attestation_hash in needs.hashes
                for node in NODES
                if node.name in passed
            )


OUR_PREFIXES = ("gpuwarden.dev/", "fudo.org/gpu.")
READ = {
    "annotations": {
        "gpuwarden.dev/required-hash", "gpuwarden.dev/attestation-class", "gpuwarden.dev/min-level",
        "gpuwarden.dev/gpu-uuids", "gpuwarden.dev/gpu-selector", "gpuwarden.dev/gpu-count",
        "gpuwarden.dev/guarantee", "gpuwarden.dev/reserve", "gpuwarden.dev/ordinal",
    },
    "labels": set[str](),
}  # fmt: skip
"""Requirements of docs/reference/requirements.md with their keys; besides labels of GPUs."""
OTHERS_BUSINESS = {
    "gpuwarden.dev/job-type", "gpuwarden.dev/tenant", "gpuwarden.dev/gpu-memory",
    "gpuwarden.dev/batch-size", "gpuwarden.dev/chosen-gpus", "gpuwarden.dev/gpu-uuids-assigned",
    "gpuwarden.dev/reservation-id", "gpuwarden.dev/node", "gpuwarden.dev/attestation-hash",
    "gpuwarden.dev/guarantee-given", "gpuwarden.dev/guarantee-limit",
}  # fmt: skip
"""Hints, and results, which admission refuses."""
SEED_RESULTS = {"fudo.org/gpu.uuid", "fudo.org/gpu.reservation-id", "fudo.org/gpu.node"}
NAME = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,12}[A-Za-z0-9])?", fullmatch=True)
OUR_KEYS = st.one_of(
    st.builds("".join, st.tuples(st.sampled_from([*OUR_PREFIXES, "gpuwarden.dev/gpu."]), NAME)),
    st.sampled_from(sorted({*KEYS, *OTHERS_BUSINESS, *SEED_RESULTS})),
).filter(lambda key: key.startswith(OUR_PREFIXES))


@settings(max_examples=300)
@given(key=OUR_KEYS, place=st.sampled_from(["annotations", "labels"]))
def test_every_key_under_our_prefixes_is_known_or_a_fault(key: str, place: str) -> None:
    needs = (
        parsed_requirements({key: "true"})
        if place == "annotations"
        else parsed_requirements(labels={key: "true"})
    )
    known = READ[place] | OTHERS_BUSINESS | (SEED_RESULTS if place == "annotations" else set())
    if place == "labels" and key.startswith(("gpuwarden.dev/gpu.", "fudo.org/gpu.")):
        assert needs != UNMANAGED
    elif key not in known:
        assert isinstance(needs, RequirementsInvalid)
        assert any(key[:60] in x.key for x in needs.findings)


@settings(max_examples=150)
@given(annotations=ANNOTATIONS, extra=st.tuples(st.sampled_from(KEYS), TEXTS))
def test_one_more_requirement_never_lets_more_nodes_pass(
    annotations: dict[str, str], extra: tuple[str, str]
) -> None:
    """Except those that say how much is asked for: they are not demands of their own."""
    key, text = extra
    if key in annotations or key.endswith(("/gpu-count", "/guarantee", "/ordinal")):
        return
    before = parsed_requirements(annotations)
    after = parsed_requirements({**annotations, key: text})
    if before == UNMANAGED or isinstance(before, RequirementsInvalid):
        return
    names = ["node1", "node2"]
    where = scene(*NODES)
    passed = set(filter_nodes(names, after, where).passed)
    assert passed <= set(filter_nodes(names, before, where).passed)


@settings(max_examples=150)
@given(TEXTS)
def test_parsers_raise_only_their_own_error(text: str) -> None:
    for parser in (parse_selector, parse_quantity, parse_dotted):
        with contextlib.suppress(RequirementTextError):
            assert parser(text) is not None
    parse_gpu_map(text)


@given(
    st.dictionaries(
        st.integers(0, 10**9),
        st.tuples(
            st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,8})?", fullmatch=True),
            st.lists(st.integers(0, 999), min_size=1, max_size=8, unique=True),
        ),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(["\n", "\r\n", "\n\n", "\n# comment = : \n"]),
)
def test_a_map_is_read_as_it_was_written(
    places: dict[int, tuple[str, list[int]]], separator: str
) -> None:
    text = separator.join(
        f"{ordinal} = {node} : {' , '.join(map(str, devices))}"
        for ordinal, (node, devices) in places.items()
    )
    found = parse_gpu_map(text)
    assert not isinstance(found, tuple)
    assert {key: (place.node, list(place.devices)) for key, place in found.items()} == places


@given(st.integers(0, 10**12), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G", "e3"]))
def test_quantities_scale(number: int, suffix: str) -> None:
    scale = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9}
    assert parse_quantity(f"{number}{suffix}") == number * scale.get(suffix, 1000)
    assert parse_quantity(f"{number}.5{suffix}") * 2 == (2 * number + 1) * scale.get(suffix, 1000)
    assert parse_quantity(f"-{number}{suffix}") == -number * scale.get(suffix, 1000)
