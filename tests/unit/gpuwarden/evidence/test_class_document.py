"""Class documents: what they hold, what leaves none, how they are read back and compared."""

import msgspec
import pytest

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import (
    CLASS_FACTS,
    ClassDocument,
    Difference,
    NoDocumentError,
    attestation_hash,
    class_document,
    decode_class_document,
    diff,
    facts,
    unread_facts,
)
from gpuwarden.evidence.model import FailedRead, Gpu, Host, Inventory
from gpuwarden.evidence.node_identity import IDENTITY_FACTS
from gpuwarden.evidence.strict_json import DecodeError
from tests.builders.inventory import gpu, gpu_uuid, host, inventory


def document(one: Inventory, level: str = "L0") -> ClassDocument:
    return class_document(one, level=level, trust_domain="example.org", attestor=None)


def failed(fact: str, of: str | None = None) -> FailedRead:
    return FailedRead(fact=fact, gpu=of, call="nvmlCall", error="UNKNOWN")


def test_the_document_of_the_format_has_the_hash_of_the_format() -> None:
    one = class_document(inventory(), level="L1", trust_domain="example.org", attestor="k8s_psat")
    assert attestation_hash(one) == (
        "v1:sha256:123c15106eb57b7b27b69cee5e19bb1d1522fc70c5646392d1e8d5cbc93c4fd2"
    )


@pytest.mark.parametrize(
    ("memory", "mebibytes"),
    [(None, None), ("0", None), ("1048575", None), ("1048576", 1), ("85520809984", 81559)],
)
def test_memory_in_whole_mebibytes(memory: str | None, mebibytes: int | None) -> None:
    assert document(inventory(gpu(memory_bytes=memory))).gpus[0].memory_mib == mebibytes


def test_equal_gpus_are_one_profile() -> None:
    assert len(document(inventory(*(gpu(i) for i in range(8)))).gpus) == 1


def test_a_measurement_belongs_to_its_gpu() -> None:
    one = class_document(
        inventory(gpu(0), gpu(1)),
        level="L2",
        trust_domain="example.org",
        attestor=None,
        spdm={gpu_uuid(1): "d" * 64},
        tpm="e" * 64,
    )
    assert {profile.spdm for profile in one.gpus} == {None, "d" * 64}
    assert one.tpm == "e" * 64


def test_without_gpus_there_is_no_document() -> None:
    with pytest.raises(NoDocumentError, match="no GPU answers"):
        document(Inventory(host=host(), gpus=(), lost=()))


@pytest.mark.parametrize("fact", ["pci", "subsystem"])
def test_without_a_pci_identity_there_is_no_document(fact: str) -> None:
    one = msgspec.structs.replace(gpu(), **{fact: None})
    with pytest.raises(NoDocumentError, match=f"{gpu_uuid(1)} has no PCI identity"):
        document(inventory(one))


def test_unread_facts_are_those_asked_for_sorted_and_once() -> None:
    reads = [failed("vbios", "b"), failed("vbios", "a"), failed("driver"), failed("computeMode")]
    assert unread_facts([*reads, reads[0]], CLASS_FACTS) == ("driver", "vbios of a", "vbios of b")
    assert unread_facts(reads, IDENTITY_FACTS) == ()


def test_facts_have_the_names_of_the_inventory() -> None:
    wire = {
        field.encode_name
        for part in (Gpu, Host, Inventory)
        for field in msgspec.structs.fields(part)
    }
    assert wire >= CLASS_FACTS
    assert wire >= IDENTITY_FACTS


def test_a_document_is_read_back_from_its_bytes() -> None:
    one = document(inventory(gpu(0), gpu(1, ecc=False)))
    assert decode_class_document(canonical_json(one)) == one


@pytest.mark.parametrize("change", ["blank", "order", "twice"])
def test_other_bytes_of_the_same_document_are_refused(change: str) -> None:
    one = document(inventory(gpu(0), gpu(1, ecc=False)))
    first, second = one.gpus
    data = {
        "blank": canonical_json(one) + b" ",
        "order": canonical_json(msgspec.structs.replace(one, gpus=(second, first))),
        "twice": canonical_json(msgspec.structs.replace(one, gpus=(first, first, second))),
    }[change]
    with pytest.raises(DecodeError, match="not in canonical form"):
        decode_class_document(data)


def test_a_huge_document_is_refused() -> None:
    with pytest.raises(DecodeError, match="at most 65536"):
        decode_class_document(b" " * 65_537)
    with pytest.raises(DecodeError, match="not JSON"):
        decode_class_document(b" " * 65_536)


def test_facts_show_the_document_in_reading_order() -> None:
    shown = facts(document(inventory()))
    assert shown[:4] == (
        ("level", "L0"),
        ("trustDomain", "example.org"),
        ("attestor", None),
        ("platform.arch", "x86_64"),
    )
    assert ("gpus[0].memoryMiB", 81559) in shown
    assert shown[-1] == ("tpm", None)


def test_equal_documents_do_not_differ() -> None:
    assert diff(document(inventory(gpu(0), gpu(1))), document(inventory(gpu(1)))) == []


def test_a_driver_upgrade_is_shown_field_by_field() -> None:
    old = document(inventory(gpu()))
    new = document(inventory(gpu(gsp="580.1"), host=host(driver="580.1")), level="L1")
    assert diff(old, new) == [
        Difference("level", "L0", "L1"),
        Difference("platform.driver", "570.86.10", "580.1"),
        Difference("gpus[10de:2330].gsp", "570.86.10", "580.1"),
    ]


def test_a_profile_that_only_one_side_has_is_shown_whole() -> None:
    both = document(inventory(gpu(0), gpu(1, pci="10de:20b2")))
    one = document(inventory(gpu(0)))
    [difference] = diff(both, one)
    assert difference.path == "gpus[10de:20b2]"
    assert isinstance(difference.left, str)
    assert '"pci":"10de:20b2"' in difference.left
    assert difference.right is None
    [mirrored] = diff(one, both)
    assert (mirrored.left, mirrored.right) == (None, difference.left)


def test_several_profiles_of_one_kind_are_not_guessed_to_be_pairs() -> None:
    left = document(inventory(gpu(0, vbios="a"), gpu(1, vbios="b")))
    right = document(inventory(gpu(0, vbios="c")))
    assert [(x.left is None, x.right is None) for x in diff(left, right)] == [
        (False, True),
        (False, True),
        (True, False),
    ]
