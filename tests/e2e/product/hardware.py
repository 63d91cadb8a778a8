"""Made-up hardware by name."""

from dataclasses import replace
from uuid import NAMESPACE_DNS, uuid5

from msgspec.structs import replace as changed

from sandbox.fleet.hardware import NodeHardware, fleet_hardware
from sandbox.nvml.models import h100_sxm


def h100_node(name: str, gpus: int = 8, *, shown: str = "", driver: str = "") -> NodeHardware:
    """A node with H100s; those of `shown`, where it shows somebody else's."""
    (one,) = fleet_hardware(1, 1)
    cards = tuple(h100_sxm(number, shown or name) for number in range(gpus))
    scenario = changed(one.scenario, gpus=cards, driver=driver or one.scenario.driver)
    host = replace(one.host, system_uuid=str(uuid5(NAMESPACE_DNS, name)))
    return NodeHardware(name, host, scenario)
