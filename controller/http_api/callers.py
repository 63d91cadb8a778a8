"""Who calls the HTTP API and what that gives: one place, default deny. Pure.

A token for our audience says which account, and which pod, it was made for; that alone gives
nothing but the right to speak for this one pod. Reading is for inspectors, operators and the
accounts that `api.readers` names: what is assigned to whom is not every pod's business.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from controller.http_api.documents import FinalizeRequest
from controller.rpc.authorization import CallerKind
from controller.rpc.caller import Caller
from gpuwarden.reasons import ReasonCode, Refusal

_ACCOUNT: Final = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class BoundPod:
    """The pod that a token was made for."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class TokenIdentity:
    """What the API server says about a token that counts for our audience."""

    username: str
    pod: BoundPod | None
    """None for a token that is bound to no pod."""


class Access(StrEnum):
    """What an operation asks of its caller."""

    ANYBODY = "anybody"
    READER = "reader"
    HOLDER = "holder"
    """The very pod that the request names, or an operator."""


@dataclass(frozen=True, slots=True)
class ApiCaller:
    """A caller that is known."""

    name: str
    """SPIFFE ID, or user name of the token."""
    reads: bool
    operates: bool
    pod: BoundPod | None = None

    @property
    def key(self) -> str:
        """Under which its requests are counted."""
        return self.name if self.pod is None else f"{self.name} {self.pod.uid}"

    def speaks_as_pod(self, access: Access) -> bool:
        """Whether a pod's token is all that lets it call; a token of a reader's pod is more."""
        return self.pod is not None and not (access is Access.READER and self.reads)


def svid_caller(caller: Caller) -> ApiCaller:
    """The caller behind a client certificate."""
    operates = caller.kind is CallerKind.OPERATOR
    return ApiCaller(caller.name, operates or caller.kind is CallerKind.INSPECTOR, operates)


def token_caller(found: TokenIdentity, readers: Collection[str]) -> ApiCaller:
    """The caller behind a token; `readers` are service accounts as `namespace/name`."""
    account = found.username.removeprefix(_ACCOUNT).replace(":", "/")
    reads = found.username.startswith(_ACCOUNT) and account in readers
    return ApiCaller(found.username, reads, operates=False, pod=found.pod)


def access_refusal(caller: ApiCaller, access: Access) -> Refusal | None:
    """Why the caller may not use an operation at all."""
    if access is Access.ANYBODY or (access is Access.READER and caller.reads):
        return None
    if access is Access.HOLDER and (caller.operates or caller.pod is not None):
        return None
    wanted = "a reader" if access is Access.READER else "an operator and has no pod's token"
    return Refusal(ReasonCode.ROLE_DENIED, f"the caller is not {wanted}")


def holder_refusal(caller: ApiCaller, request: FinalizeRequest) -> Refusal | None:
    """Why the caller may not speak for the pod of a request."""
    pod = BoundPod(request.namespace, request.name, request.uid)
    if caller.operates or caller.pod == pod:
        return None
    return Refusal(ReasonCode.ROLE_DENIED, "the caller's token is not of the pod that is named")
