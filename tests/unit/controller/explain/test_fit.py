"""A question about pods that do not exist leaves the event loop to others."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from controller.admission.pod import AdmittedPod
from controller.explain.fit import FitQuery
from controller.placement import gpu_map
from controller.placement.explanation import FitReport
from controller.placement.keys import RequirementRules
from controller.placement.pod import PodDecodeError
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    parse_requirements,
)

T = TypeVar("T")
PODS = 64


def stateful_set(node: str) -> bytes:
    text = "\n".join(f"{number}={node}:{number % 8}" for number in range(PODS))
    template = {
        "metadata": {"annotations": {"gpu-scheduling-map": text}},
        "spec": {"containers": [{"name": "main"}]},
    }
    spec = {"replicas": PODS, "template": template}
    return json.dumps({"kind": "StatefulSet", "metadata": {"name": "web"}, "spec": spec}).encode()


def placing(
    seen: Callable[[], None],
) -> Callable[[AdmittedPod], tuple[Requirements | RequirementsInvalid, FitReport | None]]:
    def place(pod: AdmittedPod) -> tuple[Requirements | RequirementsInvalid, FitReport | None]:
        seen()
        return parse_requirements(pod, RequirementRules()), FitReport((), {}, None)

    return place


async def test_between_two_pods_the_event_loop_does_what_else_there_is() -> None:
    turns, seen = [0], list[int]()

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    place = placing(lambda: seen.append(turns[0]))
    running = asyncio.create_task(others())
    try:
        found = await FitQuery(place, place, None).about(stateful_set("turns"), "team-a")
    finally:
        running.cancel()
    assert [x.name for x in found] == [f"web-{number}" for number in range(PODS)]
    assert len(set(seen)) == PODS


async def test_a_map_is_parsed_once_and_not_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, line = list[int](), gpu_map._line

    def spy(text: str) -> tuple[int, gpu_map.Place]:
        threads.append(threading.get_ident())
        return line(text)

    monkeypatch.setattr(gpu_map, "_line", spy)
    place = placing(lambda: None)
    found = await FitQuery(place, place, None).about(stateful_set("thread"), "team-a")
    assert all(isinstance(x.needs, Requirements) and x.needs.place for x in found)
    assert len(threads) == PODS
    assert threading.get_ident() not in threads


async def test_two_questions_are_answered_at_once_and_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, go_on = list[str](), asyncio.Event()

    async def on_thread(read: Callable[..., T], data: bytes, namespace: str) -> T:
        begun.append(namespace)
        await go_on.wait()
        return read(data, namespace)

    monkeypatch.setattr(asyncio, "to_thread", on_thread)
    place = placing(lambda: None)
    query, data = FitQuery(place, place, None), stateful_set("few")
    asking = [asyncio.create_task(query.about(data, f"team-{number}")) for number in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == ["team-0", "team-1"]
    go_on.set()
    assert [len(x) for x in await asyncio.gather(*asking)] == [PODS] * 5
    assert len(begun) == 5


async def test_a_question_that_cannot_be_read_leaves_its_turn_to_others() -> None:
    place = placing(lambda: None)
    query = FitQuery(place, place, None)
    for _ in range(3):
        with pytest.raises(PodDecodeError):
            await query.about(b"{", "team-a")
    assert len(await query.about(stateful_set("after"), "team-a")) == PODS
