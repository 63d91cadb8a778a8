"""The tables around the reason codes are complete and agree with each other."""

import re

import pytest

from gpuwarden.reason_texts import EXPLANATIONS
from gpuwarden.reasons import EFFECT_OF, STEP_OF, Effect, ReasonCode, Refusal, Stage
from tests.docs_pages.reasons import reasons_page

SENTENCE = re.compile(r"(?:[A-Z]|envFrom )[^|\n]{8,160}\.")
FIRST_STEP_OF_A_KNOWN_NODE = 6
LAST_STREAM_STEP = 10


def test_a_code_is_its_own_name() -> None:
    assert all(code.name == code.value for code in ReasonCode)


def test_every_code_is_explained() -> None:
    assert set(EXPLANATIONS) == set(ReasonCode)


@pytest.mark.parametrize("code", ReasonCode)
def test_cause_and_remedy_are_one_plain_sentence_each(code: ReasonCode) -> None:
    text = EXPLANATIONS[code]
    assert SENTENCE.fullmatch(text.cause)
    assert SENTENCE.fullmatch(text.remedy)
    assert text.cause != text.remedy


def test_every_remedy_names_a_command() -> None:
    without = {code for code in ReasonCode if "`" not in EXPLANATIONS[code].remedy}
    assert without == {ReasonCode.ACCEPTED}


@pytest.mark.parametrize("code", ReasonCode)
def test_commands_name_a_namespace_and_nothing_that_has_to_be_looked_up(code: ReasonCode) -> None:
    remedy = EXPLANATIONS[code].remedy
    assert not re.search(r"AGENT_POD|CONTROLLER_POD|SERVICE_ACCOUNT", remedy)
    for command in re.findall(r"`(kubectl [^`]+)`", remedy):
        is_of_namespace = re.search(r"\b(pods?(?!\.yaml)|logs|events|daemonset)\b", command)
        assert not is_of_namespace or re.search(r" -(n|A)\b", command), command


def test_no_remedy_sends_its_reader_back_to_where_it_stands() -> None:
    """`explain node` shows those of verification; `explain pod` shows all others."""
    node = {ReasonCode.NODE_NO_EVIDENCE, ReasonCode.NODE_STALE, ReasonCode.NVML_UNAVAILABLE}
    for code in ReasonCode:
        here = "explain node" if code in STEP_OF or code in node else "explain pod"
        assert here not in EXPLANATIONS[code].remedy, code


def test_steps_are_exactly_those_of_verification() -> None:
    verification = {c for c in ReasonCode if EXPLANATIONS[c].stage in {Stage.STREAM, Stage.MESSAGE}}
    assert set(STEP_OF) == verification
    assert all(
        (step <= LAST_STREAM_STEP) == (EXPLANATIONS[code].stage is Stage.STREAM)
        for code, step in STEP_OF.items()
    )


def test_every_refusal_of_verification_has_an_effect() -> None:
    assert set(EFFECT_OF) == set(STEP_OF) - {ReasonCode.ACCEPTED}


def test_only_a_known_node_can_lose_trust() -> None:
    assert {
        code
        for code, effect in EFFECT_OF.items()
        if effect is not Effect.TRANSIENT and STEP_OF[code] < FIRST_STEP_OF_A_KNOWN_NODE
    } == set()


def test_codes_stand_in_the_order_of_their_steps() -> None:
    steps = [STEP_OF[code] for code in ReasonCode if code in STEP_OF]
    assert steps == sorted(steps)


def test_a_refusal_needs_no_text() -> None:
    assert Refusal(ReasonCode.SIG_INVALID).detail == ""


def test_the_page_names_every_code_once_with_step_and_effect() -> None:
    page, _, cures = reasons_page().partition("## What ends the waiting of a pod")
    assert "`GPU_BUSY`" in cures
    assert all(page.count(f"| `{code}` |") == 1 for code in ReasonCode)
    assert "| `INVENTORY_CHANGED` | 16 | quarantine | A GPU was added" in page
    assert "| `GPU_BUSY` |  |  | Too few" in page
