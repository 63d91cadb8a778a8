"""The pod of a Binding as it is stored, and whether the Binding is about just this one. Pure."""

from dataclasses import dataclass

from controller.admission.pod_view import AdmittedPod
from controller.binding.request import BindingRequest
from gpuwarden.reasons import ReasonCode, Refusal


class PodsUnavailableError(Exception):
    """The API server did not say whether there is such a pod."""


@dataclass(frozen=True, slots=True)
class StoredPod:
    """One version of a pod."""

    uid: str
    version: str
    """Its resourceVersion: what is decided about it holds for no other one."""
    node: str
    """Empty while it is not bound."""
    has_ended: bool
    pod: AdmittedPod | None
    """None where it is bound or has ended: then nothing is decided about it."""


def stale_binding(request: BindingRequest, stored: StoredPod) -> Refusal | None:
    """Why the Binding cannot be about the pod as it is stored."""
    if request.uid not in {None, stored.uid}:
        return _stale("the pod is another one by now")
    if stored.has_ended:
        return _stale("the pod has ended")
    if stored.node:
        return _stale("the pod is bound already")
    if request.version not in {None, stored.version}:
        return _stale("the pod has changed since")
    return None


def _stale(text: str) -> Refusal:
    return Refusal(ReasonCode.BINDING_STALE, text)
