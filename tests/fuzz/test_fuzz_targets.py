"""A short run of each fuzz target, the same every time: atheris where it is, Hypothesis always."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from controller.export.records import read_csv, read_ndjson
from controller.fleet.attestation_result import Accepted, FailureNoticeAccepted
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements, parse_requirements
from controller.policies.file import decode_policy
from controller.web.extender.scheduler_messages import decode_args
from gpuwarden.evidence.model import (
    TYPE_EVIDENCE,
    TYPE_EVIDENCE_WITH_PODS,
    TYPE_FAILURE_NOTICE,
    TYPE_FAILURES,
)
from gpuwarden.settings.loader import AGENT, CONTROLLER, Inputs, load
from tests.architecture.test_names import ROOT
from tests.fuzz.seeds import CORPUS, seeds
from tests.fuzz.targets import TARGETS, appraised
from tests.hang import HANG_S

RUNS = {
    "evidence": 500,
    "envelope": 2000,
    "extender": 2000,
    "configuration": 700,
    "admission": 1500,
    "records": 2000,
}
"""A few seconds each. Without atheris Hypothesis makes a tenth of it, without its guidance."""
TOKENS = (b"", b"\x00", b"\xff", b"\xc3", b"\\ud800", b'"', b"{", b"[" * 40, b"null", b"1e9", b"-0")


def inputs(target: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


def mutated(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """At each place, a share of the length, some bytes are replaced by others."""
    for place, length, insert in changes:
        at = int(place * len(data))
        data = data[:at] + insert + data[at + length :]
    return data


CHANGES = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 12),
        st.one_of(st.sampled_from(TOKENS), st.binary(max_size=4)),
    ),
    min_size=1,
    max_size=4,
)


def mutate(target: str, examples: int) -> None:
    @seed(1)
    @settings(max_examples=examples, deadline=None, database=None)
    @given(data=st.sampled_from(inputs(target)), changes=CHANGES)
    def run(data: bytes, changes: list[tuple[float, int, bytes]]) -> None:
        TARGETS[target](mutated(data, changes))

    run()


def test_every_target_has_a_corpus() -> None:
    assert set(RUNS) == set(TARGETS) == {path.name for path in CORPUS.iterdir()}


def test_the_seeds_are_those_of_the_generator() -> None:
    found = {x.relative_to(CORPUS).as_posix(): x.read_bytes() for x in CORPUS.rglob("seed-*")}
    assert found == dict(seeds())


def test_seeds_lead_past_the_first_check() -> None:
    """Or the fuzzer would have to guess nonces before it saw anything of what is behind them."""
    for name, kind in (("plain", TYPE_EVIDENCE), ("with-pods", TYPE_EVIDENCE_WITH_PODS)):
        assert isinstance(appraised(_seed(f"evidence/seed-{name}"), kind), Accepted)
    for name, kind in (("failure-notice", TYPE_FAILURE_NOTICE), ("failures", TYPE_FAILURES)):
        assert isinstance(appraised(_seed(f"evidence/seed-{name}"), kind), FailureNoticeAccepted)
    pod = decode_args(_seed("extender/seed-selector")).pod
    assert isinstance(parse_requirements(pod, RequirementRules()), Requirements)
    assert len(read_ndjson(_seed("records/seed-letters"))) == 2
    assert len(read_csv(_seed("records/seed-csv"))) == 2
    decode_policy(_seed("configuration/seed-policy"))
    load(CONTROLLER, Inputs(file=("c", _seed("configuration/seed-controller"))))
    load(AGENT, Inputs(file=("c", _seed("configuration/seed-agent"))))


def _seed(name: str) -> bytes:
    return (CORPUS / name).read_bytes()


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_file_of_the_corpus_is_a_finding(target: str) -> None:
    for data in inputs(target):
        TARGETS[target](data)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_mutations_find_nothing(target: str) -> None:
    mutate(target, 60)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_short_deterministic_run_finds_nothing(target: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        mutate(target, RUNS[target] // 10)
        return
    command = [sys.executable, "-m", "tests.fuzz.run", target, str(tmp_path / "found")]
    run = subprocess.run(
        [*command, "--runs", str(RUNS[target])],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-4000:]
    assert f"Done {RUNS[target]} runs" in run.stderr
