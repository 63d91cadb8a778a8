"""What programs and pods wrote during a test that failed, for people.

Files and folders may go at any moment: kubelet deletes a pod's logs with the pod. What is gone
is left out, and nothing here ends a run.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


def files_below(folder: Path, suffix: str) -> Iterator[Path]:
    """Every file there whose name ends so, as far as it stays long enough to be listed."""
    for parent, _, names in os.walk(folder):  # leaves out folders that it cannot read
        yield from (Path(parent) / name for name in names if name.endswith(suffix))


def sizes(logs: Iterable[Path]) -> dict[Path, int]:
    """How much each has by now."""
    found = {}
    for path in logs:
        try:
            found[path] = path.stat().st_size
        except OSError:
            continue
    return found


def keep(logs: Iterable[Path], since: Mapping[Path, int], base: Path, target: Path) -> str:
    """Copy what each has had since then below `target`, as it lies below `base`; what to tell."""
    left_out = []
    for path in logs:
        copy = target / path.relative_to(base)
        try:
            with path.open("rb") as log:
                log.seek(since.get(path, 0))
                content = log.read()
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        except OSError as error:
            left_out.append(f"{path.name}: {error.strerror}")
    return "; ".join([f"kept in {target}", *left_out])
