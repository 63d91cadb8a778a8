"""The console over real TLS: pages, escaping, headers, logins, acts; without a browser."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from controller.access import Person, Rate
from controller.explain.pod_views import SeenPod
from controller.people.rights import INSPECT, OPERATE, read_pods
from controller.web.api.viewers import COOKIE
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import ClassDocument, Platform
from gpuwarden.reasons import ReasonCode, Refusal
from tests.builders.accounts import account, held, node_of, pod_document
from tests.builders.fleet_views import acceptance, fleet, gpu, hash_of, healthy, node
from tests.fakes.http_api import ApiWorld, api_world

ANNA, JANE = Person("anna", ("dev",)), Person("jane")
ANNA_TOKEN, JANE_TOKEN = "anna-token", "jane-token"
HOSTILE = "<script>alert(1)</script>'\"&"
OURS = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ApiWorld]:
    async with api_world(tmp_path) as made:
        made.people |= {ANNA_TOKEN: ANNA, JANE_TOKEN: JANE}
        made.rights |= {("jane", INSPECT), ("jane", OPERATE)}
        yield made


async def page(
    world: ApiWorld,
    path: str,
    token: str | None = JANE_TOKEN,
    *,
    form: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, str, aiohttp.ClientResponse]:
    """As a browser does it, with the cookie, following nothing."""
    sent = {"Cookie": f"{COOKIE}={token}"} if token else {}
    sent |= headers or {}
    async with (
        world.session() as client,
        client.request(
            "GET" if form is None else "POST", path, data=form, headers=sent, allow_redirects=False
        ) as answer,
    ):
        return answer.status, await answer.text(), answer


class Tags(HTMLParser):
    """Names of tags, attributes, and the ids that are given."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


async def filled(world: ApiWorld) -> None:
    """Something on every page, in hostile words where others choose them."""
    await world.reserve()
    card = gpu(0, "GPU-x-0", product=HOSTILE, unhealthy=HOSTILE)
    bad = node("gpu-x", acceptance(gpus=[card]), blocked=ReasonCode.INVENTORY_CHANGED)
    assert bad.blocked is not None
    bad = replace(bad, blocked=replace(bad.blocked, detail=HOSTILE), warnings=(HOSTILE,))
    world.fleet = fleet(healthy("gpu-1", gpus=4), healthy("gpu-2", "b", gpus=1), bad)
    world.seen = [SeenPod("team-a", "train-0", "uid-0", "gpu-1")]
    found = account(pod_document(), held(), node=node_of())
    assert found is not None
    world.traces["team-a/train-0"] = replace(found, given=HOSTILE)
    world.warnings, world.not_ready = [HOSTILE], HOSTILE
    world.audit.mkdir(exist_ok=True)


PAGES = (
    "/",
    "/?state=lost&group=zone",
    "/ui/gpus",
    "/ui/gpus/GPU-x-0",
    "/ui/nodes/gpu-x",
    "/ui/pods",
    "/ui/pods/team-a/train-0",
    "/ui/audit",
    f"/ui/audit?q={HOSTILE.replace('&', '%26')}",
)


@pytest.mark.parametrize("path", PAGES)
async def test_pages_escape_whatever_others_wrote(world: ApiWorld, path: str) -> None:
    await filled(world)
    status, text, answer = await page(world, path)
    assert (status, world.failures) == (200, [])
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(1)" in text
    tags = Tags(text)
    assert tags.tags.count("h1") == 1
    assert {x for x in tags.tags if x in {"header", "main", "footer"}} == {
        "header",
        "main",
        "footer",
    }
    assert not [x for x in tags.attributes if x[0] == "style" or x[0].startswith("on")]
    assert text.count("<script") == len(re.findall(r'<script [^>]*src="/ui/static/', text))
    twin = next(value for name, value in tags.attributes if name == "href" and "/v1/" in value)
    assert (await world.ask("GET", twin, JANE_TOKEN))[0] == 200
    assert answer.content_type == "text/html"


