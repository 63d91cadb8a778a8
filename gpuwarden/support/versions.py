"""What runs here: versions of us, Python, libraries and kernel. Reads, changes nothing.

Names of libraries come from our own list; nothing is said about what else is installed.
"""

import os
import platform
import resource
import ssl
from importlib import metadata
from pathlib import Path
from typing import Final

from gpuwarden import __version__
from gpuwarden.evidence.model import PROTOCOL
from gpuwarden.support.part import Content

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
