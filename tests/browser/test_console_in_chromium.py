"""The console in a real browser: what only one can show.

`SCREENSHOTS=docs/images` writes the pictures of docs/console.md.
"""

import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from controller.access import Rate
from controller.audit.checkpoints import Published
from controller.web.api.viewers import COOKIE
from gpuwarden.audit.checkpoint import Checkpoint, TreeHead
from tests.browser.console_scene import HOSTILE, TOKEN, fill
from tests.builders.fleet_views import fleet, healthy
from tests.builders.log_keys import signer
from tests.fakes.http_api import ApiWorld, api_world

CHROMIUM = shutil.which("chromium") or ""
AXE = (Path(__file__).parent / "vendor/axe.min.js").read_text()
PAGES = (
    "/",
    "/ui/gpus",
    "/ui/gpus/GPU-gpu-1-0",
    "/ui/nodes/gpu-2",
    "/ui/nodes/gpu-5",
    "/ui/pods",
    "/ui/pods/team-a/train-0",
    "/ui/pods/team-b/waits-0",
    "/ui/audit",
    "/ui/login",
    "/ui/nodes/none",
)
PICTURES = {
    "console-fleet": "/",
    "console-node": "/ui/nodes/gpu-2",
    "console-pod": "/ui/pods/team-b/train-7",
    "console-audit": "/ui/audit",
}
DESK = {"width": 1280, "height": 900}
SLOW_MS = 60_000
"""Until it is a failure; nothing is waited for by time."""

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH (Debian package chromium)"),
]


@dataclass
class Seen:
    """What the browser did."""

    requests: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    """Errors of scripts, refusals of the policy, dialogs."""


@dataclass
class Console:
    """The world, a browser, and how to look."""

    world: ApiWorld
    browser: Browser
    launch: Callable[[], Awaitable[Browser]]

    @property
    def base(self) -> str:
        return f"https://localhost:{self.world.port}"

    @asynccontextmanager
    async def looking(self, seen: Seen | None = None, **options: Any) -> AsyncIterator[Page]:
        """A page of a browser that is logged in."""
        if not self.browser.is_connected():  # it ended in the test before
            self.browser = await self.launch()
        found = seen or Seen()
        options = {"viewport": DESK, "ignore_https_errors": True, **options}
        context = await self.browser.new_context(base_url=self.base, **options)
        context.set_default_timeout(SLOW_MS)
        await self._log_in(context)
        page = await context.new_page()
        page.on("request", lambda x: found.requests.append(x.url))
        page.on("pageerror", lambda x: found.faults.append(str(x)))
        page.on("dialog", lambda x: found.faults.append(f"dialog {x.message}"))
        page.on("console", lambda x: found.faults.append(x.text) if _is_fault(x) else None)
        try:
            yield page
        finally:
            await context.close()
        if seen is None:
            assert found.faults == []

    async def _log_in(self, context: BrowserContext) -> None:
        cookie = {"name": COOKIE, "value": TOKEN, "url": self.base, "secure": True}
        await context.add_cookies([{**cookie, "httpOnly": True, "sameSite": "Strict"}])  # type: ignore[typeddict-item] # fields by name


async def _go(page: Page, path: str, **how: Any) -> None:
    """Chromium gives up a navigation when any interface of the machine comes or goes."""
    for _ in range(3):
        try:
            await page.goto(path, **how)
        except PlaywrightError as error:
            if "ERR_NETWORK_CHANGED" not in str(error):
                raise
        else:
            return
    await page.goto(path, **how)


def _is_fault(message: Any) -> bool:
    """404 and 401 pages are asked for."""
    return message.type == "error" and "Failed to load resource" not in message.text


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Console]:
    folder = tmp_path_factory.mktemp("console")
    async with api_world(folder, others=Rate(1e6, 10**6), stream_s=20.0) as world:
        await fill(world)
        async with async_playwright() as playwright:

            async def launch() -> Browser:
                return await playwright.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
                )

            made = Console(world, await launch(), launch)
            yield made
            await made.browser.close()
        assert world.failures == []


@pytest.fixture
def console(running: Console) -> Iterator[Console]:
    """As every test finds it, also where one failed that had changed it."""
    world = running.world
    before, published = world.fleet, world.published
    yield running
    world.fleet, world.published = before, published


