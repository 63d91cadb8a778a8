"""Namespaces of a test, with everything in them that ends by itself or by force."""

from collections.abc import Mapping
from contextlib import suppress

from tests.e2e.lab.lab import Lab
from tests.e2e.lab.waiting import until

_NAMESPACES = "/api/v1/namespaces"
_PATIENCE_S = 60


def create_namespace(lab: Lab, name: str, labels: Mapping[str, str] | None = None) -> None:
    """Pods can be created in it at the end."""
    lab.api.post(_NAMESPACES, {"metadata": {"name": name, "labels": dict(labels or {})}})
    account = f"{_NAMESPACES}/{name}/serviceaccounts/default"
    until(
        f"namespace {name} has its service account",
        lambda: lab.api.found(account),
        timeout_s=_PATIENCE_S,
    )


def remove_namespace(lab: Lab, name: str, *, patience_s: float = _PATIENCE_S) -> None:
    """Gone at the end; pods on fake nodes do not end by themselves."""
    lab.api.delete(f"{_NAMESPACES}/{name}")
    pods = f"{_NAMESPACES}/{name}/pods"

    def is_gone() -> bool:
        with suppress(TimeoutError):  # there are very many: the next time there are fewer
            lab.api.delete(pods, grace_s=0)
        return lab.api.found(f"{_NAMESPACES}/{name}") is None

    until(f"namespace {name} is gone", is_gone, timeout_s=patience_s)
