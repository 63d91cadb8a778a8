"""Keeps of a text exposition the metrics that we declare and those of the process. Pure.

Samples are kept line by line and only in the form that Prometheus' client writes, with
labels that are declared; what does not fit is counted, not shown.
"""

import re
from typing import Final

from gpuwarden.support.part import MAX_PART_BYTES, Part, missing
from gpuwarden.telemetry.names import METRICS

_SAMPLE: Final = re.compile(
    r'([a-z_]{1,80})(\{[a-z_]+="[A-Za-z0-9_.:/+-]{0,80}"(?:,[a-z_]+="[A-Za-z0-9_.:/+-]{0,80}")*\})?'
    r" ([0-9.e+-]{1,32}|NaN|\+Inf)"
)
_LABEL: Final = re.compile(r'([a-z_]+)="')
_ENDINGS: Final = ("_bucket", "_count", "_sum")
_LABELS: Final = {metric.name: frozenset(metric.labels) | {"le"} for metric in METRICS}
_OF_PROCESS: Final = re.compile(
    r"process_(?:cpu_seconds_total|open_fds|max_fds|resident_memory_bytes|start_time_seconds"
    r"|virtual_memory_bytes)"
)


def metrics_part(name: str, exposition: bytes) -> Part:
    """The part; `left_out` counts what was not kept."""
    kept, others = [], 0
    for line in exposition.decode("utf-8", "replace").splitlines():
        if line.startswith("#") or not line:
            continue
        if _may_leave(line):
            kept.append(line)
        else:
            others += 1
    data = "".join(f"{line}\n" for line in kept).encode("ascii")
    if len(data) > MAX_PART_BYTES:
        return missing(name, f"larger than {MAX_PART_BYTES} bytes")
    return Part(name, data, left_out=others)


def _may_leave(line: str) -> bool:
    found = _SAMPLE.fullmatch(line)
    if found is None:
        return False
    name, labels = found[1], found[2] or ""
    if _OF_PROCESS.fullmatch(name):
        return not labels
    for ending in _ENDINGS:
        if name.endswith(ending) and name.removesuffix(ending) in _LABELS:
            name = name.removesuffix(ending)
    return name in _LABELS and set(_LABEL.findall(labels)) <= _LABELS[name]
