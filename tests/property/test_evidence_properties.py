"""What holds for all evidence: bits, class hashes, canonical forms, strict decoding."""

import json
from typing import Any

import msgspec
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import (
    ClassDocument,
    GpuProfile,
    Platform,
    attestation_hash,
    class_document,
    decode_class_document,
    diff,
)
from gpuwarden.evidence.envelope import SignatureInvalidError, pae, verify
from gpuwarden.evidence.model import Evidence, Fabric, Gpu, Inventory, MigDevice, NvLink
from gpuwarden.evidence.strict_json import DecodeError, decode, parse
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, mig_uuid
from tests.golden.generate import FOLDER
from tests.golden.signers import certificate, fixed_key, sign_again

TYPE = "application/vnd.gpuwarden.evidence.v1+json"
KEY = fixed_key(0x11, ec.SECP256R1())
LEAF = certificate(KEY, "spiffe://example.org/gpuwarden/agent/n1", 1)

# --- one flipped bit ---


def flipped(data: bytes, bit: int) -> bytes:
    byte, shift = divmod(bit % (8 * len(data)), 8)
    return data[:byte] + bytes([data[byte] ^ (1 << shift)]) + data[byte + 1 :]


@settings(max_examples=150)
@given(
    payload=st.binary(min_size=1, max_size=200),
    bit=st.integers(min_value=0),
    part=st.integers(0, 2),
)
def test_any_flipped_bit_is_refused(payload: bytes, bit: int, part: int) -> None:
    signature = sign_again(KEY, pae(TYPE, payload))
    verify(LEAF, TYPE, payload, signature)
    changed = [TYPE.encode(), payload, signature]
    changed[part] = flipped(changed[part], bit)
    with pytest.raises(SignatureInvalidError):
        verify(LEAF, changed[0].decode("latin-1"), changed[1], changed[2])


def test_every_single_bit_of_a_signature_counts() -> None:
    signature = sign_again(KEY, pae(TYPE, b"payload"))
    for bit in range(8 * len(signature)):
        with pytest.raises(SignatureInvalidError):
            verify(LEAF, TYPE, b"payload", flipped(signature, bit))


TYPED = st.tuples(st.text(max_size=4), st.binary(max_size=4))


@given(left=TYPED, right=TYPED)
def test_the_signed_bytes_are_unambiguous(
    left: tuple[str, bytes], right: tuple[str, bytes]
) -> None:
    assert (pae(*left) == pae(*right)) == (left == right)


# --- canonical form ---

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)


@given(value=VALUES)
def test_the_fast_form_is_rfc8785(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@given(value=VALUES)
def test_decoding_a_canonical_form_gives_the_value_back(value: Any) -> None:
    assert parse(canonical_json(value), max_bytes=100_000) == value


# --- strict decoding ---


def evidence_text() -> str:
    messages = json.loads((FOLDER / "transcript.json").read_text())["messages"]
    return str(next(x["payload"] for x in messages if x["payloadType"] == TYPE))


EVIDENCE = evidence_text()


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all objects inside `value`."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    below = [
        x
        for key, item in inner
        if isinstance(item, dict | list)
        for x in places(item, (*path, key))
    ]
    return [path, *below] if isinstance(value, dict) else below


OBJECTS = places(json.loads(EVIDENCE))


def spliced(path: tuple[Any, ...], change: Any) -> str:
    """The evidence as text with the object at `path` written by `change`."""
    whole = json.loads(EVIDENCE)
    holder: Any = {"root": whole}
    here: Any = "root"
    for key in path:
        holder, here = holder[here], key
    inside = holder[here]
    holder[here] = "SPLICE"
    return json.dumps(whole if path else "SPLICE").replace('"SPLICE"', change(inside))


def test_the_evidence_itself_is_decoded() -> None:
    assert len(OBJECTS) > 4
    for path in OBJECTS:
        decode(spliced(path, json.dumps).encode(), Evidence, max_bytes=100_000)


