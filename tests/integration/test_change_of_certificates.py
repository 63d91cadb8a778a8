"""From given certificates to those that gpuwarden manages, replica after replica, under load.

An API server trusts what is published at the moment of its request. A scheduler of before knows
the given authority and shows a given certificate; one of afterwards knows the managed one.
"""

import base64
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest

from controller.certificates.leaves import EXTENDER
from controller.kube.objects.certificates import STARVED_S
from controller.web.tls import PreviousFiles, Reload, ServingTls, TlsFiles
from gpuwarden.clock import SystemClock
from tests.builders.kube_access import api_client, in_cluster
from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.integration.test_managed_certificates import (
    FILTER,
    NAMESPACE,
    POD_PATH,
    REVIEW,
    PausingApi,
    Replica,
    post,
    published,
    register_webhooks,
    replica,
    secret,
    trusting,
)

REPLICAS = 3
ENTRIES = ("tls.crt", "tls.key", "ca.crt")
CLIENT = "gpuwarden-scheduler-client-tls"
KINDS = (
    ("mutatingwebhookconfigurations", "gpuwarden-pods"),
    ("mutatingwebhookconfigurations", "gpuwarden-bindings"),
    ("validatingwebhookconfigurations", "gpuwarden-pods"),
)


def name_of(service: str) -> str:
    return f"{service}.{NAMESPACE}.svc"


@dataclass
class Given:
    """Certificates that somebody has made: an authority for webhooks, one for the extender."""

    folder: Path
    webhooks: WebCa
    extender: WebCa

    @classmethod
    def make(cls, folder: Path) -> "Given":
        folder.mkdir()
        made = cls(folder, WebCa(folder, "webhooks"), WebCa(folder, "extender"))
        for listener, ca in (("admission", made.webhooks), ("extender", made.extender)):
            names = (name_of(f"gpuwarden-{listener}"),)
            pair = ca.issue(f"{listener}-server", server=True, names=names)
            (folder / listener).mkdir()
            for file, entry in zip((*pair, ca.file), ENTRIES, strict=True):
                shutil.copy(file, folder / listener / entry)
        made.extender.issue("scheduler")
        return made

    def files(self, listener: str) -> TlsFiles:
        found = self.folder / listener
        ca = found / "ca.crt" if listener == "extender" else None
        return TlsFiles(found / "tls.crt", found / "tls.key", ca)

    @property
    def pem(self) -> bytes:
        return self.webhooks.file.read_bytes()

    def scheduler(self) -> ssl.SSLContext:
        context = trusting(self.extender.file.read_bytes())
        context.load_cert_chain(self.folder / "scheduler.crt", self.folder / "scheduler.key")
        return context