async def test_a_browser_that_ended_is_a_fault_of_one_test(console: Console) -> None:
    await console.browser.close()
    async with console.looking() as page:
        await _go(page, "/")


async def test_pages_are_accessible_to_axe(console: Console) -> None:
    """All rules in light, and contrast in dark, where nothing else differs."""
    async with console.looking(color_scheme="light") as page:
        for path in PAGES:
            await _go(page, path, wait_until="domcontentloaded")
            await page.evaluate(AXE)
            assert await _violations(page, "{}") == [], path
            await page.emulate_media(color_scheme="dark")
            assert await _violations(page, "{runOnly: ['color-contrast']}") == [], path
            await page.emulate_media(color_scheme="light")


async def _violations(page: Page, options: str) -> list[tuple[str, list[str]]]:
    script = f"axe.run(document, {{resultTypes: ['violations'], ...{options}}})"
    found = await page.evaluate(script)
    return [(x["id"], [y["html"][:160] for y in x["nodes"]]) for x in found["violations"]]


async def test_no_request_leaves_the_origin(console: Console) -> None:
    seen = Seen()
    async with console.looking(seen) as page:
        for path in PAGES:
            await _go(page, path, wait_until="load")
    assert len(seen.requests) > 3 * len(PAGES)
    assert [x for x in seen.requests if not x.startswith(f"{console.base}/")] == []
    assert seen.faults == []


async def test_hostile_names_are_text(console: Console) -> None:
    async with console.looking() as page:
        for path in ("/ui/nodes/gpu-5", "/ui/pods/team-b/waits-0", "/ui/gpus"):
            await _go(page, path)
            body = await page.inner_text("body")
            assert HOSTILE in body or "<img src=x" in body
            assert await page.locator("img").count() == 0


async def test_pages_fit_a_screen_of_320_pixels(console: Console) -> None:
    async with console.looking(viewport={"width": 320, "height": 640}) as page:
        for path in PAGES:
            await _go(page, path, wait_until="domcontentloaded")
            width = await page.evaluate("document.documentElement.scrollWidth")
            assert width <= 320, path


async def test_pages_are_read_without_scripts(console: Console) -> None:
    async with console.looking(java_script_enabled=False) as page:
        await _go(page, "/")
        await page.locator("select[name=node-state]").select_option("quarantined")
        await page.get_by_role("button", name="Filter").click()
        await page.wait_for_url("**/*node-state=quarantined*")
        links = page.locator("tbody th a")
        assert await links.all_inner_texts() == ["gpu-4"]
        await links.click()
        await page.wait_for_url("**/ui/nodes/gpu-4")
        assert await page.locator("h1").inner_text() == "Node gpu-4"
        await _go(page, "/ui/audit")
        assert await page.locator(".no-script").is_visible()
        assert await page.locator("#verifier").is_hidden()


async def test_the_map_has_a_square_for_each_gpu_and_leads_to_its_node(console: Console) -> None:
    async with console.looking() as page:
        await _go(page, "/?group=zone")
        await page.wait_for_selector("#map[data-drawn='6']")
        assert await page.locator("#map h3").all_inner_texts() == [
            "zone-0 (3 nodes)",
            "zone-1 (3 nodes)",
        ]
        assert await page.locator("#banners summary").inner_text() == "1 warning"
        canvas = page.locator("#map canvas").first
        colours = await canvas.evaluate(
            """x => { const brush = x.getContext("2d"), at = (i) => (6 + i * 13) * devicePixelRatio;
            const colour = (i) => [...brush.getImageData(at(i), at(0), 1, 1).data];
            return [0, 1, 2].map((i) => colour(i).slice(0, 3).join()); }"""
        )
        assert colours == ["91,63,168", "31,95,191", "27,127,77"]
        await _go(page, "/")
        await page.wait_for_selector("#map[data-drawn='6']")
        assert await page.locator("#map h3").all_inner_texts() == [
            "v1:sha256:aaaaaaaaaaaa… (4 nodes)",
            "v1:sha256:bbbbbbbbbbbb… (1 node)",
            "- (1 node)",
        ]
        await canvas.hover(position={"x": 6, "y": 6})
        assert await canvas.get_attribute("title") == "gpu-1: eligible, GPU 0: used"
        await canvas.click(position={"x": 6, "y": 6})
        await page.wait_for_url("**/ui/nodes/gpu-1")