@given(path=st.sampled_from(OBJECTS), data=st.data())
def test_every_duplicate_key_is_refused(path: tuple[Any, ...], data: st.DataObject) -> None:
    def twice(inside: dict[str, Any]) -> str:
        key = data.draw(st.sampled_from(sorted(inside)))
        return json.dumps(inside)[:-1] + f", {json.dumps(key)}: {json.dumps(inside[key])}}}"

    with pytest.raises(DecodeError, match="appears twice"):
        decode(spliced(path, twice).encode(), Evidence, max_bytes=100_000)


@given(path=st.sampled_from(OBJECTS), key=st.text(st.characters(codec="ascii"), max_size=20))
def test_every_unknown_field_is_refused(path: tuple[Any, ...], key: str) -> None:
    def more(inside: dict[str, Any]) -> str:
        return json.dumps({**inside, f"x{key}": 1})

    with pytest.raises(DecodeError, match="unknown field"):
        decode(spliced(path, more).encode(), Evidence, max_bytes=100_000)


@given(path=st.sampled_from(OBJECTS), data=st.data(), number=st.floats())
def test_every_float_is_refused(path: tuple[Any, ...], data: st.DataObject, number: float) -> None:
    def with_float(inside: dict[str, Any]) -> str:
        key = data.draw(st.sampled_from(sorted(inside)))
        return json.dumps({**inside, key: number})

    with pytest.raises(DecodeError, match="is not an integer"):
        decode(spliced(path, with_float).encode(), Evidence, max_bytes=100_000)


@given(path=st.sampled_from(OBJECTS), data=st.data())
def test_every_missing_field_is_refused(path: tuple[Any, ...], data: st.DataObject) -> None:
    def less(inside: dict[str, Any]) -> str:
        key = data.draw(st.sampled_from(sorted(inside)))
        return json.dumps({name: value for name, value in inside.items() if name != key})

    with pytest.raises(DecodeError, match="missing required field"):
        decode(spliced(path, less).encode(), Evidence, max_bytes=100_000)


@given(data=st.binary(max_size=200))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data, Evidence, max_bytes=1000)


@given(cut=st.integers(0, len(EVIDENCE) - 1))
def test_no_prefix_of_evidence_is_evidence(cut: int) -> None:
    with pytest.raises(DecodeError):
        decode(EVIDENCE[:cut].encode(), Evidence, max_bytes=100_000)


# --- class hash ---


def class_hash(one: Inventory) -> str:
    document = class_document(one, level="L1", trust_domain="example.org", attestor="k8s_psat")
    return attestation_hash(document)


NUMBERS = st.integers(0, 2**32 - 1)
UNCOVERED: dict[str, st.SearchStrategy[Any]] = {
    "uuid": NUMBERS.map(gpu_uuid),
    "serial": st.none() | st.from_regex(r"[0-9]{1,13}", fullmatch=True),
    "board_part_number": st.none() | st.just("699-2G520"),
    "product": st.none() | st.just("Other name"),
    "index": st.integers(0, 63),
    "pci_bus_id": NUMBERS.map(lambda n: f"{n:08x}:01:00.0"),
    "mig_devices": st.lists(
        st.builds(
            MigDevice,
            uuid=NUMBERS.map(mig_uuid),
            profile=st.sampled_from(["1g.10gb", "3g.40gb"]),
            memory_mib=st.just(9856),
        ),
        max_size=3,
    ).map(tuple),
    "nvlinks": st.lists(
        st.builds(NvLink, link=st.integers(0, 17), active=st.booleans(), peer=st.none()),
        max_size=3,
    ).map(tuple),
    "fabric": st.none() | st.just(Fabric(kind="mnnvl", cluster_uuid=None, clique=1)),
    "compute_capability": st.none() | st.just("10.0"),
    "architecture": st.none() | st.just("Blackwell"),
    "compute_mode": st.none() | st.just("prohibited"),
    "persistence_mode": st.none() | st.booleans(),
    "chassis_serial": st.none() | st.just("1"),
    "module_id": st.none() | st.integers(0, 8),
}
COVERED_GPU = {
    "pci": "10de:2331",
    "subsystem": "10de:16c2",
    "vbios": "96.00.74.00.12",
    "gsp": "570.86.11",
    "memory_bytes": "85520809984000",
    "ecc": False,
    "mig": True,
    "virt": "passthrough",
}
NULLABLE_GPU = ("vbios", "gsp", "memory_bytes", "ecc", "mig", "virt")
COVERED_HOST = {"arch": "aarch64", "driver": "570.86.11", "cc": "on"}


