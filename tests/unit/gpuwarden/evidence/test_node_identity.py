"""Node identity: which node and which cards, and nothing that comes and goes."""

import msgspec
import pytest

from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.model import Inventory
from gpuwarden.evidence.node_identity import (
    NodeIdentity,
    decode_node_identity,
    identity_digest,
    node_identity,
    serial,
)
from gpuwarden.evidence.strict_json import DecodeError
from tests.builders.inventory import gpu, gpu_uuid, host, inventory, mig_device


def identity(one: Inventory) -> NodeIdentity:
    return node_identity(one, trust_domain="example.org", cluster="prod", node_name="n1")


def test_gpus_are_sorted_by_uuid() -> None:
    mixed = identity(inventory(gpu(2), gpu(0), gpu(1)))
    assert [x.uuid for x in mixed.gpus] == [gpu_uuid(1), gpu_uuid(2), gpu_uuid(3)]
    assert mixed == identity(inventory(gpu(0), gpu(1), gpu(2)))


@pytest.mark.parametrize("text", [None, "", "0", "N/A", " ", " 0 "])
def test_what_drivers_say_for_no_serial(text: str | None) -> None:
    assert serial(text) is None
    assert identity(inventory(gpu(serial=text))).gpus[0].serial is None


@pytest.mark.parametrize("text", ["1654223000001", "00", "n/a", "0 1"])
def test_any_other_serial_is_kept_as_it_is(text: str) -> None:
    assert serial(text) == text


def test_facts_that_are_not_known_are_null() -> None:
    one = identity(inventory(host=host(system_uuid=None)))
    assert (one.node.uid, one.spire_agent, one.system_uuid, one.ek) == (None, None, None, None)
    assert one.gpus[0].identity_key is None


def test_known_facts_are_held() -> None:
    one = node_identity(
        inventory(),
        trust_domain="example.org",
        cluster="prod",
        node_name="n1",
        node_uid="uid",
        spire_agent="spiffe://example.org/spire/agent/x",
        ek="e" * 64,
        identity_keys={gpu_uuid(1): "f" * 64, gpu_uuid(9): "0" * 64},
    )
    assert one.node.uid == "uid"
    assert one.spire_agent == "spiffe://example.org/spire/agent/x"
    assert one.ek == "e" * 64
    assert [x.identity_key for x in one.gpus] == ["f" * 64]


@pytest.mark.parametrize(
    "changed",
    [
        inventory(gpu(uuid=gpu_uuid(9))),
        inventory(gpu(serial="1")),
        inventory(gpu(0), gpu(1)),
        inventory(host=host(system_uuid=None)),
    ],
)
def test_another_card_or_machine_is_another_identity(changed: Inventory) -> None:
    assert identity_digest(identity(changed)) != identity_digest(identity(inventory()))


def test_setting_and_place_of_a_card_are_not_its_identity() -> None:
    changed = gpu(mig=True, mig_devices=(mig_device(1),), pci_bus_id="0:00:00.0", vbios="x")
    assert identity_digest(identity(inventory(changed))) == identity_digest(identity(inventory()))


def test_read_back_from_its_bytes() -> None:
    one = identity(inventory(gpu(0), gpu(1)))
    assert decode_node_identity(canonical_json(one)) == one


@pytest.mark.parametrize("change", ["blank", "order", "twice"])
def test_other_bytes_of_the_same_identity_are_refused(change: str) -> None:
    one = identity(inventory(gpu(0), gpu(1)))
    first, second = one.gpus
    data = {
        "blank": b" " + canonical_json(one),
        "order": canonical_json(msgspec.structs.replace(one, gpus=(second, first))),
        "twice": canonical_json(msgspec.structs.replace(one, gpus=(first, first))),
    }[change]
    with pytest.raises(DecodeError, match="not in canonical form"):
        decode_node_identity(data)


def test_the_size_of_an_identity_is_bounded() -> None:
    with pytest.raises(DecodeError, match="at most 65536"):
        decode_node_identity(b" " * 65_537)
    with pytest.raises(DecodeError, match="not JSON"):
        decode_node_identity(b" " * 65_536)
