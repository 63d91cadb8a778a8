"""Ends the calls of tenants who ask about pods that they may not read."""

from collections.abc import Awaitable, Callable

from controller.access import Caller, CallerKind, present_caller
from controller.rpc.calls import Context, abort_with
from gpuwarden.reasons import Refusal

AboutPods = Callable[[Caller, str, str], Awaitable[Refusal | None]]
"""What keeps a caller from asking about a namespace's pods, or the one of a name."""


async def no_tenants(_caller: Caller, _namespace: str, _name: str) -> Refusal | None:
    """For listeners that know no tenants: nobody is asked."""
    return None


async def demand_pods(
    context: Context, about_pods: AboutPods, namespace: str, name: str = ""
) -> bool:
    """End the call of a tenant who may not read these pods; whether the caller is a tenant."""
    caller = present_caller()
    refusal = await about_pods(caller, namespace, name)
    if refusal is not None:
        await abort_with(context, refusal, field="namespace")
    return caller.kind is CallerKind.TENANT
