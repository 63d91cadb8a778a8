"""The class document: what a node's hardware and evidence are, not which node it is.

All nodes of one configuration share it, and routine change does not break it:
UUID, serial, bus address, GPU count, MIG profiles, NVLink, fabric and CUDA are left
out on purpose. Its tagged digest is the attestation hash that pods require.
It must not judge the inventory (see `inventory_rules`) nor who may have a level.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from gpuwarden.evidence.canonical import canonical_json, tagged_digest
from gpuwarden.evidence.model import Document, FailedRead, Gpu, Inventory
from gpuwarden.evidence.strict_json import DecodeError, EvidenceError, decode

TAG: Final = "gpuwarden.dev/class/v1"
MAX_BYTES: Final = 64 * 1024

CLASS_FACTS: Final = frozenset(
    {
        "gpus",
        "arch",
        "driver",
        "cc",
        "pci",
        "subsystem",
        "vbios",
        "gsp",
        "memoryBytes",
        "ecc",
        "mig",
        "virt",
    }
)
"""Wire names of the inventory's facts that the document holds: without them there is none."""

Scalar = str | bool | int | None


class NoDocumentError(EvidenceError):
    """The inventory has no document: a fact that the document holds is not known."""


class Platform(Document, frozen=True):
    """Facts of the host."""

    arch: str
    driver: str | None
    cc: str | None


class GpuProfile(Document, frozen=True):
    """What GPUs of one kind and setting have in common; null where NVML knows no such fact."""

    pci: str
    subsystem: str
    vbios: str | None
    gsp: str | None
    memory_mib: int | None = msgspec.field(name="memoryMiB")
    ecc: bool | None
    mig: bool | None
    virt: str | None
    spdm: str | None
    """Digest of the verified SPDM measurements, 64 hex digits; null below L2."""


class ClassDocument(Document, frozen=True):
    """What the attestation hash is the digest of."""

    level: str
    trust_domain: str
    attestor: str | None
    """SPIRE node attestor; null at L0."""
    platform: Platform
    gpus: tuple[GpuProfile, ...]
    """Without duplicates, sorted by their canonical bytes."""
    tpm: str | None


def class_document(
    inventory: Inventory,
    *,
    level: str,
    trust_domain: str,
    attestor: str | None,
    spdm: Mapping[str, str] | None = None,
    tpm: str | None = None,
) -> ClassDocument:
    """The document of an inventory whose class facts were all read (see `unread_facts`).

    `spdm` gives the measurement digest by GPU UUID. Raises NoDocumentError where no
    GPU answers or one has no PCI identity.
    """
    digests = spdm or {}
    profiles = {_profile(gpu, digests.get(gpu.uuid)) for gpu in inventory.gpus}
    if not profiles:
        raise NoDocumentError("no GPU answers, so there is no class document")
    host = inventory.host
    return ClassDocument(
        level=str(level),
        trust_domain=trust_domain,
        attestor=attestor,
        platform=Platform(arch=host.arch, driver=host.driver, cc=host.cc),
        gpus=tuple(sorted(profiles, key=canonical_json)),
        tpm=tpm,
    )


def attestation_hash(document: ClassDocument) -> str:
    """`v1:sha256:<hex>`: the class hash that pods require."""
    return tagged_digest(TAG, document)


def unread_facts(failed_reads: Iterable[FailedRead], facts: frozenset[str]) -> tuple[str, ...]:
    """Failed reads of `facts`, as `fact` or `fact of GPU`, sorted: INVENTORY_INCOMPLETE if any."""
    names = {f"{x.fact} of {x.gpu}" if x.gpu else x.fact for x in failed_reads if x.fact in facts}
    return tuple(sorted(names))


def decode_class_document(data: bytes) -> ClassDocument:
    """Read a document back from its canonical bytes; raises DecodeError for any other bytes."""
    document = decode(data, ClassDocument, max_bytes=MAX_BYTES)
    profiles = tuple(sorted(set(document.gpus), key=canonical_json))
    if profiles != document.gpus or canonical_json(document) != data:
        raise DecodeError("class document is not in canonical form (RFC 8785, sorted profiles)")
    return document


class Difference(NamedTuple):
    """One place where two class documents differ; a GPU profile on one side only is its JSON."""

    path: str
    left: Scalar
    right: Scalar


def facts(document: ClassDocument) -> tuple[tuple[str, Scalar], ...]:
    """The document as (path, value) pairs in reading order, to show it."""
    head: list[tuple[str, Scalar]] = [
        ("level", document.level),
        ("trustDomain", document.trust_domain),
        ("attestor", document.attestor),
        *_fields("platform.", document.platform),
    ]
    profiles = (_fields(f"gpus[{i}].", x) for i, x in enumerate(document.gpus))
    return (*head, *chain.from_iterable(profiles), ("tpm", document.tpm))


def diff(left: ClassDocument, right: ClassDocument) -> list[Difference]:
    """Where two documents differ; empty exactly when their attestation hashes are equal.

    GPU profiles are compared as sets. A profile that only one side has is set against
    the other side's when each has just one with that PCI identity.
    """
    outside = _unequal(_without_gpus(left), _without_gpus(right))
    return [*outside, *_profile_differences(set(left.gpus), set(right.gpus))]


def _without_gpus(document: ClassDocument) -> tuple[tuple[str, Scalar], ...]:
    return facts(msgspec.structs.replace(document, gpus=()))


def _profile_differences(left: set[GpuProfile], right: set[GpuProfile]) -> list[Difference]:
    differences: list[Difference] = []
    ours, theirs = left - right, right - left
    for pci in sorted({x.pci for x in ours | theirs}):
        mine = sorted((x for x in ours if x.pci == pci), key=canonical_json)
        other = sorted((x for x in theirs if x.pci == pci), key=canonical_json)
        match mine, other:
            case [one], [two]:
                place = f"gpus[{pci}]."
                differences += _unequal(_fields(place, one), _fields(place, two))
            case _:
                differences += [Difference(f"gpus[{pci}]", _text(x), None) for x in mine]
                differences += [Difference(f"gpus[{pci}]", None, _text(x)) for x in other]
    return differences


def _unequal(
    left: Iterable[tuple[str, Scalar]], right: Iterable[tuple[str, Scalar]]
) -> list[Difference]:
    """Where two lists of the same paths have other values."""
    return [Difference(path, a, b) for (path, a), (_, b) in zip(left, right, strict=True) if a != b]


def _fields(prefix: str, part: Document) -> list[tuple[str, Scalar]]:
    names = zip(part.__struct_encode_fields__, part.__struct_fields__, strict=True)
    return [(f"{prefix}{wire}", getattr(part, name)) for wire, name in names]


def _text(profile: GpuProfile) -> str:
    return canonical_json(profile).decode("utf-8")


def _profile(gpu: Gpu, spdm: str | None) -> GpuProfile:
    if gpu.pci is None or gpu.subsystem is None:
        raise NoDocumentError(f"{gpu.uuid} has no PCI identity, so there is no class document")
    return GpuProfile(
        pci=gpu.pci,
        subsystem=gpu.subsystem,
        vbios=gpu.vbios,
        gsp=gpu.gsp,
        memory_mib=_mebibytes(gpu.memory_bytes),
        ecc=gpu.ecc,
        mig=gpu.mig,
        virt=gpu.virt,
        spdm=spdm,
    )


def _mebibytes(count: str | None) -> int | None:
    """Bytes as the driver gives them, in whole MiB; 0 (unified memory) is no such fact."""
    return (int(count) >> 20) or None if count is not None else None
