"""Our side of the Kubernetes API against a real kube-apiserver, with the rights of deploy/.

The same contract tests that the fake API server passes, the schema of the custom resource
as the server enforces it, and the calls of the store, the Lease and Events as the
controller's own service account.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.certificates.files import CertificateFiles
from controller.certificates.leaves import AUTHORITY_SECRET, leaf_specs
from controller.certificates.plan import Terms
from controller.fleet.directory import KnownNode
from controller.fleet.enrollment import EnrollmentRecord, EnrollmentStore
from controller.kube.api.cache import ListWatch, Pace
from controller.kube.api.client import ApiClient
from controller.kube.api.leader_election import Leadership
from controller.kube.api.resources import LEASE_NAME, NAMESPACES, NODES, ApiError, Resource
from controller.kube.api.transport import InCluster, Kubeconfig
from controller.kube.nodes.nodes import NODE_KIND, ClusterNodes
from controller.kube.objects.certificates import ManagedCertificates
from controller.kube.objects.enrollments import (
    KubernetesEnrollmentStore,
    enrollment_object,
    enrollment_spec,
)
from controller.kube.pods.events import REPEAT_NS, EventRecorder, Notice, Regarding, Severity
from gpuwarden.clock import SystemClock
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.kube_access import api_client
from tests.contracts.enrollment_store import FULL, RELEASED, EnrollmentStoreContract
from tests.contracts.kubernetes_api import KubernetesApiContract
from tests.e2e.lab.api import Api
from tests.e2e.lab.api import ApiError as RefusedError
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.controller import ROOT
from tests.e2e.product.installation import apply
from tests.e2e.product.service_account import as_in_a_pod, token_of_controller
from tests.fakes.clock import FakeClock
from tests.fakes.eventually import eventually
from tests.fakes.recording_audit import RecordingAudit

NAMESPACE = "gpuwarden-system"
QUICK = Pace(pause_factor=0.2)
OBJECTS = "/apis/gpuwarden.dev/v1alpha1/nodeenrollments"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
RESOURCE = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/nodeenrollments.gpuwarden.dev"


@pytest.fixture(scope="session")
def account(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> InCluster:
    """What deploy/ installs, and the controller's way in as kubelet would project it."""
    apply(lab, "kustomize/base")
    until("the custom resource is served", lambda: _answers(lab.api))
    token = token_of_controller(lab, {"expirationSeconds": 3600})
    return as_in_a_pod(lab, tmp_path_factory.mktemp("service-account"), token)


@pytest.fixture
async def ours(account: InCluster) -> AsyncIterator[ApiClient]:
    api, transport = api_client(account, SystemClock(), page_objects=250)
    yield api
    await transport.close()


@pytest.fixture
def no_enrollments(lab: Lab, account: InCluster) -> Iterator[None]:
    del account
    _remove_enrollments(lab.api)  # of other tests
    yield
    _remove_enrollments(lab.api)


def _remove_enrollments(api: Api) -> None:
    for item in api.get(OBJECTS)["items"]:
        path = f"{OBJECTS}/{item['metadata']['name']}"
        api.patch(path, {"metadata": {"finalizers": None}})
        api.delete(path)


