"""`python -m tests.e2e.lab.build [PROJECT …]`: the lab's programs, built once into the cache.

Modules come through Go's own client as it is set up on the machine, checksums verified. A
project that cannot be built here is an error that says what is missing. A build that was broken
off goes on where it stopped, here or in the next run: Go keeps what it has compiled and loaded.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from tenacity.wait import wait_base, wait_random_exponential

from tests.e2e.lab.cache import Shelf, cache_folder, key, sources
from tests.e2e.lab.machine import missing
from tests.e2e.lab.selection import needed, why_no_node, why_no_spire
from tests.e2e.lab.upstreams import (
    CONTROL_PLANE,
    GRPCURL,
    NODE,
    SPIRE,
    UPSTREAMS,
    VERSITYGW,
    Upstream,
    least_go,
    upstream,
)
from tests.go_toolchain import NoGoError, find_go

_BUILD_S = 3600
"""For a build that hangs: the longest takes ten minutes of two cores."""
_ATTEMPTS = 3
_PAUSE = wait_random_exponential(multiplier=2, max=30)
_SHOWN = 4000
_BROKEN_OFF = re.compile(
    r"signal: killed|dial tcp|i/o timeout|connection re(?:set|fused)|unexpected EOF"
    r"|TLS handshake timeout|stream error|50[0234] "
)
"""What Go says where the machine or its network failed, and not the project."""


class BuildError(RuntimeError):
    """A project could not be built; says what is missing or what Go said."""


class BrokenOffError(BuildError):
    """The build did not come to its end; another attempt goes on where it stopped."""


def shelf(project: Upstream, cache: Path) -> Shelf:
    """Where the project's build belongs."""
    flags = (*project.flags(), f"cgo={project.cgo}")
    return Shelf(cache, project.folder, key(sources(project.path), flags))


def built(projects: Iterable[str], cache: Path | None = None) -> dict[str, Path]:
    """Each program of these projects by its name; builds what the cache lacks."""
    cache = cache or cache_folder()
    programs = {}
    for project in map(upstream, projects):
        place = shelf(project, cache)
        if not place.is_filled:
            with place.locked():
                if not place.is_filled:  # another builder may have been first
                    _build(project, place, cache)
        programs.update({name: place.folder / name for name in project.binaries})
    return programs


def _build(project: Upstream, place: Shelf, cache: Path) -> None:
    if lines := missing(project.needs):
        raise BuildError(f"{project.folder} needs {'; '.join(lines)}")
    go = find_go(cache, at_least=least_go(project.go_mod))
    started = time.monotonic()
    _say(f"{project.folder} {project.version}: building")
    with place.filling() as folder:
        install(go, project, folder)
        for found, wanted in project.renamed:
            (folder / found).rename(folder / wanted)
        if absent := [name for name in project.binaries if not (folder / name).exists()]:
            raise BuildError(f"{project.folder} built no {', '.join(absent)}")
    _say(f"{project.folder} {project.version}: {time.monotonic() - started:.0f} s")


def install(
    go: Path,
    project: Upstream,
    folder: Path,
    *,
    limit_s: float = _BUILD_S,
    pause: wait_base = _PAUSE,
) -> None:
    """Compile the project's programs into `folder`, in several attempts if it is broken off."""
    attempts = Retrying(
        retry=retry_if_exception_type(BrokenOffError),
        stop=stop_after_attempt(_ATTEMPTS),
        wait=pause,
        before_sleep=_say_again,
        reraise=True,
    )
    attempts(_install_once, go, project, folder, limit_s)


def _say_again(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _say(f"{error}; attempt {state.attempt_number + 1} of {_ATTEMPTS}")


def _install_once(go: Path, project: Upstream, folder: Path, limit_s: float) -> None:
    what = "." if project.is_ours else "tool"
    try:
        done = subprocess.run(
            [go, "install", *project.flags(), what],
            cwd=project.path,
            env={
                **os.environ,
                "GOBIN": str(folder),
                "GOFLAGS": "-mod=readonly",
                "GOTOOLCHAIN": "local",
                "GOWORK": "off",
                "CGO_ENABLED": str(int(project.cgo)),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BrokenOffError(
            f"{project.folder} was not built within {limit_s:.0f} s: run this again when the"
            " machine has less to do, it goes on where it stopped"
        ) from None
    if done.returncode == 0:
        return
    said = done.stderr[-_SHOWN:]
    if _BROKEN_OFF.search(said):
        raise BrokenOffError(
            f"{project.folder} was broken off: run this again when the network or the memory is"
            f" there, it goes on where it stopped: {said}"
        )
    raise BuildError(f"{project.folder} does not build: {said}")


def _say(line: str) -> None:
    sys.stderr.write(f"lab: {line}\n")
    sys.stderr.flush()


def main() -> int:
    """Build the named projects, or what the cluster needs; 1 where one could not be built."""
    names = [project.folder for project in UPSTREAMS]
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.lab.build", description=__doc__)
    parser.add_argument("project", nargs="*", help=f"of {', '.join(names)}, or `all`")
    parser.add_argument("--for-tests", action="store_true", help="what can run on this machine")
    arguments = parser.parse_args()
    chosen = arguments.project or [*CONTROL_PLANE, *NODE]
    if arguments.for_tests:
        spire = () if why_no_spire() else (SPIRE,)
        chosen = [*needed(has_node=not why_no_node()), *spire, GRPCURL, VERSITYGW]
    if unknown := set(chosen) - {*names, "all"}:
        parser.error(f"no such project: {', '.join(sorted(unknown))}")
    failed = 0
    for name in names if "all" in chosen else chosen:
        try:
            built([name])
        except (BuildError, NoGoError) as error:
            _say(str(error))
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
