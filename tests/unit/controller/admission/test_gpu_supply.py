"""Who gives a container its GPUs, and the variables by which its runtime gives it devices."""

from typing import Any

import msgspec
import pytest

from controller.admission.gpu_supply import (
    Supply,
    could_open_devices,
    is_env_pod,
    is_ours,
    opens_devices,
    supply_of,
    supply_without_request,
    wanted_variables,
)
from controller.admission.pod import AdmittedContainer, Variable, VariableSource
from controller.placement.requirements import Requirements
from tests.builders.admitted_pods import container

ASKS_US = Requirements(managed=True, count=1)
ASKS_KUBELET = Requirements(managed=True, count=1, requests=(("nvidia.com/gpu", 1),))
ASKS_A_DRIVER = Requirements(managed=True, count=1, claims=True)
ASKS_NOBODY = Requirements(managed=True)
RESOURCES = ("nvidia.com/gpu", "example.org/gpu")
PATH = "metadata.annotations['gpuwarden.dev/gpu-uuids-assigned']"


def as_container(document: dict[str, Any]) -> AdmittedContainer:
    return msgspec.convert(document, AdmittedContainer)


def entry(name: str = "NVIDIA_VISIBLE_DEVICES", **fields: Any) -> Variable:
    return msgspec.convert({"name": name, **fields}, Variable)


def reference(**fields: Any) -> dict[str, Any]:
    return {"valueFrom": {"fieldRef": fields}}


@pytest.mark.parametrize(
    ("needs", "expected"),
    [(ASKS_US, True), (ASKS_KUBELET, False), (ASKS_A_DRIVER, False), (ASKS_NOBODY, False)],
)
def test_gpus_come_from_gpuwarden_alone_where_nobody_else_is_asked(
    needs: Requirements, *, expected: bool
) -> None:
    assert is_env_pod(needs) is expected


@pytest.mark.parametrize(
    ("resources", "supply"),
    [
        (None, Supply.REFERENCE),
        ({}, Supply.REFERENCE),
        ({"limits": {"cpu": "1"}}, Supply.REFERENCE),
        ({"limits": {"nvidia.com/gpu": "0"}}, Supply.REFERENCE),
        ({"limits": {"nvidia.com/gpu": "1"}}, Supply.KUBELET),
        ({"requests": {"example.org/gpu": "1"}}, Supply.KUBELET),
        ({"claims": [{"name": "c"}]}, Supply.KUBELET),
    ],
)
def test_who_asks_kubelet_or_a_driver_gets_its_gpus_there(
    resources: dict[str, Any] | None, supply: Supply
) -> None:
    one = as_container({"name": "main", "resources": resources})
    assert supply_of(one, ASKS_US, RESOURCES) is supply


@pytest.mark.parametrize(
    ("needs", "supply"),
    [
        (ASKS_US, Supply.REFERENCE),
        (ASKS_KUBELET, Supply.NONE),
        (ASKS_A_DRIVER, Supply.NONE),
        (ASKS_NOBODY, Supply.NONE),
    ],
)
def test_who_asks_nobody_gets_what_the_pod_gets_or_nothing(
    needs: Requirements, supply: Supply
) -> None:
    assert supply_without_request(needs) is supply
    assert supply_of(as_container(container()), needs, RESOURCES) is supply


def test_the_variables_that_are_added() -> None:
    assert wanted_variables(Supply.REFERENCE) == ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
    assert wanted_variables(Supply.NONE) == ("NVIDIA_VISIBLE_DEVICES",)
    assert wanted_variables(Supply.KUBELET) == ()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (entry(value="void"), True),
        (entry(value="none"), False),
        (entry(value=""), False),
        (entry(), False),
        (entry(value="void", **reference(fieldPath=PATH)), False),
    ],
)
def test_a_container_without_gpus_has_void(written: Variable, *, expected: bool) -> None:
    assert is_ours(written, Supply.NONE) is expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (entry(**reference(fieldPath=PATH)), True),
        (entry(**reference(fieldPath=PATH, apiVersion="v1")), True),
        (entry(**reference(fieldPath=PATH, apiVersion="")), True),
        (entry(value="", **reference(fieldPath=PATH)), True),
        (entry(**reference(fieldPath=PATH, apiVersion="v2")), False),
        (entry(**reference(fieldPath="metadata.name")), False),
        (entry(value="GPU-a", **reference(fieldPath=PATH)), False),
        (entry(valueFrom={"secretKeyRef": {"name": "s", "key": "k"}}), False),
        (entry(value="void"), False),
    ],
)
def test_a_container_with_gpus_refers_to_the_annotation(
    written: Variable, *, expected: bool
) -> None:
    assert is_ours(written, Supply.REFERENCE) is expected


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA_VISIBLE_DEVICES",
        "DOCKER_RESOURCE_GPU",
        "NVIDIA_IMEX_CHANNELS",
        "NVIDIA_MIG_CONFIG_DEVICES",
        "NVIDIA_MIG_MONITOR_DEVICES",
        "NVIDIA_NVSWITCH",
    ],
)
def test_every_variable_of_the_toolkit_opens_devices(name: str) -> None:
    assert opens_devices(entry(name, value="all"))
    assert opens_devices(entry(name, **reference(fieldPath="metadata.name")))
    assert could_open_devices(VariableSource(name))


@pytest.mark.parametrize(
    "harmless",
    [
        entry(),
        entry(value=""),
        entry(value="none"),
        entry(value="void"),
        entry("CUDA_VISIBLE_DEVICES", value="0"),
        entry("PATH", **reference(fieldPath="metadata.name")),
    ],
)
def test_a_variable_that_opens_nothing(harmless: Variable) -> None:
    assert not opens_devices(harmless)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [(None, True), ("", True), ("NVIDIA_", True), ("D", True), ("APP_", False), ("X", False)],
)
def test_a_source_opens_devices_where_its_prefix_begins_one_of_them(
    prefix: str | None, *, expected: bool
) -> None:
    assert could_open_devices(VariableSource(prefix)) is expected