class TestRealApiServer(KubernetesApiContract):
    @pytest.fixture
    async def api(self, lab: Lab) -> AsyncIterator[ApiClient]:
        api, transport = api_client(Kubeconfig(lab.kubeconfig), SystemClock())
        yield api
        await transport.close()

    async def test_a_version_from_before_a_restart_is_gone(self, lab: Lab, api: ApiClient) -> None:
        await asyncio.to_thread(lab.control_plane.api_server.restart)
        with pytest.raises(ApiError) as found:
            await _watch_from(api, NODES, "1")
        assert found.value.is_gone

    async def test_a_version_of_the_future_is_waited_for_in_silence(self, api: ApiClient) -> None:
        """Why silence proves nothing."""
        assert await _watch_from(api, NODES, "99999999999") == []

    @pytest.mark.usefixtures("account")
    async def test_a_token_that_is_no_longer_good_is_read_again_at_once(
        self, lab: Lab, tmp_path: Path
    ) -> None:
        """It is bound to a Secret, and dies with it; the server believes it for 10 s more."""
        uid = lab.api.post(SECRETS, {"metadata": {"name": "mortal"}})["metadata"]["uid"]
        bound = {"kind": "Secret", "apiVersion": "v1", "name": "mortal", "uid": uid}
        mortal, good = (
            token_of_controller(lab, {"boundObjectRef": bound}),
            token_of_controller(lab, {}),
        )
        api, transport = api_client(as_in_a_pod(lab, tmp_path, mortal), SystemClock())
        try:
            await api.version_now(NODES)
            lab.api.delete(f"{SECRETS}/mortal")

            async def is_refused() -> int | None:
                try:
                    await api.version_now(NODES)
                except ApiError as error:
                    return error.status
                return None

            assert await eventually(is_refused, "the token is not good any more") == 401
            (tmp_path / "token").write_text(good)
            await api.version_now(NODES)
        finally:
            await transport.close()


class TestStore(EnrollmentStoreContract):
    @pytest.fixture
    async def store(self, ours: ApiClient, no_enrollments: None) -> AsyncIterator[EnrollmentStore]:
        del no_enrollments
        async with _store(ours) as store:
            await store.load()
            yield store

    async def test_two_replicas_agree(
        self, store: EnrollmentStore, ours: ApiClient, lab: Lab
    ) -> None:
        async with _store(ours) as there:
            await there.load()
            await store.create_if_absent(FULL)
            await _until(there, FULL)
            released = RELEASED
            assert await there.compare_and_set(FULL, released)
            await _until(store, released)
            lab.api.delete(f"{OBJECTS}/gpu-1")
            held = lab.api.get(f"{OBJECTS}/gpu-1")
            assert held["metadata"]["deletionTimestamp"]
            again = released.answered_by("9" * 32)
            assert await store.compare_and_set(released, again)
            lab.api.patch(f"{OBJECTS}/gpu-1", {"metadata": {"finalizers": None}})

            async def repaired() -> bool | None:
                await store.load()
                found = lab.api.found(f"{OBJECTS}/gpu-1")
                return (found is not None and "deletionTimestamp" not in found["metadata"]) or None

            await eventually(repaired, "what was deleted by force is back")
            await _until(there, again)


class TestSchema:
    @pytest.mark.parametrize(
        "spec",
        [
            {"instance": "not hexadecimal"},
            {"instance": "a" * 32, "superseded": ["a" * 32]},
            {"superseded": ["a" * 32] * 2},
            {"superseded": [f"{n:032x}" for n in range(17)]},
            {"gpus": [{"serial": "1"}]},
            {"gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-a"}]},
            {"denial": {"code": "NODE_DENIED"}},
            {
                "denial": {
                    "code": "x y",
                    "reason": "",
                    "actor": "",
                    "time": "2027-01-15T08:00:00.000000000Z",
                }
            },
            {"denial": {"code": "X", "reason": "", "actor": "", "time": "yesterday"}},
        ],
    )
    def test_what_no_controller_writes_is_refused(
        self, lab: Lab, no_enrollments: None, spec: dict[str, Any]
    ) -> None:
        del no_enrollments
        body = {**enrollment_object(EnrollmentRecord("bad")), "spec": spec}
        with pytest.raises(RefusedError) as found:
            lab.api.post(OBJECTS, body)
        assert found.value.status == 422

    def test_a_process_gives_way_only_by_being_superseded(
        self, lab: Lab, no_enrollments: None
    ) -> None:
        del no_enrollments
        first = EnrollmentRecord("n", instance="1" * 32)
        lab.api.post(OBJECTS, enrollment_object(first))
        stolen = enrollment_spec(EnrollmentRecord("n", instance="2" * 32))
        with pytest.raises(RefusedError, match="only by being superseded"):
            lab.api.patch(f"{OBJECTS}/n", {"spec": stolen})
        lab.api.patch(f"{OBJECTS}/n", {"spec": enrollment_spec(first.answered_by("2" * 32))})

    def test_people_see_who_is_denied(self, lab: Lab, no_enrollments: None) -> None:
        del no_enrollments
        lab.api.post(OBJECTS, enrollment_object(FULL))
        crd = lab.api.get(RESOURCE)
        conditions = {x["type"]: x["status"] for x in crd["status"]["conditions"]}
        assert conditions["Established"] == "True"
        assert conditions.get("NonStructuralSchema", "False") == "False"


