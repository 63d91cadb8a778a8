"""Events on pods whose GPU is lost or unhealthy: each pod once per failure.

The holders are found as `explain pod` finds them (`explain.pod_gpus`): by reservation, MIG device
or time slice, and on `plugin` nodes by kubelet's allocations. What is reported again tells nobody
again. The texts name no other pod, and no detail of the failure: in it there may be a serial.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from controller.explain.pod_gpus import (
    DELETE,
    DELETE_IF,
    devices_among,
    gpus_of_live_pod,
    is_of_no_use,
)
from controller.explain.stages import listed
from controller.fleet.directory import DirectorySnapshot
from controller.fleet.trust import ChangeKind, TrustChange
from controller.fleet.view import Acceptance, GpuView, NodeView
from controller.kube.pods.events import WORDS, Notice, Regarding
from controller.kube.pods.pods import KnownPod
from controller.ledger.store import LedgerSnapshot
from gpuwarden.reasons import ReasonCode

MOST_TOLD: Final = 128
"""Pods of one node that are told at a time, which is more than kubelet takes by default (110)."""
_CODES: Final = {ChangeKind.GPU_LOST: ReasonCode.GPU_LOST.value, ChangeKind.GPU_UNHEALTHY: ""}
"""What counts as a failure."""

Failure = tuple[ChangeKind, str]
"""What has become of which GPU."""


class GpuFailures:
    """Who was told of which failure; one per process, used from one event loop.

    A replica that does not lead remembers, too, so that the next leader repeats nothing.
    """

    def __init__(
        self,
        managed: Callable[[str], Iterable[KnownPod]],
        ledger: Callable[[], LedgerSnapshot],
    ) -> None:
        """`managed`: the managed pods of a node that have not ended."""
        self._managed = managed
        self._ledger = ledger
        self._told: dict[str, dict[Failure, frozenset[str]]] = {}
        """By node: the failures that have not ended, and the UIDs of the pods that know."""

    def notices(
        self,
        changes: Iterable[TrustChange],
        nodes: DirectorySnapshot,
        view: Callable[[str], NodeView | None],
    ) -> tuple[Notice, ...]:
        """What is to be said to pods after these changes, which `view` has already."""
        failed = dict.fromkeys(x.node for x in changes if self._is_news(x))
        if not failed:
            return ()
        self._told = {node: told for node, told in self._told.items() if node in nodes.nodes}
        return tuple(x for node in failed for x in self._of_node(node, view(node)))

    def _is_news(self, change: TrustChange) -> bool:
        """Remember the change; whether it is a failure."""
        if change.gpu is None:
            return False
        if change.kind in _CODES:
            self._told.setdefault(change.node, {}).setdefault(
                (change.kind, change.gpu), frozenset()
            )
            return True
        if change.kind is ChangeKind.GPU_BACK and (told := self._told.get(change.node)):
            for kind in _CODES:
                told.pop((kind, change.gpu), None)
        return False

    def _of_node(self, name: str, node: NodeView | None) -> Iterator[Notice]:
        told = self._told.get(name)
        if told is None or node is None or node.acceptance is None:
            return
        accepted, ledger, count = node.acceptance, self._ledger(), 0
        shown = {x.uuid: x for x in accepted.gpus}
        told = {x: uids for x, uids in told.items() if x[1] in shown}
        now: dict[Failure, set[str]] = {x: set() for x in told}
        for pod in self._managed(name):
            own = _gpus_of(pod, node, ledger)
            for kind in _CODES:
                mine = [x for x in told if x[0] is kind and devices_among(accepted, x[1], own)]
                is_news = any(pod.uid not in told[x] for x in mine)
                if is_news and count >= MOST_TOLD:
                    continue
                for failure in mine:
                    now[failure].add(pod.uid)
                if is_news:
                    count += 1
                    yield _notice(pod, kind, accepted, [shown[x] for _, x in mine], own)
        self._told[name] = {x: frozenset(uids) for x, uids in now.items()}


def _gpus_of(pod: KnownPod, node: NodeView, ledger: LedgerSnapshot) -> frozenset[str]:
    return gpus_of_live_pod(
        node,
        pod.namespace,
        pod.name,
        reserved=(entry.record.gpu for entry, _ in ledger.parts_of(pod.uid)),
        assigned=() if pod.held is None else pod.held.gpus,
        is_managed=True,
    )


def _notice(
    pod: KnownPod,
    kind: ChangeKind,
    accepted: Acceptance,
    gpus: Sequence[GpuView],
    own: frozenset[str],
) -> Notice:
    words, troubles = WORDS[kind], dict[_Trouble, list[GpuView]]()
    for gpu in gpus:
        troubles.setdefault(_trouble(kind, gpu), []).append(gpu)
    said = "; ".join(_clause(trouble, of_it, accepted, own) for trouble, of_it in troubles.items())
    is_lost = kind is ChangeKind.GPU_LOST and any(map(is_of_no_use, gpus))
    cure = "" if pod.is_deleted else f"; {DELETE if is_lost else DELETE_IF}"
    more = f"gpuwarden why {pod.namespace}/{pod.name}"
    note = f"node {pod.node}: {said}{cure}. Details: {more}"
    about = Regarding("Pod", pod.name, pod.uid, pod.namespace)
    return Notice(about, words.reason, words.action, words.severity, _CODES[kind], note)


_SILENT: Final = ("does not answer", "do not answer")
_UNREAD: Final = ("cannot be read completely", "cannot be read completely")
_UNHEALTHY: Final = ("is unhealthy", "are unhealthy")
_Trouble = tuple[str, str]
"""Said of one, and of many."""


def _trouble(kind: ChangeKind, gpu: GpuView) -> _Trouble:
    if kind is ChangeKind.GPU_UNHEALTHY:
        return _UNHEALTHY
    return _SILENT if is_of_no_use(gpu) else _UNREAD


def _clause(
    trouble: _Trouble, gpus: Iterable[GpuView], accepted: Acceptance, own: frozenset[str]
) -> str:
    """Of a GPU that is split the pod is told its own MIG devices alone."""
    names, are_mig = list[str](), True
    for gpu in gpus:
        devices = devices_among(accepted, gpu.uuid, own)
        is_whole = gpu.uuid in devices
        are_mig = are_mig and not is_whole
        names += [gpu.uuid] if is_whole else [f"{x} of {gpu.uuid}" for x in devices]
    word = "MIG device" if are_mig else "GPU"
    one, many = trouble
    if len(names) == 1:
        return f"its {word} {names[0]} {one}"
    return f"its {word}s {listed(names)} {many}"
