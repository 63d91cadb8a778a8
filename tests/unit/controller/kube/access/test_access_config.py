"""The cluster's client CAs as they are read, and the ConfigMap that people verify by."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from controller.kube.access.access_config import (
    EVERY_S,
    LASTS_NS,
    AccessDocument,
    ClientAuthorities,
)
from controller.kube.api.resources import ApiError, Resource
from gpuwarden.moment import NS_PER_S
from tests.builders.web_certificates import WebCa
from tests.fakes.clock import FakeClock


class Api:
    """One ConfigMap."""

    def __init__(self, data: dict[str, str] | None = None) -> None:
        self.data = data
        self.body: bytes | None = None
        self.asked: list[tuple[str, str]] = []
        self.patches: list[Any] = []
        self.error: ApiError | None = None

    async def get(self, resource: Resource, name: str, namespace: str) -> bytes:
        assert resource.plural == "configmaps"
        self.asked.append((namespace, name))
        if self.error is not None:
            raise self.error
        return self.body or json.dumps({"data": self.data}).encode()

    async def patch(self, _resource: Resource, _name: str, body: Any, _namespace: str) -> bytes:
        self.patches.append(body)
        if self.error is not None:
            raise self.error
        self.data = {**(self.data or {}), **body["data"]}
        return b"{}"


@pytest.fixture
def pem(tmp_path: Path) -> str:
    return WebCa(tmp_path, "client-ca").file.read_text()


def authorities(api: Any) -> tuple[ClientAuthorities, FakeClock]:
    clock = FakeClock()
    return ClientAuthorities(api, clock.boottime_ns), clock


async def test_the_client_cas_are_those_of_the_cluster(pem: str) -> None:
    api = Api({"client-ca-file": pem, "requestheader-client-ca-file": "of a proxy"})
    found, _ = authorities(api)
    assert found.now() == ()
    assert "not read yet" in str(found.warning())
    await found.read()
    assert len(found.now()) == 1
    assert found.warning() is None
    assert api.asked == [("kube-system", "extension-apiserver-authentication")]
    before = found.now()
    await found.read()
    assert found.now() is before


async def test_what_cannot_be_read_leaves_what_is_known_for_a_while(pem: str) -> None:
    api = Api({"client-ca-file": pem})
    found, clock = authorities(api)
    await found.read()
    api.error = ApiError("the API server answered 403", 403)
    clock.advance((LASTS_NS - 1) / NS_PER_S)
    await found.read()
    assert len(found.now()) == 1
    assert "answered 403" in str(found.warning())
    clock.advance(2 / NS_PER_S)
    assert found.now() == ()
    assert LASTS_NS > 2 * EVERY_S * NS_PER_S


async def test_a_ca_that_is_replaced_or_removed_counts_no_more(pem: str, tmp_path: Path) -> None:
    api = Api({"client-ca-file": pem})
    found, _ = authorities(api)
    await found.read()
    first = found.now()
    api.data = {"client-ca-file": WebCa(tmp_path, "next").file.read_text()}
    await found.read()
    assert found.now() != first
    nothing: tuple[dict[str, str] | None, ...] = ({}, None)
    for data in nothing:
        api.data = data
        await found.read()
        assert found.now() == ()
        assert "has no client-ca-file" in str(found.warning())


@pytest.mark.parametrize(
    ("text", "why"),
    [("junk", "no PEM"), ("x" * ((1 << 20) + 1), "more than 1048576 bytes")],
)
async def test_what_is_no_ca_is_not_taken(pem: str, text: str, why: str) -> None:
    api = Api({"client-ca-file": pem})
    found, _ = authorities(api)
    await found.read()
    before = found.now()
    api.data = {"client-ca-file": text}
    await found.read()
    assert found.now() == before
    assert why in str(found.warning())
    api.data = {"client-ca-file": pem * 65}
    await found.read()
    assert "more than 64 certificates" in str(found.warning())
    api.body = b"[]"
    await found.read()
    assert "a ConfigMap that is none" in str(found.warning())


# --- how to verify us

WANTED = {"ca.crt": "authority", "tokens-port": "9444"}


def document(
    api: Any, wanted: dict[str, str] | None = WANTED, *, leads: bool = True
) -> AccessDocument:
    return AccessDocument(
        api, "gpuwarden-system", wanted=lambda: wanted, leads=lambda: leads, every_s=0
    )


async def test_what_differs_is_written_and_nothing_else() -> None:
    api = Api({"other": "stays"})
    await document(api).write()
    assert api.data == {"other": "stays", **WANTED}
    await document(api).write()
    assert api.patches == [{"data": WANTED}]
    assert api.asked == [("gpuwarden-system", "gpuwarden-access")] * 2


async def test_what_is_not_known_is_not_written() -> None:
    api = Api()
    await document(api, None).write()
    assert api.asked == []


async def test_trouble_is_told_until_it_is_over() -> None:
    api = Api()
    api.error = ApiError("the API server answered 404 NotFound", 404)
    one = document(api)
    assert one.warning() is None
    await one.write()
    assert one.warning() == "ConfigMap gpuwarden-access: the API server answered 404 NotFound"
    api.error = None
    await one.write()
    assert one.warning() is None


async def test_it_is_written_as_soon_as_this_replica_leads_and_knows_what() -> None:
    """The first installation: nobody leads yet, and certificates come later."""
    api: Any = Api()
    leads = iter((False, False, *[True] * 3))
    wanted = iter((None, WANTED, WANTED))
    one = AccessDocument(
        api,
        "gpuwarden-system",
        wanted=lambda: next(wanted),
        leads=lambda: next(leads),
        every_s=3600,
        soon_s=0,
    )
    following = asyncio.create_task(one.follow())
    for _ in range(20):
        await asyncio.sleep(0)
    assert api.patches == [{"data": WANTED}]
    assert (list(leads), list(wanted)) == ([True], [WANTED])
    following.cancel()
