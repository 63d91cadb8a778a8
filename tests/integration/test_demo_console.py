"""Every page of the console of a demo that stays up has something to show."""

import re
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandbox.demo.pods import EARLY, WAITING, plan
from sandbox.nodes import HOPPER, LEGACY, simulated_nodes
from sandbox.nvml.build import ROOT
from tests.fakes.kept_demo import running_demo
from tests.hang import HANG_S

LAST = "    gpuwarden.wire"
"""How the last line of the list of things to try begins."""
(TRAINED,) = (x.scenario.gpus[0].uuid for x in simulated_nodes() if x.name == LEGACY)
POD = "/ui/pods/NAMESPACE/NAME"
PAGES = (
    ("/", "/", r"1 unreserved-use 3 used 1 reserved 7 verified"),
    ("/", "/", r"0 refused 3 eligible"),
    ("/ui/gpus", "/ui/gpus", rf"{TRAINED} used {LEGACY} / 0 .*? default/train-0 1 "),
    ("/ui/gpus", "/ui/gpus?state=unreserved-use", rf"unreserved-use {HOPPER} / 7 "),
    ("/ui/gpus/UUID", f"/ui/gpus/{TRAINED}", rf"Where it was .* {LEGACY} , GPU 0"),
    ("/ui/gpus/UUID", f"/ui/gpus/{TRAINED}", r"Who had it .* default/train-0 .* still has it"),
    ("/ui/nodes/NAME", f"/ui/nodes/{HOPPER}", r"State eligible .* default/inference-6f9c-x2k4p 1 "),
    ("/ui/nodes/NAME", f"/ui/nodes/{HOPPER}", r"Timeline .* reservation.unreserved"),
    *(("/ui/pods", "/ui/pods", re.escape(x.name)) for x in plan("")),
    (POD, "/ui/pods/default/train-0", r"kubelet: reached .* nvml: reached .* processes of it: 1"),
    (POD, f"/ui/pods/{EARLY}", r"reserved: reached .* at creation .* bound: reached"),
    (POD, f"/ui/pods/{WAITING}", r"GPU_NO_MATCH excludes 2 nodes:"),
    (POD, f"/ui/pods/{WAITING}", r"Every node .* ampere-0 NODE_MODE .* hopper-0 GPU_NO_MATCH "),
    ("/ui/audit", "/ui/audit", "reservation.allocated pod/default/train-0 recorded"),
)
"""The page as docs/console.md writes it, one of its paths, and what that says."""


class Text(HTMLParser):
    """What is read, with single spaces."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.words += data.split()


@pytest.fixture(scope="module")
def console() -> Iterator[str]:
    """Its address."""
    temporary = Path(tempfile.mkdtemp(prefix="d"))
    with running_demo(temporary, "--keep", "--only=inventory") as demo:
        demo.until(LAST)
        (line,) = (x for x in demo.lines if x.startswith("Open https://"))
        yield line.split()[1]
    shutil.rmtree(temporary)


@pytest.mark.parametrize(("path", "wanted"), [x[1:] for x in PAGES])
def test_a_page_has_something_to_show(console: str, path: str, wanted: str) -> None:
    assert re.search(wanted, read(console, path))


def read(console: str, path: str) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = HTTPSConnection(urlsplit(console).netloc, context=context, timeout=HANG_S)
    with closing(connection):
        connection.request("GET", path)
        return " ".join(Text(connection.getresponse().read().decode()).words)


def test_no_page_is_left_out() -> None:
    table = (ROOT / "docs/console.md").read_text()
    pages = re.findall(r"^\| `(/[^`]*)` \|", table, re.MULTILINE)
    assert set(pages) == {x[0] for x in PAGES}