@dataclass
class Change:
    server: FakeApiServer
    folder: Path
    given: Given
    api: PausingApi
    clock: FakeClock
    stack: AsyncExitStack
    ports: dict[int, dict[str, int]] = field(default_factory=dict)
    """Of the listeners of each replica that runs."""
    new: dict[int, Replica] = field(default_factory=dict)
    stopping: dict[int, AsyncExitStack] = field(default_factory=dict)
    answered: int = 0

    async def begin(self) -> None:
        """All replicas by given certificates, which webhooks trust."""
        register_webhooks(self.server)
        bundle = base64.b64encode(self.given.pem).decode()
        for kind, name in KINDS:
            found = self.server.objects.get(kind, name)
            webhooks = [{**x, "clientConfig": {"caBundle": bundle}} for x in found["webhooks"]]
            self.server.change(kind, {**found, "webhooks": webhooks})
        for number in range(REPLICAS):
            old = replica(self.api, self.folder / "none", self.clock, given=self.given.files)
            await self._run(number, old, "old")

    async def stop(self, number: int) -> None:
        await self.stopping.pop(number).aclose()
        self.server.delete("pods", f"{NAMESPACE}/gpuwarden-controller-{number}")
        del self.ports[number]

    async def start_new(self, number: int, *, leads: bool) -> Replica:
        """Its pod is there; its listeners wait for their certificates."""
        self._pod(number, "new")
        previous = PreviousFiles(EXTENDER, self.given.files("extender"))
        made = self.new[number] = replica(
            self.api,
            self.folder / f"r{number}",
            self.clock,
            leads=lambda: leads,
            previous=previous,
        )
        return made

    async def serve(self, number: int) -> None:
        await self._run(number, self.new[number], "new")

    async def _run(self, number: int, one: Replica, revision: str) -> None:
        stack = self.stopping[number] = await self.stack.enter_async_context(AsyncExitStack())
        found: dict[str, int] = {}
        for listener in (one.admission, one.extender):
            _, found[listener.name] = await listener.start()
            stack.push_async_callback(listener.stop, 0.5)
        self.ports[number] = found
        if revision == "old":
            self._pod(number, revision)

    def _pod(self, number: int, revision: str) -> None:
        labels = {
            "app.kubernetes.io/name": "gpuwarden",
            "app.kubernetes.io/component": "controller",
            "controller-revision-hash": revision,
        }
        name = f"gpuwarden-controller-{number}"
        metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
        self.server.create("pods", {"metadata": metadata, "status": {"phase": "Running"}})

    @property
    def has_new_scheduler(self) -> bool:
        """Whether a pod that mounts the Secret could start."""
        return f"{NAMESPACE}/{CLIENT}" in self.server.objects.all("secrets")

    async def everybody_asks(self, _writes: int = 0) -> None:
        """API server and schedulers, every replica that runs."""
        for ports in self.ports.values():
            for kind, name in KINDS:
                context = trusting(published(self.server, name, kind))
                answer = await post(
                    ports["admission"], POD_PATH, REVIEW, context, "gpuwarden-admission"
                )
                assert answer["response"]["allowed"] is True
            answers = [
                await post(ports["extender"], "/filter", FILTER, self.given.scheduler(), EXTENDER)
            ]
            if self.has_new_scheduler:
                context = self.new_scheduler()
                answers.append(
                    await post(
                        ports["extender"], "/filter", FILTER, context, EXTENDER, name=EXTENDER
                    )
                )
            assert [x["NodeNames"] for x in answers] == [["n1"]] * len(answers)
            self.answered += 3 + len(answers)

    def new_scheduler(self) -> ssl.SSLContext:
        found = secret(self.server, CLIENT)
        context = trusting(found["ca.crt"])
        for entry in ("tls.crt", "tls.key"):
            (self.folder / entry).write_bytes(found[entry])
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        return context

    def bundles(self) -> set[bytes]:
        return {published(self.server, name, kind) for kind, name in KINDS}


@pytest.fixture
async def change(server: FakeApiServer, tmp_path: Path) -> AsyncIterator[Change]:
    async with AsyncExitStack() as stack:
        given = Given.make(tmp_path / "given")
        clock = FakeClock(wall=SystemClock().wall_ns())
        made = Change(server, tmp_path, given, PausingApi(server), clock, stack)
        await made.begin()
        await made.everybody_asks()
        made.api.pause = made.everybody_asks
        yield made


async def replaced(change: Change, number: int, *, leads: bool) -> None:
    """As a StatefulSet does it: the old pod goes first."""
    await change.stop(number)
    one = await change.start_new(number, leads=leads)
    await one.certificates.reconcile()
    if one.certificates.waiting() is not None:
        change.clock.advance(STARVED_S)
        await one.certificates.reconcile()
    assert one.certificates.waiting() is None
    await change.serve(number)
    await change.everybody_asks()


async def test_no_request_fails_while_replicas_change_to_managed_certificates(
    change: Change,
) -> None:
    """Asked after every write of a leader: one of before leads on until it is the last."""
    for number in (2, 1):
        await replaced(change, number, leads=False)
        assert all(change.given.pem in x for x in change.bundles())
        assert not change.has_new_scheduler
    before = change.answered
    await replaced(change, 0, leads=True)
    (bundle,) = change.bundles()
    assert change.given.pem not in bundle
    assert change.has_new_scheduler
    assert bundle == secret(change.server, CLIENT)["ca.crt"]
    assert change.answered > before + 12, "nobody asked after a write"
    assert not [x for one in change.new.values() for seen in one.seen for x in seen.refused]


async def test_bundles_trust_nobody_who_was_not_trusted(change: Change) -> None:
    await replaced(change, 2, leads=False)
    mine = secret(change.server, "gpuwarden-webhook-tls")["ca.crt"]
    assert change.bundles() == {mine + change.given.pem}


