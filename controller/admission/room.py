"""Whether a guarded pod leaves room for the annotations that we write. Pure.

The API server takes 256 KiB of annotations, and the policies read some 1000 keys of a pod
(`deploy/policy/keys.yaml`): of a fuller one nothing changes any more. A pod that cannot be
touched would keep what is reserved for it for as long as it waits. What we have written already
does not count.
"""

from typing import Final

from controller.admission.pod_view import AdmittedPod
from controller.scheduling.wish_keys import (
    CDI_ASSIGNMENT,
    RESULT_ANNOTATIONS,
    SEED_RESULT_ANNOTATIONS,
)
from gpuwarden.reasons import ReasonCode, Refusal

MOST_KEYS: Final = 900
MOST_BYTES: Final = 192 << 10
_WRITTEN: Final = RESULT_ANNOTATIONS | SEED_RESULT_ANNOTATIONS | {CDI_ASSIGNMENT}
"""A pod that brings them itself is refused for that."""


def overfull(pod: AdmittedPod) -> Refusal | None:
    """Why there is no room."""
    annotations = {key: x for key, x in pod.annotations.items() if key not in _WRITTEN}
    keys = len(annotations) + len(pod.labels)
    if keys > MOST_KEYS:
        text = f"{keys} annotations and labels, expected at most {MOST_KEYS} of a guarded pod"
        return Refusal(ReasonCode.REQ_INVALID, text)
    size = sum(len(key.encode()) + len(text.encode()) for key, text in annotations.items())
    if size > MOST_BYTES:
        text = f"{size} bytes of annotations, expected at most {MOST_BYTES} of a guarded pod"
        return Refusal(ReasonCode.REQ_INVALID, text)
    return None