class TestNodes:
    async def test_the_copy_follows_nodes_and_a_restart_of_the_server(
        self, lab: Lab, ours: ApiClient
    ) -> None:
        lab.fake_nodes.add("kube-a")
        watcher = _watcher(ours)
        directory = ClusterNodes(watcher.cache, 60_000_000_000)
        async with _following(watcher):
            await _equal(lab, directory)
            await asyncio.to_thread(lab.control_plane.api_server.kill)
            assert "kube-a" in directory.snapshot().nodes
            await asyncio.to_thread(lab.control_plane.api_server.resume_service)
            await asyncio.to_thread(lab.fake_nodes.add, "kube-b")
            await asyncio.to_thread(lab.fake_nodes.delete, "kube-a")
            await _equal(lab, directory)
            assert "kube-b" in directory.snapshot().nodes
            assert "kube-a" not in directory.snapshot().nodes
        lab.fake_nodes.delete("kube-b")

    async def test_a_quiet_copy_stays_fresh_without_being_listed_again(
        self, ours: ApiClient
    ) -> None:
        instruments = Instruments(Process.CONTROLLER, "test")
        watcher = _watcher(ours, Pace(watch_s=5, silence_s=8.0, ask_s=1.0), instruments)
        async with _following(watcher):
            await asyncio.wait_for(watcher.synced.wait(), 20)
            first = watcher.cache.fresh_at_ns

            async def fresher() -> bool | None:
                at = watcher.cache.fresh_at_ns
                assert at is not None
                assert first is not None
                return at > first + 11_000_000_000 or None

            await eventually(fresher, "two watches later")
            assert watcher.cache.trouble == ""
        lists = instruments.registry.get_sample_value(
            "gpuwarden_kube_lists_total", {"resource": "nodes"}
        )
        assert lists == 1

    async def test_a_history_that_went_backwards_is_found(self, lab: Lab, ours: ApiClient) -> None:
        """As after a restore: what the copy holds is of a version that is not there yet."""
        lab.fake_nodes.add("kube-c")
        watcher = _watcher(ours, Pace(watch_s=3, silence_s=8.0, ask_s=1.0, pause_factor=0.2))
        watcher.cache.take_list({}, "99999999999", SystemClock().boottime_ns())
        async with _following(watcher):
            await _equal(lab, ClusterNodes(watcher.cache, 60_000_000_000))
        lab.fake_nodes.delete("kube-c")


class TestRights:
    @pytest.mark.parametrize(
        "ask",
        [
            lambda api: api.get(Resource("", "v1", "secrets", namespaced=True), "x", NAMESPACE),
            lambda api: api.get(NODES, "x"),
            lambda api: api.create(NAMESPACES, {"metadata": {"name": "x"}}),
            lambda api: api.get(
                Resource("coordination.k8s.io", "v1", "leases"), LEASE_NAME, "kube-system"
            ),
        ],
    )
    async def test_what_is_not_called_is_not_allowed(
        self, ours: ApiClient, ask: Callable[[ApiClient], Any]
    ) -> None:
        with pytest.raises(ApiError) as found:
            await ask(ours)
        assert found.value.status == 403