async def test_a_leaf_of_an_earlier_time_is_not_served_before_it_is_trusted(
    change: Change,
) -> None:
    """Somebody has gone back to given certificates, and left the Secrets."""
    given = change.bundles()
    await replaced(change, 2, leads=False)
    bundle = base64.b64encode(change.given.pem).decode()
    for kind, name in KINDS:
        found = change.server.objects.get(kind, name)
        for webhook in found["webhooks"]:
            webhook["clientConfig"]["caBundle"] = bundle
        change.server.change(kind, found)
    assert change.bundles() == given
    await change.stop(2)
    again = await change.start_new(2, leads=False)
    shutil.rmtree(change.folder / "r2")
    await again.certificates.reconcile()
    assert again.certificates.waiting() is not None
    change.clock.advance(STARVED_S)
    await again.certificates.reconcile()
    assert again.certificates.waiting() is None
    await change.serve(2)
    await change.everybody_asks()


async def test_previous_certificates_are_for_their_own_clients_alone(change: Change) -> None:
    """Each of the two authorities lets in its own clients, by its own certificate."""
    for number in (2, 1, 0):
        await replaced(change, number, leads=number == 0)
    port = change.ports[0]["extender"]
    managed = secret(change.server, CLIENT)["ca.crt"]
    for context, trusted, name in (
        (change.given.scheduler(), managed, EXTENDER),
        (change.new_scheduler(), change.given.extender.file.read_bytes(), name_of(EXTENDER)),
    ):
        context.load_verify_locations(cadata=trusted.decode())
        with pytest.raises(aiohttp.ClientError):
            await post(port, "/filter", FILTER, context, EXTENDER, name=name)


async def test_while_pods_cannot_be_listed_nothing_that_is_trusted_is_taken_away(
    server: FakeApiServer, tmp_path: Path
) -> None:
    register_webhooks(server)
    server.forbidden.add(f"list /api/v1/namespaces/{NAMESPACE}/pods")
    api, transport = api_client(in_cluster(tmp_path / "sa", server))
    leader = replica(api, tmp_path / "l", FakeClock())
    await leader.certificates.reconcile()
    (fault,) = leader.certificates.warnings()
    assert fault.startswith("certificates: pods of the controllers: the API server answered 403")
    assert leader.certificates.waiting() is None
    assert f"{NAMESPACE}/{CLIENT}" not in server.objects.all("secrets")
    server.forbidden.clear()
    await leader.certificates.reconcile()
    assert leader.certificates.warnings() == ()
    assert f"{NAMESPACE}/{CLIENT}" in server.objects.all("secrets")
    await transport.close()


def test_previous_files_are_followed_and_told_of(tmp_path: Path) -> None:
    """Both pairs count: for what is read again, for the end, and for warnings."""
    given, own = Given.make(tmp_path / "given"), WebCa(tmp_path, "own")
    ends = datetime.now(UTC) + timedelta(days=90)
    crt, key = own.issue("own-server", server=True, ends=ends)
    before = given.files("extender")
    tls = ServingTls(TlsFiles(crt, key, own.file, False, PreviousFiles(EXTENDER, before)))
    assert (tls.reload(), tls.ends < ends) == (Reload.UNCHANGED, True)
    assert tls.warning() is None

    def give(files: tuple[Path, Path]) -> None:
        shutil.copy(files[0], before.certificate)
        shutil.copy(files[1], before.private_key)

    give(given.extender.issue("elsewhere", server=True, names=("elsewhere",), ends=ends))
    assert tls.reload() is Reload.REFUSED
    assert "elsewhere" not in str(tls.certificates)
    assert str(before.certificate) in str(tls.last_error)
    assert (tls.warning() or "").startswith("new certificate files are not in use: ")
    longer = ends + timedelta(days=1)
    name = name_of(EXTENDER)
    give(given.extender.issue("longer", server=True, names=(name,), ends=longer))
    assert (tls.reload(), tls.last_error, tls.warning()) == (Reload.CHANGED, None, None)
    assert tls.ends == ends.replace(microsecond=0)
    shutil.copy(given.folder / "longer.crt", crt)
    assert tls.reload() is Reload.REFUSED
    assert str(crt) in str(tls.last_error)
