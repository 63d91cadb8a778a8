"""The console with 5,000 nodes of eight GPUs, in Chromium: first paint, map, filter, scrolling."""

import asyncio
import shutil
from pathlib import Path
from statistics import median
from typing import Any, Final

from playwright.async_api import Page, async_playwright

from controller.access import Person, Rate
from controller.explain.fleet_rows import Grouping, fleet_map, node_rows
from controller.people.rights import INSPECT
from controller.web.api.viewers import COOKIE
from tests.bench.fleet_of import registry_of
from tests.bench.results import Bound, Goal, Row
from tests.fakes.http_api import ApiWorld, api_world

GROUP: Final = "Console, 5,000 nodes with eight GPUs each, in Chromium"
NODES: Final = 5_000
_ROUNDS: Final = 5
_ROUND_S: Final = 180
"""No longer: a page that gets no frame would be waited for without an end."""
_TOKEN: Final = "reader-token"  # noqa: S105 -- of a fake
_PAINT: Final = """() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"""
_SCROLL: Final = """() => new Promise((done) => {
  const frames = []; let last = performance.now();
  const step = (now) => {
    frames.push(now - last); last = now; scrollBy(0, 120);
    frames.length < 90 ? requestAnimationFrame(step) : done(frames.slice(1));
  };
  requestAnimationFrame(step);
})"""


def console_rows(folder: Path) -> list[Row]:
    """What a person waits for; none where there is no chromium."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return []
    # At the usual priority: threads of a browser that go before all others starve each other.
    found = asyncio.run(measured(folder, chromium, NODES))
    goals = {
        "the fleet's rows and map, made again on the server": 1_500.0,
        "first contentful paint of the fleet page": 1_500.0,
        "the map of 40,000 GPUs is drawn, after the request": 3_000.0,
        "a filter by state, from the key to the page": 1_500.0,
        "the slowest of 20 frames while scrolling": 50.0,
    }
    return [
        Row(GROUP, work, "ms", found[work], goal=Goal(Bound.AT_MOST, goal, of_ratio=False))
        for work, goal in goals.items()
    ]


async def measured(folder: Path, chromium: str, nodes: int) -> dict[str, float]:
    """Milliseconds by what is waited for; raises TimeoutError where a round does not end."""
    async with api_world(folder, others=Rate(1e6, 10**6)) as world:
        world.fleet = registry_of(nodes)[0].snapshot()
        world.people[_TOKEN] = Person("reader")
        world.rights.add(("reader", INSPECT))
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            context = await browser.new_context(
                ignore_https_errors=True, base_url=f"https://localhost:{world.port}"
            )
            cookie: Any = {"name": COOKIE, "value": _TOKEN, "secure": True}
            cookie["url"] = f"https://localhost:{world.port}"
            await context.add_cookies([cookie])
            context.set_default_timeout(_ROUND_S * 1e3)
            rounds = []
            for _ in range(_ROUNDS):
                async with asyncio.timeout(_ROUND_S):
                    rounds.append(await _round(await context.new_page(), world, nodes))
            await browser.close()
    return {work: median(x[work] for x in rounds) for work in rounds[0]}


async def _round(page: Page, world: ApiWorld, nodes: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    start = loop.time()
    fleet_map(node_rows(world.facts()), Grouping.CLASS)
    made = loop.time() - start
    start = loop.time()
    await page.goto("/")
    await page.wait_for_selector(f"#map[data-drawn='{nodes}']")
    drawn = loop.time() - start
    paint = await page.evaluate(_PAINT)
    frames = sorted(await page.evaluate(_SCROLL))
    start = loop.time()
    await page.locator("select[name=state]").select_option("verified")
    await page.keyboard.press("Enter")
    await page.get_by_role("button", name="Filter").click()
    await page.wait_for_url("**state=verified**")
    filtered = loop.time() - start
    await page.close()
    return {
        "the fleet's rows and map, made again on the server": made * 1e3,
        "first contentful paint of the fleet page": paint,
        "the map of 40,000 GPUs is drawn, after the request": drawn * 1e3,
        "a filter by state, from the key to the page": filtered * 1e3,
        "the slowest of 20 frames while scrolling": frames[-len(frames) // 20],
    }
