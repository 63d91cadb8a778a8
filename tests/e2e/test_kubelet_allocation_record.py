"""A `plugin` node with a real kubelet: what kubelet gives becomes the ledger's, and what it does
not explain is told. At the end: hints of a real scorer lead a Job to such a node, or do nothing.

The device plugin is the lab's and the cards are made up; which pod gets which card is kubelet's
own choice, read from its own account.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from itertools import count
from statistics import median
from typing import Any, Final
from urllib.parse import quote

import pytest
import yaml

from controller.kube.nodes.nodes import ENFORCE_LABEL
from controller.placement.keys import MANAGED_TAINT
from gpuwarden.evidence.model import GpuProcess
from tests.e2e.lab.api import Document
from tests.e2e.lab.device_plugin import RESOURCE, DevicePlugin
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace, pod
from tests.e2e.lab.waiting import until
from tests.e2e.product.cards import forget_cards
from tests.e2e.product.command_line import asked
from tests.e2e.product.controller import Controller
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.hinting import (
    BUCKETS,
    H100,
    H200,
    HINTED,
    JOB,
    JOB_TYPE,
    OTHER_NODE,
    SEED,
    asking,
    decision,
    opted_in,
    preferred,
    working,
)
from tests.e2e.product.installation import Installation, kubectl
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.real_use import RealUse
from tests.e2e.product.scoring import ScoringService
from tests.e2e.product.webhooks import BINDINGS, HINTS, PODS, Webhooks, admission

pytestmark = [pytest.mark.usefixtures("real_node"), pytest.mark.timeout(300)]
ENFORCED, PLAIN = "plugin-team", "plugin-plain"
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
KUBELET: Final = "/var/lib/kubelet"
PATIENCE_S: Final = 90
GPUS: Final = 4
STAYS: Final = "stays"
"""A pod that has a card throughout: a kubelet that names none at all is believed a minute later."""
POLICY: Final = {"defaultMode": "plugin", "hintWeight": 60}
TAINT: Final = {"key": MANAGED_TAINT, "effect": "NoExecute"}
TOLERATION: Final = {"key": MANAGED_TAINT, "operator": "Exists", "effect": "NoExecute"}


class World:
    """The real node, protected, whose kubelet gives cards to pods of an enforced namespace.

    In the plain one are pods that may run there all the same, as those of the infrastructure do.
    """

    def __init__(
        self, lab: Lab, installation: Installation, use: RealUse, scorer: ScoringService
    ) -> None:
        """`scorer`: not started; only some namespaces ask it."""
        self.scorer = scorer
        self.lab = lab
        self.api = lab.api
        self.gpuwarden = installation
        self.use = use
        self.node: str = lab.node.name
        self.team = Namespace(lab.api, ENFORCED)
        self.plain = Namespace(lab.api, PLAIN)

    def start(self, where: Namespace, *names: str, **spec: Any) -> list[str]:
        """Pods, created at once, that run and have a card each; their UIDs."""
        for name in names:
            document = pod(name, "say", "here", **spec)
            document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
            where.create(document)
        for name in names:
            where.phase(name, "Running", timeout_s=PATIENCE_S)
        return [where.get(name)["metadata"]["uid"] for name in names]

    def taint(self, *taints: Document) -> None:
        self.api.patch(f"/api/v1/nodes/{self.node}", {"spec": {"taints": list(taints)}})

    def ledger(self) -> dict[str, tuple[str, str, str]]:
        """State, origin and pod of the only holder, by card, but for the pod that stays."""
        return {
            item["spec"]["gpu"]: (holder["state"], holder["origin"], holder["pod"]["uid"])
            for item in self.api.get(OBJECTS)["items"]
            for holder in item["spec"]["holders"]
            if holder["pod"]["name"] != STAYS
        }

    def given(self) -> dict[str, str]:
        """Pods by card, as kubelet says, but for the pod that stays."""
        return {card: name for card, name in self.use.given.items() if name != STAYS}

    def wait_settled(self, *names: str) -> dict[str, str]:
        """The ledger says just what kubelet gave to these pods; cards by pod."""
        uids = {name: self.team.get(name)["metadata"]["uid"] for name in names}

        def agree() -> dict[str, str] | None:
            given = {card: name for card, name in self.given().items() if name in uids}
            wanted = {x: ("Confirmed", "kubelet", uids[name]) for x, name in given.items()}
            is_whole = len(given) == len(names) and self.ledger() == wanted
            return {name: card for card, name in given.items()} if is_whole else None

        return until("the ledger says what kubelet gave", agree, timeout_s=PATIENCE_S)

    def events(self, reason: str, about: str) -> list[str]:
        """Notes of our Events of a reason about an object."""
        found = self.api.get("/apis/events.k8s.io/v1/events")["items"]
        return [
            x["note"] for x in found if (x["reason"], x["regarding"]["name"]) == (reason, about)
        ]

    def told(self, reason: str, about: str, text: str) -> str:
        def found() -> str:
            return next((x for x in self.events(reason, about) if text in x), "")

        return until(f"{reason} about {about} says {text}", found, timeout_s=PATIENCE_S)

    def way_of(self, name: str) -> list[tuple[str, str, list[str]]]:
        """State and GPUs of each stage, by `gpuwarden explain pod`, once kubelet's is known."""

        def known() -> list[tuple[str, str, list[str]]] | None:
            _, found = asked(self.gpuwarden.controllers[0], "explain", "pod", f"{ENFORCED}/{name}")
            stages = {x["name"]: x for x in found["stages"]}
            if stages["kubelet"]["state"] == "waiting":  # this replica has older evidence
                return None
            return [(key, x["state"], x.get("gpus", [])) for key, x in stages.items()]

        return until(f"the way of {name} is known", known, timeout_s=PATIENCE_S)

    def set_policy(self, **more: Any) -> None:
        """Change the policy file of all replicas."""
        path = self.gpuwarden.site.folder / "policy.yaml"
        made: Document = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**made, "evictMismatched": False, **more}))


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[World]:
    served = admission(lab)
    served.id_keys = lab.folder / "plugin-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    scorer = ScoringService(lab.beside("scoring"))
    served.settings = {"protection": "cluster", "hints": {"schedulerUrl": scorer.url}}
    hardware = h100_node(lab.node.name, GPUS)
    cards = [card.uuid for card in hardware.scenario.gpus]
    kubelet = lab.node.capsule.path(KUBELET)
    installation = Installation(lab, "plugin", replicas=2, admission=served, policy=POLICY)
    use = RealUse(kubelet / "pod-resources" / "kubelet.sock", RESOURCE)
    world = World(lab, installation, use, scorer)
    webhooks = Webhooks(lab, served, PODS, BINDINGS, with_hints=True)
    try:
        with DevicePlugin(kubelet / "device-plugins", cards):
            create_namespace(lab, ENFORCED, {ENFORCE_LABEL: "true"})
            create_namespace(lab, PLAIN)
            world.taint(TAINT)
            forget_cards(lab)
            kubectl(lab, "apply", "-f", str(HINTS / "rbac.yaml"))
            installation.start()
            installation.agents.start(hardware, world.use)
            installation.agents.hash_of(lab.node.name)
            webhooks.register()
            until("the node offers its cards", lambda: _offers(world), timeout_s=PATIENCE_S)
            until("pods are injected", lambda: _is_injected(world), timeout_s=PATIENCE_S)
            world.start(world.team, STAYS)
            yield world
    finally:
        webhooks.remove()
        world.taint()
        for name in (ENFORCED, PLAIN):
            remove_namespace(lab, name)
        installation.close()
        forget_cards(lab)