@pytest.mark.parametrize("path", ["/ui/audit", "/ui/gpus/GPU-x-0"])
async def test_a_page_of_the_log_says_whose_it_is_and_whose_it_is_not(
    world: ApiWorld, path: str
) -> None:
    await filled(world)
    text = " ".join((await page(world, path))[1].split())
    assert "This is the log of controller-0 alone. Each replica has a log of its own:" in text
    world.replicas = ["controller-0", "controller-1"]
    text = (await page(world, path))[1]
    assert "log of controller-0 alone. controller-1 has a log of its own: no link leads" in text
    world.replicas = ["controller-0", "controller-1", HOSTILE]
    text = (await page(world, path))[1]
    assert "alone. controller-1, &lt;" in text
    assert " have logs of their own: " in text


async def test_nothing_of_a_page_may_come_from_elsewhere(world: ApiWorld) -> None:
    await filled(world)
    for path in ("/", "/ui/login", "/ui/nodes/none"):
        _, text, answer = await page(world, path)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        loads = [y for x, y in Tags(text).attributes if x in {"src", "href", "action"}]
        assert loads
        assert all(x == "" or x.startswith(("/", "#")) for x in loads)
        assert not any(x.startswith("//") for x in loads)


async def test_files_are_found_by_their_digest(world: ApiWorld) -> None:
    _, text, _ = await page(world, "/ui/login", None)
    path = re.search(r'href="(/ui/static/[0-9a-f]+/console\.css)"', text)
    assert path is not None
    status, _, answer = await page(world, path[1], None)
    assert (status, answer.content_type) == (200, "text/css")
    assert "immutable" in answer.headers["Cache-Control"]
    stale = re.sub("static/[0-9a-f]+", "static/0", path[1])
    assert (await page(world, stale, None))[0] == 404


async def test_tiles_lead_to_lists_that_are_filtered(world: ApiWorld) -> None:
    await filled(world)
    _, text, _ = await page(world, "/")
    assert '<a class="tile s-reserved" href="/ui/gpus?state=reserved"><strong>2</strong>' in text
    _, text, _ = await page(world, "/ui/gpus?state=reserved")
    assert set(re.findall(r"GPU-gpu-\d-\d", text)) == {"GPU-gpu-1-0", "GPU-gpu-1-1"}
    _, text, _ = await page(world, "/?node-state=quarantined")
    assert re.findall(r'href="/ui/nodes/([^"]+)"', text) == ["gpu-x"]
    status, text, _ = await page(world, "/?node-state=nonsense")
    assert (status, "expected one of unknown, refused" in text) == (400, True)
    _, text, _ = await page(world, "/?q=nothing")
    assert "No node fits these filters" in text


async def test_lists_have_pages(world: ApiWorld) -> None:
    world.fleet = fleet(*(healthy(f"gpu-{x:02}", gpus=1) for x in range(60)))
    _, text, _ = await page(world, "/?model=H100")
    following = re.search(r'rel="next" href="([^"]+)"', text)
    assert following is not None
    assert following[1] == "/?model=H100&amp;after=gpu-49"
    _, text, _ = await page(world, following[1].replace("&amp;", "&"))
    assert len(set(re.findall(r'href="/ui/nodes/([^"]+)"', text))) == 10


async def test_what_limits_the_word_of_a_page_is_on_it(world: ApiWorld) -> None:
    _, text, _ = await page(world, "/")
    assert "Report mode" not in text
    assert "Evaluation:" not in text
    assert re.search(r"Data as of <time datetime=\"20", text)
    world.enforcement, world.evaluation, world.is_ledger_fresh = "report", True, False
    _, text, _ = await page(world, "/ui/gpus")
    assert "Report mode:" in text
    assert "Evaluation:" in text
    assert "the ledger was not read lately" in text


async def test_a_node_is_compared_with_the_most_common_class(world: ApiWorld) -> None:
    one, other = (_document(x) for x in ("570.86.10", "550.54.15"))
    views = [_with(healthy(f"gpu-{x}", gpus=1), one) for x in (1, 2)]
    world.fleet = fleet(*views, _with(healthy("gpu-3", "b", gpus=1), other))
    _, text, _ = await page(world, "/ui/nodes/gpu-3")
    assert "<code>platform.driver</code></th><td><code>550.54.15</code>" in text
    assert hash_of("a")[-64:-52] in text
    _, text, _ = await page(world, "/ui/nodes/gpu-1")
    assert "does not differ" in text


