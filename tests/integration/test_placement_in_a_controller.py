"""What people ask a whole controller about placement, with the real command line."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.spiffe.workload_api import InsecureWorkloadApi
from tests.fakes.api_server import FakeApiServer
from tests.integration.test_binding_gate_in_a_controller import GPUS, Stage, stage
from tests.integration.test_controller_app import _restored_logging
from tests.integration.test_controller_in_a_cluster import TD, world

__all__ = ["_restored_logging"]
"""A fixture that is used by every test of the module where it stands."""


@pytest.fixture
def workload_api(tmp_path: Path) -> Iterator[InsecureWorkloadApi]:
    with InsecureWorkloadApi(tmp_path, TD) as api:
        yield api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[FakeApiServer]:
    made = FakeApiServer(tmp_path)
    await made.start()
    made.create("nodes", {"metadata": {"name": "node-1"}})
    labels = {"gpuwarden.dev/enforce": "true"}
    made.create("namespaces", {"metadata": {"name": "team-a", "labels": labels}})
    yield made
    await made.stop()


async def ask(socket: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of the command line."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gpuwarden.cli", *arguments, "--server", f"unix:{socket}"),
        *("--timeout", "60"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def told(here: Stage, *arguments: str) -> Any:
    """What it says for programs."""
    socket = here.there.here.controller.addresses.local
    code, out, err = await ask(socket, *arguments, "-o", "json")
    assert code == 0, err
    return json.loads(out)


async def test_who_holds_which_gpu(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with stage(tmp_path, api, workload_api) as here:
        given = {}
        for name in ("train-0", "train-1"):
            here.create(name)
            given[name] = await here.bound(name)
            await here.state_of(given[name], "Confirmed")
        assert set(given.values()) < set(GPUS)
        found = (await told(here, "reservations", "--namespace", "team-a"))["reservations"]
        assert {x["pod"]: x["gpus"][0]["uuid"] for x in found} == given
        assert {(x["state"], x["node"], x["origin"]) for x in found} == {
            ("Confirmed", "node-1", "gate")
        }
        assert all(x["ageS"] > 0 for x in found)
        assert (await told(here, "reservations", "--node", "node-2"))["reservations"] == []


async def test_without_a_ledger_the_list_is_an_error_not_empty(
    tmp_path: Path, api: FakeApiServer, workload_api: InsecureWorkloadApi
) -> None:
    async with world(tmp_path, api, workload_api) as here:
        code, out, err = await ask(here.controller.addresses.local, "reservations")
        assert (code, out) == (1, "")
        assert "LEDGER_UNAVAILABLE: this controller reserves nothing" in err
