"""The GPU type of a node, by its evidence alone."""

import pytest

from controller.placement.gpu_type import gpu_type, type_name
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
