"""What the HTTP API v1 answers, where a whole listener would only be in the way."""

from dataclasses import replace
from pathlib import Path

from controller.access import Caller, CallerKind
from controller.explain.fleet_rows import FleetMap
from controller.web.api.documents import PageRequest
from controller.web.api.operations import Operation
from controller.web.api.reading import Asked, Reading
from controller.web.api.viewers import Viewer
from gpuwarden.moment import NS_PER_S
from tests.builders.fleet_views import NOW_NS, fleet, healthy
from tests.fakes.http_api import ApiWorld

READER = Viewer(Caller(CallerKind.INSPECTOR, "r", None), "r", operates=False, has_serials=False)
ASKED = Asked(READER, {"group": "class"}, PageRequest(1))


class Moving(ApiWorld):
    """A world whose time a test moves."""

    now_ns = NOW_NS

    def facts(self):  # type: ignore[no-untyped-def]  # noqa: ANN201 -- as in ApiWorld
        return replace(super().facts(), now_ns=self.now_ns)


async def verified(reading: Reading) -> int:
    found = await reading.answer(Operation.V1_FLEET, ASKED)
    assert isinstance(found, FleetMap)
    return found.gpus["verified"]


async def test_the_whole_fleet_is_made_once_a_second(tmp_path: Path) -> None:
    world = Moving(tmp_path)
    reading = Reading(world.sources(), None)  # type: ignore[arg-type] # nobody is asked
    world.fleet = fleet(healthy("gpu-1", gpus=2), healthy("gpu-2", gpus=3))
    assert await verified(reading) == 5
    world.fleet = fleet(world.fleet.nodes["gpu-1"])
    world.now_ns += NS_PER_S - 1
    assert await verified(reading) == 5
    world.now_ns += 1
    assert await verified(reading) == 2


async def test_a_row_is_made_again_when_anything_of_it_changes(tmp_path: Path) -> None:
    world = Moving(tmp_path)
    reading = Reading(world.sources(), None)  # type: ignore[arg-type] # same
    world.fleet = fleet(healthy("gpu-1", gpus=4))
    assert await verified(reading) == 4
    await world.reserve()
    world.now_ns += NS_PER_S
    assert await verified(reading) == 2
    world.fleet = fleet(healthy("gpu-1", gpus=3))
    world.now_ns += NS_PER_S
    assert await verified(reading) == 1
    world.now_ns += 1_000 * NS_PER_S
    assert await verified(reading) == 0
