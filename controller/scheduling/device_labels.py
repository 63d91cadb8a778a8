"""Device labels: named selectors in the policy, and `model-<model>` of every model. Pure.

A pod asks for them with labels `gpuwarden.dev/gpu.<label>` or `fudo.org/gpu.<label>`.
They hold by attested facts only, never by anything that stands on a Node object.
"""

import re
from collections.abc import Mapping

from controller.scheduling.device_facts import Device
from controller.scheduling.finding import Finding
from controller.scheduling.selector import Selector, parse_selector
from controller.scheduling.wish_keys import ASSIGN, LABEL_PREFIXES

MODEL_PREFIX = "model-"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,57}[A-Za-z0-9])?")
_NOT_PLAIN = re.compile(r"[^a-z0-9]+")


def is_label_name(text: str) -> bool:
    """Whether `text` can follow `gpu.` in a Kubernetes label key."""
    return _NAME.fullmatch(text) is not None


def model_label(product: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `model-nvidia-h100-80gb-hbm3`."""
    return MODEL_PREFIX + _NOT_PLAIN.sub("-", product.lower()).strip("-")


def compile_labels(labels: Mapping[str, str]) -> Mapping[str, Selector]:
    """The selectors behind a policy's labels; raises WishTextError for one that is malformed."""
    return {name: parse_selector(text) for name, text in labels.items()}


def holds(label: str, device: Device, selectors: Mapping[str, Selector]) -> bool:
    """Whether a device has a label; a policy label wins over a model's."""
    selector = selectors.get(label)
    if selector is not None:
        return selector.matches(device)
    return device.gpu.product is not None and label == model_label(device.gpu.product)


def labels_of(device: Device, selectors: Mapping[str, Selector]) -> tuple[str, ...]:
    """Every label that holds for a device, sorted."""
    found = {name for name, selector in selectors.items() if selector.matches(device)}
    if device.gpu.product is not None and model_label(device.gpu.product) not in selectors:
        found.add(model_label(device.gpu.product))
    return tuple(sorted(found))


def read_labels(labels: Mapping[str, str], findings: list[Finding]) -> tuple[frozenset[str], bool]:
    """Required device labels of a pod, and whether it asks for any GPU at all (`assign`)."""
    required: set[str] = set()
    for key, text in labels.items():
        if not key.startswith(LABEL_PREFIXES):
            continue
        prefix = next(prefix for prefix in LABEL_PREFIXES if key.startswith(prefix))
        name = key.removeprefix(prefix)
        if not is_label_name(name):
            findings.append(Finding(key, text, "the name of a device label after gpu."))
        elif text in {"", "true"}:
            required.add(name)
        elif text not in {"false", "0"}:
            findings.append(Finding(key, text, "true or empty to require it, false or 0 not to"))
    return frozenset(required - {ASSIGN}), ASSIGN in required
