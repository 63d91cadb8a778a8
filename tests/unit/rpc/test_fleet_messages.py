from dataclasses import replace

import pytest

from controller.fleet.view import NodeView
from controller.messages import gpu_messages, node_message, refusal_messages, use_message
from controller.placement.node_verdict import Promise
from controller.placement.texts import Guarantee, Limit
from gpuwarden.evidence.model import Allocation, GpuProcess, LostGpu, MigDevice, NvLink
from gpuwarden.reasons import ReasonCode
from tests.builders.inventory import gpu_uuid
from tests.builders.node_views import S, acceptance, gpu_view, node_view, past_refusal


def test_an_eligible_node_with_all_its_facts() -> None:
    message = node_message(node_view(warnings=("clock off by 31 s",)), 40 * S)
    assert (message.name, message.state, message.code, message.detail) == (
        "gpu-1",
        "eligible",
        "",
        "",
    )
    assert (message.level, message.fresh_for_ms, message.mode) == ("L0", 60_000, "env")
    assert (message.driver, message.cuda, message.arch, message.cc) == (
        "570.86.10",
        "12.8",
        "x86_64",
        "off",
    )
    assert (message.gpu_count, message.lost_gpu_count) == (2, 0)
    assert list(message.products) == ["NVIDIA H100 80GB HBM3"]
    assert message.accepted_at == "2023-11-14T22:13:20.123Z"
    assert list(message.warnings) == ["clock off by 31 s"]
    assert message.evidence_digest == "e" * 64
    assert message.node_identity == "i" * 64


@pytest.mark.parametrize(
    ("node", "now", "state", "code", "detail"),
    [
        (node_view(), 100 * S, "stale", "NODE_STALE", ""),
        (
            node_view(refusals=(past_refusal(ReasonCode.CLOCK_SKEW, "off by 400 s"),)),
            100 * S,
            "stale",
            "NODE_STALE",
            "last refusal: CLOCK_SKEW off by 400 s",
        ),
        (node_view(acceptance=None), 0, "unknown", "NODE_NO_EVIDENCE", ""),
        (
            node_view(acceptance=None, refusals=(past_refusal(ReasonCode.SIG_INVALID, "bad"),)),
            0,
            "refused",
            "SIG_INVALID",
            "bad",
        ),
        (
            node_view(blocked=past_refusal(ReasonCode.GPU_CLAIMED_TWICE, "GPU-1")),
            0,
            "revoked",
            "GPU_CLAIMED_TWICE",
            "GPU-1",
        ),
        (
            node_view(blocked=past_refusal(ReasonCode.INVENTORY_CHANGED, "new GPU")),
            0,
            "quarantined",
            "INVENTORY_CHANGED",
            "new GPU",
        ),
        (
            node_view(refusals=(past_refusal(ReasonCode.CLOCK_SKEW),)),
            0,
            "eligible",
            "",
            "",
        ),
    ],
)
def test_state_code_and_detail(
    node: NodeView, now: int, state: str, code: str, detail: str
) -> None:
    message = node_message(node, now)
    assert (message.state, message.code, message.detail) == (state, code, detail)
    assert (message.fresh_for_ms > 0) == (state == "eligible")


@pytest.mark.parametrize(
    ("now", "promise", "shown"),
    [
        (10, Promise(Guarantee.EXACT), ("exact", "")),
        (10, Promise(Guarantee.NODE, Limit.PROTECTION_OFF), ("node", "protection is off")),
        (10, None, ("", "")),
        (10**12, Promise(Guarantee.EXACT), ("", "")),
    ],
    ids=["exact", "limited", "not asked", "stale"],
)
def test_what_an_eligible_node_promises(
    now: int, promise: Promise | None, shown: tuple[str, str]
) -> None:
    message = node_message(node_view(), now, promise_of=lambda _node: promise)
    assert (message.guarantee, message.guarantee_limit) == shown


def test_a_node_without_evidence_shows_no_facts() -> None:
    message = node_message(node_view(acceptance=None), 0)
    assert (message.level, message.attestation_hash, message.accepted_at) == ("", "", "")
    assert gpu_messages(node_view(acceptance=None)) == []


