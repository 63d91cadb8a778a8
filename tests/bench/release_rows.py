"""From a pod's end to the next pod on its GPU: one after the other, and forty on eight GPUs."""

from pathlib import Path
from statistics import median, quantiles
from typing import Final

from tests.bench.child import Child
from tests.bench.release_main import GPUS, RUN_S
from tests.bench.results import Bound, Goal, Row

GROUP: Final = "From a pod's end to its GPU's next pod"
_ENDS: Final = 200
_PODS: Final = 40


def release_rows(folder: Path, ends: int = _ENDS, pods: int = _PODS) -> list[Row]:
    """Controller, agent and a stand-in for the API server share one process."""
    flags = ("--folder", folder / "release", "--ends", str(ends), "--pods", str(pods))
    with Child.python("tests.bench.release_main", *flags) as child:
        report = child.event("report")
    seconds = list[float](report["released"])
    return [
        Row(
            GROUP,
            "end of a pod to the release of its GPU, p99",
            "s",
            quantiles(seconds, n=100, method="inclusive")[98],
            goal=Goal(Bound.AT_MOST, 3.0, of_ratio=False),
            note="After the pod's last process is gone.",
        ),
        Row(GROUP, "median of the same", "s", median(seconds)),
        Row(
            GROUP,
            f"{pods} pods of {RUN_S:g} s on {GPUS} GPUs",
            "s",
            float(report["wave"]),
            goal=Goal(Bound.AT_MOST, 60.0, of_ratio=False),
            note=f"At least {RUN_S * -(-pods // GPUS):g} s. Whoever binds tries again 0.2 s after"
            " a refusal; a scheduler's back-off is not in it.",
        ),
    ]
