"""Which pod a process belongs to, from the text of its `/proc/<pid>/cgroup`.

Knows cgroup v1 and v2 and both of kubelet's drivers: systemd writes
`…-pod<uid with _>.slice`, cgroupfs writes `pod<uid>`. The outermost pod below a
`kubepods` folder counts: what a container makes below its own cgroup is its own tale.

A reader in a cgroup namespace of its own (cgroup v2's default for containers) sees other pods'
paths begin with `..`, and with cgroupfs these may end above it at `kubepods` itself, which is
then not named: right after the dots a pod, or its quality of service and a pod, counts as well.

Pure and bounded; see proc(5), cgroups(7) and kubelet's pod cgroup names.
"""

import re
from collections.abc import Iterator
from typing import Final

MAX_BYTES: Final = 64 * 1024
"""A longer file is not looked into."""
_MAX_LINES: Final = 64
_MAX_SEGMENTS: Final = 64

_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
_POD: Final = re.compile(
    rf"(?:[a-z-]*-)?pod{_UID}(?:\.slice)?(?::cri-containerd:[0-9a-f]{{1,64}})?"
)
"""32 bare digits are a static pod's hash; what follows a colon is written by a containerd whose
driver is not kubelet's."""
_KUBEPODS: Final = re.compile(r"(?:kubelet-)?kubepods(?:[.-].*)?")
_ABOVE: Final = ".."
_QUALITIES: Final = frozenset({"burstable", "besteffort"})
"""Folders between `kubepods` and the pods that are not guaranteed, as cgroupfs names them."""


def pod_uid(text: str) -> str | None:
    """The pod's UID; null for processes of no pod and where the lines contradict each other."""
    if len(text) > MAX_BYTES:
        return None
    found = set(_uids(text))
    return found.pop() if len(found) == 1 else None


def _uids(text: str) -> Iterator[str]:
    for line in text.splitlines()[:_MAX_LINES]:
        _, _, path = line.partition(":")[2].partition(":")
        if uid := _outermost(path):
            yield uid


def _outermost(path: str) -> str | None:
    segments = path.removeprefix("/").split("/")[:_MAX_SEGMENTS]
    below, near = False, segments[0] == _ABOVE
    for segment in segments:
        below = below or _KUBEPODS.fullmatch(segment) is not None
        pod = _POD.fullmatch(segment) if below or near else None
        if pod:
            return pod[1].replace("_", "-")
        near = near and (segment == _ABOVE or segment in _QUALITIES)
    return None
