import pytest

from controller.scoring.gpu_types import memory_of, relative_slowness


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("A100-80GB", 80.0),
        ("A100-40GB", 40.0),
        ("L4-24GB", 24.0),
        ("NVIDIA-H100-80GB-HBM3", 80.0),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 10.0),
        ("NVIDIA-L4", 24.0),
        ("NVIDIA-L40S", 48.0),
        ("Tesla-T4", 16.0),
        ("NVIDIA-H200", 141.0),
        ("A100", 40.0),
        ("MI300X", None),
        ("HBM3", None),
    ],
)
def test_names_hold_the_memory(name: str, size: float | None) -> None:
    assert memory_of(name, {}) == size


def test_what_the_caller_knows_wins() -> None:
    assert memory_of("A100-80GB", {"A100-80GB": 79.6}) == 79.6


def test_a_model_with_less_bandwidth_is_slower() -> None:
    assert relative_slowness("L4-24GB", "H100-80GB") == pytest.approx((3350 / 300) ** 0.5)
    assert relative_slowness("H100-80GB", "L4-24GB") < 1
    assert relative_slowness("mine", "H100-80GB") == relative_slowness("H100-80GB", "mine") == 1