@given(
    cards=st.lists(st.fixed_dictionaries(UNCOVERED), min_size=1, max_size=4),
    cuda=st.none() | st.just("13.0"),
)
def test_the_class_hash_does_not_see_which_cards_and_how_many(
    cards: list[dict[str, Any]], cuda: str | None
) -> None:
    one = inventory(*(gpu(**card) for card in cards), host=host(cuda=cuda, system_uuid=None))
    assert class_hash(one) == class_hash(inventory())


@given(order=st.permutations(range(4)))
def test_the_class_hash_does_not_see_the_order(order: list[int]) -> None:
    cards = [gpu(0), gpu(1, ecc=False), gpu(2, vbios="x"), gpu(3)]
    assert class_hash(inventory(*(cards[i] for i in order))) == class_hash(inventory(*cards))


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("field", COVERED_GPU)
def test_every_covered_gpu_field_changes_the_class_hash(field: str, others: int) -> None:
    rest = [gpu(i + 1) for i in range(others)]
    changed = msgspec.structs.replace(gpu(0), **{field: COVERED_GPU[field]})
    assert class_hash(inventory(changed, *rest)) != class_hash(inventory(gpu(0), *rest))


@pytest.mark.parametrize("field", NULLABLE_GPU)
def test_a_fact_that_does_not_exist_changes_the_class_hash(field: str) -> None:
    without = msgspec.structs.replace(gpu(), **{field: None})
    assert class_hash(inventory(without)) != class_hash(inventory())


@pytest.mark.parametrize("field", COVERED_HOST)
def test_every_covered_host_field_changes_the_class_hash(field: str) -> None:
    changed = msgspec.structs.replace(host(), **{field: COVERED_HOST[field]})
    assert class_hash(inventory(host=changed)) != class_hash(inventory())


@pytest.mark.parametrize(
    "context",
    [
        {"level": "L0"},
        {"trust_domain": "example.com"},
        {"attestor": None},
        {"spdm": {gpu_uuid(1): "0" * 64}},
        {"tpm": "0" * 64},
    ],
    ids=lambda x: next(iter(x)),
)
def test_every_part_of_the_context_changes_the_class_hash(context: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"level": "L1", "trust_domain": "example.org", "attestor": "k8s_psat"}
    changed = class_document(inventory(), **{**usual, **context})
    assert attestation_hash(changed) != class_hash(inventory())


def test_no_field_of_a_gpu_or_document_is_forgotten_here() -> None:
    fields = set(Gpu.__struct_fields__)
    assert fields == set(COVERED_GPU) | set(UNCOVERED)
    profile = {"memory_bytes" if x == "memory_mib" else x for x in GpuProfile.__struct_fields__}
    assert profile == {*COVERED_GPU, "spdm"}
    assert set(Platform.__struct_fields__) == set(COVERED_HOST)
    assert set(ClassDocument.__struct_fields__) == {
        "level", "trust_domain", "attestor", "platform", "gpus", "tpm",
    }  # fmt: skip


PROFILES = st.builds(
    gpu,
    pci=st.sampled_from(["10de:2330", "10de:20b2"]),
    vbios=st.sampled_from(["a", "b"]),
    ecc=st.sampled_from([True, False, None]),
)
DOCUMENTS = st.builds(
    lambda cards, driver: class_document(
        inventory(*cards, host=host(driver=driver)), level="L0", trust_domain="t", attestor=None
    ),
    st.lists(PROFILES, min_size=1, max_size=4),
    st.sampled_from(["1", "2"]),
)


@given(left=DOCUMENTS, right=DOCUMENTS)
def test_documents_differ_exactly_when_their_hashes_do(
    left: ClassDocument, right: ClassDocument
) -> None:
    assert (diff(left, right) == []) == (attestation_hash(left) == attestation_hash(right))
    assert sorted((x.path, str(x.right)) for x in diff(left, right)) == sorted(
        (x.path, str(x.left)) for x in diff(right, left)
    )
    assert decode_class_document(canonical_json(left)) == left
