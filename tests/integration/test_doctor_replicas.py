"""`gpuwarden doctor` by a kubeconfig over real TLS gRPC: both replicas are asked and told apart."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.app import run
from gpuwarden.cli.commands.doctor import asked_replicas
from gpuwarden.cli.connection.options import Connection
from gpuwarden.cli.exit_codes import CliError
from gpuwarden.doctor.check import warned
from gpuwarden.doctor.controllers import controller_answers
from gpuwarden.doctor.facts import Fact, Facts, Replicas, read_metrics
from gpuwarden.reasons import ReasonCode, Refusal
from gpuwarden.wire.v1 import support_pb2 as sup
from tests.builders.doctor_facts import METRICS, REPLICAS, healthy
from tests.builders.kube_access import kubeconfig
from tests.builders.web_certificates import WebCa
from tests.fakes.api_server import FakeApiServer
from tests.fakes.fleet_server import FakeFleetServer

PORT = 9445
"""Of people with a client certificate."""
NAMESPACE = {"namespace": "gpuwarden-system"}
FIRST, SECOND = REPLICAS


@dataclass
class Pair:
    """Two replicas, and the API server that forwards to them."""

    api: FakeApiServer
    first: FakeFleetServer
    second: FakeFleetServer
    folder: Path
    capsys: pytest.CaptureFixture[str]

    async def asked(self) -> Replicas:
        return await asked_replicas(Connection(kubeconfig=kubeconfig(self.folder, self.api)))

    async def answers(self) -> object:
        return controller_answers(Facts(version_here="1", replicas=Fact(await self.asked())))

    async def doctor(self, *options: str) -> dict[str, object]:
        """Run the command; what it gives to programs."""
        if not options:
            options = ("--kubeconfig", str(kubeconfig(self.folder, self.api)))
        self.capsys.readouterr()
        await asyncio.to_thread(run, ("doctor", "-o", "json", *options))
        found: dict[str, object] = json.loads(self.capsys.readouterr().out)
        return found


def checks(found: dict[str, object]) -> dict[str, tuple[str, str]]:
    groups: Any = found["groups"]
    return {x["id"]: (x["outcome"], x["seen"]) for group in groups for x in group["checks"]}


def metrics(text: str) -> sup.CollectResponse:
    return sup.CollectResponse(part="metrics.prom", content=text.encode())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    return healthy(tmp_path_factory.mktemp("sound"))


@pytest.fixture
async def pair(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    sound: Facts,
) -> AsyncIterator[Pair]:
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "GPUWARDEN_SERVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    authority = WebCa(tmp_path, "access-ca")
    certificate, key = authority.issue(
        "access", server=True, names=("gpuwarden-access.gpuwarden-system.svc",)
    )
    async with FakeApiServer(tmp_path) as api:
        data = {"ca.crt": authority.file.read_text()}
        api.create(
            "configmaps", {"metadata": {**NAMESPACE, "name": "gpuwarden-access"}, "data": data}
        )
        with ExitStack() as stack:
            servers = []
            for replica in sound.asked:
                server = FakeFleetServer().over_tls(
                    key.read_bytes(), certificate.read_bytes(), api.client_ca.file.read_bytes()
                )
                server.status.CopyFrom(replica.status)
                server.nodes = list(replica.fleet.get())
                server.support = [metrics(METRICS)]
                servers.append(stack.enter_context(server))
                port = int(server.target.rpartition(":")[2])
                api.forwarded[(replica.name, PORT)] = port
                pod = {"metadata": {**NAMESPACE, "name": replica.name}}
                api.create("pods", {**pod, "status": {"phase": "Running"}})
            first, second = servers
            yield Pair(api, first, second, tmp_path, capsys)


async def test_every_replica_is_asked(pair: Pair) -> None:
    pair.second.status.not_ready = "svid: none"
    more = METRICS.replace('verb="filter"} 12.0', 'verb="filter"} 13.0')
    pair.second.support = [metrics(more)]
    found = await pair.asked()
    assert found.unheard == ()
    assert [x.name for x in found.asked] == [FIRST, SECOND]
    assert [x.status.not_ready for x in found.asked] == ["", "svid: none"]
    assert [x.metrics.get() for x in found.asked] == [
        read_metrics(METRICS),
        read_metrics(more),
    ]
    by_id = checks(await pair.doctor())
    assert by_id["controller-ready"] == ("failed", f"{SECOND}: svid: none")
    assert by_id["scheduler-extender"] == ("passed", "31 requests")


async def test_one_that_does_not_answer_is_a_warning_with_its_name(pair: Pair) -> None:
    pair.second.refusal = Refusal(ReasonCode.LEDGER_UNAVAILABLE, "broken")
    pods = "kubectl -n gpuwarden-system get pods -l app.kubernetes.io/component=controller"
    silent = f"no answer of {SECOND}: LEDGER_UNAVAILABLE: broken; {FIRST} of cluster prod"
    assert await pair.answers() == warned(silent, "an answer of every replica", pods)
    found = await pair.doctor()
    assert found["replicas"] == [
        {"name": FIRST, "answers": True, "why": ""},
        {"name": SECOND, "answers": False, "why": "LEDGER_UNAVAILABLE: broken"},
    ]
    by_id = checks(found)
    assert by_id["controller-answers"] == ("warning", silent)
    assert by_id["controller-ready"] == ("passed", f"{FIRST}: ready; not asked: {SECOND}")

    pair.second.refusal = None
    pod = pair.api.objects.get("pods", f"gpuwarden-system/{SECOND}")
    pair.api.change("pods", {**pod, "status": {"phase": "Pending"}})
    assert (await pair.asked()).silent == ((SECOND, "its pod is Pending"),)


async def test_a_replica_whose_fleet_may_not_be_read_is_asked_for_the_rest(pair: Pair) -> None:
    pair.second.support = []
    first, second = (await pair.asked()).asked
    assert first.metrics.get() == read_metrics(METRICS)
    assert second.metrics.why == "the controller does not give its metrics"
    assert len(second.fleet.get()) == 2


async def test_without_any_answer_the_first_says_why(pair: Pair) -> None:
    pair.first.refusal = Refusal(ReasonCode.ROLE_DENIED, "jane may not")
    pair.second.refusal = Refusal(ReasonCode.ROLE_DENIED, "jane may not, either")
    with pytest.raises(CliError, match=r"jane may not$"):
        await pair.asked()
    found = await pair.doctor()
    assert found["replicas"] == []
    assert checks(found)["controller-answers"] == ("failed", "ROLE_DENIED: jane may not")
    assert checks(found)["svids"] == ("not checked", "no controller answers you")


async def test_at_a_socket_the_other_is_named_as_not_asked(pair: Pair) -> None:
    with FakeFleetServer().on_socket(pair.folder / "fleet.sock") as inside:
        inside.status = pair.first.status
        found = await pair.doctor("--server", inside.target)
    seen = f"{FIRST} of cluster prod; not asked from here: {SECOND}"
    assert checks(found)["controller-answers"] == ("passed", seen)
    assert pair.second.asked == []