def _with(view: Any, document: bytes) -> Any:
    return replace(view, acceptance=replace(view.acceptance, class_document=document))


def _document(driver: str) -> bytes:
    platform = Platform(arch="x86_64", driver=driver, cc=None)
    return canonical_json(
        ClassDocument(
            level="L0", trust_domain="t", attestor=None, platform=platform, gpus=(), tpm=None
        )
    )


# --- who looks


async def test_without_a_login_there_is_the_way_to_one(world: ApiWorld) -> None:
    status, _, answer = await page(world, "/ui/nodes/gpu-1?x=y", None)
    assert status == 303
    assert answer.headers["Location"] == "/ui/login?next=%2Fui%2Fnodes%2Fgpu-1%3Fx%3Dy"


async def test_a_login_keeps_the_token_where_no_script_sees_it(world: ApiWorld) -> None:
    form = {"token": f" {JANE_TOKEN}\n", "next": "/ui/pods"}
    status, _, answer = await page(world, "/ui/login", None, form=form, headers=OURS)
    assert (status, answer.headers["Location"]) == (303, "/ui/pods")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(f"{COOKIE}={JANE_TOKEN};")
    for attribute in ("HttpOnly", "Secure", "SameSite=Strict", "Path=/"):
        assert attribute in cookie
    assert "Domain" not in cookie
    status, _, answer = await page(world, "/ui/logout", form={}, headers=OURS)
    assert status == 303
    assert "Max-Age=0" in answer.headers["Set-Cookie"]


@pytest.mark.parametrize(
    "following", ["//evil.example", "https://evil.example", "/\\evil", "ui", "/\n"]
)
async def test_a_login_leads_nowhere_else(world: ApiWorld, following: str) -> None:
    form = {"token": JANE_TOKEN, "next": following}
    _, _, answer = await page(world, "/ui/login", None, form=form, headers=OURS)
    assert answer.headers["Location"] == "/"


async def test_a_token_that_is_nobody_s_is_refused(tmp_path: Path) -> None:
    async with api_world(tmp_path, others=Rate(0.1, 4)) as world:
        for token, status, text in (
            ("invented", 401, "does not accept the token"),
            ("x" * 4000, 400, "at most 3800"),
            ("<b>", 400, "expected a bearer token"),
        ):
            form = {"token": token}
            found, shown, answer = await page(world, "/ui/login", None, form=form, headers=OURS)
            assert (found, text in shown) == (status, True)
            assert "Set-Cookie" not in answer.headers
            assert "x" * 4000 not in shown
        codes = [
            (await page(world, "/ui/login", None, form={"token": "t"}, headers=OURS))[0]
            for _ in range(2)
        ]
        assert codes == [401, 429]


async def test_a_person_without_a_role_sees_their_namespaces(world: ApiWorld) -> None:
    await filled(world)
    status, _, answer = await page(world, "/", ANNA_TOKEN)
    assert (status, answer.headers["Location"]) == (303, "/ui/pods")
    status, text, _ = await page(world, "/ui/pods", ANNA_TOKEN)
    assert (status, "Name a namespace" in text) == (200, True)
    assert (await page(world, "/ui/pods?namespace=team-a", ANNA_TOKEN))[0] == 403
    world.rights |= {("anna", read_pods("team-a")), ("anna", read_pods("team-a", "train-0"))}
    world.clock.advance(seconds=11)
    status, text, _ = await page(world, "/ui/pods?namespace=team-a", ANNA_TOKEN)
    assert (status, "train-0" in text) == (200, True)
    status, text, _ = await page(world, "/ui/pods/team-a/train-0", ANNA_TOKEN)
    assert status == 200
    assert "what else is on these GPUs is shown to inspectors" in text
    assert 'href="/ui/gpus' not in text
    for path in ("/ui/gpus", "/ui/nodes/gpu-1", "/ui/audit", "/ui/gpus/GPU-x-0"):
        assert (await page(world, path, ANNA_TOKEN))[0] == 403


# --- acts

REASON = {"reason": "card was swapped", "version": "v1:sha256:0"}
PATH = "/ui/nodes/gpu-1/quarantine"