class TestManagedCertificates:
    async def test_two_leaders_install_them_with_the_rights_of_the_component(
        self, lab: Lab, ours: ApiClient, tmp_path: Path
    ) -> None:
        """Webhooks without rules: what is published in them is looked at, nobody is asked."""
        component = ROOT / "deploy/kustomize/components/self-managed-certificates"
        rights = list(yaml.safe_load_all((component / "rbac.yaml").read_text()))
        paths = [_create(lab.api, body) for body in rights]
        webhooks = {"name": "w.gpuwarden.dev", "sideEffects": "None"} | {
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"namespace": NAMESPACE, "name": "gpuwarden-admission"}},
        }
        for kind, name in (
            ("MutatingWebhookConfiguration", "gpuwarden-pods"),
            ("MutatingWebhookConfiguration", "gpuwarden-bindings"),
            ("ValidatingWebhookConfiguration", "gpuwarden-pods"),
        ):
            body = {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": name},
                "webhooks": [webhooks],
            }
            paths.append(_create(lab.api, body))
        leaders = [_certificates(ours, tmp_path / x) for x in ("a", "b")]
        try:
            await asyncio.gather(*(x.reconcile() for x in leaders))
            for leader in leaders:
                await leader.reconcile()
                assert (leader.waiting(), leader.warnings()) == (None, ())
            trusted = lab.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwarden-ca")
            bundle = trusted["data"]["ca.crt"]
            for path in paths[-3:]:
                (webhook,) = lab.api.get(path)["webhooks"]
                assert base64.b64decode(webhook["clientConfig"]["caBundle"]).decode() == bundle
                assert webhook["clientConfig"]["service"]["name"] == "gpuwarden-admission"
            for name in ("a", "b"):
                assert (tmp_path / name / "admission" / "ca.crt").read_text() == bundle
            for spec in leaf_specs(NAMESPACE):
                assert lab.api.get(f"{SECRETS}/{spec.secret}")["type"] == "kubernetes.io/tls"
        finally:
            made = [AUTHORITY_SECRET, *(x.secret for x in leaf_specs(NAMESPACE))]
            paths += [f"{SECRETS}/{name}" for name in made]
            for path in (*paths, f"/api/v1/namespaces/{NAMESPACE}/configmaps/gpuwarden-ca"):
                with contextlib.suppress(RefusedError):
                    lab.api.delete(path)


class TestLeadershipAndEvents:
    async def test_one_of_two_leads_and_the_other_after_it(self, lab: Lab, ours: ApiClient) -> None:
        first, second = _leadership(ours, "a"), _leadership(ours, "b")
        async with _running(second.follow()):
            async with _running(first.follow()):

                async def one() -> bool | None:
                    return first.leads() is not second.leads() or None

                await eventually(one, "one of both leads")
            leader = first if first.leads() else second
            await first.release()
            if leader is first:

                async def other() -> bool | None:
                    return second.leads() or None

                await eventually(other, "the other leads")
        await second.release()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE_NAME}"
        assert lab.api.get(path)["spec"].get("holderIdentity", "") == ""

    async def test_an_event_stands_on_its_node_and_counts(self, lab: Lab, ours: ApiClient) -> None:
        node = lab.fake_nodes.add("kube-events")["metadata"]
        clock = FakeClock(SystemClock().boottime_ns(), SystemClock().wall_ns())
        recorder = EventRecorder(
            ours,
            reporter="controller-0",
            clock=clock,
            instruments=Instruments(Process.CONTROLLER, "test"),
            leads=lambda: True,
            draw_name=lambda: "1a2b3c",
        )
        about = Regarding("Node", node["name"], node["uid"])
        notice = Notice(
            about, "NodeQuarantined", "Quarantine", Severity.WARNING, "DUPLICATE_AGENT", "two"
        )
        recorder.say([notice])
        await recorder.write_due()
        recorder.say([notice, replace(notice, note="three")])
        clock.advance(REPEAT_NS / 1e9)
        await recorder.write_due()
        event = lab.api.get("/apis/events.k8s.io/v1/namespaces/default/events/kube-events.1a2b3c")
        assert event["note"] == "gpuwarden: DUPLICATE_AGENT three"
        assert event["series"]["count"] == 3
        described = lab.api.get(
            "/api/v1/events?fieldSelector=involvedObject.name=kube-events"
            f",involvedObject.uid={node['uid']},reason=NodeQuarantined"
        )
        assert [x["involvedObject"]["kind"] for x in described["items"]] == ["Node"]
        lab.fake_nodes.delete("kube-events")


