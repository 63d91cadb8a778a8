"""A registry of images on this machine: Debian's `docker-registry`, encrypted as registries are.

Whoever pushes to it trusts its authority by the variable SSL_CERT_FILE.
"""

import json
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.lab.pki import Pki
from tests.e2e.lab.waiting import until

_HOST = "127.0.0.1"
_ACCEPTED = ", ".join(f"application/vnd.oci.image.{kind}.v1+json" for kind in ("manifest", "index"))
_END_S = 60.0


@dataclass(frozen=True, slots=True)
class ImageRegistry:
    """Where it listens, and its authority's certificate."""

    host: str
    ca: Path

    def get(self, path: str) -> Any:
        """A document of the registry's API, below `/v2/`."""
        request = urllib.request.Request(
            f"https://{self.host}/v2/{path}", headers={"Accept": _ACCEPTED}
        )
        context = ssl.create_default_context(cafile=self.ca)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:  # noqa: S310 - as it says
            return json.load(answer)


@contextmanager
def image_registry(folder: Path) -> Iterator[ImageRegistry]:
    """A registry that keeps its images in `folder`."""
    with socket.create_server((_HOST, 0)) as free:
        host = f"{_HOST}:{free.getsockname()[1]}"
    pki = Pki(folder / "pki")
    leaf = pki.issue("registry", "registry", names=[_HOST])
    settings = folder / "registry.yaml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'registry'}}}}}\n"
        f"http: {{addr: '{host}', tls: {{certificate: {leaf.certificate}, key: {leaf.key}}}}}\n"
    )
    with (folder / "registry.log").open("w") as log:
        program = subprocess.Popen(
            ["docker-registry", "serve", settings],  # noqa: S607 - Debian's
            stdout=log,
            stderr=log,
        )
    registry = ImageRegistry(host, pki.ca)
    try:
        until("the registry answers", lambda: _answers(registry))
        yield registry
    finally:
        program.terminate()
        program.wait(_END_S)


def _answers(registry: ImageRegistry) -> bool:
    try:
        registry.get("")
    except OSError:
        return False
    return True
