"""The creation of a pod as an API server does it: our webhooks, others' steps, the store.

A name and a UID are given between the mutating and the validating webhooks; a quota refuses
after all of them. The pods are those of a `BindingWorld`.
"""

from dataclasses import dataclass, field
from typing import Any

from controller.admission.pod_webhooks import MUTATE, VALIDATE, PodWebhooks
from controller.admission.review import Verdict
from controller.admission.rules import AdmissionRules
from sandbox.kube.json_patch import applied
from tests.builders.admission_reviews import request_of, review_json
from tests.builders.admitted_pods import Document, documents, new_pod
from tests.fakes.admission import AdmissionWorld
from tests.fakes.binding_world import BindingWorld, Replica

EARLY = {"gpuwarden.dev/reserve": "admission", "gpuwarden.dev/gpu-selector": "memory>=1Gi"}


def owned(document: Document, owner: str) -> Document:
    """The pod as a ReplicaSet of that UID makes it."""
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train", "uid": owner}
    document["metadata"]["ownerReferences"] = [reference | {"controller": True}]
    return document


def early_pod(annotations: dict[str, str] | None = None, **pod: Any) -> Document:
    """A pod that asks for a reservation at its creation."""
    return new_pod(annotations=EARLY if annotations is None else annotations, **pod)


@dataclass
class Creation:
    """One API server."""

    world: BindingWorld
    mutating: Replica
    validating: Replica
    report: bool = False
    enforced: bool = True
    """Whether all namespaces are."""
    requests: int = 0
    refusals: list[str] = field(default_factory=list)
    """Codes of the last creation that one of our webhooks refused, or reserved nothing for."""
    kept: Document | None = None
    """The pod of the last creation as the mutating webhook left it, if it is to wait."""
    told: AdmissionWorld = field(default_factory=lambda: AdmissionWorld({"team-a"}))

    async def ask(self, path: str, replica: Replica, pod: Document, **request: Any) -> Verdict:
        self.requests += 1
        webhooks = PodWebhooks(
            AdmissionRules(),
            is_enforced=lambda _namespace: self.enforced,
            note=self.told.decisions.append,
            early=replica.early,
            report=self.report,
        )
        fields = {"uid": f"request-{self.requests}", **request}
        return await webhooks.handlers()[path](request_of(review_json(pod, **fields)))

    async def mutated(self, pod: Document, **request: Any) -> Document | None:
        """The pod as the mutating webhook leaves it; None where it reserves nothing: `kept`."""
        verdict = await self.ask(MUTATE, self.mutating, pod, **request)
        self.refusals, self.kept = [x.code.value for x in verdict.refusals], None
        if verdict.refusals:
            return None
        made: Document = applied(pod, documents(verdict.patch)) if verdict.patch else pod
        waits = [x.split()[1] for x in verdict.warnings if "no GPU is reserved" in x]
        if waits:
            self.kept, self.refusals = made, waits
            return None
        return made

    async def stored(
        self, pod: Document, name: str, *, over_quota: bool = False, **request: Any
    ) -> Document | None:
        """What becomes of a pod that the mutating webhooks have seen."""
        made = await self.validated(pod, name, **request)
        if made is None or over_quota or request.get("dry_run"):
            return None
        self.world.pods.put(made)
        return self.world.pods.stored[name]

    async def validated(self, pod: Document, name: str, **request: Any) -> Document | None:
        """The pod with name and UID, about to be stored; None where it is refused."""
        uid = f"uid-{name}-{self.requests}"
        made = pod | {"metadata": pod["metadata"] | {"name": name, "uid": uid}}
        verdict = await self.ask(VALIDATE, self.validating, made, **request)
        self.refusals = [x.code.value for x in verdict.refusals]
        return None if verdict.refusals else made

    async def create(
        self, pod: Document, name: str, *, over_quota: bool = False, **request: Any
    ) -> Document | None:
        """The pod as it is stored; None where it is not."""
        made = await self.mutated(pod, **request)
        if made is None:
            return None
        return await self.stored(made, name, over_quota=over_quota, **request)
