"""Ends of runs that are seen: each once, with whom they were beside; none from before the start."""

from typing import Any

from controller.kube.api.cache import Change
from controller.kube.api.resources import Entry
from controller.kube.pods.pod_runs import PodRuns
from controller.kube.pods.pods import KnownPod
from controller.runs.observation import EndedRun
from tests.builders.runs import BEGIN_NS, entry, pod_with_run, status_of


class Cluster:
    """Pods by name, as a watch tells of them."""

    def __init__(self) -> None:
        self.ended: list[EndedRun] = []
        self.now_s = 0
        self.pods: dict[str, Entry[KnownPod]] = {}
        self.runs = PodRuns(self.ended.append, lambda: BEGIN_NS + self.now_s * 10**9)

    def change(self, name: str, new: Entry[KnownPod] | None, *, listed: bool = False) -> None:
        old = self.pods.pop(name, None)
        if new is not None:
            self.pods[name] = new
        self.runs.observe((Change(name, old, new),), 1 if listed else None)

    def listed(self) -> None:
        self.runs.observe((), 1)

    def starts(self, name: str, began: int, job_type: str = "training", **parts: Any) -> None:
        status = status_of(began=began)
        self.change(name, entry(pod_with_run(status, name=name, job_type=job_type, **parts)))

    def ends(self, name: str, began: int, ended: int, **parts: Any) -> None:
        self.change(name, ending(name, began, ended, **parts))

    def names(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(x.name, x.beside) for x in self.ended]


def ending(
    name: str, began: int, ended: int | None, job_type: str = "training", **parts: Any
) -> Entry[KnownPod]:
    status = status_of(began=began, ended=ended)
    values = {"name": name, "job_type": job_type, "phase": "Succeeded", **parts}
    return entry(pod_with_run(status, **values))


def test_the_end_of_a_run_is_told_once() -> None:
    cluster = Cluster()
    cluster.listed()
    cluster.starts("a", 0)
    cluster.ends("a", 0, 50)
    cluster.ends("a", 0, 50, metadata={"labels": {"app.kubernetes.io/job-type": "other"}})
    cluster.change("a", None)
    (found,) = cluster.ended
    assert (found.namespace, found.name, found.uid) == ("team-a", "a", "uid-a")
    assert (found.node, found.run.seconds, found.run.job_type) == ("node-1", 50.0, "training")


def test_what_had_ended_before_the_start_is_left_alone() -> None:
    cluster = Cluster()
    cluster.change("old", ending("old", 0, 50), listed=True)
    assert cluster.ended == []
    cluster.change("old", ending("old", 0, 50, metadata={"resourceVersion": "2"}))
    assert cluster.ended == []
    cluster.change("quick", ending("quick", 10, 20), listed=True)  # between two lists
    assert cluster.names() == [("quick", ())]


def test_a_pod_that_is_deleted_has_no_end() -> None:
    cluster = Cluster()
    cluster.listed()
    cluster.starts("a", 0)
    cluster.change("a", None)
    cluster.change("b", entry(pod_with_run(phase="Pending", name="b", node="")))
    cluster.change("b", None)
    cluster.change("plain", entry(pod_with_run(status_of(), name="plain", job_type=None)))
    cluster.change("plain", ending("plain", 0, 50, metadata={"labels": {}}))
    assert cluster.ended == []


def test_whoever_ran_on_the_node_for_half_of_the_time_was_beside() -> None:
    cluster = Cluster()
    cluster.listed()
    cluster.starts("a", 0)
    cluster.starts("long", 40, "serving", namespace="team-b")
    cluster.starts("short", 60, "etl")
    cluster.starts("elsewhere", 0, "batch", node="node-2")
    cluster.starts("gone", 0, "debug")
    cluster.now_s = 49
    cluster.change("gone", None)
    cluster.ends("a", 0, 100)
    cluster.ends("long", 40, 120, job_type="serving")
    assert cluster.names() == [("a", ("serving",)), ("long", ("etl", "training"))]


def test_pods_without_a_job_type_count_by_their_owner() -> None:
    cluster = Cluster()
    cluster.listed()
    owner = {"kind": "Job", "name": "etl-29401920", "controller": True}
    metadata = {"labels": {}, "ownerReferences": [owner]}
    parts: dict[str, Any] = {"metadata": metadata, "namespace": "team-b"}
    cluster.starts("a", 0)
    cluster.starts("owned", 0, **parts)
    cluster.starts("bare", 0, metadata={"labels": {}})
    cluster.ends("a", 0, 100)
    cluster.ends("owned", 0, 120, **parts)
    assert cluster.names() == [("a", ("team-b/CronJob/etl",)), ("owned", ("training",))]
    assert cluster.ended[1].run.job_type == "team-b/CronJob/etl"


def test_an_end_of_which_kubelet_lost_the_time_is_now() -> None:
    cluster = Cluster()
    cluster.listed()
    cluster.starts("a", 0)
    cluster.starts("lost", 0, "serving")
    cluster.now_s = 60
    cluster.change("lost", ending("lost", 0, None, job_type="serving"))
    cluster.ends("a", 0, 100)
    assert cluster.names() == [("lost", ()), ("a", ("serving",))]
    assert cluster.ended[0].run.seconds == 0


def test_a_container_that_ended_first_keeps_its_place_until_the_pod_ends() -> None:
    """The run lasts as long as the containers with GPUs; a log shipper may go on."""
    cluster = Cluster()
    cluster.listed()
    both = ("1", None)
    shipper = status_of("second", began=0)
    running = pod_with_run(status_of(began=0), shipper, name="a", gpus=both)
    cluster.change("a", entry(running))
    cluster.starts("b", 0, "serving")
    cluster.ends("b", 0, 90, job_type="serving")
    half = pod_with_run(status_of(began=0, ended=100), shipper, name="a", gpus=both)
    cluster.change("a", entry(half))
    statuses = (status_of(began=0, ended=100), status_of("second", began=0, ended=300))
    done = pod_with_run(*statuses, name="a", gpus=both, phase="Succeeded")
    cluster.change("a", entry(done))
    assert cluster.names() == [("b", ("training",)), ("a", ("serving",))]
    assert cluster.ended[1].run.seconds == 100.0
