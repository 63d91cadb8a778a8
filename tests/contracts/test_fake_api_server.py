"""The fake API server keeps the contract, and our client comes through what it can do to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from controller.kube.api.client import MAX_OBJECT_BYTES, ApiClient, Request
from controller.kube.api.resources import LEASES, NAMESPACES, NODES, ApiError
from controller.kube.api.transport import AccessError, InCluster, Kubeconfig, Transport
from tests.builders.kube_access import api_client, in_cluster, kubeconfig, service_account
from tests.contracts.kubernetes_api import NAMESPACE, KubernetesApiContract, lease, namespace
from tests.fakes.api_server import TOKEN, FakeApiServer
from tests.fakes.clock import FakeClock


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(tmp_path) as made:
        yield made


@pytest.fixture
async def opened(
    server: FakeApiServer, tmp_path: Path
) -> AsyncIterator[tuple[ApiClient, FakeClock]]:
    clock = FakeClock()
    api, transport = api_client(in_cluster(tmp_path / "sa", server), clock)
    yield api, clock
    await transport.close()


@pytest.fixture
def api(opened: tuple[ApiClient, FakeClock]) -> ApiClient:
    return opened[0]


class TestWithToken(KubernetesApiContract):
    @pytest.fixture
    def api(self, opened: tuple[ApiClient, FakeClock]) -> ApiClient:
        return opened[0]


class TestWithClientCertificate(KubernetesApiContract):
    @pytest.fixture
    async def api(self, server: FakeApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
        api, transport = api_client(Kubeconfig(kubeconfig(tmp_path, server)))
        yield api
        await transport.close()


class TestCredentials:
    async def test_a_replaced_token_is_used_within_a_minute(
        self, server: FakeApiServer, opened: tuple[ApiClient, FakeClock], tmp_path: Path
    ) -> None:
        api, clock = opened
        await _read(api)
        server.tokens = {TOKEN, "second"}
        service_account(tmp_path / "sa", server, "second")
        clock.advance(61)
        await _read(api)
        server.tokens = {"second"}
        await _read(api)
        assert len(server.requests) == 3

    async def test_a_refused_token_is_read_again_at_once(
        self, server: FakeApiServer, api: ApiClient, tmp_path: Path
    ) -> None:
        await _read(api)
        service_account(tmp_path / "sa", server, "second")
        server.tokens = {"second"}
        await _read(api)
        assert len(server.requests) == 3

    async def test_a_token_that_stays_refused_is_an_error_without_it(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        server.tokens = set()
        with pytest.raises(ApiError, match="answered 401 Unauthorized") as found:
            await api.get(NODES, "n")
        assert TOKEN not in str(found.value)
        assert len(server.requests) == 1

    async def test_a_new_ca_is_read_when_the_server_shows_its_certificate(
        self, server: FakeApiServer, api: ApiClient, tmp_path: Path
    ) -> None:
        await _read(api)
        await server.restart_with_another_ca()
        with pytest.raises(ApiError, match="could not be trusted"):
            await api.get(NODES, "n")
        service_account(tmp_path / "sa", server)
        await _read(api)

    async def test_open_watches_outlive_a_change_of_the_ca(
        self,
        server: FakeApiServer,
        opened: tuple[ApiClient, FakeClock],
        tmp_path: Path,
    ) -> None:
        api, clock = opened
        version = await _version(api)
        async with api.watch(NAMESPACES, version, seconds=20, silence_s=20) as lines:
            bundle = tmp_path / "sa" / "ca.crt"
            bundle.write_bytes(bundle.read_bytes() + server.client_ca.file.read_bytes())
            clock.advance(61)
            await api.create(NAMESPACES, namespace("ns"))
            assert b'"ns"' in await anext(lines)

    async def test_files_that_cannot_be_read_for_a_while_do_not_matter(
        self, opened: tuple[ApiClient, FakeClock], tmp_path: Path
    ) -> None:
        api, clock = opened
        await _read(api)
        (tmp_path / "sa" / "token").unlink()
        clock.advance(61)
        await _read(api)

    async def test_without_any_credentials_nothing_is_sent(
        self, server: FakeApiServer, tmp_path: Path
    ) -> None:
        source = in_cluster(tmp_path / "sa", server)
        (tmp_path / "sa" / "token").unlink()
        api, transport = api_client(source)
        with pytest.raises(ApiError, match="sa/token: No such file"):
            await api.get(NODES, "n")
        assert server.requests == []
        service_account(tmp_path / "sa", server)
        await _read(api)
        await transport.close()


class TestBadAccess:
    async def test_no_cluster(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("t")
        (tmp_path / "ca.crt").write_text("c")
        with pytest.raises(AccessError, match="Service host/port is not set"):
            await InCluster({}, tmp_path).read()

    @pytest.mark.parametrize("token", ["two words", "ключ", " "])
    async def test_a_token_that_is_none(
        self, server: FakeApiServer, tmp_path: Path, token: str
    ) -> None:
        source = in_cluster(tmp_path, server)
        (tmp_path / "token").write_text(token)
        with pytest.raises(AccessError) as found:
            await source.read()
        assert token.strip() == "" or token not in str(found.value)

    async def test_a_file_too_large(self, server: FakeApiServer, tmp_path: Path) -> None:
        source = in_cluster(tmp_path, server)
        (tmp_path / "token").write_bytes(b"x" * ((1 << 20) + 1))
        with pytest.raises(AccessError, match="at most"):
            await source.read()

    async def test_a_ca_that_is_none(self, server: FakeApiServer, tmp_path: Path) -> None:
        source = in_cluster(tmp_path, server)
        (tmp_path / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\nnone\n")
        api, transport = api_client(source)
        with pytest.raises(ApiError, match="CA or client certificate"):
            await api.get(NODES, "n")
        await transport.close()

    async def test_a_kubeconfig_must_verify_the_server(
        self, server: FakeApiServer, tmp_path: Path
    ) -> None:
        path = kubeconfig(tmp_path, server, **{"insecure-skip-tls-verify": True})
        with pytest.raises(AccessError, match="insecure-skip-tls-verify"):
            await Kubeconfig(path).read()

    async def test_a_kubeconfig_must_use_tls(self, server: FakeApiServer, tmp_path: Path) -> None:
        path = kubeconfig(tmp_path, server, server="http://127.0.0.1:1")
        with pytest.raises(AccessError, match="https://"):
            await Kubeconfig(path).read()

    async def test_a_kubeconfig_that_is_none_is_not_quoted(self, tmp_path: Path) -> None:
        (tmp_path / "kubeconfig").write_text("users: [{token: 'sec ret")
        with pytest.raises(AccessError) as found:
            await Kubeconfig(tmp_path / "kubeconfig").read()
        assert "sec ret" not in str(found.value)

    async def test_what_holds_secrets_does_not_show_them(
        self, server: FakeApiServer, tmp_path: Path
    ) -> None:
        assert TOKEN not in repr(await in_cluster(tmp_path / "sa", server).read())


class TestFaults:
    async def test_too_many_requests_says_how_long(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        server.fail_next(429, Retry_After="7")
        with pytest.raises(ApiError) as found:
            await api.get(NODES, "n")
        assert (found.value.status, found.value.retry_after_s) == (429, 7.0)
        assert found.value.says_wait

    async def test_a_body_that_is_no_status_is_not_quoted(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        server.fail_next(502, body=b"<html>Authorization: Bearer abcdefghijkl</html>")
        with pytest.raises(ApiError) as found:
            await api.get(NODES, "n")
        assert str(found.value) == "the API server answered 502"

    async def test_a_redirect_is_not_followed_to_an_answer(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        server.create("nodes", {"metadata": {"name": "n"}})
        server.fail_next(307, Location=f"{server.url}/api/v1/nodes/n")
        with pytest.raises(ApiError, match="elsewhere"):
            await api.get(NODES, "n")

    async def test_an_answer_too_large_is_not_read(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        server.fail_next(200, body=b" " * (MAX_OBJECT_BYTES + 1))
        with pytest.raises(ApiError, match="more than"):
            await api.get(NODES, "n")

    async def test_a_list_that_is_none(self, server: FakeApiServer, api: ApiClient) -> None:
        server.fail_next(200, body=b"[]")
        with pytest.raises(ApiError, match="no list"):
            await _version(api)

    async def test_a_continue_token_that_expires(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        for number in range(3):
            server.create("namespaces", {"metadata": {"name": f"n-{number}"}})
        pages = api.pages(NAMESPACES)
        await anext(pages)
        server.create("namespaces", {"metadata": {"name": "later"}})
        server.objects.compact()
        with pytest.raises(ApiError) as found:
            await anext(pages)
        assert found.value.is_gone

    async def test_nobody_is_there(self, server: FakeApiServer, api: ApiClient) -> None:
        await _read(api)
        await server.stop()
        with pytest.raises(ApiError, match="no answer") as found:
            await api.get(NODES, "n")
        assert found.value.status == 0

    async def test_a_server_that_never_answers(self, server: FakeApiServer, tmp_path: Path) -> None:
        server.is_stalled = True
        transport = Transport(in_cluster(tmp_path / "sa", server), FakeClock())
        with pytest.raises(ApiError, match="in time"):
            async with transport.exchange(Request("GET", "/api/v1/nodes", total_s=0.1)):
                pass
        await transport.close()

    async def test_a_watch_that_falls_silent(self, server: FakeApiServer, api: ApiClient) -> None:
        server.are_watches_silent = True
        version = await _version(api)
        with pytest.raises(ApiError, match="fell silent"):
            async with api.watch(NAMESPACES, version, seconds=30, silence_s=0.2) as lines:
                await anext(lines)

    async def test_a_watch_that_is_late(self, server: FakeApiServer, api: ApiClient) -> None:
        version = await _version(api)
        async with api.watch(NAMESPACES, version, seconds=30, silence_s=30) as lines:
            with server.late_watches():
                for name in ("one", "two"):
                    server.create("namespaces", {"metadata": {"name": name}})
                reading = asyncio.ensure_future(anext(lines))
                assert await _version(api) != version
                assert not reading.done()
            told = [await reading, await anext(lines)]
        assert [json.loads(x)["object"]["metadata"]["name"] for x in told] == ["one", "two"]

    async def test_a_watch_that_is_cut(self, server: FakeApiServer, api: ApiClient) -> None:
        version = await _version(api)
        async with api.watch(NAMESPACES, version, seconds=30, silence_s=30) as lines:
            server.drop_watches()
            with pytest.raises(ApiError, match="broke off"):
                await anext(lines)

    async def test_a_watch_that_is_cut_within_a_line(
        self, server: FakeApiServer, api: ApiClient
    ) -> None:
        version = await _version(api)
        server.fail_next(200, matching="watch=true", body=b'{"type":"ADD')
        with pytest.raises(ApiError, match="within a line"):
            async with api.watch(NAMESPACES, version, seconds=30, silence_s=30) as lines:
                await anext(lines)

    async def test_a_watch_that_never_ends(self, server: FakeApiServer, api: ApiClient) -> None:
        version = await _version(api)
        server.do_watches_outstay = True
        chatter = asyncio.create_task(_chatter(server))
        with pytest.raises(ApiError, match="did not end"):
            async with api.watch(NAMESPACES, version, seconds=0, silence_s=0.5) as lines:
                _ = [line async for line in lines]
        chatter.cancel()

    async def test_a_watch_from_too_long_ago(self, server: FakeApiServer, api: ApiClient) -> None:
        version = await _version(api)
        server.create("namespaces", {"metadata": {"name": "x"}})
        server.objects.compact()
        with pytest.raises(ApiError) as found:
            async with api.watch(NAMESPACES, version, seconds=30, silence_s=30):
                pass
        assert found.value.is_gone


async def _chatter(server: FakeApiServer) -> None:
    for number in range(1_000):
        server.create("namespaces", {"metadata": {"name": f"c-{number}"}})
        await asyncio.sleep(0.02)


async def _read(api: ApiClient) -> None:
    await _expect_not_found(lambda: api.get(NODES, "n"))


async def _expect_not_found(ask: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(ApiError) as found:
        await ask()
    assert found.value.is_not_found, found.value


async def _version(api: ApiClient) -> str:
    found = ""
    async for page in api.pages(NAMESPACES):
        found = page.metadata.resource_version
    return found


async def test_names_are_escaped_into_paths(server: FakeApiServer, api: ApiClient) -> None:
    with pytest.raises(ApiError):
        await api.get(LEASES, "../nodes?x=y", NAMESPACE)
    assert server.requests[-1][1].endswith("/leases/..%2Fnodes%3Fx=y")
    await api.create(LEASES, lease("l", "me"), NAMESPACE)
