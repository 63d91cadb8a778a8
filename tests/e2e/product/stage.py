"""What tests of placement do again and again: pods that go away, controllers that are down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.e2e.lab.api import Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until
from tests.e2e.product.controller import Controller
from tests.e2e.product.installation import Installation

_KNOWN: Final = (("eligible",), ("refused", "revoked", "quarantined"))
"""States that need evidence from a node; a refused one may come back as revoked."""
_AGENTS_S: Final = 120.0
"""Back-off of an agent included."""


class Stage:
    """A lab with an installation on it."""

    def __init__(self, lab: Lab, installation: Installation) -> None:
        self.lab = lab
        self.gpuwarden = installation
        self.pods = lab.pods

    @property
    def _controllers(self) -> list[Controller]:
        return self.gpuwarden.controllers

    def is_bound(self, name: str) -> bool:
        """Whether the pod has a node by now."""
        return bool(self.pods.get(name)["spec"].get("nodeName"))

    def remove(self, name: str) -> None:
        """Delete a pod at once; nobody runs it."""
        self.lab.api.delete(f"{self.pods.path}/pods/{name}", grace_s=0)

    @contextmanager
    def created(self, *documents: Document) -> Iterator[list[str]]:
        """Pods that are gone afterwards."""
        names: list[str] = []
        try:
            for document in documents:
                names.append(self.pods.create(document))  # noqa: PERF401 - known if one fails
            yield names
        finally:
            for name in names:
                self.remove(name)

    @contextmanager
    def without_controllers(self) -> Iterator[None]:
        """Every controller is down; afterwards they are back, and have heard of the same nodes."""
        known = [
            (one, states, _nodes(one, states)) for one in self._controllers for states in _KNOWN
        ]
        for one in self._controllers:
            one.stop()
        try:
            until("nobody is ready", lambda: self.gpuwarden.service.ready == 0)
            yield
        finally:
            for one in self._controllers:
                one.resume_service()
            until("somebody is ready", lambda: self.gpuwarden.service.ready)
            until(
                "agents are back",
                lambda: all(_nodes(one, states) >= count for one, states, count in known),
                timeout_s=_AGENTS_S,
            )


def _nodes(controller: Controller, states: tuple[str, ...]) -> int:
    return sum(controller.nodes(state) for state in states)