def test_absent_facts_are_empty() -> None:
    bare = gpu_view(
        serial=None,
        board_part_number=None,
        product=None,
        pci=None,
        subsystem=None,
        vbios=None,
        gsp=None,
        memory_mib=None,
        ecc=None,
        mig=None,
        virt=None,
        compute_capability=None,
        architecture=None,
        compute_mode=None,
        persistence_mode=None,
        fabric_kind=None,
    )
    node = node_view(acceptance=acceptance(gpus=(bare,)))
    (message,) = gpu_messages(node)
    assert (message.serial, message.ecc, message.mig, message.persistence_mode) == ("",) * 4
    assert (message.memory_mib, message.module_id, message.health) == (0, -1, "ok")
    assert list(node_message(node, 0).products) == []


def test_gpu_facts_lost_unhealthy_mig_links_and_labels() -> None:
    lost = LostGpu(uuid="GPU-x", index=1, pci_bus_id="00000000:01:00.0", error="GPU_IS_LOST")
    gpus = (
        gpu_view(
            0,
            mig=True,
            mig_devices=(MigDevice(uuid="MIG-1", profile="1g.10gb", memory_mib=9728),),
            nvlinks=(
                NvLink(link=0, active=True, peer=None),
                NvLink(link=1, active=False, peer="x"),
            ),
            module_id=3,
        ),
        gpu_view(1, lost=lost),
        gpu_view(2, unhealthy="xid 79", ecc=False),
    )
    node = node_view(acceptance=acceptance(gpus=gpus))
    message = node_message(node, 0, lambda _node, gpu: (f"gpu-{gpu.index}",))
    assert [gpu.health for gpu in message.gpus] == ["ok", "lost", "unhealthy"]
    assert message.lost_gpu_count == 1
    first = message.gpus[0]
    assert (first.mig, first.nvlinks_active, first.nvlinks_total, first.module_id) == (
        "on",
        1,
        2,
        3,
    )
    assert [(mig.uuid, mig.profile, mig.memory_mib) for mig in first.mig_devices] == [
        ("MIG-1", "1g.10gb", 9728)
    ]
    assert [list(gpu.labels) for gpu in message.gpus] == [["gpu-0"], ["gpu-1"], ["gpu-2"]]
    assert message.gpus[2].ecc == "off"


def test_refusals_are_bounded_and_keep_their_order() -> None:
    many = [past_refusal(ReasonCode.SIG_INVALID, str(number), 2**40) for number in range(30)]
    messages = refusal_messages(many)
    assert [message.detail for message in messages] == [str(number) for number in range(20)]
    assert messages[0].count == 2**32 - 1
    assert (messages[0].step, messages[0].at) == (13, "2023-11-14T22:13:20.000Z")


def test_a_lease_longer_than_the_field_is_capped() -> None:
    node = node_view(acceptance=replace(acceptance(), fresh_until_ns=2**62))
    assert node_message(node, 0).fresh_for_ms == 2**32 - 1


def test_use_is_sorted_and_names_hardware() -> None:
    held = [
        Allocation("b", "job", "main", "nvidia.com/gpu", f"{gpu_uuid(1)}::3"),
        Allocation("a", "job", "main", "gpu.nvidia.com", "node-1/gpu-0"),
    ]
    pids = (GpuProcess(gpu_uuid(2), 7, None), GpuProcess(gpu_uuid(1), 9, "uid"))
    accepted = replace(acceptance(), allocations=tuple(held), processes=pids)
    message = use_message(accepted)
    assert message is not None
    assert (message.allocations_read, message.processes_read) == (True, True)
    assert [(x.namespace, x.device, x.uuid) for x in message.allocations] == [
        ("a", "node-1/gpu-0", ""),
        ("b", f"{gpu_uuid(1)}::3", gpu_uuid(1)),
    ]
    assert [(x.gpu, x.pid, x.pod_uid) for x in message.processes] == [
        (gpu_uuid(1), 9, "uid"),
        (gpu_uuid(2), 7, ""),
    ]


def test_use_that_was_not_read_is_not_none() -> None:
    assert use_message(None) is None
    unread = use_message(acceptance())
    assert unread is not None
    assert (unread.allocations_read, unread.processes_read) == (False, False)
    empty = use_message(replace(acceptance(), allocations=(), processes=()))
    assert empty is not None
    assert (empty.allocations_read, empty.processes_read) == (True, True)
