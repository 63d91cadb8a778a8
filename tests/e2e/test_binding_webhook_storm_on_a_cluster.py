"""Two hundred pods for eight GPUs on a real API server and scheduler, with two controllers.

One of them is killed at every step of the binding webhook in turn: just before and just after each
of its calls has been carried out, seen by what stands between it and the API server.
"""

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import pytest

from controller.kube.nodes.nodes import ENFORCE_LABEL
from tests.e2e.lab.api import ApiError, Document
from tests.e2e.lab.lab import Lab
from tests.e2e.lab.pods import Namespace
from tests.e2e.lab.waiting import until
from tests.e2e.product.between import Between, Call, Moment, passes
from tests.e2e.product.controller import Controller
from tests.e2e.product.hardware import h100_node
from tests.e2e.product.installation import Installation
from tests.e2e.product.namespaces import create_namespace, remove_namespace
from tests.e2e.product.pods import managed
from tests.e2e.product.webhooks import BINDINGS, PODS, Webhooks, admission

pytestmark = pytest.mark.timeout(900)
NAMESPACE: Final = "storm"
NODE: Final = "storm-0"
HERE: Final = {"storm": "here"}
OBJECTS: Final = "/apis/gpuwarden.dev/v1alpha1/gpureservations"
BINDING_WEBHOOK: Final = "/mutate/bindings"
ASSIGNED: Final = "gpuwarden.dev/gpu-uuids-assigned"
PODS_IN_ALL: Final = 200
GPUS: Final = 8
PATIENCE_S: Final = 240
"""An attempt that a dead controller leaves can last 90 s."""
SLOW_S: Final = 15.0
"""For one call; the API server waits 10 s for the binding webhook."""
_WATCH: Final = "watch=true&allowWatchBookmarks=true&timeoutSeconds=1"


@dataclass(frozen=True, slots=True)
class Step:
    """One place where a controller dies."""

    name: str
    is_taken: Callable[[Moment, Call], bool]
    is_passed_on: bool = False
    """Whether the call reaches whom it was for although its sender is dead."""
    is_until_audited: bool = False
    """Whether it lives on until something is added to its audit log."""
    is_by_hand: bool = False
    """Whether a Binding that is older than its pod brings it about."""


def _webhook_called(moment: Moment, call: Call) -> bool:
    return moment is Moment.ASKED and call.path.startswith(BINDING_WEBHOOK)


def _answer_given(moment: Moment, call: Call) -> bool:
    return (
        moment is Moment.ANSWERED
        and call.path.startswith(BINDING_WEBHOOK)
        and b'"patch"' in call.answer
    )


def _pod_read(moment: Moment, call: Call) -> bool:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/"
    return moment is Moment.ASKED and call.method == "GET" and call.path.startswith(path)


def _record(moment: Moment, place: str) -> Callable[[Moment, Call], bool]:
    """Creation of a record of a reservation: the `1 of 2`, for example."""

    def is_taken(now: Moment, call: Call) -> bool:
        if now is not moment or call.method != "POST" or not call.path.startswith(OBJECTS):
            return False
        spec = call.document()["spec"]
        gpus: list[str] = spec["holders"][0]["gpus"]
        is_done = moment is Moment.ASKED or call.status == HTTPStatus.CREATED
        return is_done and f"{gpus.index(spec['gpu']) + 1} of {len(gpus)}" == place

    return is_taken


def _change(moment: Moment, state: str) -> Callable[[Moment, Call], bool]:
    """A change of a record into a state."""

    def is_taken(now: Moment, call: Call) -> bool:
        is_change = call.method == "PATCH" and call.path.startswith(OBJECTS)
        is_done = moment is Moment.ASKED or call.status == HTTPStatus.OK
        return now is moment and is_change and is_done and f'"{state}"'.encode() in call.body

    return is_taken


def _removal(moment: Moment, call: Call) -> bool:
    is_removal = call.method == "DELETE" and call.path.startswith(OBJECTS)
    return moment is Moment.ASKED and is_removal


ASKED, ANSWERED = Moment.ASKED, Moment.ANSWERED
BINDING_STEPS: Final = (
    Step("the binding webhook is called", _webhook_called),
    Step("the only record is asked for", _record(ASKED, "1 of 1")),
    Step("the only record is written", _record(ANSWERED, "1 of 1")),
    Step("the audit log is written", _record(ANSWERED, "1 of 1"), True, is_until_audited=True),
    Step("the answer is given", _answer_given),
    Step("the Binding is written", _answer_given, True),
)
LATER_STEPS: Final = (
    Step("the pod is read past the copy", _pod_read, is_by_hand=True),
    *(
        Step(f"the record {place} is {word}", _record(moment, place))
        for place in ("1 of 2", "2 of 2")
        for moment, word in ((ASKED, "asked for"), (ANSWERED, "written"))
    ),
    *(
        Step(f"{state} is {word}", _change(moment, state))
        for state in ("Confirmed", "Releasing", "Released")
        for moment, word in ((ASKED, "asked for"), (ANSWERED, "written"))
    ),
    Step("the record's removal is asked for", _removal),
)


