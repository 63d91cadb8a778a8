"""This pod's line of the `gpu-scheduling-map`. Pure."""

from controller.scheduling.finding import Finding
from controller.scheduling.gpu_map import Place, parse_gpu_map
from controller.scheduling.ordinal import pod_ordinal
from controller.scheduling.pod import Pod
from controller.scheduling.wish_keys import MAP, ORDINAL


def read_place(pod: Pod, findings: list[Finding]) -> Place | None:
    """The pod's place; None without a map, with a fault, or while its name is not final.

    A pod that has its name but no ordinal, or an ordinal without a line, is a fault.
    """
    text = pod.annotations.get(MAP)
    if text is None:
        if ORDINAL in pod.annotations:
            findings.append(Finding(ORDINAL, pod.annotations[ORDINAL], f"{MAP} beside it"))
        return None
    places, ordinal = parse_gpu_map(text), pod_ordinal(pod)
    if isinstance(ordinal, Finding):
        findings.append(ordinal)
    if isinstance(places, tuple):
        findings.extend(places)
        return None
    if isinstance(ordinal, int) and ordinal not in places:
        findings.append(Finding(MAP, f"ordinal {ordinal}", "a line for this pod's ordinal"))
    if ordinal is None and pod.metadata.name:
        findings.append(Finding(MAP, pod.metadata.name, f"a pod with an ordinal (see {ORDINAL})"))
    return places.get(ordinal) if isinstance(ordinal, int) else None
