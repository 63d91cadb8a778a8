"""Evicts pods by the Eviction API (policy/v1), so that disruption budgets are heeded.

Must not decide whom: it is asked for one pod, of one UID.
"""

from http import HTTPStatus

from controller.kube.api import ApiClient
from controller.kube.errors import ApiError
from controller.kube.resources import EVICTION, PODS
from controller.ledger.record import PodRef


class PodEvictor:
    """Implements Evictor."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def evict(self, pod: PodRef) -> str:
        """Evict the pod of that UID; empty where that was done or it is gone, else why not."""
        name = pod.name or ""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._api.create_below(PODS, name, EVICTION, body, pod.namespace)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:  # gone, or another pod by now
                return ""
            if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                return f"a disruption budget is against it: {error}"
            return str(error)
        return ""
