"""`fit`: where a pod would go, and what is no manifest."""

import json
from pathlib import Path

import pytest

from gpuwarden.cli.commands.fit import MAX_BYTES, parse_manifest
from gpuwarden.strict_yaml import YamlError
from gpuwarden.wire.v1 import fleet_pb2 as pb
from tests.fakes.fleet_server import FakeFleetServer
from tests.unit.gpuwarden.cli.conftest import Cli

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, creationTimestamp: 2026-11-27T10:00:00Z}\n"
FIT = pb.FitPodResponse(
    managed=True,
    requirements=["attested class v1:sha256:ab"],
    fits=[
        pb.Fit(node="gpu-a1", passes=True, score=7, guarantee="exact"),
        pb.Fit(node="gpu-b1", code="HASH_MISMATCH", detail="another class"),
    ],
)


@pytest.fixture
def pod(tmp_path: Path) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return str(path)


def test_where_a_pod_fits(ask: Cli, fleet: FakeFleetServer, pod: str) -> None:
    fleet.fit = FIT
    ran = ask("fit", "-f", pod, "-n", "team-a")
    assert ran.code == 0
    assert ran.lines == [
        "The pod requires:",
        "  attested class v1:sha256:ab",
        "",
        "NODE    FITS  GUARANTEE  REASON         DETAIL",
        "gpu-a1  yes   exact      -              -",
        "gpu-b1  no    -          HASH_MISMATCH  another class",
    ]
    [request] = fleet.asked
    assert isinstance(request, pb.FitPodRequest)
    assert request.namespace == "team-a"
    assert json.loads(request.pod_json)["metadata"]["creationTimestamp"] == "2026-11-27T10:00:00Z"


def test_a_change_of_a_class_is_told_once_for_each_node(
    ask: Cli, fleet: FakeFleetServer, pod: str
) -> None:
    change = pb.ClassChange(
        at="2026-01-02T12:03:00Z",
        old_hash=f"v1:sha256:{'a' * 64}",
        new_hash=f"v1:sha256:{'b' * 64}",
        facts=[pb.FactChange(path="gpus[0].vbios", old=".11", new=".99")],
    )
    refused = [
        pb.Fit(node="gpu-b1", pod=f"web-{x}", code="HASH_MISMATCH", class_change=change)
        for x in range(2)
    ]
    fleet.fit = pb.FitPodResponse(managed=True, fits=[*refused, FIT.fits[0]])
    out = ask("fit", "-f", pod).out
    told = out[out.index("gpu-b1: its class changed") :].split("\n")
    assert " ".join(told[:-3]).endswith("ago, at 2026-01-02T12:03:00Z: aaaaaaaa to bbbbbbbb")
    assert [x.split() for x in told[-3:]] == [
        ["FACT", "BEFORE", "NOW"],
        ["gpus[0].vbios", ".11", ".99"],
        [],
    ]
    assert out.count("its class changed") == 1


def test_scores_are_shown_on_request(ask: Cli, fleet: FakeFleetServer, pod: str) -> None:
    fleet.fit = FIT
    row = ask("fit", "-f", pod, "-o", "wide").lines[4].split()
    assert row[:4] == ["gpu-a1", "yes", "7", "exact"]


def test_where_a_pod_fits_by_name(ask: Cli, fleet: FakeFleetServer, pod: str) -> None:
    fleet.fit = FIT
    assert ask("fit", "-f", pod, "-o", "name").out == "gpu-a1\n"
    assert json.loads(ask("fit", "-f", pod, "-o", "json").out)["managed"] is True


WEB = [
    pb.Fit(node="gpu-a1", pod="web-0", passes=True, score=7, guarantee="exact"),
    pb.Fit(node="gpu-b1", pod="web-1", code="GPU_BUSY", detail="too few"),
    pb.Fit(node="gpu-a1", pod="web-1", passes=True),
]


