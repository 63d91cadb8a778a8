"""The shipped registration of the webhooks on a lab, and one controller that serves them."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import yaml

from gpuwarden.settings.values import Address
from tests.e2e.lab.api import Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.place import free_port
from tests.e2e.lab.selection import why_no_node
from tests.e2e.product.controller import Admission
from tests.e2e.product.installation import DEPLOY

MUTATING, VALIDATING = "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
_KINDS: Final = {
    "MutatingWebhookConfiguration": MUTATING,
    "ValidatingWebhookConfiguration": VALIDATING,
}
_API: Final = "/apis/admissionregistration.k8s.io/v1"
_FOLDER: Final = DEPLOY / "kustomize" / "components" / "admission"
PODS, BINDINGS = "webhooks.yaml", "bindings.yaml"
HINTS: Final = DEPLOY / "kustomize" / "components" / "hints"


def admission(lab: Lab, *, has_node: bool = True) -> Admission:
    """Where the lab's API server reaches webhooks of this machine, and certificates for it.

    `has_node`: whether the lab has a real node where one can run.
    """
    host = str(lab.plan.outside) if has_node and not why_no_node() else "127.0.0.1"
    pki = lab.control_plane.identities.pki
    pair = pki.issue("webhooks", "gpuwarden-admission", names=[host])
    return Admission(Address(host, free_port(host)), pair.certificate, pair.key, pki.ca)


class Webhooks:
    """The registration; only the address of the service is replaced."""

    def __init__(
        self, lab: Lab, admission: Admission, *files: str, with_hints: bool = False
    ) -> None:
        """`files`: which; those for pods where none is named. `with_hints`: and those for hints."""
        self._files = files or (PODS,)
        self._with_hints = with_hints
        self._api = lab.api
        self._url = f"https://{admission.address}"
        self._ca = base64.b64encode(admission.client_ca.read_bytes()).decode()

    def register(
        self, *kinds: str, failure_policy: str = "Fail", timeout_s: int | None = None
    ) -> None:
        """Register those of `kinds`, all where none is named; `timeout_s`: other than shipped.

        What ships with `Ignore` keeps it.
        """
        for document in self._documents():
            plural = _KINDS[document["kind"]]
            if kinds and plural not in kinds:
                continue
            for webhook in document["webhooks"]:
                path = webhook["clientConfig"]["service"]["path"]
                webhook["clientConfig"] = {"url": self._url + path, "caBundle": self._ca}
                if webhook["failurePolicy"] == "Fail":
                    webhook["failurePolicy"] = failure_policy
                webhook["timeoutSeconds"] = timeout_s or webhook["timeoutSeconds"]
            self._api.post(f"{_API}/{plural}", document)

    def remove(self, *kinds: str) -> None:
        """Take them back; those that are not there too."""
        for document in self._documents():
            plural = _KINDS[document["kind"]]
            if not kinds or plural in kinds:
                self._api.delete(f"{_API}/{plural}/{document['metadata']['name']}")

    @contextmanager
    def registered(self) -> Iterator[None]:
        """All of them, for a while."""
        self.register()
        try:
            yield
        finally:
            self.remove()

    def _documents(self) -> list[Document]:
        texts = ((_FOLDER / name).read_text() for name in self._files)
        documents = [document for text in texts for document in yaml.safe_load_all(text)]
        if self._with_hints:
            (pods,) = (x for x in documents if _is_for_pods(x))
            added = yaml.safe_load((HINTS / "webhooks.yaml").read_text())
            pods["webhooks"] += [operation["value"] for operation in added]
        return documents


def _is_for_pods(document: Document) -> bool:
    """What the component for hints patches."""
    named = (document["kind"], document["metadata"]["name"])
    return named == ("MutatingWebhookConfiguration", "gpuwarden-pods")
