"""Whatever is asked, the answer is one that the OpenAPI document promises."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.web.api.openapi import openapi_document
from tests.fakes.http_api import BODY, api_world
from tests.fakes.json_schema import faults

DOCUMENT = openapi_document()
OPERATIONS = [
    (path, method, operation)
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    if operation["operationId"] != "v1-events"
]
"""Streams have a test of their own."""
TOKENS = st.sampled_from(["pod", "other-pod", "reader", "reader-pod", "invented", None])
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=3), SCALARS)
BODIES = (
    st.fixed_dictionaries({}, optional={x: st.just(text) | VALUES for x, text in BODY.items()})
    | VALUES
)
QUERIES = st.dictionaries(
    st.sampled_from(["limit", "after", "other"]),
    st.sampled_from(["1", "500", "0", "501", "gpu-1", ""]) | st.text(max_size=8),
    max_size=2,
)
REQUESTS = st.tuples(st.sampled_from(OPERATIONS), TOKENS, QUERIES, BODIES)


@given(st.lists(REQUESTS, min_size=1, max_size=8), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_answers_are_as_described(requests: list[Any], dead: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_asked(Path(folder), requests, dead=dead))


async def _asked(folder: Path, requests: list[Any], *, dead: bool) -> None:
    async with api_world(folder) as world:
        await world.reserve()
        world.store.is_dead = dead
        for (path, method, operation), token, query, body in requests:
            sent = {"json": body} if "requestBody" in operation else {}
            status, answer = await world.ask(method, path, token, params=query, **sent)
            described = operation["responses"][str(status)]
            schema = described["content"]["application/json"]["schema"]
            assert faults(answer, schema, DOCUMENT) == []
        assert world.failures == []


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
async def test_a_parameter_that_nobody_knows_is_answered_as_described(
    tmp_path: Path, path: str, method: str, operation: dict[str, Any]
) -> None:
    body: dict[str, Any] = {"json": {}} if "requestBody" in operation else {}
    async with api_world(tmp_path) as world:
        status, answer = await world.ask(method, path, "reader", params={"other": "1"}, **body)
    schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
    assert faults(answer, schema, DOCUMENT) == []


def test_the_document_says_what_the_contract_says() -> None:
    finalize = DOCUMENT["paths"]["/finalize"]["post"]
    assert set(finalize["responses"]) == {
        *("200", "400", "401", "403", "404", "408", "409", "413", "429", "500", "503")
    }
    schema = {"$ref": "#/components/schemas/FinalizeRequest"}
    assert finalize["requestBody"]["content"]["application/json"]["schema"] == schema
    assert faults(BODY, schema, DOCUMENT) == []
    assert faults({**BODY, "gpu-uuid": "0"}, schema, DOCUMENT)
    assert faults({}, schema, DOCUMENT) == [f"$.{x} is missing" for x in BODY]
    assert faults({"status": "ok"}, {"$ref": "#/components/schemas/Done"}, DOCUMENT) == []
