"""Made-up cards of the real node, which NVIDIA's container toolkit gives to containers that ask.

Each is one device file in a CDI specification. Who gets which is up to the toolkit alone: it
reads the variable of a container, whose image may ask for every card by itself.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.e2e.lab.api import Document
from tests.e2e.lab.containerd import CDI, GPU_KIND, TOOLKIT
from tests.e2e.lab.images import Image
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.ledger import forget_records

GREEDY: Final = "lab.gpuwarden.dev/greedy:1"
"""Asks for every card by itself, as CUDA's images do."""
RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
PATIENCE_S: Final = 90
_ENROLLMENTS: Final = "/apis/gpuwarden.dev/v1alpha1/nodeenrollments"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a container finds: variables, and names of device files."""

    cuda: str | None
    nvidia: str
    files: tuple[str, ...]


def forget_cards(lab: Lab) -> None:
    """The real node may have shown other cards, and given them, to other tests.

    No controller runs now.
    """
    forget_records(lab.api)
    path = f"{_ENROLLMENTS}/{lab.node.name}"
    if lab.api.found(path) is not None:
        lab.api.patch(path, {"metadata": {"finalizers": None}})
        lab.api.delete(path)


class Cards:
    """So many cards of the real node; the agent shows the same."""

    def __init__(self, lab: Lab, count: int) -> None:
        self._lab = lab
        self.hardware = h100_node(lab.node.name, count)
        cards = self.hardware.scenario.gpus
        self.files = {card.uuid: f"/dev/nvidia{number}" for number, card in enumerate(cards)}

    def forget_cards(self) -> None:
        """As the function."""
        forget_cards(self._lab)

    @contextmanager
    def given(self) -> Iterator[None]:
        """The toolkit knows them, and pods can ask for it."""
        api, node = self._lab.api, self._lab.node
        file = node.capsule.path(CDI) / "gpus.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(self.specification()))
        probe = self._lab.site.programs["probe"]
        default = ["NVIDIA_VISIBLE_DEVICES=all"]
        node.containerd.load(Image(GREEDY, {"/probe": probe}, ["/probe"], default))
        api.post(RUNTIME_CLASSES, {"metadata": {"name": TOOLKIT}, "handler": TOOLKIT})
        try:
            yield
        finally:
            api.delete(f"{RUNTIME_CLASSES}/{TOOLKIT}")
            file.unlink()

    def specification(self) -> Document:
        """The cards for the toolkit; `all` is every one, as NVIDIA's own tool writes it."""

        def device(name: str, files: Sequence[str]) -> Document:
            nodes = [{"path": path, "hostPath": "/dev/null"} for path in files]
            return {"name": name, "containerEdits": {"deviceNodes": nodes}}

        devices = [device(uuid, [path]) for uuid, path in self.files.items()]
        every = device("all", list(self.files.values()))
        return {"cdiVersion": "0.6.0", "kind": GPU_KIND, "devices": [*devices, every]}

    def wanted(self, gpus: str) -> Seen:
        """What a container with these cards has to find."""
        return Seen(gpus, gpus, tuple(sorted(self.files[gpu] for gpu in gpus.split(","))))

    @property
    def every(self) -> Seen:
        """What a container finds that takes what its image asks for."""
        return Seen(None, "all", tuple(self.files.values()))


def seen(where: Namespace, name: str) -> Seen:
    """As the pod's only container says."""
    said = json.loads(where.says(name, "files", timeout_s=PATIENCE_S))
    cuda = said["cuda"] if said["cudaIsSet"] else None
    return Seen(cuda, said["nvidia"], tuple(said["files"]))


def greedy(name: str, requirements: dict[str, str] | None = None, **spec: Any) -> Document:
    """A pod whose image asks for every card and whose container says what it finds."""
    document = pod(name, "gpus", runtimeClassName=TOOLKIT, **spec)
    document["spec"]["containers"][0]["image"] = GREEDY
    document["metadata"]["annotations"] = {
        f"gpuwarden.dev/{key}": value for key, value in (requirements or {}).items()
    }
    return document
