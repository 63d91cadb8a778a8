"""What people are told on Node and Pod objects when the trust in a node changes. Pure.

One table, from change to Event. An unchanged round says nothing. Pods hear of what
concerns them: those with a wish that run on a node which is no longer, or again, trusted.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from controller.fleet.directory import DirectorySnapshot
from controller.fleet.node_trust import ChangeKind, TrustChange
from controller.kube.event_series import Notice, Regarding, Severity
from controller.kube.objects import KnownPod

MAX_PODS: Final = 64
"""Pods of one node that are told of one change."""


class _Words(NamedTuple):
    reason: str
    action: str
    severity: Severity
    for_pods: bool = False


_WARNING, _NORMAL = Severity.WARNING, Severity.NORMAL
_WORDS: Final = {
    ChangeKind.REFUSED: _Words("EvidenceRefused", "Refuse", _WARNING),
    ChangeKind.REVOKED: _Words("EvidenceRefused", "Revoke", _WARNING, for_pods=True),
    ChangeKind.QUARANTINED: _Words("NodeQuarantined", "Quarantine", _WARNING, for_pods=True),
    ChangeKind.LEASE_ENDED: _Words("EvidenceStale", "Expire", _WARNING, for_pods=True),
    ChangeKind.RELEASED: _Words("NodeReleased", "Release", _NORMAL),
    ChangeKind.RESTORED: _Words("NodeRecovered", "Accept", _NORMAL, for_pods=True),
    ChangeKind.GPU_LOST: _Words("GpuLost", "Exclude", _WARNING),
    ChangeKind.GPU_UNHEALTHY: _Words("GpuUnhealthy", "Exclude", _WARNING),
    ChangeKind.GPU_BACK: _Words("GpuRecovered", "Include", _NORMAL),
    ChangeKind.CLAIM_REPELLED: _Words("ForeignClaimRepelled", "Refuse", _WARNING),
}
REASONS: Final = tuple(sorted({x.reason for x in _WORDS.values()}))
"""Every reason an Event of ours can have."""


def trust_notices(
    changes: Iterable[TrustChange],
    nodes: DirectorySnapshot,
    guarded_pods: Callable[[str], Iterable[KnownPod]],
) -> Iterator[Notice]:
    """What is to be said about `changes`; nothing about nodes that the cluster does not have."""
    for change in changes:
        words, node = _WORDS.get(change.kind), nodes.nodes.get(change.node)
        if words is None or node is None or node.uid is None:
            continue
        code = change.code.value if change.code else ""
        note = " ".join(x for x in (change.detail, change.gpu) if x)
        yield _notice(Regarding("Node", change.node, node.uid), words, code, note)
        if words.for_pods:
            for pod, _ in zip(guarded_pods(change.node), range(MAX_PODS), strict=False):
                about = Regarding("Pod", pod.name, pod.uid, pod.namespace)
                yield _notice(about, words, code, f"node {change.node}: {note}")


def _notice(about: Regarding, words: _Words, code: str, note: str) -> Notice:
    return Notice(about, words.reason, words.action, words.severity, code, note)