@pytest.mark.parametrize(("fits", "code"), [(WEB, 0), (WEB[:2], 3), (WEB[1:2], 3), (WEB[:1], 0)])
def test_each_pod_of_a_map_needs_a_node(
    ask: Cli, fleet: FakeFleetServer, pod: str, fits: list[pb.Fit], code: int
) -> None:
    fleet.fit = pb.FitPodResponse(managed=True, fits=fits)
    ran = ask("fit", "-f", pod)
    assert ran.code == code
    assert ran.lines[2].split()[:3] == ["POD", "NODE", "FITS"]


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (pb.FitPodResponse(), (0, "The pod has no GPU requirement")),
        (pb.FitPodResponse(managed=True), (3, "No nodes.")),
        (
            pb.FitPodResponse(warnings=["no \x1bGPU"], managed=True, fits=FIT.fits),
            (0, "Warning: no \\x1bGPU\nThe pod requires:\n"),
        ),
        (
            pb.FitPodResponse(code="GPU_BUSY", detail="x", managed=True, fits=FIT.fits),
            (3, "The pod is refused: GPU_BUSY x\n\nNODE "),
        ),
        (pb.FitPodResponse(managed=True, fits=FIT.fits[1:]), (3, "HASH_MISMATCH")),
        (
            pb.FitPodResponse(code="REQ_INVALID", detail="min-level: L9"),
            (3, "The pod is refused: REQ_INVALID min-level: L9"),
        ),
    ],
)
def test_other_answers_for_a_pod(
    ask: Cli, fleet: FakeFleetServer, pod: str, answer: pb.FitPodResponse, ended: tuple[int, str]
) -> None:
    fleet.fit = answer
    ran = ask("fit", "-f", pod)
    assert ran.code == ended[0]
    assert ended[1] in ran.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        ("- a\n", "expected an object such as a Pod"),
        ("? [a, b]\n: 1\n", "x.yaml: line 1: got a complex key; expected plain keys"),
        ("at: !!timestamp 2026-01-01\n", "line 1: got tag 'tag:yaml.org,2002:timestamp'"),
        ("ports: !!set {a, b}\n", "line 1: got tag 'tag:yaml.org,2002:set'"),
        ("n: 0x" + "f" * 9000 + "\n", "expected a number of JSON, at most 64 bits"),
        ("n: .nan\n", "line 1: got '.nan'; expected a number of JSON"),
        ('n: "\\ud800"\n', "line 1: got half of a surrogate pair"),
        ('n: "\\U99999999"\n', "got a number out of range; expected YAML"),
        ("a: " + "[" * 2000 + "\n", "line 1: got deep nesting"),
        ("a: [" + "," * 100 + "\n", "expected YAML"),
    ],
)
def test_a_bad_manifest_is_a_usage_error(
    ask: Cli, tmp_path: Path, content: str | None, message: str
) -> None:
    path = tmp_path / "x.yaml"
    if content is not None:
        path.write_text(content)
    ran = ask("fit", "-f", str(path))
    assert ran.code == 2
    assert message in ran.err


def test_yaml_and_json_are_the_same() -> None:
    text = b"kind: Pod\nmetadata: {annotations: {a: 'x'}}\nspec: {n: 1, t: true, z: null}\n"
    assert parse_manifest(text) == parse_manifest(
        b'{"kind":"Pod","metadata":{"annotations":{"a":"x"}},"spec":{"n":1,"t":true,"z":null}}'
    )


def test_times_stay_text() -> None:
    assert parse_manifest(b"at: 2026-11-27T10:00:00Z") == {"at": "2026-11-27T10:00:00Z"}
    assert parse_manifest(b"'on': 2026-11-27") == {"on": "2026-11-27"}


def test_empty_documents_around_it_are_skipped() -> None:
    assert parse_manifest(b"---\n---\nkind: Pod\n---\n") == {"kind": "Pod"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected an object such as a Pod"),
        (b"a: 1\n---\nb: 2\n", "expected one document"),
        (b"- a\n", "expected an object such as a Pod"),
        (b"just text", "expected an object such as a Pod"),
        (b"a: 1\nb: {c: 2, c: 3}\n", "line 2: got key 'c' again; expected each key once"),
        (b"a: &x 1\nb: *x\n", "line 1: got an anchor or alias"),
        (b"? [a]\n: 1\n", "line 1: got a complex key"),
        (b"a:\n  on: 1\n", "line 2: got key 'on'; expected text as key"),
        (b"1: a\n", "line 1: got key '1'; expected text as key"),
        (b"a: [1\n", "line 2: got "),
        (b"a: !!python/object:os.system 1", "line 1: got tag "),
        (b"a: \xff", "got byte 3; expected UTF-8 text"),
        (b"a: \x00", "got 'unacceptable character"),
        (b"[" * 1000, "expected at most 32 levels"),
        (b"a" * (MAX_BYTES + 1), "expected at most 1048576 bytes"),
        (b"a: 2026-99-99T99", None),
    ],
)
def test_what_is_not_one_manifest(content: bytes, message: str | None) -> None:
    if message is None:
        assert parse_manifest(content) == {"a": "2026-99-99T99"}
        return
    with pytest.raises(YamlError) as caught:
        parse_manifest(content)
    assert message in str(caught.value)
