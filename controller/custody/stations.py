"""The five stations of a pod, in their order. Pure."""

from controller.custody.on_node import kubelet, nvml
from controller.custody.station import Case, Station
from controller.custody.until_bound import bound, reserved, wished


def stations(case: Case) -> tuple[Station, ...]:
    """From what the pod wished to what runs on its GPUs."""
    return (wished(case), reserved(case), bound(case), kubelet(case), nvml(case))
