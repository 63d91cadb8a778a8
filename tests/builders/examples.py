"""The manifests of the folder `examples`, for a cluster with one node and no SPIRE."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, node: str) -> dict[str, Any]:
    """A file of it, with `node` in its map, at level L0, without a namespace."""
    text = (EXAMPLES / f"{name}.yaml").read_text().replace("min-level: L1", "min-level: L0")
    found: dict[str, Any] = yaml.safe_load(re.sub("hopper-0|legacy-0", node, text))
    del found["metadata"]["namespace"]
    return found
