"""`class …`: what stands behind a hash, and how classes differ."""

import json
from typing import Any

import pytest

from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.builders.fleet_messages import class_message
from tests.builders.inventory import gpu, host, inventory
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli


def test_classes_are_listed(ask: Cli, fleet: FakeFleetServer) -> None:
    one = class_message(names=["h100"])
    fleet.classes = [one, pb.Class(names=["set"], level="L1", hashes=["x", "y"])]
    ran = ask("classes")
    digits = one.attestation_hash.removeprefix("v1:sha256:")[:8]
    assert ran.lines[1].split() == [digits, "h100", "L0", "1", "8"]
    assert ran.lines[2].split() == ["set", "-", "L1", "0", "0"]
    assert ask("classes", "-o", "name").out == f"{one.attestation_hash}\nset\n"
    assert one.attestation_hash in ask("classes", "-o", "wide").out
    assert json.loads(ask("classes", "-o", "json").out)["classes"][1]["document"] is None


def test_no_classes(ask: Cli) -> None:
    assert ask("classes").out == "No classes.\n"


def test_a_class_is_shown_with_its_document(ask: Cli, fleet: FakeFleetServer) -> None:
    one = class_message()
    fleet.classes = [one]
    out = ask("class", "show", one.attestation_hash).out
    assert f"Class:\n    {one.attestation_hash}\n" in out
    assert "platform.driver:    570.86.10\n" in out
    assert "gpus[0].memoryMiB:  81559\n" in out
    assert "gpus[0].ecc:        true\n" in out
    assert "attestor:           null\n" in out
    found = json.loads(ask("class", "show", one.attestation_hash, "-o", "json").out)
    assert found["document"]["platform"]["driver"] == "570.86.10"
    assert ask("class", "show", one.attestation_hash, "-o", "name").out == (
        f"{one.attestation_hash}\n"
    )


def test_a_named_class_shows_its_hashes(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.classes = [pb.Class(names=["set"], level="L1", hashes=["x", "y"])]
    assert ask("class", "show", "set").lines == [
        "Names:  set",
        "Level:  L1",
        "Hash:   x",
        "Hash:   y",
        "GPUs:   0",
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"attestation_hash": "v1:sha256:" + "0" * 64}, "the document hashes to v1:sha256:"),
        ({"document": "{}"}, "the controller's class document: Object missing required field"),
    ],
)
def test_a_document_that_is_not_the_class_is_a_finding(
    ask: Cli, fleet: FakeFleetServer, changed: dict[str, Any], message: str
) -> None:
    fleet.classes = [class_message(names=["x"], **changed)]
    ran = ask("class", "show", "x")
    assert (ran.code, ran.out) == (3, "")
    assert message in ran.err


def test_classes_are_compared(ask: Cli, fleet: FakeFleetServer) -> None:
    old = class_message(names=["old"])
    new = class_message(inventory(gpu(ecc=None), host=host(driver="580.1")), names=["new"])
    named = pb.Class(names=["only"], hashes=[new.attestation_hash])
    fleet.classes = [old, new, named]
    ran = ask("class", "diff", "old", "only")
    assert ran.code == 3
    assert [line.split() for line in ran.lines] == [
        ["PATH", "LEFT", "RIGHT"],
        ["platform.driver", "570.86.10", "580.1"],
        ["gpus[10de:2330].ecc", "true", "null"],
    ]
    assert json.loads(ask("class", "diff", "old", "new", "-o", "json").out)[1] == {
        "path": "gpus[10de:2330].ecc",
        "left": True,
        "right": None,
    }
    assert ask("class", "diff", "old", "new", "-o", "name").out == (
        "platform.driver\ngpus[10de:2330].ecc\n"
    )


def test_the_same_class_does_not_differ(ask: Cli, fleet: FakeFleetServer) -> None:
    fleet.classes = [class_message(names=["a"])]
    ran = ask("class", "diff", "a", "a")
    assert (ran.code, ran.out) == (0, "The classes are the same.\n")


@pytest.mark.parametrize(
    ("hashes", "message"),
    [
        (["x", "y"], "'set' has no document: it names 2 hashes, give one of them"),
        ([], "'set' has no document: no node has shown it yet"),
    ],
)
def test_a_class_without_document_cannot_be_compared(
    ask: Cli, fleet: FakeFleetServer, hashes: list[str], message: str
) -> None:
    fleet.classes = [pb.Class(names=["set"], hashes=hashes)]
    ran = ask("class", "diff", "set", "set")
    assert (ran.code, ran.err) == (1, f"gpuwarden: {message}\n")
