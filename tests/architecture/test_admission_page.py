"""The page about admission names what the code does."""

from pathlib import Path

import pytest

from controller.admission.bypass_checks import AS_GOOD_AS
from controller.admission.gpu_supply import CUDA, NVIDIA
from controller.kube.pods.events import BINDING_REASON, PLACEMENT_REASON, REASON
from gpuwarden.reasons import ReasonCode

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "admission.md").read_text()


@pytest.mark.parametrize(
    "word",
    [
        *(code.value for code in ReasonCode if code.name.startswith("BYPASS_")),
        *sorted(AS_GOOD_AS),
        CUDA,
        NVIDIA,
        REASON,
        BINDING_REASON,
        PLACEMENT_REASON,
        ReasonCode.ADMISSION_FAILED.value,
    ],
)
def test_every_code_and_name_is_on_the_page(word: str) -> None:
    assert f"`{word}" in PAGE
