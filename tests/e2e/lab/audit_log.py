"""The API server's audit log of some users: which calls they make, and which are forbidden.

Level Metadata: no object's content is written down. Source: audit.k8s.io/v1.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.e2e.lab.kubeconfig import written


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """One request, once however many stages it had."""

    at: datetime
    """When the server had received it."""
    user: str
    verb: str
    group: str
    resource: str
    """With its subresource, as in RBAC (`pods/log`); a path where there is none."""
    namespace: str
    name: str
    allowed: bool


class AuditLog:
    """`folder` must be seen by the server, and be its alone."""

    def __init__(self, folder: Path, users: Sequence[str]) -> None:
        self._file = folder / "audit.log"
        rules = [{"level": "Metadata", "users": list(users)}, {"level": "None"}]
        document = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": rules,
        }
        self._policy = written(folder / "policy.yaml", document)

    def arguments(self) -> Sequence[str]:
        """For the API server."""
        return (f"--audit-policy-file={self._policy}", f"--audit-log-path={self._file}")

    def calls(self) -> Iterator[AuditedCall]:
        """All so far; of a watch that is still open none."""
        for path in sorted(self._file.parent.glob("audit*.log")):  # rotated ones too
            with path.open() as lines:
                yield from (_call(json.loads(line)) for line in lines if line.endswith("\n"))


def _call(event: dict[str, Any]) -> AuditedCall:
    about = event.get("objectRef", {})
    resource = "/".join(x for x in (about.get("resource"), about.get("subresource")) if x)
    return AuditedCall(
        at=datetime.fromisoformat(event["requestReceivedTimestamp"]),
        user=event["user"]["username"],
        verb=event["verb"],
        group=about.get("apiGroup", ""),
        resource=resource or event["requestURI"].partition("?")[0],
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") == "allow",
    )
