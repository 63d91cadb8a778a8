"""Parts of a support bundle that can be made on the machine of a process, without gRPC.

Versions, the settings as the process would read them, the state of the folders that they name,
and what its ops listener answers. It reads only. A part that cannot be made says why and stops
no other.
"""

import http.client
import os
import platform
import resource
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from gpuwarden import __version__
from gpuwarden.evidence.model import PROTOCOL
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.values import Address
from gpuwarden.support.disclosure import (
    disclosed_readiness,
    disclosed_settings,
    known_words,
    metrics_part,
)
from gpuwarden.support.part import Content, Part, json_part, missing

# --- versions

LIBRARIES: Final = (
    "aiohttp",
    "cryptography",
    "cyclopts",
    "grpcio",
    "kubernetes",
    "msgspec",
    "nvidia-ml-py",
    "opentelemetry-sdk",
    "prometheus-client",
    "protobuf",
    "PyYAML",
    "spiffe",
    "structlog",
    "uvloop",
)
_OS_RELEASE: Final = Path("/etc/os-release")
_OS_KEYS: Final = ("ID", "VERSION_ID")


def versions() -> Content:
    """For `versions.json`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    kernel = platform.uname()
    return Content(
        {
            "gpuwarden": __version__,
            "protocol": PROTOCOL,
            "python": platform.python_version(),
            "openssl": ssl.OPENSSL_VERSION,
            "libraries": {name: _installed(name) for name in LIBRARIES},
            "kernel": {
                "system": kernel.system,
                "release": kernel.release,
                "machine": kernel.machine,
            },
            "os": _os(),
            "cpus": os.cpu_count(),
            "openFiles": {"soft": soft, "hard": hard},
        }
    )


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _os() -> dict[str, str]:
    try:
        lines = _OS_RELEASE.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key: text.strip('"')[:64] for key, _, text in pairs if key in _OS_KEYS}


# --- settings, files, ops listener

PATHS: Final = ("agent.stateDir", "audit.dir", "store.path", "listen.local")
"""Keys whose files are looked at: there or not, size, mode, room; never what they hold."""
_WAIT_S: Final = 5.0
_MAX_ANSWER: Final = 4 << 20
_LOOPBACK: Final = "127.0.0.1"


def versions_part() -> Part:
    """Of this machine and this installation."""
    return _made("versions.json", versions)


def settings_parts(loaded: Loaded[Any]) -> Iterator[Part]:
    """Settings of a process, and the state of the files that they name."""
    yield _made("settings.json", lambda: disclosed_settings(loaded))
    yield _made("files.json", lambda: _files(loaded.values))


def ops_parts(ops: Address) -> Iterator[Part]:
    """What the ops listener of a process answers."""
    yield _asked("readyz.json", ops, "/readyz", _ready)
    yield _asked("metrics.prom", ops, "/metrics", lambda body: metrics_part("metrics.prom", body))


def reachable(ops: Address) -> Address | None:
    """Where to ask a listener that is set to `ops`; None where any free port was taken."""
    if ops.port == 0:
        return None
    return Address(ops.host if ops.host not in {"", "0.0.0.0", "::"} else _LOOPBACK, ops.port)  # noqa: S104 -- compared, not bound


def _ready(body: bytes) -> Part:
    return json_part("readyz.json", disclosed_readiness(body))


def _made(name: str, make: Callable[[], Content]) -> Part:
    try:
        return json_part(name, make())
    except Exception as error:  # noqa: BLE001 -- a bundle is made of a sick process; what fails is named
        return missing(name, _failure(error))


def _asked(name: str, ops: Address, path: str, part_of: Callable[[bytes], Part]) -> Part:
    try:
        return part_of(_answer(ops, path))
    except (OSError, http.client.HTTPException, ValueError, TypeError, RecursionError) as error:
        return missing(name, f"the ops listener gave no {path}: {_failure(error)}")


def _answer(ops: Address, path: str) -> bytes:
    connection = http.client.HTTPConnection(ops.host, ops.port, timeout=_WAIT_S)
    try:
        connection.request("GET", path)
        body = connection.getresponse().read(_MAX_ANSWER + 1)
    finally:
        connection.close()
    if len(body) > _MAX_ANSWER:
        raise ValueError("an answer that is too large")
    return body


def _failure(error: BaseException) -> str:
    """The error's name and what is known of its text, never the text."""
    return " ".join([type(error).__name__, *known_words(str(error))])


def _files(values: Mapping[str, Any]) -> Content:
    found = {key: _file(values[key]) for key in PATHS if isinstance(values.get(key), Path)}
    return Content(found, tuple(found))


def _file(path: Path) -> dict[str, object]:
    try:
        facts = path.stat()
    except OSError as error:
        return {"there": False, "error": _failure(error), "room": _room(path.parent)}
    return {
        "there": True,
        "kind": _kind(facts.st_mode),
        "mode": f"{stat.S_IMODE(facts.st_mode):04o}",
        "mine": facts.st_uid == os.geteuid(),
        "bytes": facts.st_size,
        "room": _room(path),
    }


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "folder"
    return "socket" if stat.S_ISSOCK(mode) else "file"


def _room(path: Path) -> dict[str, int] | None:
    try:
        volume = os.statvfs(path)
    except OSError:
        return None
    return {
        "freeBytes": volume.f_bavail * volume.f_frsize,
        "bytes": volume.f_blocks * volume.f_frsize,
        "freeFiles": volume.f_favail,
    }
