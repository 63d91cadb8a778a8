"""The way to a controller through an API server: which pod, which port, and what stops it."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.connection.api_server import ApiServer
from gpuwarden.cli.connection.cluster_connection import ACCESS, open_way, open_ways
from gpuwarden.cli.connection.kubeconfig import Credentials, Login
from gpuwarden.cli.connection.options import Connection
from gpuwarden.cli.exit_codes import CliError, ExitCode
from tests.fakes.api_server import TOKEN, FakeApiServer

NAMESPACE = "gpuwarden-system"
CA = "-----BEGIN CERTIFICATE-----"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(tmp_path) as made:
        yield made


def publish(api: FakeApiServer, **data: str) -> None:
    metadata = {"namespace": NAMESPACE, "name": ACCESS}
    api.create("configmaps", {"metadata": metadata, "data": {"ca.crt": CA, **data}})


def start_pod(api: FakeApiServer, number: int, ready: str = "True", **status: str) -> str:
    name = f"gpuwarden-controller-{number}"
    conditions = [{"type": "Ready", "status": ready}]
    api.create(
        "pods",
        {
            "metadata": {"namespace": NAMESPACE, "name": name},
            "spec": {"containers": [{"name": "controller"}]},
            "status": {"phase": "Running", "conditions": conditions, **status},
        },
    )
    return name


def kubeconfig(folder: Path, api: FakeApiServer, user: Any = None) -> Path:
    authority = base64.b64encode(api.ca.file.read_bytes()).decode()
    cluster = {"server": api.url, "certificate-authority-data": authority}
    document = {
        "current-context": "home",
        "contexts": [{"name": "home", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": user or {"token": TOKEN}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(1 << 16):
        writer.write(chunk.upper())
        await writer.drain()
    writer.close()


async def said(target: str, text: bytes) -> bytes:
    """What comes back through the private socket."""
    reader, writer = await asyncio.open_unix_connection(target.removeprefix("unix:"))
    writer.write(text)
    writer.write_eof()
    found = await reader.read()
    writer.close()
    return found


def connection(path: Path) -> Connection:
    return Connection(kubeconfig=path, timeout=10)


async def refused(path: Path) -> CliError:
    with pytest.raises(CliError) as found:
        async with open_way(connection(path)):
            pass
    assert TOKEN not in str(found.value)
    return found.value


@pytest.mark.parametrize(("published", "used"), [({}, 9444), ({"tokens-port": "7000"}, 7000)])
async def test_bytes_go_to_the_port_of_a_pod_and_back(
    api: FakeApiServer, tmp_path: Path, published: dict[str, str], used: int
) -> None:
    publish(api, **published)
    pod = start_pod(api, 0)
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    api.forwarded[(pod, used)] = server.sockets[0].getsockname()[1]
    async with server, open_way(connection(kubeconfig(tmp_path, api))) as way:
        assert way.server_name == f"{ACCESS}.{NAMESPACE}.svc"
        assert (way.authority, way.credentials.token) == (CA.encode(), TOKEN)
        assert TOKEN not in repr(way)
        reader, writer = await asyncio.open_unix_connection(way.target.removeprefix("unix:"))
        large = b"x" * 300_000
        writer.write(large)
        assert await reader.readexactly(len(large)) == large.upper()
        writer.close()
        folder = Path(way.target.removeprefix("unix:")).parent
        assert folder.stat().st_mode & 0o077 == 0
        assert way.trouble is None
    assert not folder.exists()


async def test_a_certificate_has_the_other_port(api: FakeApiServer, tmp_path: Path) -> None:
    publish(api)
    pod = start_pod(api, 0)
    certificate, key = api.client_ca.issue("jane")
    user = {"client-certificate": str(certificate), "client-key": str(key)}
    async with open_way(connection(kubeconfig(tmp_path, api, user))) as way:
        assert await said(way.target, b"x") == b""
        assert way.credentials == Credentials("", certificate.read_bytes(), key.read_bytes())
        assert "error forwarding port 9445" in str(way.trouble)
    assert any(f"{pod}/portforward?ports=9445" in path for _, path in api.requests)


async def test_a_ready_pod_is_taken_before_one_that_only_runs(
    api: FakeApiServer, tmp_path: Path
) -> None:
    publish(api)
    start_pod(api, 0, "False")
    path = kubeconfig(tmp_path, api)

    async def asked() -> str:
        api.requests.clear()
        async with open_way(connection(path)) as way:
            await said(way.target, b"x")
        (one,) = [x for _, x in api.requests if "portforward" in x]
        return one.partition("/pods/")[2].partition("/")[0]

    assert await asked() == "gpuwarden-controller-0"
    start_pod(api, 1)
    assert await asked() == "gpuwarden-controller-1"


# --- what stops it


async def test_no_pod_that_runs(api: FakeApiServer, tmp_path: Path) -> None:
    publish(api)
    start_pod(api, 0, "False", phase="Pending")
    error = await refused(kubeconfig(tmp_path, api))
    assert error.code is ExitCode.NOT_REACHABLE
    assert "no pod gpuwarden-controller-N runs in namespace gpuwarden-system" in str(error)


async def test_without_the_published_authority_nobody_is_asked(
    api: FakeApiServer, tmp_path: Path
) -> None:
    start_pod(api, 0)
    path = kubeconfig(tmp_path, api)
    for data in (None, {}, {"tokens-port": "9444"}):
        if data is not None:
            metadata = {"namespace": NAMESPACE, "name": ACCESS}
            write = api.create if data == {} else api.change
            write("configmaps", {"metadata": metadata, "data": data})
        error = await refused(path)
        assert error.code is ExitCode.NOT_REACHABLE
        assert "no ConfigMap gpuwarden-access with an authority" in str(error)


@pytest.mark.parametrize("port", ["", "0", "65536", "x", "9444444444"])
async def test_what_is_no_port(api: FakeApiServer, tmp_path: Path, port: str) -> None:
    publish(api, **{"tokens-port": port})
    start_pod(api, 0)
    assert "tokens-port is no port" in str(await refused(kubeconfig(tmp_path, api)))


@pytest.mark.parametrize(
    ("forbidden", "what"),
    [
        ("/configmaps/", "may not get configmaps/gpuwarden-access"),
        ("/pods/gpuwarden-controller-0", "may not get pods/gpuwarden-controller-0"),
    ],
)
async def test_a_right_that_is_missing_is_named(
    api: FakeApiServer, tmp_path: Path, forbidden: str, what: str
) -> None:
    publish(api)
    start_pod(api, 0)
    api.forbidden.add(forbidden)
    error = await refused(kubeconfig(tmp_path, api))
    assert error.code is ExitCode.NOT_AUTHORISED
    assert what in str(error)
    assert "the Role gpuwarden-access there lets people in" in str(error)


async def test_more_replicas_than_the_role_names(api: FakeApiServer, tmp_path: Path) -> None:
    publish(api)
    start_pod(api, 0, "False")
    start_pod(api, 1)
    api.forbidden.add("/pods/gpuwarden-controller-1")
    async with open_way(connection(kubeconfig(tmp_path, api))) as way:
        assert way.target


async def test_a_port_that_may_not_be_forwarded_or_a_pod_that_goes(
    api: FakeApiServer, tmp_path: Path
) -> None:
    publish(api)
    pod = start_pod(api, 0)
    api.forbidden.add("portforward")
    async with open_way(connection(kubeconfig(tmp_path, api))) as way:
        await said(way.target, b"x")
        assert way.trouble is not None
        assert way.trouble.code is ExitCode.NOT_AUTHORISED
        api.forbidden.clear()
        api.delete("pods", f"{NAMESPACE}/{pod}")
        await said(way.target, b"x")
        assert f"the pod {pod} is gone" in str(way.trouble)


# --- the API server itself


async def test_credentials_that_it_does_not_accept(api: FakeApiServer, tmp_path: Path) -> None:
    error = await refused(kubeconfig(tmp_path, api, {"token": "other"}))
    assert error.code is ExitCode.NOT_AUTHORISED
    assert "does not accept these credentials" in str(error)


async def test_an_api_server_of_another_ca_gets_no_token(
    api: FakeApiServer, tmp_path: Path
) -> None:
    path = kubeconfig(tmp_path, api)
    document = json.loads(path.read_text())
    other = base64.b64encode(api.client_ca.file.read_bytes()).decode()
    document["clusters"][0]["cluster"]["certificate-authority-data"] = other
    path.write_text(json.dumps(document))
    error = await refused(path)
    assert error.code is ExitCode.NOT_REACHABLE
    assert "its certificate is not accepted: " in str(error)
    assert api.requests == []


@pytest.mark.parametrize(
    ("status", "body", "text"),
    [
        (503, b"", "it answered 503"),
        (301, b"", "it answered 301"),
        (200, b"not JSON", "an answer that is no JSON object"),
        (200, b"[]", "an answer that is no JSON object"),
        (200, b" " * ((4 << 20) + 1), "an answer of more than 4194304 bytes"),
    ],
)
async def test_answers_of_something_else(
    api: FakeApiServer, tmp_path: Path, status: int, body: bytes, text: str
) -> None:
    api.fail_next(status, body=body)
    error = await refused(kubeconfig(tmp_path, api))
    assert error.code is ExitCode.NOT_REACHABLE
    assert text in str(error)


async def test_an_api_server_that_is_not_there(api: FakeApiServer, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, api)
    await api.stop()
    assert (await refused(path)).code is ExitCode.NOT_REACHABLE


@pytest.mark.parametrize(
    ("login", "credentials", "text"),
    [
        ({}, Credentials("a\nb"), "the token is not printable ASCII"),
        ({"ca": b"\xff"}, Credentials("a"), "expected PEM that fits together"),
        ({"ca": b"no PEM"}, Credentials("a"), "expected PEM that fits together"),
        ({}, Credentials("", b"no", b"PEM"), "expected PEM that fits together"),
        ({"proxy": "socks5://p"}, Credentials("a"), "expected http:// or https://"),
    ],
)
def test_what_cannot_be_used_is_said_before_anybody_is_asked(
    login: dict[str, Any], credentials: Credentials, text: str
) -> None:
    values = {"ca": None, "server_name": "", "proxy": "", **login}
    with pytest.raises(CliError, match=text) as found:
        ApiServer(
            Login(context="c", server="https://k", credentials=None, plugin=None, **values),
            credentials,
            1.0,
        )
    assert found.value.code is ExitCode.USAGE


# --- every replica


async def test_ways_lead_to_every_replica_that_runs(api: FakeApiServer, tmp_path: Path) -> None:
    publish(api)
    start_pod(api, 0, "False")
    start_pod(api, 2, phase="Pending")
    start_pod(api, 3)
    async with open_ways(connection(kubeconfig(tmp_path, api))) as (ways, others):
        assert list(ways) == ["gpuwarden-controller-0", "gpuwarden-controller-3"]
        assert {name: str(error) for name, error in others.items()} == {
            "gpuwarden-controller-2": "its pod is Pending"
        }
        assert len({x.target for x in ways.values()}) == 2
        api.requests.clear()
        await said(ways["gpuwarden-controller-3"].target, b"x")
        (asked,) = [x for _, x in api.requests if "portforward" in x]
        assert "/pods/gpuwarden-controller-3/" in asked


async def test_without_a_replica_that_runs_there_is_no_way(
    api: FakeApiServer, tmp_path: Path
) -> None:
    publish(api)

    async def error() -> CliError:
        with pytest.raises(CliError) as found:
            async with open_ways(connection(kubeconfig(tmp_path, api))):
                pass
        return found.value

    found = await error()
    assert found.code is ExitCode.NOT_REACHABLE
    assert "no pod gpuwarden-controller-N runs" in str(found)
    start_pod(api, 1, phase="Failed")
    assert str(await error()) == "its pod is Failed"
