"""The ledger on a real kube-apiserver: its contract, and what the schema itself refuses."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from controller.kube.api.cache import Pace
from controller.kube.api.client import ApiClient
from controller.kube.api.transport import Kubeconfig
from controller.kube.objects.reservations import (
    FINALIZER,
    KubernetesLedgerStore,
    reservation_object,
    reservation_spec,
    reservation_status,
)
from controller.ledger.record import MAX_GPUS, MAX_HOLDERS, MOVES, GpuRecord, HolderState
from controller.ledger.store import LedgerStore
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client
from tests.builders.ledger import OTHER_POD, POD, SHARE, holder, record
from tests.contracts.ledger_store import FULL, LedgerStoreContract, entry
from tests.e2e.lab.api import Api, ApiError
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.installation import apply

OBJECTS = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
RESOURCE = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpureservations.gpuwarden.dev"


@pytest.fixture
def api(lab: Lab) -> Iterator[Api]:
    apply(lab, "kustomize/base")
    until("the custom resource is served", lambda: _answers(lab.api))
    yield lab.api
    for item in lab.api.get(OBJECTS)["items"]:
        _remove_by_force(lab.api, item["metadata"]["name"])


@pytest.fixture
async def client(lab: Lab, api: Api) -> AsyncIterator[ApiClient]:
    del api
    found, transport = api_client(Kubeconfig(lab.kubeconfig), SystemClock())
    yield found
    await transport.close()


@pytest.fixture
async def opened(client: ApiClient) -> AsyncIterator[KubernetesLedgerStore]:
    store = KubernetesLedgerStore(
        client,
        clock=SystemClock(),
        instruments=Instruments(Process.CONTROLLER, "test"),
        stale_after_ns=60_000_000_000,
        pace=Pace(pause_factor=0.2),
        jitter=lambda: 0.5,
        late_watch_s=30.0,
    )
    following = asyncio.create_task(store.watcher.follow())
    await store.load()
    yield store
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


class TestStore(LedgerStoreContract):
    @pytest.fixture
    async def store(self, opened: KubernetesLedgerStore) -> LedgerStore:
        return opened

    async def test_a_delete_frees_nothing_and_the_end_comes_with_it(
        self, opened: KubernetesLedgerStore, api: Api
    ) -> None:
        await opened.compare_and_set(None, record())
        api.delete(f"{OBJECTS}/gpu-a")
        assert api.get(f"{OBJECTS}/gpu-a")["metadata"]["deletionTimestamp"]
        assert not await opened.compare_and_set(None, record(holder(pod=OTHER_POD)))
        first = entry(opened)
        expired = first.record.moved("v1.k.uid-0", HolderState.EXPIRED)
        assert await opened.compare_and_set(first, expired)
        assert await opened.compare_and_set(None, record(holder(pod=OTHER_POD)))
        await opened.load()
        assert not opened.repaired

    async def test_what_is_removed_by_force_comes_back(
        self, opened: KubernetesLedgerStore, api: Api
    ) -> None:
        await opened.compare_and_set(None, record())
        _remove_by_force(api, "gpu-a")
        assert await opened.read("GPU-a") is not None
        assert not await opened.compare_and_set(None, record(holder(pod=OTHER_POD)))
        held = api.get(f"{OBJECTS}/gpu-a")
        assert held["spec"] == reservation_spec(record())
        assert held["metadata"]["finalizers"] == [FINALIZER]

    async def test_people_see_who_holds_what(self, opened: KubernetesLedgerStore, api: Api) -> None:
        await opened.compare_and_set(None, record())
        assert await opened.show() == 1
        assert api.get(f"{OBJECTS}/gpu-a")["status"] == reservation_status(record())
        conditions = api.get(RESOURCE)["status"]["conditions"]
        assert {"Established", "NamesAccepted"} <= {
            x["type"] for x in conditions if x["status"] == "True"
        }
        assert "NonStructuralSchema" not in {x["type"] for x in conditions}


class TestSchema:
    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            (lambda x: x["metadata"].update(name="gpu-b"), "named by its GPU"),
            (lambda x: x["spec"].update(node=""), "spec.node"),
            (lambda x: x["spec"].update(version=0), "spec.version"),
            (lambda x: x["spec"].update(gpu="0"), "spec.gpu"),
            (lambda x: x["spec"].update(holders=[]), "spec.holders"),
            (lambda x: x["spec"]["holders"][0].update(state="Free"), "Unsupported value"),
            (lambda x: x["spec"]["holders"][0].update(origin="me"), "Unsupported value"),
            (lambda x: x["spec"]["holders"][0].pop("pod"), "Required value"),
            (lambda x: x["spec"]["holders"][0].update(reservation="No"), "reservation"),
            (lambda x: x["spec"]["holders"].append(x["spec"]["holders"][0]), "Duplicate"),
            (
                lambda x: x["spec"]["holders"].append(
                    {**x["spec"]["holders"][0], "reservation": "v1.k.uid-1"}
                ),
                "declared share group",
            ),
        ],
    )
    def test_what_no_controller_writes_is_refused(self, api: Api, wrong: Any, says: str) -> None:
        body = reservation_object(record())
        wrong(body)
        with pytest.raises(ApiError, match=says):
            api.post(OBJECTS, body)

    @pytest.mark.parametrize("state", HolderState)
    def test_no_move_that_is_not_listed(self, api: Api, state: HolderState) -> None:
        for to in HolderState:
            _remove_if_there(api, "gpu-a")
            api.post(OBJECTS, reservation_object(record(holder(state=state))))
            after = replace(record(holder(state=to)), version=2)
            if to is state or (state, to) in MOVES:
                _set(api, after)
                continue
            with pytest.raises(ApiError, match="does not go from this state"):
                _set(api, after)

    @pytest.mark.parametrize(
        ("after", "says"),
        [
            (replace(record(), node="gpu-2", version=2), "of one node"),
            (replace(record(), share=SHARE, version=2), "share group does not change"),
            (replace(record(holder(call="f" * 16)), version=2), "was made for"),
            (replace(record(holder("GPU-a", "GPU-b")), version=2), "was made for"),
            (
                replace(
                    record(holder(pod=replace(POD, uid="uid-9"), reservation="v1.k.uid-0")),
                    version=2,
                ),
                "a pod's once",
            ),
        ],
    )
    def test_what_a_record_was_made_for_stays(self, api: Api, after: GpuRecord, says: str) -> None:
        api.post(OBJECTS, reservation_object(record()))
        with pytest.raises(ApiError, match=says):
            _set(api, after)

    def test_a_record_may_be_let_go_while_it_is_deleted(self, api: Api) -> None:
        api.post(OBJECTS, reservation_object(record()))
        api.delete(f"{OBJECTS}/gpu-a")
        _set(api, record().moved("v1.k.uid-0", HolderState.EXPIRED))
        api.patch(f"{OBJECTS}/gpu-a", {"metadata": {"finalizers": None}})
        assert api.found(f"{OBJECTS}/gpu-a") is None

    def test_the_largest_record_fits(self, api: Api) -> None:
        gpus = ("GPU-a", *(f"GPU-b{n:03}{'0' * 200}" for n in range(MAX_GPUS - 1)))
        parts = [
            holder(*gpus, pod=replace(POD, uid=f"uid-{n:03}"), reservation=f"v1.k.{n:03}")
            for n in range(MAX_HOLDERS)
        ]
        full = record(*parts, share=SHARE)
        full.demand_valid()
        api.post(OBJECTS, reservation_object(full))
        _set(api, full.moved("v1.k.000", HolderState.CONFIRMED))

    def test_every_field_comes_back(self, api: Api) -> None:
        api.post(OBJECTS, reservation_object(FULL))
        assert api.get(f"{OBJECTS}/gpu-a")["spec"] == reservation_spec(FULL)


def test_a_definition_that_is_deleted_waits_for_what_is_held(lab: Lab, api: Api) -> None:
    api.post(OBJECTS, reservation_object(record()))
    api.delete(RESOURCE)
    assert api.get(f"{OBJECTS}/gpu-a")["spec"] == reservation_spec(record())
    with pytest.raises(ApiError):
        api.post(OBJECTS, reservation_object(record(holder("GPU-b"), gpu="GPU-b")))
    api.patch(f"{OBJECTS}/gpu-a", {"metadata": {"finalizers": None}})
    until("the definition is gone", lambda: api.found(RESOURCE) is None)
    apply(lab, "kustomize/base")
    until("the custom resource is served again", lambda: _answers(api))


def _set(api: Api, after: GpuRecord) -> None:
    path = f"{OBJECTS}/{after.key}"
    body = api.get(path)
    body["spec"] = reservation_spec(after)
    api.put(path, body)


def _remove_if_there(api: Api, name: str) -> None:
    if any(x["metadata"]["name"] == name for x in api.get(OBJECTS)["items"]):
        _remove_by_force(api, name)


def _remove_by_force(api: Api, name: str) -> None:
    api.patch(f"{OBJECTS}/{name}", {"metadata": {"finalizers": None}})
    if any(x["metadata"]["name"] == name for x in api.get(OBJECTS)["items"]):
        api.delete(f"{OBJECTS}/{name}")


def _answers(api: Api) -> bool:
    try:
        api.get(OBJECTS)
    except ApiError:
        return False
    return True
