"""Whether what kubelet gave is what the pod has asked for."""

from dataclasses import replace

import pytest

from controller.placement.devices import DevicePool, is_wished_for
from controller.placement.pod import Place
from controller.placement.requirements import Requirements, RequirementsInvalid
from controller.placement.selector import compile_labels, parse_selector
from controller.placement.texts import Guarantee
from tests.builders.fleet_views import acceptance, gpu, hash_of, mig_slice

LABELS = compile_labels({"big": "memory>=40Gi"})
POOL = DevicePool(
    acceptance(
        hash_of("a"),
        [
            gpu(0, "GPU-big"),
            gpu(1, "GPU-small", memory_mib=16_000),
            gpu(2, "GPU-lost", lost=True),
            gpu(3, "GPU-mig", mig=True, mig_devices=[mig_slice("MIG-1")]),
        ],
    )
)
ANY = Requirements(guarded=True, count=1)
BIG = replace(ANY, selector=parse_selector("memory>=40Gi"))


@pytest.mark.parametrize(
    ("needs", "uuid", "is_fine"),
    [
        (ANY, "GPU-big", True),
        (ANY, "MIG-1", True),
        (ANY, "GPU-of-nobody", False),
        (ANY, "GPU-mig", False),
        (BIG, "GPU-big", True),
        (BIG, "GPU-small", False),
        (BIG, "GPU-lost", True),
        (replace(BIG, accepts=Guarantee.SET), "GPU-small", False),
        (replace(BIG, accepts=Guarantee.NODE), "GPU-small", True),
        (replace(ANY, labels=frozenset({"big"})), "GPU-big", True),
        (replace(ANY, labels=frozenset({"big"})), "GPU-small", False),
        (replace(ANY, uuids=("GPU-big",)), "GPU-big", True),
        (replace(ANY, uuids=("GPU-big",)), "GPU-small", False),
        (replace(ANY, uuids=("GPU-gone",)), "GPU-big", False),
        (replace(ANY, mapped=True, place=Place("gpu-1", (0,))), "GPU-big", True),
        (replace(ANY, mapped=True, place=Place("gpu-1", (0,))), "GPU-small", False),
        (RequirementsInvalid(()), "GPU-big", False),
    ],
)
def test_what_the_wish_admits(
    needs: Requirements | RequirementsInvalid, uuid: str, is_fine: bool
) -> None:
    assert is_wished_for(needs, POOL, uuid, LABELS) == is_fine
