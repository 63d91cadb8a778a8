"""Made-up GPUs: refused by a controller, and never above level `none` in an evaluation."""

from dataclasses import replace
from typing import Any

import pytest

from controller.fleet.attestation_result import Accepted, Refused
from controller.policy import Level, Policy
from controller.verifier.context import HardwareQuestion, NoSpire, SpireQuestion, Standing
from gpuwarden.evidence.class_document import attestation_hash, class_document
from gpuwarden.reasons import Effect, ReasonCode
from tests.builders.evidence import SETTINGS, Scene
from tests.builders.inventory import gpu, host, inventory

EVALUATION = replace(SETTINGS, evaluation=True)
MADE_UP = {"inventory": inventory(gpu(), host=host(driver="570.86.10+evaluation"))}


class Confirming(NoSpire):
    def agent(self, question: SpireQuestion) -> Standing:
        return Standing(Level.L1, "k8s_psat", f"agent of {question.node_name}")


def answer(scene: Scene) -> Any:
    return scene.answer(scene.opened())


def test_made_up_gpus_are_refused_and_say_why() -> None:
    found = answer(Scene(evidence=MADE_UP))
    assert isinstance(found, Refused)
    assert (found.code, found.effect) == (ReasonCode.INVENTORY_MADE_UP, Effect.REVOKE)
    assert found.detail == "driver 570.86.10+evaluation: the GPUs are made up"
    assert found.contested == ()
    assert found.candidate is None


@pytest.mark.parametrize("driver", ["570.86.10", "570.86.10+evaluation2", "evaluation", None])
def test_another_version_is_a_drivers(driver: str | None) -> None:
    found = answer(Scene(evidence={"inventory": inventory(gpu(), host=host(driver=driver))}))
    assert isinstance(found, Accepted), found
    assert found.level is Level.L0


def test_gpus_that_become_made_up_are_refused_on_the_same_stream() -> None:
    scene = Scene()
    first = answer(scene)
    assert isinstance(first, Accepted)
    scene.remember(first)
    scene.evidence = MADE_UP
    found = scene.answer(first.stream, 2)
    assert isinstance(found, Refused)
    assert found.code is ReasonCode.INVENTORY_MADE_UP


def test_what_is_malformed_is_said_first() -> None:
    odd = inventory(gpu(uuid="GPU-x"), host=host(driver="1+evaluation"))
    found = answer(Scene(evidence={"inventory": odd}))
    assert found.code is ReasonCode.INVENTORY_INVALID


@pytest.mark.parametrize("shown", [MADE_UP, {}], ids=["made up", "real"])
def test_in_an_evaluation_every_node_is_accepted_at_level_none(shown: dict[str, Any]) -> None:
    found = answer(Scene(settings=EVALUATION, evidence=shown))
    assert isinstance(found, Accepted), found
    assert found.level is Level.NONE
    document = class_document(
        found.evidence.inventory, level="none", trust_domain=SETTINGS.trust_domain, attestor=None
    )
    assert found.attestation_hash == attestation_hash(document)


def test_in_an_evaluation_neither_spire_nor_hardware_gives_a_level() -> None:
    def proven(question: HardwareQuestion) -> Standing:
        assert question.standing.level is Level.L1
        return replace(question.standing, level=Level.L2)

    scene = Scene(settings=EVALUATION, spire=Confirming(), hardware=proven)
    found = answer(scene)
    assert isinstance(found, Accepted), found
    assert found.level is Level.NONE
    scene.settings = SETTINGS
    assert answer(scene).level is Level.L2


@pytest.mark.parametrize(
    ("least", "code"), [(Level.L0, None), (Level.L1, ReasonCode.LEVEL_TOO_LOW)]
)
def test_in_an_evaluation_a_policy_that_demands_more_than_its_default_is_held_to(
    least: Level, code: ReasonCode | None
) -> None:
    found = answer(Scene(settings=EVALUATION, evidence=MADE_UP, policy=Policy(min_level=least)))
    assert (found.code if isinstance(found, Refused) else None) == code


def test_an_unchanged_inventory_keeps_its_documents_in_an_evaluation() -> None:
    scene = Scene(settings=EVALUATION, evidence=MADE_UP)
    first = answer(scene)
    assert isinstance(first, Accepted)
    scene.remember(first)
    second = scene.answer(first.stream, 2)
    assert isinstance(second, Accepted)
    assert second.class_document is first.class_document
    assert second.level is Level.NONE


def test_only_the_default_of_a_policy_demands_nothing() -> None:
    assert {x: x.demanded for x in Level} == {
        Level.NONE: Level.NONE,
        Level.L0: Level.NONE,
        Level.L1: Level.L1,
        Level.L2: Level.L2,
        Level.L3: Level.L3,
    }
