"""Evidence that repeats an inventory is read as `strict_json` reads it, or not at all."""

from typing import Any

import msgspec
import pytest

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.known_inventory import KnownInventory, evidence_showing
from gpuwarden.evidence.model import Evidence, EvidenceWithPods, FailedRead, GpuProcess, Inventory
from gpuwarden.evidence.strict_json import MAX_INT, decode
from tests.builders.evidence import Scene
from tests.builders.inventory import gpu, host, inventory

SHOWN = inventory(gpu(0), gpu(1))
KNOWN = KnownInventory.of(SHOWN)


def evidence(**changes: Any) -> Evidence:
    scene = Scene(evidence={"inventory": SHOWN} | changes)
    stream = scene.opened()
    document = scene.document(stream, scene.challenge(stream))
    assert isinstance(document, Evidence)
    return document


def strictly(data: bytes) -> Evidence:
    return decode(data, Evidence, max_bytes=len(data))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seq": 10**15 - 1},
        {"node_name": "näme"},
        {"processes": (GpuProcess(gpu=gpu().uuid, pid=7, pod_uid=None),)},
        {"failed_reads": (FailedRead(fact="vbios", gpu=None, call="x", error="y"),)},
    ],
    ids=["plain", "large-number", "other-letters", "processes", "failed-reads"],
)
def test_a_known_inventory_is_put_in_its_place(changes: dict[str, Any]) -> None:
    data = canonical_json(evidence(**changes))
    found = evidence_showing(KNOWN, data)
    assert found == strictly(data)
    assert type(found) is Evidence
    assert found.inventory is SHOWN


def test_evidence_with_pods_is_read_as_such_and_as_nothing_else() -> None:
    told = evidence(pods=("0" * 32,))
    data = canonical_json(told)
    found = evidence_showing(KNOWN, data, EvidenceWithPods)
    assert found == decode(data, EvidenceWithPods, max_bytes=len(data))
    assert type(found) is EvidenceWithPods
    assert found.inventory is SHOWN
    assert evidence_showing(KNOWN, data) is None
    assert evidence_showing(KNOWN, canonical_json(evidence()), EvidenceWithPods) is None


def test_the_inventory_may_hold_any_text() -> None:
    odd = inventory(gpu(product='a "quoted" näme\\\u2028'), host=host(driver="\x01"))
    data = canonical_json(evidence(inventory=odd))
    found = evidence_showing(KnownInventory.of(odd), data)
    assert found == strictly(data)


@pytest.mark.parametrize(
    "other",
    [
        inventory(gpu(0)),
        inventory(gpu(0), gpu(1), host=host(driver="575.51.03")),
        inventory(gpu(0), gpu(1, ecc=False)),
        inventory(gpu(1), gpu(0)),
    ],
    ids=["fewer", "driver", "ecc", "order"],
)
def test_another_inventory_is_read_again(other: Inventory) -> None:
    assert evidence_showing(KNOWN, canonical_json(evidence(inventory=other))) is None


def spoiled() -> dict[str, bytes]:
    good = canonical_json(evidence())
    document = msgspec.json.decode(good)
    return {
        "cut": good[:-1],
        "not-utf-8": good.replace(b'"boottimeMs":"', b'"boottimeMs":"\xff'),
        "followed": good + b" ",
        "twice": good.replace(b'"seq":1', b'"seq":1,"seq":1'),
        "inventory-twice": good[:-1] + b',"inventory":' + canonical_json(SHOWN) + b"}",
        "unknown": good[:-1] + b',"zzz":1}',
        "missing": msgspec.json.encode({k: v for k, v in document.items() if k != "seq"}),
        "spaced": good.replace(b'"seq":1', b'"seq": 1'),
        "order": msgspec.json.encode(dict(reversed(document.items()))),
        "float": good.replace(b'"seq":1', b'"seq":1.0'),
        "long": good.replace(b'"seq":1', b'"seq":%d' % MAX_INT),
        "too-large": good.replace(b'"seq":1', b'"seq":%d' % (MAX_INT + 1)),
        "nested": good.replace(canonical_json(SHOWN), b"[" * 100_000 + b"]" * 100_000),
    }


@pytest.mark.parametrize("data", spoiled().values(), ids=spoiled())
def test_anything_that_is_not_the_canonical_form_is_left_to_the_strict_reader(data: bytes) -> None:
    assert evidence_showing(KNOWN, data) is None
