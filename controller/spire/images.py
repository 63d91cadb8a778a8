"""Container images in selectors and in policy: compared by digest, never by tag. Pure."""

import re
from typing import Final

from controller.spire.snapshot import SpireEntry

IMAGE_SELECTOR: Final = "k8s:container-image:"
"""What the `k8s` workload attestor says about the container itself (not about its pod)."""
_IMAGE: Final = re.compile(r"(?:[!-?A-~]{1,255}@)?(sha256:[0-9a-f]{64})")


def image_digest(reference: str) -> str | None:
    """`sha256:<hex>` of a reference by digest; None where it names an image by tag."""
    match = _IMAGE.fullmatch(reference)
    return match[1] if match else None


def digests_of(entry: SpireEntry) -> frozenset[str]:
    """The image digests that a workload must have to get an SVID through this entry."""
    found = (
        image_digest(x.removeprefix(IMAGE_SELECTOR))
        for x in entry.selectors
        if x.startswith(IMAGE_SELECTOR)
    )
    return frozenset(x for x in found if x is not None)
