"""The label by which a scheduler that does not ask us finds nodes: one per wish. Pure.

Pods that wish for the same things share a label; nodes have it while such a pod would pass
there (`kube.node_hints`). Nobody trusts it: the gate judges every binding. It stands under
`node-restriction.kubernetes.io/`, which no kubelet may set on its own node.
"""

import hashlib
from typing import Final

import msgspec

from controller.admission.node_affinity import NodeDemand
from controller.admission.pod_view import AdmittedPod
from controller.scheduling.finding import WishTextError
from controller.scheduling.ordinal import ORDINAL_KEYS
from controller.scheduling.pod import device_requests
from controller.scheduling.wish_keys import (
    HINT_LABEL_PREFIX,
    LABEL_PREFIXES,
    MAP,
    WISH_ANNOTATIONS,
    WishRules,
)

FITS: Final = "fits"
_DIGITS: Final = 32


def hint(pod: AdmittedPod, rules: WishRules) -> NodeDemand:
    """What the pod's nodes must have.

    The same at each step of admission: a name that the API server has made, after the pod was
    patched, does not count. With a map that is the line's business: it is found by labels then.
    """
    annotations = {*WISH_ANNOTATIONS, *rules.hash_keys, *(ORDINAL_KEYS if _is_mapped(pod) else ())}
    document = (
        sorted((key, text) for key, text in pod.annotations.items() if key in annotations),
        sorted((key, text) for key, text in pod.labels.items() if _counts(key, pod)),
        device_requests(pod, rules.managed_resources),
        bool(pod.spec.resource_claims),
        pod.metadata.name if _is_mapped(pod) and not pod.metadata.generate_name else None,
    )
    digest = hashlib.sha256(msgspec.json.encode(document)).hexdigest()[:_DIGITS]
    return NodeDemand(f"{HINT_LABEL_PREFIX}wish-{digest}", (FITS,))


def hinted(pod: AdmittedPod, rules: WishRules) -> str | None:
    """The label that a pod waits for; None of a pod that was not told of one.

    It may name labels of other wishes, too: those are not for it to keep from their pods.
    """
    affinity = pod.spec.affinity
    node = None if affinity is None else affinity.node_affinity
    required = None if node is None else node.required
    for term in () if required is None else required.node_selector_terms or ():
        if any(each.key.startswith(HINT_LABEL_PREFIX) for each in term.match_expressions or ()):
            return _own(pod, rules)
    return None


def _own(pod: AdmittedPod, rules: WishRules) -> str | None:
    try:
        return hint(pod, rules).key
    except WishTextError:
        return None  # its wishes cannot be read: no node fits


def _counts(label: str, pod: AdmittedPod) -> bool:
    return label.startswith(LABEL_PREFIXES) or (_is_mapped(pod) and label in ORDINAL_KEYS)


def _is_mapped(pod: AdmittedPod) -> bool:
    return MAP in pod.annotations