class Killer:
    """Watches the calls; kills whoever takes the step that is armed."""

    def __init__(self, installation: Installation) -> None:
        self._controllers = {one.name: one for one in installation.controllers}
        self._lock = threading.Lock()
        self._step: Step | None = None
        self._victims: list[Controller] = []

    def arm(self, step: Step) -> None:
        self._step = step

    def victim(self) -> Controller | None:
        """Who has died, once."""
        return self._victims.pop() if self._victims else None

    def __call__(self, moment: Moment, call: Call) -> float | None:
        with self._lock:
            step = self._step
            if step is None or not step.is_taken(moment, call):
                return 0.0
            self._step = None
        one = self._controllers[call.replica]
        if step.is_until_audited:
            size = _audited(one)
            threading.Thread(target=self._kill_later, args=(one, size)).start()
        else:
            self._kill(one)
        return 0.0 if step.is_passed_on else None

    def _kill_later(self, one: Controller, size: int) -> None:
        until("the audit log grows", lambda: _audited(one) > size, poll_s=0.001)
        self._kill(one)

    def _kill(self, one: Controller) -> None:
        one.kill()
        self._victims.append(one)


def _audited(one: Controller) -> int:
    """Bytes in its audit log."""
    return sum(x.stat().st_size for x in (one.data / "audit").glob("*.jsonl"))


