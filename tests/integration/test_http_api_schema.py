"""The HTTP API keeps its own OpenAPI document: schemathesis asks it what fits, and what does not.

Examples are derived from the document alone, the same at each run. Endpoint and TLS are the
controller's; rates are out of the way, for a limit is no fault.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import ignored_auth

from controller.access import Rate
from controller.web.api.openapi import EVERY_OPERATION
from controller.web.api.operations import Operation
from tests.fakes.http_api import TD, ApiWorld, api_world
from tests.hang import HANG_S

EXAMPLES: Final = 25
"""Of each operation, of each kind."""
MANY: Final = Rate(1e6, 1_000_000)


@dataclass(frozen=True)
class Who:
    """By token, or by certificate, which schemathesis does not know as a way to say who one is."""

    token: str = ""
    svid: str = ""

    def how(self, world: ApiWorld) -> dict[str, Any]:
        """Arguments of a request."""
        found: dict[str, Any] = {"verify": str(world.web.file), "timeout": 20}
        if self.token:
            found["headers"] = {"Authorization": f"Bearer {self.token}"}
        if self.svid:
            issued = world.authority.issue(f"spiffe://{TD}/gpuwarden/{self.svid}")
            file = world.folder / "caller.pem"
            file.write_bytes(issued.key_pem + issued.chain_pem)
            found |= {"cert": str(file), "excluded_checks": [ignored_auth]}
        return found


READER, POD, NOBODY = Who("reader"), Who("pod"), Who()
OPERATOR: Final = Who(svid="operator/jane")


def ask(world: ApiWorld, operation: Operation, who: Who, mode: GenerationMode) -> list[int]:
    """Ask and compare every answer with the document; raises FailureGroup. Blocks."""
    with requests.Session() as session:
        return _ask(world, session, operation, mode, who.how(world))


def _ask(
    world: ApiWorld,
    session: requests.Session,
    operation: Operation,
    mode: GenerationMode,
    how: dict[str, Any],
) -> list[int]:
    base, ca = f"https://localhost:{world.port}", str(world.web.file)
    document = session.get(f"{base}/openapi.json", timeout=HANG_S, verify=ca).json()
    schema = schemathesis.openapi.from_dict(document)
    described, found = EVERY_OPERATION[operation], list[int]()

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[described.path][described.method].as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case[Any]) -> None:
        found.append(case.call_and_validate(base_url=base, session=session, **how).status_code)

    one()
    return found


async def asked(
    folder: Path, operation: Operation, who: Who, mode: GenerationMode = GenerationMode.POSITIVE
) -> set[int]:
    """The statuses that there were."""
    async with api_world(folder, others=MANY, pods=MANY) as world:
        await world.reserve()
        found = await asyncio.to_thread(ask, world, operation, who, mode)
        assert not world.failures
        return set(found)


@pytest.mark.parametrize("operation", [Operation.DEVICES, Operation.NODES, Operation.RESERVATIONS])
async def test_lists_answer_what_the_document_says(tmp_path: Path, operation: Operation) -> None:
    assert await asked(tmp_path, operation, READER) == {200}
    assert 400 in await asked(tmp_path, operation, READER, GenerationMode.NEGATIVE)
    assert await asked(tmp_path, operation, POD) == {403}


@pytest.mark.parametrize("operation", [Operation.V1_NODES, Operation.V1_FLEET, Operation.V1_PODS])
async def test_v1_answers_what_the_document_says(tmp_path: Path, operation: Operation) -> None:
    assert await asked(tmp_path, operation, READER) == {200}
    assert 400 in await asked(tmp_path, operation, READER, GenerationMode.NEGATIVE)


async def test_finalize_answers_what_the_document_says(tmp_path: Path) -> None:
    assert 404 in await asked(tmp_path, Operation.FINALIZE, OPERATOR)
    assert 400 in await asked(tmp_path, Operation.FINALIZE, OPERATOR, GenerationMode.NEGATIVE)
    assert await asked(tmp_path, Operation.FINALIZE, POD) == {403}


async def test_the_document_itself_is_for_anybody(tmp_path: Path) -> None:
    assert await asked(tmp_path, Operation.OPENAPI, NOBODY) == {200}
