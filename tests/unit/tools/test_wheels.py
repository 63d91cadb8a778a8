from typing import Any

import pytest

from tests.deploy.wheels import NoWheelError, applies, chosen


def package(*wheels: str, **more: Any) -> dict[str, Any]:
    rows = [{"url": f"https://host/a/{x}", "hashes": {"sha256": f"hash of {x}"}} for x in wheels]
    return {"name": "x", "version": "1", "wheels": rows, **more}


COMPILED = package(
    "x-1-cp311-cp311-manylinux_2_28_aarch64.whl",
    "x-1-cp311-cp311-manylinux_2_28_x86_64.whl",
    "x-1-cp311-cp311-manylinux_2_39_x86_64.whl",
    "x-1-cp311-cp311-musllinux_1_2_aarch64.whl",
    "x-1-cp312-cp312-manylinux_2_28_aarch64.whl",
    "x-1-py3-none-any.whl",
)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_best_wheel_of_the_machine_is_chosen(machine: str) -> None:
    name = f"x-1-cp311-cp311-manylinux_2_28_{machine}.whl"
    assert list(chosen({"packages": [COMPILED]}, machine)) == [(name, f"hash of {name}")]


def test_a_package_without_a_wheel_for_a_machine_is_an_error() -> None:
    only = package(
        "x-1-cp311-cp311-manylinux_2_28_x86_64.whl",
        "x-1-cp311-cp311-manylinux_2_37_aarch64.whl",
        "x-1-cp311-cp311-musllinux_1_2_aarch64.whl",
    )
    assert len(list(chosen({"packages": [only]}, "x86_64"))) == 1
    with pytest.raises(NoWheelError, match="x 1 has no wheel for aarch64"):
        list(chosen({"packages": [only]}, "aarch64"))
    with pytest.raises(NoWheelError):
        list(chosen({"packages": [package()]}, "x86_64"))


def test_a_package_for_other_systems_is_not_asked_for() -> None:
    windows = package(marker="sys_platform == 'win32'")
    assert list(chosen({"packages": [windows]}, "aarch64")) == []
    assert applies("python_full_version < '3.11.3'", "aarch64")
    assert applies("platform_machine == 'aarch64'", "aarch64")
    assert not applies("platform_machine == 'aarch64'", "x86_64")