async def test_every_state_is_on_the_fleet_page(console: Console) -> None:
    async with console.looking() as page:
        await _go(page, "/")
        shown = await page.locator("#gpus-by-state + ul .tile").all_inner_texts()
        tiles = {x.split()[1]: int(x.split()[0]) for x in shown}
        wanted = {"used": 1, "reserved": 1, "unreserved-use": 1, "lost": 1, "quarantined": 1}
        wanted |= {"refused": 1, "stale": 8, "verified": 13}
        assert {x: tiles[x] for x in wanted if tiles[x] != wanted[x]} == {}


async def test_a_change_comes_to_the_page_by_itself(console: Console) -> None:
    before = console.world.fleet
    async with console.looking() as page:
        async with page.expect_response("**/v1/events"):
            await _go(page, "/")
        console.world.fleet = fleet(*before.nodes.values(), healthy("gpu-7", gpus=1))
        await page.wait_for_selector("tbody th a:text('gpu-7')")
        await page.wait_for_function("document.getElementById('said').textContent !== ''")


async def test_by_keyboard_from_login_to_an_act(console: Console) -> None:
    console.world.operators.acts.clear()
    async with console.looking() as page:
        await page.context.clear_cookies()
        await _go(page, "/ui/nodes/gpu-1")
        assert "/ui/login?next=" in page.url
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.className") == "skip"
        await page.get_by_label("Bearer token").focus()
        await page.keyboard.type(TOKEN)
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/ui/nodes/gpu-1")
        assert await page.evaluate("document.cookie") == ""
        await page.get_by_label("Reason").focus()
        await page.keyboard.type("looks wrong")
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".banner.good")
    assert [(x[0], x[1].reason) for x in console.world.operators.acts] == [
        ("quarantine", "looks wrong")
    ]


async def test_the_browser_verifies_the_log(console: Console) -> None:
    true = console.world.published
    assert true is not None
    async with console.looking() as page:
        await _go(page, "/ui/audit")
        await page.get_by_role("button", name="Verify the log").click()
        await page.wait_for_selector("#verified li:nth-child(3)")
        lines = await page.locator("#verified li").all_inner_texts()
        assert lines[0].startswith(f"✓ The checkpoint over {true.head.size} records")
        assert lines[2] == "✓ 1 of 1 witnesses agree"
        last = page.locator("tbody tr", has=page.locator(".verify-record")).last
        await last.locator("summary").click()
        await last.get_by_role("button").click()
        verdict = last.locator(".verdict:not(:empty)")
        assert (await verdict.inner_text()).startswith("✓ record")
        await last.locator(".line").evaluate("x => { x.textContent += ' '; }")
        await last.locator(".verdict").evaluate("x => { x.textContent = ''; }")
        await last.get_by_role("button").click()
        await verdict.wait_for()
        assert (await verdict.inner_text()) == "✗ the proof leads to another root"
        for published, text in _forged(true):
            console.world.published = published
            await page.get_by_role("button", name="Verify the log").click()
            await page.wait_for_selector(f"#verified li:text('{text}')")


def _forged(true: Published) -> list[tuple[Published, str]]:
    """Another key; the log's key over another past; a signature that does not hold."""
    other = signer(9)
    head = TreeHead(true.head.size, b"\7" * 32)
    note = Checkpoint("lab/controller-0", true.log, head).signed(other)
    return [
        (replace(true, note=note, head=head, key=str(other.key)), "key is another"),
        (replace(true, note=note), "not signed by the log"),
        (
            replace(true, note=true.note.replace("lab/controller-0\n", "lab/controller-1\n", 1)),
            "hold",
        ),
    ]


@pytest.mark.parametrize("name", PICTURES)
async def test_pictures_of_the_documentation(console: Console, name: str) -> None:
    async with console.looking(device_scale_factor=1) as page:
        await _go(page, PICTURES[name])
        await page.wait_for_load_state("load")
        assert await page.locator("#as-of").is_visible()
        assert "1970-" not in await page.inner_text("body")
        if name == "console-fleet":
            await page.wait_for_selector("#map[data-drawn]")
        picture = await page.screenshot(animations="disabled")
    assert picture.startswith(b"\x89PNG")
    page_text = (Path(__file__).parents[2] / "docs/console.md").read_text()
    assert f"images/{name}.png" in page_text
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(picture)
