"""What every EnrollmentStore must do. A store's test module subclasses this and gives `store`."""

import asyncio
from dataclasses import replace

import pytest

from controller.fleet.enrollment import (
    Candidate,
    Claim,
    EnrolledGpu,
    EnrollmentRecord,
    EnrollmentStore,
    QuarantineEntry,
    write,
)
from controller.fleet.faults import Fault

SYSTEM = "8d4f1c6e-3c0f-4c5e-9a51-0a2b6e1d7f10"
FULL = EnrollmentRecord(
    "gpu-1",
    node_uid="uid-1",
    spire_agent="spiffe://example.org/spire/agent/k8s_psat/lab/uid-1",
    gpus=(
        EnrolledGpu("GPU-a", "1", "c" * 64, "00000000:18:00.0", enrolled=True),
        EnrolledGpu("GPU-b", complete=False, mig_devices=("MIG-a", "MIG-b")),
    ),
    instance="a" * 32,
    superseded=("b" * 32, "c" * 32),
    denial=QuarantineEntry(
        "OPERATOR",
        "smells odd, “really”",
        "spiffe://example.org/x",
        1_800_000_000_123_456_789,
        Candidate(
            "INVENTORY_CHANGED", "uid-2", None, (EnrolledGpu("GPU-c", "3"),), "e" * 64, SYSTEM
        ),
    ),
    lifted_ns=1_700_000_000_000_000_001,
    lifted_by="local uid 0, claimed by “zoë”",
    system_uuid=SYSTEM,
    faults=(
        Fault("GPU-a", 94, SYSTEM, 5, (7, 8), was_lost=True, ended=True),
        Fault("GPU-b", 48, SYSTEM, 6),
    ),
)
RELEASED = FULL.lifted(FULL.denial, "spiffe://example.org/y")


class EnrollmentStoreContract:
    @pytest.fixture
    def store(self) -> EnrollmentStore:
        raise NotImplementedError

    async def test_it_starts_empty_and_fresh(self, store: EnrollmentStore) -> None:
        snapshot = await store.load()
        assert dict(snapshot.records) == {}
        assert snapshot.fresh_until_ns > 0

    async def test_every_field_comes_back(self, store: EnrollmentStore) -> None:
        assert await store.create_if_absent(FULL)
        assert (await store.load()).records["gpu-1"] == FULL
        assert store.snapshot().records["gpu-1"] == FULL

    async def test_a_second_creation_changes_nothing(self, store: EnrollmentStore) -> None:
        assert await store.create_if_absent(FULL)
        assert not await store.create_if_absent(EnrollmentRecord("gpu-1"))
        assert store.snapshot().records["gpu-1"] == FULL

    async def test_compare_and_set_wants_the_present_record(self, store: EnrollmentStore) -> None:
        await store.create_if_absent(FULL)
        assert await store.compare_and_set(FULL, RELEASED)
        assert not await store.compare_and_set(FULL, replace(FULL, gpus=()))
        assert store.snapshot().records["gpu-1"] == RELEASED

    async def test_compare_and_set_does_not_create(self, store: EnrollmentStore) -> None:
        assert not await store.compare_and_set(FULL, RELEASED)
        assert dict(store.snapshot().records) == {}

    async def test_a_record_does_not_change_its_node(self, store: EnrollmentStore) -> None:
        await store.create_if_absent(FULL)
        with pytest.raises(ValueError, match="two nodes"):
            await store.compare_and_set(FULL, replace(FULL, node="gpu-2"))

    async def test_of_two_writers_one_wins(self, store: EnrollmentStore) -> None:
        first, second = FULL.answered_by("1" * 32), FULL.answered_by("2" * 32)
        assert await write(store, None, FULL)
        assert await write(store, FULL, first)
        assert not await write(store, FULL, second)
        assert not await write(store, None, second)

    async def test_writers_at_the_same_time_are_one_after_the_other(
        self, store: EnrollmentStore
    ) -> None:
        base = EnrollmentRecord("gpu-1")
        changed = [replace(base, instance=f"{n:032x}") for n in range(20)]
        assert sorted(await asyncio.gather(*(write(store, None, base) for _ in changed)))[-2:] == [
            False,
            True,
        ]
        wins = await asyncio.gather(*(write(store, base, x) for x in changed))
        assert wins.count(True) == 1
        assert store.snapshot().records["gpu-1"] == changed[wins.index(True)]

    async def test_many_nodes_come_back(self, store: EnrollmentStore) -> None:
        records = [EnrollmentRecord(f"n-{n}", gpus=(EnrolledGpu(f"GPU-{n}"),)) for n in range(300)]
        assert all(await asyncio.gather(*(write(store, None, x) for x in records)))
        snapshot = await store.load()
        assert dict(snapshot.records) == {x.node: x for x in records}
        assert snapshot.claims["GPU-299"] == (Claim("n-299", enrolled=False),)

    async def test_claims_follow_the_enrolled_gpus(self, store: EnrollmentStore) -> None:
        other = EnrollmentRecord("gpu-2", gpus=(EnrolledGpu("GPU-b"),))
        await store.create_if_absent(FULL)
        await store.create_if_absent(other)
        assert store.snapshot().claims["GPU-a"] == (Claim("gpu-1", enrolled=True),)
        assert set(store.snapshot().claims["GPU-b"]) == {
            Claim("gpu-1", enrolled=False),
            Claim("gpu-2", enrolled=False),
        }
        await store.compare_and_set(FULL, replace(FULL, gpus=FULL.gpus[1:]))
        assert "GPU-a" not in store.snapshot().claims
        assert store.snapshot().quarantined_holder("GPU-b") == "gpu-1"
        await store.compare_and_set(other, replace(other, gpus=()))
        assert store.snapshot().claims["GPU-b"] == (Claim("gpu-1", enrolled=False),)

    async def test_an_old_snapshot_stays_what_it_was(self, store: EnrollmentStore) -> None:
        before = await store.load()
        await store.create_if_absent(FULL)
        assert dict(before.records) == {}
        assert dict(before.claims) == {}
