"""The nodes of the laptop cluster: names and the hardware their fake NVML shows.

Values only. Three nodes that an operator would tell apart at once: eight H100, two
A100 cut into MIG devices, and two H100 behind an older driver.
"""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from sandbox.nvml.models import A100_1G, A100_3G, a100_mig, h100_sxm, made_uuid
from sandbox.nvml.scenario import Scenario

TRUST_DOMAIN: Final = "laptop.test"
CLUSTER: Final = "laptop"
HOPPER: Final = "hopper-0"
AMPERE: Final = "ampere-0"
LEGACY: Final = "legacy-0"
LEGACY_DRIVER: Final = "550.54.15"
ROGUE: Final = "rogue-0"
"""Known to the directory; the demo itself speaks for it and misbehaves."""
REAL: Final = "this-machine"
"""Joins where this machine has a real NVML."""


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """A node whose GPUs are made up."""

    name: str
    scenario: Scenario


def simulated_nodes() -> tuple[SimulatedNode, ...]:
    """The fleet of the demo."""
    return (
        SimulatedNode(
            HOPPER, Scenario(cuda=12080, gpus=tuple(h100_sxm(n, HOPPER) for n in range(8)))
        ),
        SimulatedNode(
            AMPERE,
            Scenario(
                cuda=12080,
                gpus=(
                    a100_mig(0, AMPERE, A100_3G, A100_3G),
                    a100_mig(1, AMPERE, *(A100_1G,) * 7),
                ),
            ),
        ),
        SimulatedNode(
            LEGACY,
            Scenario(
                driver=LEGACY_DRIVER,
                cuda=12040,
                gpus=tuple(h100_sxm(n, LEGACY, gsp=LEGACY_DRIVER) for n in range(2)),
            ),
        ),
    )


def with_another_card(scenario: Scenario) -> Scenario:
    """The same node after somebody swapped its last GPU for one of the same model."""
    *others, last = scenario.gpus
    swapped = replace(last, uuid=made_uuid("GPU", "other", 1), serial="1659999999999")
    return replace(scenario, gpus=(*others, swapped))