class Observer:
    """Follows all pods, and remembers whenever a GPU was in two of them."""

    def __init__(self, pods: Namespace) -> None:
        self._pods = pods
        self._version = pods.api.get(f"{pods.path}/pods")["metadata"]["resourceVersion"]
        self._ended = threading.Event()
        self.running: dict[str, tuple[str, ...]] = {}
        self.seen: set[str] = set()
        self.twice: list[str] = []
        self._thread = threading.Thread(target=self._follow, name="observer", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.is_set():
            query = f"{_WATCH}&resourceVersion={self._version}"
            for line in self._pods.api.text(f"{self._pods.path}/pods?{query}").splitlines():
                self._see(json.loads(line))

    def _see(self, event: Document) -> None:
        pod = event["object"]
        metadata = pod["metadata"]
        self._version = metadata["resourceVersion"]
        name = metadata.get("name", "")
        if event["type"] == "DELETED":
            self.running.pop(name, None)
        elif pod.get("spec", {}).get("nodeName") and name not in self.running:
            gpus = tuple(metadata["annotations"][ASSIGNED].split(","))
            used = {gpu: who for who, has in self.running.items() for gpu in has}
            self.twice += [f"{gpu}: {used[gpu]}, {name}" for gpu in gpus if gpu in used]
            self.running[name] = gpus
            self.seen |= set(gpus)


class Storm:
    """An enforced namespace behind two controllers, and one node with eight GPUs."""

    def __init__(self, lab: Lab, installation: Installation, between: Between) -> None:
        self.api = lab.api
        self.between = between
        self.gpuwarden = installation
        self.pods = Namespace(lab.api, NAMESPACE)
        self.killer = Killer(installation)

    def create(self, name: str, count: int, *gpus: int) -> None:
        """Many pods, which want so many GPUs in turn."""

        def one(number: int) -> None:
            requirements = {"gpu-count": str(gpus[number % len(gpus)])}
            self.pods.create(managed(f"{name}-{number}", requirements, gpus=0, where=HERE))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(one, range(count)))

    def remove(self, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(
                threads.map(
                    lambda x: self.api.delete(f"{self.pods.path}/pods/{x}", grace_s=0), names
                )
            )

    def given(self) -> dict[str, tuple[str, ...]]:
        """The GPUs of bound pods."""
        items = self.api.get(f"{self.pods.path}/pods?fieldSelector=spec.nodeName%3D{NODE}")["items"]
        return {
            x["metadata"]["name"]: tuple(x["metadata"]["annotations"][ASSIGNED].split(","))
            for x in items
        }

    def confirmed(self) -> list[str]:
        """GPUs whose only holder is confirmed."""
        return [
            x["spec"]["gpu"]
            for x in self.api.get(OBJECTS)["items"]
            if [holder["state"] for holder in x["spec"]["holders"]] == ["Confirmed"]
        ]

    def is_full(self) -> bool:
        gpus = [x for has in self.given().values() for x in has]
        return len(gpus) == GPUS and sorted(self.confirmed()) == sorted(gpus)

    def wait_full(self) -> None:
        until("all GPUs are in use", self.is_full, timeout_s=PATIENCE_S)

    def remove_all(self) -> None:
        self.remove(x["metadata"]["name"] for x in self.api.get(f"{self.pods.path}/pods")["items"])

    def wait_empty(self) -> None:
        until("no GPU is held", lambda: not self.api.get(OBJECTS)["items"], timeout_s=PATIENCE_S)

    def kill_at(self, step: Step) -> None:
        """Pods come and go until a controller has died at the step; both are back at the end."""
        self.killer.arm(step)

        def dead() -> Controller | None:
            if step.is_by_hand:
                self._bind_late()
            elif len(self.api.get(OBJECTS)["items"]) == GPUS:
                self.remove(list(self.given())[::2])
            return self.killer.victim()

        victim = until(f"a controller dies: {step.name}", dead, timeout_s=PATIENCE_S)
        victim.resume_service()
        until("both are ready", lambda: self.gpuwarden.service.ready == 2, timeout_s=PATIENCE_S)

    def bind(self, name: str, **metadata: str) -> None:
        """By hand; raises ApiError."""
        document = {
            "metadata": {"name": name, **metadata},
            "target": {"kind": "Node", "name": NODE},
        }
        self.api.post(f"{self.pods.path}/pods/{name}/binding", document)

    def _bind_late(self) -> None:
        """A Binding that was made from a version of a pod which is long gone."""
        with suppress(ApiError):
            self.bind(next(iter(self.given())), resourceVersion="1")


@pytest.fixture(scope="module")
def storm(lab: Lab) -> Iterator[Storm]:
    served = admission(lab)
    served.id_keys = lab.folder / "storm-id-keys"
    served.id_keys.write_text(f"k1 {os.urandom(32).hex()}\n")
    lab.fake_nodes.add(NODE, gpus=0, labels=HERE)
    between = Between(lab, lab.folder)
    installation = Installation(
        lab, "storm", replicas=2, admission=served, policy={"defaultMode": "env"}, between=between
    )
    webhooks = Webhooks(lab, served, PODS, BINDINGS)
    try:
        create_namespace(lab, NAMESPACE, {ENFORCE_LABEL: "true"})
        installation.start()
        installation.agents.start(h100_node(NODE, GPUS))
        installation.agents.hash_of(NODE)
        webhooks.register()
        made = Storm(lab, installation, between)
        until("pods are injected", lambda: _is_injected(made), timeout_s=PATIENCE_S)
        yield made
    finally:
        webhooks.remove()
        remove_namespace(lab, NAMESPACE)
        installation.close()
        between.close()
        lab.fake_nodes.delete(NODE)


def _is_injected(storm: Storm) -> bool:
    made = storm.api.post(f"{storm.pods.path}/pods?dryRun=All", managed("dry", {}, gpus=0))
    return "env" in made["spec"]["containers"][0]


@pytest.mark.parametrize(
    ("steps", "gpus"),
    [
        pytest.param(BINDING_STEPS, (1,), id="gate"),
        pytest.param(LATER_STEPS, (1, 2), id="later", marks=pytest.mark.long),
    ],
)
def test_one_gpu_to_one_pod_whoever_dies_when(
    storm: Storm, steps: Sequence[Step], gpus: tuple[int, ...]
) -> None:
    """`gpus`: how many pods want, in turn."""
    observer = Observer(storm.pods)
    storm.between.watcher = storm.killer
    try:
        storm.create("pod", PODS_IN_ALL, *gpus)
        storm.wait_full()
        for step in steps:
            storm.kill_at(step)
        storm.wait_full()
        storm.remove_all()
        storm.wait_empty()
        storm.create("again", GPUS, 1)
        storm.wait_full()
        until("the observer has seen it", lambda: observer.running == storm.given())
    finally:
        storm.between.watcher = passes
        observer.close()
    assert observer.twice == []
    assert observer.seen == set(storm.confirmed())
    assert len(observer.seen) == GPUS
    storm.remove_all()
    storm.wait_empty()


def _binds(storm: Storm, name: str) -> bool:
    """By hand; whoever changes the pod meanwhile, as its scheduler may, comes first."""
    try:
        storm.bind(name)
    except ApiError as error:
        if error.status != HTTPStatus.CONFLICT:
            raise
        return False
    return True


def test_while_the_api_server_is_slow_a_binding_is_refused_in_time(storm: Storm) -> None:
    """By the binding webhook, before the API server gives up; what it claimed is taken back."""
    document = managed("slow", {"gpu-count": "1"}, gpus=0, where={"storm": "elsewhere"})
    storm.pods.create(document)
    asked = threading.Event()

    def slow(moment: Moment, call: Call) -> float | None:
        if not _record(ASKED, "1 of 1")(moment, call):
            return 0.0
        asked.set()
        return SLOW_S

    storm.between.watcher = slow
    with pytest.raises(ApiError) as caught:
        storm.bind("slow")
    storm.between.watcher = passes
    assert asked.is_set()
    assert "ADMISSION_FAILED the controller did not decide in time" in caught.value.message
    storm.wait_empty()
    until("a Binding of the pod as it is now", lambda: _binds(storm, "slow"))
    until("it is confirmed", lambda: len(storm.confirmed()) == 1, timeout_s=PATIENCE_S)
    storm.remove_all()
    storm.wait_empty()
