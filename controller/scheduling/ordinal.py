"""Which line of a map is this pod's (placement design, section 1). Pure.

In order: the annotation `gpuwarden.dev/ordinal`, the label
`apps.kubernetes.io/pod-index`, `batch.kubernetes.io/job-completion-index` (label or
annotation), a StatefulSet's name suffix, a bare pod's `name-N`. A ReplicaSet's
random suffix is never one, even when it happens to be all digits.
"""

import re
from typing import Final

from controller.scheduling.finding import Finding, WishTextError
from controller.scheduling.gpu_map import parse_ordinal
from controller.scheduling.pod import Pod
from controller.scheduling.wish_keys import ORDINAL

_POD_INDEX = "apps.kubernetes.io/pod-index"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
ORDINAL_KEYS: Final = (ORDINAL, _POD_INDEX, _COMPLETION_INDEX)
"""Keys that can hold an ordinal, first of all first."""
_TEMPLATE_HASH = "pod-template-hash"
_NAME = re.compile(r".+-([0-9]{1,18})")


def pod_ordinal(pod: Pod) -> int | Finding | None:
    """The ordinal, what is wrong with the one that is given, or None where there is none."""
    for key, texts in (
        (ORDINAL, pod.annotations),
        (_POD_INDEX, pod.labels),
        (_COMPLETION_INDEX, pod.labels),
        (_COMPLETION_INDEX, pod.annotations),
    ):
        if key in texts:
            try:
                return parse_ordinal(texts[key])
            except WishTextError as error:
                return Finding(key, texts[key], str(error))
    return _from_name(pod)


def _from_name(pod: Pod) -> int | None:
    owners = pod.metadata.owner_references or ()
    owner = next((owner for owner in owners if owner.controller), None)
    name = pod.metadata.name or ""
    match = _NAME.fullmatch(name)
    if match is None or _TEMPLATE_HASH in pod.labels:
        return None
    if owner is not None and owner.kind == "StatefulSet":
        return int(match[1]) if name == f"{owner.name}-{match[1]}" else None
    return None if owners else int(match[1])
