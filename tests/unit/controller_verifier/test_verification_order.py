import re
from importlib import import_module
from itertools import combinations

import pytest

from controller.fleet.attestation_result import Refused
from controller.verifier import verifier
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode
from tests.builders.ca import SpiffeCa
from tests.builders.defects import DEFECTS, Defect
from tests.builders.evidence import WALL, Scene

CA = SpiffeCa(at=WALL)
OF_THE_SHELL = {ReasonCode.AUDIT_UNAVAILABLE, ReasonCode.ACCEPTED}
FIRST_DEFECT: dict[ReasonCode, Defect] = dict(reversed(DEFECTS))
ORDER = list(ReasonCode)

# One stub answers for a whole step; a stream is either superseded from the start or later.
ONE_AT_A_TIME = {7, 8, 9, 10, 17}


def refusal_of(*defects: Defect) -> Refused:
    scene = Scene(ca=CA)
    for defect in defects:
        defect(scene)
    result = scene.run()
    assert isinstance(result, Refused), result
    return result


def test_a_good_node_is_accepted() -> None:
    Scene(ca=CA).accepted()


def test_every_code_of_steps_1_to_18_has_a_defect() -> None:
    assert {code for code, _ in DEFECTS} == set(STEP_OF) - OF_THE_SHELL


@pytest.mark.parametrize(
    ("code", "defect"), DEFECTS, ids=[f"{i}-{code}" for i, (code, _) in enumerate(DEFECTS)]
)
def test_a_defect_is_refused_with_its_code_step_and_effect(
    code: ReasonCode, defect: Defect
) -> None:
    refused = refusal_of(defect)
    step = STEP_OF[code]
    assert (refused.code, refused.step) == (code, step)
    assert refused.effect is (EFFECT_OF[code] if step >= 6 else Effect.TRANSIENT)
    assert "\n" not in refused.detail
    assert len(refused.detail) < 400


@pytest.mark.parametrize(
    ("code", "defect"), DEFECTS, ids=[f"{i}-{code}" for i, (code, _) in enumerate(DEFECTS)]
)
def test_a_stream_goes_on_only_after_its_sequence_is_known(
    code: ReasonCode, defect: Defect
) -> None:
    stream = refusal_of(defect).stream
    if STEP_OF[code] < 16:
        assert stream is None
    else:
        assert stream is not None
        assert stream.seq == 1


def by_step() -> dict[int, ReasonCode]:
    """The first listed code of each step."""
    return {STEP_OF[code]: code for code in reversed(ORDER) if code in FIRST_DEFECT}


def pairs() -> list[tuple[ReasonCode, ReasonCode]]:
    across = combinations(sorted(by_step().values(), key=ORDER.index), 2)
    within = (
        (first, second)
        for first, second in combinations(sorted(FIRST_DEFECT, key=ORDER.index), 2)
        if STEP_OF[first] == STEP_OF[second] and STEP_OF[first] not in ONE_AT_A_TIME
    )
    # Steps 7 to 9 share the stub; their order is tested by itself.
    return [
        (first, second)
        for first, second in (*across, *within)
        if not {STEP_OF[first], STEP_OF[second]} <= {7, 8, 9}
    ]


@pytest.mark.parametrize(("first", "second"), pairs(), ids=str)
def test_the_earliest_failing_step_and_within_it_the_first_code_wins(
    first: ReasonCode, second: ReasonCode
) -> None:
    assert refusal_of(FIRST_DEFECT[second], FIRST_DEFECT[first]).code is first


def test_the_order_of_codes_is_that_of_their_steps() -> None:
    steps = [STEP_OF[code] for code in ORDER if code in STEP_OF]
    assert steps == sorted(steps)


def described_steps() -> dict[int, str]:
    """Step -> its text in the docstring that numbers them."""
    parts = re.split(r"^ ?(\d{1,2})\. ", verifier.__doc__ or "", flags=re.MULTILINE)
    return {int(number): text for number, text in zip(parts[1::2], parts[2::2], strict=True)}


def test_the_numbered_procedure_names_the_codes_of_each_step() -> None:
    assert list(described_steps()) == list(range(1, 21))
    described = {
        step: re.findall(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|ACCEPTED", text)
        for step, text in described_steps().items()
    }
    assert described == {
        step: [code.value for code in ORDER if STEP_OF.get(code) == step] for step in range(1, 21)
    }


def test_the_numbered_procedure_names_code_that_exists() -> None:
    for text in described_steps().values():
        for module, name in re.findall(r"`([a-z]+)\.([A-Za-z_]+)", text):
            if module in {"session", "message", "challenge", "inventory", "appraisal", "context"}:
                assert hasattr(import_module(f"controller.verifier.{module}"), name)
