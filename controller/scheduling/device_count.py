"""How many devices a pod needs (placement design, section 1). Pure.

What kubelet is asked for wins; without such a request the devices that the wish
names, else `gpuwarden.dev/gpu-count`, else 1 for a wish about GPUs and 0 for a wish
about the node alone. Numbers that contradict each other are a fault.
"""

from collections.abc import Mapping

from controller.scheduling.finding import Finding, WishTextError
from controller.scheduling.quantity import parse_count
from controller.scheduling.wish_keys import GPU_COUNT

_MAX_COUNT = 1024


def device_count(
    requested: int, named: int, given: int | None, *, asks_gpus: bool
) -> int | Finding:
    """The count; `named` is 0 where no devices are named, `given` is the annotation's number."""
    count = requested or named or given or (1 if asks_gpus else 0)
    source = "the pod requests" if requested else "devices are named"
    if named and named != count:
        return Finding("named devices", str(named), f"as many as {source}: {count}")
    if given is not None and given != count:
        return Finding(GPU_COUNT, str(given), f"as many as {source}: {count}")
    return count


def read_count(annotations: Mapping[str, str], findings: list[Finding]) -> int | None:
    """The number in `gpuwarden.dev/gpu-count`, None where there is none or a wrong one."""
    text = annotations.get(GPU_COUNT)
    if text is None:
        return None
    try:
        count = parse_count(text)
    except WishTextError:
        count = 0
    if 1 <= count <= _MAX_COUNT:
        return count
    findings.append(Finding(GPU_COUNT, text, f"a whole number from 1 to {_MAX_COUNT}"))
    return None