@pytest.fixture(autouse=True)
def _free(world: World) -> Iterator[None]:
    """Each test begins with a free node."""
    yield
    until("nothing is reserved", lambda: not world.ledger(), timeout_s=PATIENCE_S)


def _offers(world: World) -> bool:
    status = world.api.get(f"/api/v1/nodes/{world.node}")["status"]
    return str(status["allocatable"].get(RESOURCE, "")) == str(GPUS)


def _is_injected(world: World) -> bool:
    document = pod("dry", "say", "here")
    document["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE: "1"}}
    made = world.api.post(f"{world.team.path}/pods?dryRun=All", document)
    return bool(made["spec"]["schedulerName"] == "gpuwarden")


def test_the_ledger_ends_equal_to_what_kubelet_gave(world: World) -> None:
    names = [f"train-{number}" for number in range(3)]
    world.start(world.team, *names)
    cards = world.wait_settled(*names)
    assert len(set(cards.values())) == len(names)
    assert world.way_of(names[0]) == [
        ("required", "reached", []),
        ("reserved", "reached", [cards[names[0]]]),
        ("bound", "reached", []),
        ("kubelet", "reached", [cards[names[0]]]),
        ("nvml", "waiting", []),
    ]
    for name in names:
        annotations = world.team.get(name)["metadata"]["annotations"]
        assert annotations["gpuwarden.dev/node"] == world.node
        assert annotations["gpuwarden.dev/guarantee-given"] == "set"
        assert "gpuwarden.dev/reservation-id" not in annotations
    world.team.delete(names[0])
    world.wait_settled(*names[1:])
    for name in names[1:]:
        world.team.delete(name)


def test_a_later_pod_of_the_same_name_gets_a_record_of_its_own(world: World) -> None:
    world.start(world.team, "again")
    world.wait_settled("again")
    world.team.delete("again")
    world.start(world.team, "again")
    world.wait_settled("again")
    world.team.delete("again")


def _has_logged_once(controller: Controller, kind: str) -> bool:
    return [x["kind"] for x in controller.records()].count(kind) == 1


def test_a_gpu_used_without_a_reservation_is_reported(world: World) -> None:
    world.start(world.plain, "unmanaged", tolerations=[TOLERATION])
    note = world.told("GpuUnreservedUse", world.node, f"pod {PLAIN}/unmanaged")
    (card,) = world.given()
    assert card in note
    assert world.ledger() == {}
    metric = 'gpuwarden_gpu_use_faults{kind="unreserved_use"}'
    controllers = world.gpuwarden.controllers
    until("both have seen it", lambda: [x.metric(metric) for x in controllers] == [1, 1])
    for one in controllers:
        until("it is on record", partial(_has_logged_once, one, "reservation.unreserved"))
    world.plain.delete("unmanaged")


def test_a_pod_that_uses_another_gpu_is_reported_and_evicted_where_the_policy_says_so(
    world: World,
) -> None:
    (uid,) = world.start(world.team, "greedy")
    card = world.wait_settled("greedy")["greedy"]
    cards = [x.uuid for x in h100_node(world.node, GPUS).scenario.gpus]
    other = next(x for x in cards if x not in world.use.given)
    world.use.processes = (GpuProcess(card, 1, uid), GpuProcess(other, 1, uid))
    try:
        world.told("GpuMismatch", "greedy", other)
        assert world.team.get("greedy")["status"]["phase"] == "Running"
        world.set_policy(evictMismatched=True)
        until(
            "the pod is evicted",
            lambda: world.api.found(f"{world.team.path}/pods/greedy") is None,
            timeout_s=PATIENCE_S,
        )
    finally:
        world.use.processes = ()
        world.set_policy()


# --- hints

GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def hinted(world: World) -> Iterator[Namespace]:
    with opted_in(world.lab, world.gpuwarden, world.scorer) as namespace:
        yield namespace


def test_the_job_of_the_seed_runs_where_the_scorer_has_learned_that_it_is_fast(
    world: World, hinted: Namespace
) -> None:
    """The other node is the tighter one, which a pod without hints gets."""
    verify = ("get", "pod", "-n", HINTED, "-l", f"job-name={JOB}", "-o", "yaml")

    def pods() -> list[Document]:
        found: list[Document] = yaml.safe_load(kubectl(world.lab, *verify))["items"]
        return found

    as_written_there = SEED.replace("limits:", "requests:")
    with pytest.raises(RuntimeError, match="Limit must be set"):
        kubectl(world.lab, "apply", "-f", "-", text=as_written_there)
    kubectl(world.lab, "apply", "-f", "-", text=SEED)
    try:
        (made,) = until("the Job has its pod", pods)
        _is_hinted(world, hinted, made["metadata"]["name"])
    finally:
        kubectl(world.lab, "delete", "job", JOB, "-n", HINTED)
        until("its pod is gone", lambda: not pods())


def _is_hinted(world: World, hinted: Namespace, name: str) -> None:
    """The Job's pod runs on the real node, with all that its template was given."""
    hinted.phase(name, "Running", timeout_s=PATIENCE_S)
    made, template = hinted.get(name), _template(hinted)
    assert made["spec"]["nodeName"] == world.node
    assert made["spec"]["priority"] == BUCKETS["gpu-high"]
    for spec in (made["spec"], template["spec"]):
        assert spec["priorityClassName"] == "gpu-high"
        weights = preferred(spec)
        assert list(weights) == [H100, H200]
        assert weights[H100] == 100 > 2 * weights[H200] > 0
        assert GPU_TOLERATION in spec["tolerations"]
    for metadata in (made["metadata"], template["metadata"]):
        assert metadata["labels"]["app.kubernetes.io/job-type"] == JOB_TYPE
        found = decision(metadata)
        assert found["chosen-gpu"] == H100
        assert 70 <= float(found["priority-score"]) < 90
        assert re.fullmatch("1[0-9]{9}", found["decision-timestamp"])
    assert hinted.log(name) == "trained\n"


def test_a_pod_keeps_away_from_a_job_that_slows_it_down(world: World, hinted: Namespace) -> None:
    """Alone it goes to the faster node; the other one is worth less than the peace there."""
    quiet, noisy = "quiet", "noisy"
    anywhere: Document = {"nodeSelector": {}}
    world.scorer.learn(quiet, H100, *(590.0, 600.0, 610.0) * 4)
    world.scorer.learn(quiet, H200, *(890.0, 900.0, 910.0) * 4)
    world.scorer.learn(quiet, H100, *(1200.0,) * 6, beside=[noisy])
    try:
        alone = hinted.get(hinted.create(working("alone", quiet, **anywhere)))
        assert "podAntiAffinity" not in alone["spec"]["affinity"]
        assert hinted.node_of("alone") == world.node
        hinted.delete("alone")
        hinted.create(working(noisy, noisy))
        hinted.phase(noisy, "Running", timeout_s=PATIENCE_S)
        beside = hinted.get(hinted.create(working("beside", quiet, **anywhere)))
        (kept,) = beside["spec"]["affinity"]["podAntiAffinity"].values()
        assert [(x["weight"], x["podAffinityTerm"]["topologyKey"]) for x in kept] == [
            (100, "kubernetes.io/hostname")
        ]
        (rule,) = kept[0]["podAffinityTerm"]["labelSelector"]["matchExpressions"]
        assert rule["operator"] == "In"
        selector = f"{rule['key']} in ({','.join(rule['values'])})"
        matched = world.api.get(f"{hinted.path}/pods?labelSelector={quote(selector)}")["items"]
        assert [x["metadata"]["name"] for x in matched] == [noisy]
        assert hinted.node_of("beside") == OTHER_NODE
    finally:
        for name in ("alone", noisy, "beside"):
            if world.api.found(f"{hinted.path}/pods/{name}") is not None:
                world.api.delete(f"{hinted.path}/pods/{name}", grace_s=0)


def _template(where: Namespace) -> Document:
    path = f"/apis/batch/v1/namespaces/{where.name}/jobs/{JOB}"
    template: Document = where.api.get(path)["spec"]["template"]
    return template


def _as_written(made: Document) -> Document:
    """Of a stored pod what its writer or a webhook has said."""
    kept = {key: made["metadata"].get(key) for key in ("labels", "annotations")}
    return {**kept, "spec": made["spec"]}


def _unavailable(world: World, name: str) -> list[Document]:
    """What the log has of the scorer's failure about a pod."""
    texts = [x.log.read_text() for x in world.gpuwarden.controllers]
    found = [x for text in texts for x in text.splitlines() if "Scheduler unavailable" in x]
    return [x for x in map(json.loads, found) if x["pod"] == f"{HINTED}/{name}"]


def test_with_the_scorer_killed_a_pod_is_as_its_writer_left_it(
    world: World, hinted: Namespace
) -> None:
    """As in a namespace that never opted in; back, the scorer knows what it had learned."""
    world.scorer.kill()
    made = hinted.get(hinted.create(asking("unscored")))
    other = world.api.post(f"{world.team.path}/pods?dryRun=All", asking("unscored"))
    assert _as_written(made) == _as_written(other)
    (line,) = until("it is logged", lambda: _unavailable(world, "unscored"))
    assert (line["event"], line["reason"]) == ("hints.unavailable", "connection")
    world.scorer.resume_service()
    made = hinted.get(hinted.create(asking("scored")))
    assert decision(made["metadata"])["chosen-gpu"] == H100
    assert made["spec"]["priority"] == BUCKETS["gpu-high"]


def _hints(controller: Controller, result: str) -> float:
    return controller.metric(f'gpuwarden_hints_total{{result="{result}"}}') or 0


@pytest.mark.long
def test_a_scorer_that_was_away_for_long_is_asked_again_after_half_a_minute(
    world: World, hinted: Namespace
) -> None:
    world.scorer.kill()
    names = (f"meanwhile-{number}" for number in count())

    def gave_up() -> Controller | None:
        hinted.create(asking(next(names)))
        controllers = world.gpuwarden.controllers
        return next((x for x in controllers if _hints(x, "breaker_open")), None)

    controller = until("a controller asks it no more", gave_up)
    before = _hints(controller, "hinted")
    world.scorer.resume_service()

    def asks_again() -> bool:
        hinted.create(asking(next(names)))
        return _hints(controller, "hinted") > before

    until("that controller asks it again", asks_again, timeout_s=PATIENCE_S, poll_s=1)


PAIRS: Final = 100


@pytest.mark.long
def test_hints_are_given_at_the_cost_that_the_page_says(
    world: World, hinted: Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/hints.md has what this prints; pods of both namespaces are admitted in turn."""
    taken_ms: dict[str, list[float]] = {HINTED: [], ENFORCED: []}
    with world.api.kept_open() as api:
        for number in range(PAIRS):
            for where, taken in taken_ms.items():
                started = time.perf_counter()
                made = api.post(f"/api/v1/namespaces/{where}/pods", asking(f"timed-{number}"))
                taken.append(1000 * (time.perf_counter() - started))
                is_hinted = bool(decision(made["metadata"]))
                assert is_hinted is (where == HINTED)
    for namespace in (hinted, world.team):
        world.api.delete(f"{namespace.path}/pods?fieldSelector=metadata.name!={STAYS}", grace_s=0)
    with_hints, without = (median(x) for x in taken_ms.values())
    with capsys.disabled():
        ratio = with_hints / without
        print(  # noqa: T201 - for people
            f"\ncreation of a pod, median of {PAIRS}: {without:.1f} ms without hints,"
            f" {with_hints:.1f} ms with hints, {ratio:.2f} times"
        )