def _answers(api: Api) -> bool:
    """Its storage begins after it was established: until then 404, then 429."""
    try:
        return api.found(OBJECTS) is not None
    except RefusedError:
        return False


async def _watch_from(api: ApiClient, resource: Resource, version: str) -> list[str]:
    seen = []
    async with api.watch(resource, version, seconds=3, silence_s=10) as lines:
        async for line in lines:
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ApiError(str(event), event["object"]["code"])
            seen.append(event["type"])
    return seen


@contextlib.asynccontextmanager
async def _running(coroutine: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(coroutine)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _following(watcher: ListWatch[Any]) -> AbstractAsyncContextManager[None]:
    return _running(watcher.follow())


def _watcher(
    api: ApiClient, pace: Pace = QUICK, instruments: Instruments | None = None
) -> ListWatch[KnownNode]:
    return ListWatch(
        api,
        NODE_KIND,
        clock=SystemClock(),
        instruments=instruments or Instruments(Process.CONTROLLER, "test"),
        jitter=lambda: 0.5,
        pace=pace,
    )


@contextlib.asynccontextmanager
async def _store(api: ApiClient) -> AsyncIterator[KubernetesEnrollmentStore]:
    store = KubernetesEnrollmentStore(
        api,
        clock=SystemClock(),
        instruments=Instruments(Process.CONTROLLER, "test"),
        stale_after_ns=60_000_000_000,
        jitter=lambda: 0.5,
    )
    async with _following(store.watcher):
        yield store


def _leadership(api: ApiClient, name: str) -> Leadership:
    return Leadership(
        api,
        namespace=NAMESPACE,
        identity=name,
        clock=SystemClock(),
        instruments=Instruments(Process.CONTROLLER, "test"),
        jitter=lambda: 0.0,
    )


async def _until(store: EnrollmentStore, record: EnrollmentRecord) -> None:
    async def shown() -> bool | None:
        return store.snapshot().records.get(record.node) == record or None

    await eventually(shown, f"{record} is known")


async def _equal(lab: Lab, directory: ClusterNodes) -> None:
    async def look() -> bool | None:
        items = (await asyncio.to_thread(lab.api.get, "/api/v1/nodes"))["items"]
        there = {x["metadata"]["name"]: x["metadata"]["uid"] for x in items}
        return {k: x.uid for k, x in directory.snapshot().nodes.items()} == there or None

    await eventually(look, "the copy is what the server has")


def _certificates(api: ApiClient, folder: Path) -> ManagedCertificates:
    return ManagedCertificates(
        api,
        CertificateFiles(folder),
        namespace=NAMESPACE,
        terms=Terms(timedelta(days=400), timedelta(days=90), timedelta(days=30)),
        listeners={"admission"},
        clock=SystemClock(),
        instruments=Instruments(Process.CONTROLLER, "test"),
        audit=RecordingAudit(),
        leads=lambda: True,
        jitter=lambda: 0.0,
    )


def _create(api: Api, body: dict[str, Any]) -> str:
    """The path of what was created."""
    metadata = body["metadata"]
    inside = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
    path = f"/apis/{body['apiVersion']}{inside}/{body['kind'].lower()}s"
    api.post(path, body)
    return f"{path}/{metadata['name']}"
