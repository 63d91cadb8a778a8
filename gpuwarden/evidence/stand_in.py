"""How evidence shows that its GPUs are made up: its driver has a version of no driver. Pure.

The NVML library of the image for evaluations ends every driver version in this mark, whatever it
is told to show. NVIDIA's versions are numbers and dots.
"""

from typing import Final

from gpuwarden.evidence.model import Inventory

MARK: Final = "+evaluation"


def is_stand_in(inventory: Inventory) -> bool:
    """Whether the GPUs are made up, by their own account."""
    driver = inventory.host.driver
    return driver is not None and driver.endswith(MARK)


def without_mark(driver: str) -> str:
    """The version that a made-up driver claims; any other version unchanged."""
    return driver.removesuffix(MARK)
