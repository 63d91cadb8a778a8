"""Keys in a Binding that are not for its caller to say: they would land on the pod. Pure."""

from collections.abc import Iterable

from controller.binding.request import BindingRequest
from controller.scheduling.finding import shown
from controller.scheduling.reserved_keys import RUNTIME_DEVICE_PREFIXES, ReservedKeys
from gpuwarden.reasons import ReasonCode, Refusal


def forged_key(request: BindingRequest, keys: ReservedKeys) -> Refusal | None:
    """What the caller put in of ours, of a map's ordinals, or for a container runtime."""
    for key in _given(request):
        is_device = key.startswith(RUNTIME_DEVICE_PREFIXES)
        if keys.is_ours(key) or key in keys.ordinals or is_device:
            text = f"{shown(key)} is not for a Binding to say"
            return Refusal(ReasonCode.BINDING_FORGED, text)
    return None


def _given(request: BindingRequest) -> Iterable[str]:
    return sorted({*(request.annotations or ()), *request.labels})
