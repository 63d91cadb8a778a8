"""Compile the fake `libnvidia-ml.so.1`, with `cc` or, where there is none, with ziglang.

As it is compiled here it stands for real hardware, for tests and for the sandbox. The one in the
image for evaluations does not: every controller knows it by the driver's version.

The result lies in `build/fake-nvml/` of a checkout, or in the user's cache, stamped with the
digest of source and flags, so it is compiled once. Nothing is fetched except, without a
compiler, the `ziglang` package by pip from the hashed `requirements/zig.txt`, into the same place.

Run as `python -m sandbox.nvml.build`: prints the folder for LD_LIBRARY_PATH.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandbox import files

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = Path(__file__).with_name("fake_nvml.c")
LIBRARY: Final = "libnvidia-ml.so.1"
"""The soname that pynvml loads."""

_FLAGS: Final = (
    "-std=gnu11",
    "-O1",
    "-Wall",
    "-Wextra",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    f"-Wl,-soname,{LIBRARY}",
)
_STANDS_FOR_REAL: Final = "-DSTANDS_FOR_REAL"
_COMPILE_S: Final = 300


class BuildError(Exception):
    """The library could not be built; carries the output of the compiler."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that takes cc's arguments, and the environment it needs."""

    command: tuple[str, ...]
    environment: Mapping[str, str]


def build(
    target: Path | None = None, *, use_zig: bool | None = None, evaluation: bool = False
) -> Path:
    """Make sure that `target` holds the library of this source; return `target`.

    None is the place that all share. `use_zig`: None takes a C compiler where there is one.
    `evaluation`: as the image for evaluations has it. Raises BuildError.
    """
    target = target or files.made() / ("evaluation-nvml" if evaluation else "fake-nvml")
    target.mkdir(parents=True, exist_ok=True)
    stamp = target / "source.sha256"
    flags = _FLAGS if evaluation else (*_FLAGS, _STANDS_FOR_REAL)
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(flags).encode()).hexdigest()
    with _locked(target / "lock"):
        if _text(stamp) != digest or not (target / LIBRARY).exists():
            _compile(_compiler(use_zig=use_zig), flags, target)
            stamp.write_text(digest, "ascii")
    return target


def _text(path: Path) -> str | None:
    return path.read_text("ascii") if path.exists() else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Test workers build at once; the first one does the work."""
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compiler(*, use_zig: bool | None) -> Compiler:
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found and not use_zig:
        return Compiler((found,), os.environ)
    if use_zig is False:
        raise BuildError("no C compiler: looked for cc, gcc and clang")
    return _zig(files.made())


def _zig(cache: Path) -> Compiler:
    site = cache / "zig"
    if not (site / "ziglang").exists():
        print("no C compiler here: fetches ziglang (about 100 MB), once", file=sys.stderr)
        _run(
            (
                *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
                *("--require-hashes", "--target", str(site)),
                *("-r", str(files.data("requirements/zig.txt"))),
            ),
            os.environ,
        )
    environment = {
        **os.environ,
        "PYTHONPATH": str(site),
        "ZIG_GLOBAL_CACHE_DIR": str(cache / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(cache / "zig-cache"),
    }
    return Compiler((sys.executable, "-m", "ziglang", "cc"), environment)


def _compile(compiler: Compiler, flags: Sequence[str], target: Path) -> None:
    part = target / f"{LIBRARY}.part"
    _run(
        (*compiler.command, *flags, "-o", str(part), str(SOURCE), "-lpthread"),
        compiler.environment,
    )
    part.replace(target / LIBRARY)


def _run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=_COMPILE_S
    )
    if done.returncode != 0:
        raise BuildError(f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


if __name__ == "__main__":
    print(build())
