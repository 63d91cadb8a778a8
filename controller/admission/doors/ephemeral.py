"""Doors that an ephemeral container opens in a pod that is there already. Pure."""

from collections.abc import Iterator

from controller.admission.doors import environment, privileges, volumes
from controller.admission.doors.case import Case
from controller.admission.supply import supply_without_request
from gpuwarden.reasons import ReasonCode, Refusal


def ephemeral(case: Case, known: frozenset[str]) -> Iterator[Refusal]:
    """Of the containers that are new: not in `known`, by name."""
    supply = supply_without_request(case.needs, enforced=case.enforced)
    for container in case.pod.spec.ephemeral_containers or ():
        if container.name in known:
            continue
        for found in (
            *environment.of_container(container, supply),
            *privileges.of_container(container),
            *volumes.of_container(container),
        ):
            yield Refusal(ReasonCode.DOOR_EPHEMERAL, f"{found.detail} ({found.code})")
