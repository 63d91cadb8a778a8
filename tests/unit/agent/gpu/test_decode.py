from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.gpu import decode
from agent.gpu.facts import Failed


@pytest.mark.parametrize(
    ("number", "name"), [(9, "hopper"), (10, "blackwell"), (14, "arch-14"), (0xFFFFFFFF, None)]
)
def test_architectures_newer_than_the_table_have_a_number(number: int, name: str | None) -> None:
    assert decode.architecture(number) == name


@pytest.mark.parametrize("number", [5, 99])
def test_a_mode_out_of_range_is_no_value(number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        decode.virtualization(number)
    with pytest.raises(ValueError, match=str(number)):
        decode.compute_mode(number)


@pytest.mark.parametrize(
    ("number", "name"), [(12080, "12.8"), (13000, "13.0"), (11040, "11.4"), (0, None)]
)
def test_cuda_versions(number: int, name: str | None) -> None:
    assert decode.cuda(number) == name


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_the_device_is_the_high_half_of_the_word(vendor: int, device: int) -> None:
    info = SimpleNamespace(
        busId="00000000:1B:00.0", pciDeviceId=device << 16 | vendor, pciSubSystemId=0
    )
    address = decode.pci(info)
    assert address.pci == f"{vendor:04x}:{device:04x}"
    assert address.subsystem == "0000:0000"


@pytest.mark.parametrize("bus", ["", "1B:00", "x:1B:00.0", "00000000:1B:00"])
def test_a_bus_id_that_is_none(bus: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any of them will do
        decode.bus(SimpleNamespace(busId=bus))


def test_bus_order_is_that_of_numbers() -> None:
    buses = ["00000000:0A:00.0", "0000:9:00.0", "00010000:01:00.0", "00000000:0A:00.1"]
    assert sorted(buses, key=decode.bus_order) == [buses[1], buses[0], buses[3], buses[2]]


@pytest.mark.parametrize(
    ("slices", "megabytes", "profile"),
    [
        ((1, 1), 9984, "1g.10gb"),
        ((2, 1), 19968, "1c.2g.20gb"),
        ((0, 0), 1, None),
        ((1, 1), 0, None),
    ],
)
def test_profiles_from_attributes(
    slices: tuple[int, int], megabytes: int, profile: str | None
) -> None:
    attributes = SimpleNamespace(
        gpuInstanceSliceCount=slices[0],
        computeInstanceSliceCount=slices[1],
        memorySizeMB=megabytes,
    )
    assert decode.attributes_profile(attributes) == profile


@pytest.mark.parametrize(
    ("name", "profile"),
    [("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"), ("NVIDIA A100", None), ("", None)],
)
def test_profiles_from_names(name: str, profile: str | None) -> None:
    assert decode.profile(name) == profile


def test_a_failure_is_no_value() -> None:
    assert Failed("call", "UNKNOWN") == Failed("call", "UNKNOWN")
    assert decode.text("") is None
    assert decode.version("") is None
    assert decode.gsp(b"") is None
