"""What stands in the ledger and on pods, as the API server has it."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from tests.e2e.lab.api import Api, ApiError
from tests.e2e.lab.waiting import until

OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """One part of a record: a GPU and one who holds it."""

    gpu: str
    node: str
    pod: str
    """Its UID; empty while it is not born."""
    state: str


def held(api: Api) -> list[Held]:
    """Everything that is held, in the order of GPUs."""
    return sorted(
        Held(
            item["spec"]["gpu"], item["spec"]["node"], holder["pod"].get("uid", ""), holder["state"]
        )
        for item in api.get(OBJECTS)["items"]
        for holder in item["spec"]["holders"]
    )


def live(api: Api) -> list[Held]:
    """What all bound pods that have not ended were told that they have, as it ought to be held."""
    return sorted(
        Held(gpu, pod["spec"]["nodeName"], pod["metadata"]["uid"], "Confirmed")
        for pod in api.get("/api/v1/pods")["items"]
        if pod["spec"].get("nodeName") and pod["status"].get("phase") not in {"Succeeded", "Failed"}
        for gpu in pod["metadata"].get("annotations", {}).get(ASSIGNED, "").split(",")
        if gpu
    )


def forget_records(api: Api) -> None:
    """Remove what is left by force; no controller runs now."""
    for item in until("records can be listed", lambda: _listed(api))["items"]:
        path = f"{OBJECTS}/{item['metadata']['name']}"
        api.patch(path, {"metadata": {"finalizers": None}})
        api.delete(path)


def _listed(api: Api) -> dict[str, Any] | None:
    """None while the API server still makes the storage of a new definition."""
    try:
        return api.found(OBJECTS) or {"items": []}
    except ApiError as error:
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return None
        raise