async def test_operators_act_with_a_reason(world: ApiWorld) -> None:
    for act in ("accept", "release", "quarantine"):
        path = f"/ui/nodes/gpu-1/{act}"
        status, _, answer = await page(world, path, form=REASON, headers=OURS)
        assert (status, answer.headers["Location"]) == (303, f"/ui/nodes/gpu-1?done={act}")
    acts = [(act, x.node, x.reason, x.actor, v) for act, x, v in world.operators.acts]
    told = ("gpu-1", "card was swapped", "user jane")
    assert acts == [
        ("accept", *told, "v1:sha256:0"),
        ("release", *told, "v1:sha256:0"),
        ("quarantine", *told, ""),
    ]
    _, text, _ = await page(world, "/ui/nodes/gpu-1?done=release")
    assert "gpu-1 is released" in text
    assert "banner good" not in (await page(world, "/ui/nodes/gpu-1?done=%3Cb%3E"))[1]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://[::1"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "https://localhost"},
    ],
)
async def test_a_form_of_elsewhere_does_nothing(world: ApiWorld, headers: dict[str, str]) -> None:
    status, text, _ = await page(world, PATH, form=REASON, headers=headers)
    assert (status, "not of this origin" in text, world.operators.acts) == (403, True, [])
    login = {"token": JANE_TOKEN}
    assert (await page(world, "/ui/login", None, form=login, headers=headers))[0] == 403


async def test_an_old_browser_says_its_origin(world: ApiWorld) -> None:
    origin = {"Origin": f"https://localhost:{world.port}"}
    assert (await page(world, PATH, form=REASON, headers=origin))[0] == 303


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "http://localhost:{}",
        "https://localhost",
        "https://localhost:{}/",
        "https://localhost:{}.evil.example",
        "https://jane@localhost:{}",
        "https://localhost:{}\N{LATIN SMALL LETTER Y WITH DIAERESIS}",
        "https://localhost:{}, https://evil.example",
    ],
)
async def test_an_origin_that_is_not_just_ours_does_nothing(world: ApiWorld, origin: str) -> None:
    headers = {"Origin": origin.format(world.port)}
    assert (await page(world, PATH, form=REASON, headers=headers))[0] == 403
    assert world.operators.acts == []


async def test_what_is_no_form_does_nothing(world: ApiWorld) -> None:
    """Another origin may send other types only after a preflight, which nobody answers."""
    headers = {**OURS, "Content-Type": "text/plain"}
    assert (await page(world, PATH, form=REASON, headers=headers))[0] == 415
    assert world.operators.acts == []


async def test_acts_are_for_operators(world: ApiWorld) -> None:
    world.rights.discard(("jane", OPERATE))
    _, text, _ = await page(world, "/ui/nodes/gpu-1")
    assert "(read-only)" in text
    assert 'id="acts"' not in text
    status, text, _ = await page(world, PATH, form=REASON, headers=OURS)
    assert (status, "gpuwarden-operator" in text) == (403, True)
    assert (await page(world, PATH, None, form=REASON, headers=OURS))[0] == 401
    assert world.operators.acts == []


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501, "two\nlines"])
async def test_an_act_without_a_reason_is_none(world: ApiWorld, reason: str) -> None:
    form = {"reason": reason}
    status, text, _ = await page(world, PATH, form=form, headers=OURS)
    assert (status, "expected 1 to 500" in text, world.operators.acts) == (400, True, [])


async def test_a_refused_act_says_why(world: ApiWorld) -> None:
    text = f"another version {HOSTILE}"
    world.operators.refusal = Refusal(ReasonCode.ENROLLMENT_CONFLICT, text)
    status, shown, _ = await page(world, PATH, form=REASON, headers=OURS)
    assert (status, "ENROLLMENT_CONFLICT: another version &lt;script&gt;" in shown) == (409, True)
    assert (await page(world, "/ui/nodes/gpu-1/explode", form=REASON, headers=OURS))[0] == 404


async def test_this_machine_looks_and_does_not_act(tmp_path: Path) -> None:
    async with api_world(tmp_path, rules={"loopback": True}) as world:
        status, text, _ = await page(world, "/", None)
        assert (status, "anybody on this machine (read-only)" in text) == (200, True)
        assert (await page(world, PATH, None, form=REASON, headers=OURS))[0] == 403
        assert world.operators.acts == []
