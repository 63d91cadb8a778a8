"""The GPU type of a node, by its evidence alone."""

import pytest

from controller.placement.gpu_type import chosen_text, chosen_types, gpu_type, type_name
from tests.builders.fleet_views import acceptance, gpu


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB"),
        (" Quadro (X) ", "Quadro--X"),
        ("x" * 70, "x" * 63),
        ("x" * 62 + " y", "x" * 62),
        ("   ", ""),
    ],
)
def test_a_product_is_written_as_a_label(product: str, name: str) -> None:
    assert type_name(product) == name


def test_a_node_has_the_type_of_all_its_gpus_or_none() -> None:
    h100, l4 = gpu(0), gpu(1, product="NVIDIA L4")
    assert gpu_type(acceptance(gpus=(h100, gpu(1, lost=True)))) == "NVIDIA-H100-80GB-HBM3"
    assert gpu_type(acceptance(gpus=(h100, l4))) is None
    assert gpu_type(acceptance(gpus=(gpu(0, product=None),))) is None
    assert gpu_type(acceptance(gpus=(gpu(0, product="()"),))) is None
    assert gpu_type(acceptance(gpus=())) is None


# --- what a pod prefers

SEED, OURS = "scheduler.radix.ai/chosen-gpu", "gpuwarden.dev/chosen-gpus"


@pytest.mark.parametrize(
    ("annotations", "found"),
    [
        ({}, {}),
        ({SEED: ""}, {}),
        ({SEED: "A"}, {"A": 100}),
        ({OURS: "A=100,B.b-2_x=1"}, {"A": 100, "B.b-2_x": 1}),
        ({SEED: "B", OURS: "A=100,B=50"}, {"A": 100, "B": 100}),
        ({SEED: "C", OURS: "A=99"}, {"A": 99, "C": 100}),
        ({OURS: ",".join(f"t{x}=1" for x in range(8))}, {f"t{x}": 1 for x in range(8)}),
        ({OURS: f"{'x' * 63}=10"}, {"x" * 63: 10}),
    ],
)
def test_types_that_a_pod_prefers(annotations: dict[str, str], found: dict[str, int]) -> None:
    assert chosen_types(annotations) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A",
        "A=",
        "A=0",
        "A=01",
        "A=101",
        "A=1.5",
        "A=-1",
        "A=٣",
        "=1",
        "A=1,",
        "A=1, B=2",
        "A=1,A=2",
        ".A=1",
        f"{'x' * 64}=1",
        ",".join(f"t{x}=1" for x in range(9)),
    ],
)
def test_a_text_that_cannot_be_read_prefers_nothing_of_its_own(text: str) -> None:
    assert chosen_types({OURS: text}) == {}
    assert chosen_types({OURS: text, SEED: "B"}) == {"B": 100}


def test_what_is_written_is_read() -> None:
    weights = (("A", 100), ("B", 7))
    assert chosen_types({OURS: chosen_text(weights)}) == dict(weights)
