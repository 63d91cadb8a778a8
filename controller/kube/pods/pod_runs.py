"""Follows the runs of pods, for whoever learns from them.

Only an end that is seen counts: what had ended before the first list is left alone.
"""

from collections.abc import Callable

from controller.kube.api.cache import Change
from controller.kube.pods.pods import KnownPod
from controller.runs.neighbours import Neighbours, Stay
from controller.runs.observation import EndedRun
from controller.runs.pod_run import PodRun


class PodRuns:
    """Used from one event loop."""

    def __init__(self, ended: Callable[[EndedRun], None], wall_ns: Callable[[], int]) -> None:
        """`ended` hears of each run that ends; it must return at once."""
        self._ended = ended
        self._wall_ns = wall_ns
        self._neighbours = Neighbours()
        self._listed = False

    def observe(self, changes: tuple[Change[KnownPod], ...], asked_ns: int | None) -> None:
        """Take changes of the cache."""
        for change in changes:
            old = None if change.old is None else change.old.value
            new = None if change.new is None else change.new.value
            if new is not None and new.run is not None:
                is_seen = self._listed if old is None else not old.has_ended
                self._take(new, new.run, is_end=new.has_ended and is_seen)
            elif new is None and old is not None and old.run is not None:
                self._neighbours.gone(old.node, old.uid, self._wall_ns())
        self._listed = self._listed or asked_ns is not None

    def _take(self, pod: KnownPod, run: PodRun, *, is_end: bool) -> None:
        began_ns, ended_ns = run.began_ns, run.ended_ns
        if is_end:
            beside: tuple[str, ...] = ()
            if began_ns is not None and ended_ns is not None:
                beside = self._neighbours.beside(pod.node, pod.uid, began_ns, ended_ns)
            self._ended(EndedRun(pod.namespace, pod.name, pod.uid, pod.node, run, beside))
        if began_ns is not None:
            until_ns = (ended_ns or self._wall_ns()) if pod.has_ended else None
            self._neighbours.put(pod.node, pod.uid, Stay(run.job_type, began_ns, until_ns))
