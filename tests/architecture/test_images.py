"""Images hold the programs and nothing that is made for laptops and tests."""

import re

import pytest

from tests.architecture.test_names import ROOT

DOCKERFILES = sorted(path.name for path in ROOT.glob("Dockerfile*"))
COPIED = {"agent", "controller", "gpuwarden", "LICENSE"}
LEAVES = {"agent", "controller", "gpuwarden", "requirements", "LICENSE"}


def test_there_are_images() -> None:
    assert DOCKERFILES == ["Dockerfile.agent", "Dockerfile.controller"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_copies_neither_sandbox_nor_tests(name: str) -> None:
    sources = re.findall(r"^(?:COPY|ADD) (?!--from)(\S+) ", (ROOT / name).read_text(), re.MULTILINE)
    assert sources
    assert {source for source in sources if not source.startswith("requirements/")} <= COPIED


def test_what_is_sent_to_the_builder_is_listed() -> None:
    first, *rest = (ROOT / ".dockerignore").read_text().split()
    assert first == "*"
    assert {line.removeprefix("!") for line in rest if line.startswith("!")} == LEAVES
