"""Report-only mode beside the mode that refuses: the same requests, the same codes, nothing done.

All of it is installed: webhooks for pods and Bindings, extender, policies. First every request is
made where decisions are carried out, then where they are only reported.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.kube.pods.events import BINDING_REASON, PLACEMENT_REASON, REASON
from sandbox.fleet.tally import metrics_of
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.controller import Admission
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.ledger import forget_records
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import managed, told
from tests.e2e.product.policies import Policies, binding, people
from tests.e2e.product.shapes import (
    ASSIGNED,
    DRY,
    KUBELETS,
    NODE,
    SHAPES,
    SILENT,
    BindingShape,
    EphemeralShape,
    PodShape,
    Scene,
    Shape,
)
from tests.e2e.product.stage import Stage
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

pytestmark = pytest.mark.timeout(900)
ENFORCED, PLAIN, LATE = "report-enforced", "report-plain", "report-late"
POLICY: Final = {"pools": [{"pattern": KUBELETS, "mode": "plugin"}], "defaultMode": "env"}
RUNTIME_CLASSES: Final = "/apis/node.k8s.io/v1/runtimeclasses"
KATA: Final = "kata-qemu-nvidia-gpu"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
NOBODY: Final = "GPU-00000000-0000-4000-8000-000000000000"
PATIENCE_S: Final = 120
PLACED: Final[dict[str, tuple[dict[str, str], str]]] = {
    "no-such-hash": ({"required-hash": "v1:sha256:" + "a" * 64}, NODE),
    "no-such-gpu": ({"gpu-uuids": NOBODY}, NODE),
    "too-many": ({"gpu-count": "9"}, NODE),
    "no-evidence": ({"gpu-count": "1"}, SILENT),
    "kubelet-gives": ({"gpu-count": "1"}, KUBELETS),
}
"""Requirements that no node meets, and the only node that the scheduler may take."""


@dataclass
class Modes:
    """What came of every request in both modes."""

    refused: dict[str, frozenset[str]] = field(default_factory=dict)
    """Codes by shape."""
    warned: dict[str, frozenset[str]] = field(default_factory=dict)
    foreign: dict[str, str] = field(default_factory=dict)
    """What the API server itself says against a shape, once we let it through."""


class World:
    """An installation with everything, in one mode or the other."""

    def __init__(self, lab: Lab, installation: Installation, served: Admission) -> None:
        self.lab = lab
        self.api = lab.api
        self.served = served
        self.stage = Stage(lab, installation)
        self.webhooks = Webhooks(lab, served, PODS, BINDINGS)
        self.enforced = Namespace(lab.api, ENFORCED)
        self.plain = Namespace(lab.api, PLAIN)
        (self.controller,) = installation.controllers

    def create_namespaces(self) -> None:
        for name in (ENFORCED, PLAIN, LATE):
            create_namespace(self.lab, name, {ENFORCE_LABEL: "true"} if name == ENFORCED else {})
        for here in (self.enforced, self.plain):
            here.create(pod("probe", kind="fake", schedulerName="nobody"))

    def remove_namespaces(self) -> None:
        for name in (ENFORCED, PLAIN, LATE):
            remove_namespace(self.lab, name)

    def in_force(self, *, failure_policy: str) -> None:
        """Both webhooks are registered, and the API server asks them."""
        self.webhooks.register(failure_policy=failure_policy)
        fallen = pod("fallen", kind="fake", hostPID=True)
        late = binding("nobody", NODE)
        late["metadata"]["annotations"] = {ASSIGNED: "x"}
        for path, document in (("pods", fallen), ("bindings", late)):
            place = f"{self.enforced.path}/{path}{DRY}"
            until(
                f"{path} are judged",
                lambda p=place, d=document: self.codes(p, d),  # type: ignore[misc] # mypy cannot infer the defaults
                timeout_s=PATIENCE_S,
            )

    def report(self) -> None:
        """Restart the controller in report-only mode."""
        self.webhooks.remove()
        self.served.enforcement = "report"
        with self.stage.without_controllers():
            pass
        self.in_force(failure_policy="Ignore")

    def codes(self, path: str, document: Document) -> frozenset[str]:
        """With which the document is refused, or let in with warnings."""
        try:
            self.api.post(path, document)
        except ApiError as error:
            return codes_in(error.message) or codes_in(*self.api.warnings)
        return codes_in(*self.api.warnings)

    def records(self, *kinds: str) -> list[Document]:
        """Audit records of decisions that were only reported."""
        found = self.controller.records()
        return [x for x in found if x["kind"] in kinds and x["decision"] == "reported"]

    def metric(self, name: str, **labels: str) -> dict[str, int]:
        """Samples with these labels, by code."""
        text = metrics_of(self.controller.endpoint.ops)
        return {
            sample.labels["code"]: int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"gpuwarden_{name}" and labels.items() <= sample.labels.items()
        }

    def events(self, reason: str) -> dict[str, set[str]]:
        """Codes by the name of the object that Events are about."""
        query = f"fieldSelector=reason%3D{reason}"
        found: dict[str, set[str]] = {}
        for namespace in (ENFORCED, PLAIN, LATE):
            path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events?{query}"
            for item in self.api.get(path)["items"]:
                found.setdefault(item["regarding"]["name"], set()).update(codes_in(item["note"]))
        return found


def codes_in(*texts: str) -> frozenset[str]:
    """Every code that stands in front of a reason."""
    return frozenset(code for text in texts for code in re.findall(r"gpuwarden: ([A-Z_]+)", text))


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "report-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    for name in (NODE, SILENT):
        lab.fake_nodes.add(name, gpus=0, labels={"report": name})
    lab.fake_nodes.add(KUBELETS, gpus=8, labels={"report": KUBELETS})
    lab.api.post(RUNTIME_CLASSES, {"metadata": {"name": KATA}, "handler": "kata"})
    forget_records(lab.api)
    installation = Installation(lab, "report", admission=served, policy=POLICY)
    made = World(lab, installation, served)
    try:
        made.create_namespaces()
        installation.start()
        for name in (NODE, KUBELETS):
            installation.agents.start(h100_node(name))
            installation.agents.hash_of(name)
        yield made
    finally:
        made.webhooks.remove()
        made.remove_namespaces()
        installation.close()
        lab.api.delete(f"{RUNTIME_CLASSES}/{KATA}")
        for name in (NODE, SILENT, KUBELETS):
            lab.fake_nodes.delete(name)


@pytest.fixture(scope="module")
def modes(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Modes]:
    """Everything asked in both modes; only reports from here on."""
    found = Modes()
    with people(world.lab) as (tenant, warden):
        scene = Scene(world.api, tenant, warden, world.enforced, world.plain)
        policies = Policies(world.lab, tenant, world.plain, world.enforced)
        policies.deny()
        try:
            world.in_force(failure_policy="Fail")
            for shape in SHAPES:
                shape.prepare(scene)
                found.refused[shape.name] = _refused(shape, scene)
            found.refused |= {name: _not_placed(world, name) for name in PLACED}
            found.refused[LATE] = _late(world, carried_out=True)
        finally:
            policies.remove()
        world.webhooks.remove()
        world.remove_namespaces()
        world.create_namespaces()
        world.report()
        policies.report(tmp_path_factory.mktemp("report"))
        try:
            for shape in SHAPES:
                shape.prepare(scene)
                found.warned[shape.name] = _warned(shape, scene, found)
            found.warned[LATE] = _late(world, carried_out=False)
            for name, (requirements, node) in PLACED.items():
                world.enforced.create(managed(name, requirements, gpus=0, where={"report": node}))
            yield found
        finally:
            policies.remove()


def _refused(shape: Shape, scene: Scene) -> frozenset[str]:
    """Codes of a request that is refused; none of one that is let in."""
    try:
        shape.ask(scene, DRY)
    except ApiError as error:
        return codes_in(error.message)
    return frozenset()


def _warned(shape: Shape, scene: Scene, found: Modes) -> frozenset[str]:
    """Codes of warnings about a request that is let in."""
    try:
        client = shape.ask(scene, "")
    except ApiError as error:
        found.foreign[shape.name] = error.message
        return codes_in(*scene.api.warnings)
    return codes_in(*client.warnings)


def _not_placed(world: World, name: str) -> frozenset[str]:
    """Codes for which the scheduler finds no node."""
    requirements, node = PLACED[name]
    world.enforced.create(managed(name, requirements, gpus=0, where={"report": node}))
    return codes_in(told(world.enforced, name, "gpuwarden: ", timeout_s=PATIENCE_S))


def _late(world: World, *, carried_out: bool) -> frozenset[str]:
    """A hostile pod is there, its namespace is labelled, somebody binds it."""
    here = Namespace(world.api, LATE)
    here.create(pod(LATE, kind="fake", schedulerName="nobody", hostPID=True))
    labels = {"metadata": {"labels": {ENFORCE_LABEL: "true"}}}
    world.api.patch(f"/api/v1/namespaces/{LATE}", labels)
    path = f"{here.path}/pods/{LATE}/binding"
    codes = until(
        "the namespace is known to be enforced",
        lambda: world.codes(path + DRY, binding(LATE, NODE)),
        timeout_s=PATIENCE_S,
    )
    if not carried_out:
        world.api.post(path, binding(LATE, NODE))
    return codes


def test_what_is_refused_in_one_mode_is_reported_in_the_other(modes: Modes) -> None:
    for shape in SHAPES:
        assert shape.codes <= modes.refused[shape.name], shape.name
        assert bool(shape.codes) == bool(modes.refused[shape.name]), shape.name
    shapes = {shape.name for shape in SHAPES}
    assert modes.warned.keys() - {LATE} == shapes
    assert modes.warned.items() >= {(x, modes.refused[x]) for x in shapes}
    # that the mutating webhook missed a pod is no news where it is not to touch one
    assert modes.refused[LATE] == modes.warned[LATE] | {"BYPASS_UNINJECTED"}
    assert "BYPASS_HOST_PID" in modes.warned[LATE]


def test_nothing_is_refused_by_us(modes: Modes) -> None:
    """Some requests are wrong by themselves."""
    assert [text for text in modes.foreign.values() if "gpuwarden" in text] == []
    wrong = {x.name for x in SHAPES if isinstance(x, BindingShape) and not x.exists}
    assert modes.foreign.keys() == wrong | {"bind-another"}


def test_every_report_is_in_the_audit_log_and_counted(world: World, modes: Modes) -> None:
    decided = {x.name: modes.refused[x.name] for x in SHAPES if _is_ours(x)}

    def recorded() -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for record in world.records("admission.decision", "bind.decision"):
            name = record["subject"].rpartition("/")[2]
            if name in decided:
                found.setdefault(name, set()).update(record["codes"])
        return {name: frozenset(codes) for name, codes in found.items()}

    wanted = {name: codes for name, codes in decided.items() if codes}
    until("all are recorded", lambda: recorded() == wanted, timeout_s=PATIENCE_S)
    for kind, metric in (
        ("admission.decision", "admission_refusals_total"),
        ("bind.decision", "bind_decisions_total"),
    ):
        until(
            f"{metric} says the same",
            lambda k=kind, m=metric: (  # type: ignore[misc] # mypy cannot infer the defaults
                world.metric(m, decision="reported")
                == Counter(code for x in world.records(k) for code in x["codes"])
            ),
            timeout_s=PATIENCE_S,
        )


def test_every_report_is_an_event(world: World, modes: Modes) -> None:
    """With the first code; of a pod that is there, or of its name."""
    pods = {x.name for x in SHAPES if isinstance(x, PodShape | EphemeralShape) and _is_ours(x)}
    bindings = {x.name for x in SHAPES if isinstance(x, BindingShape) and _is_ours(x)} | {LATE}
    for reason, names in ((REASON, pods), (BINDING_REASON, bindings)):
        wanted = {name for name in names if modes.warned[name]}
        until(
            f"all have an Event {reason}",
            lambda r=reason, w=wanted: w <= world.events(r).keys(),  # type: ignore[misc] # mypy cannot infer the defaults
            timeout_s=PATIENCE_S,
        )
        events = world.events(reason)
        assert [name for name in wanted if not events[name] <= modes.warned[name]] == []
        assert [x for x in names - wanted if x in events] == []


def test_no_pod_is_kept_from_a_node_and_why_it_would_be_is_said(world: World, modes: Modes) -> None:
    for name, (_, node) in PLACED.items():
        assert world.enforced.node_of(name, timeout_s=PATIENCE_S) == node
        events = until(
            f"{name} has its Event",
            lambda n=name: world.events(PLACEMENT_REASON).get(n),  # type: ignore[misc] # mypy cannot infer the default
            timeout_s=PATIENCE_S,
        )
        assert events == modes.refused[name]
    placed = {f"pod/{ENFORCED}/{name}": modes.refused[name] for name in PLACED}

    def recorded() -> dict[str, frozenset[str]]:
        found = world.records("filter.decision")
        return {x["subject"]: frozenset(x["codes"]) for x in found if x["subject"] in placed}

    until("the audit log says so", lambda: recorded() == placed, timeout_s=PATIENCE_S)


def test_nothing_was_written_and_nothing_claimed(world: World, modes: Modes) -> None:
    del modes
    assert world.api.get(OBJECTS)["items"] == []
    forged = {x.name for x in SHAPES if isinstance(x, BindingShape) and "BINDING_FORGED" in x.codes}
    for here in (world.enforced, world.plain):
        for item in here.api.get(f"{here.path}/pods")["items"]:
            metadata = item["metadata"]
            ours = [x for x in metadata.get("annotations", {}) if x == ASSIGNED]
            assert not ours or metadata["name"] in forged, metadata["name"]


def _is_ours(shape: Shape) -> bool:
    """Whether a webhook of ours judges it, and not a policy."""
    if isinstance(shape, BindingShape):
        return shape.is_enforced
    if isinstance(shape, PodShape):
        return not shape.name.startswith("protected")
    return isinstance(shape, EphemeralShape)
