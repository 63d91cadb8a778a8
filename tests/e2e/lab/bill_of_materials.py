"""The SPDX bill of materials of an image: its Debian and Python packages, read by syft.

syft finds the Debian packages in `/var/lib/dpkg/status.d`, the Python ones in their `.dist-info`.
The document names the image by digest and no time but the image's, so that the same image has the
same bill.
"""

import json
import os
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.lab.image_builder import ImageBuildError

_SYFT = Path(sys.executable).with_name("syft")
_SCAN_S = 900
_SHOWN = 2000


def write_bill(archive: Path, image: str, target: Path, epoch: int) -> None:
    """Write the bill of a docker archive unless it is there; ImageBuildError says what failed."""
    if target.exists():
        return
    if not _SYFT.exists():
        raise ImageBuildError("a bill of materials needs syft: `make images` installs it")
    name, _, version = image.rpartition("/")[2].partition(":")
    part = target.with_suffix(".part")
    done = subprocess.run(
        (
            *(_SYFT, "scan", f"docker-archive:{archive}", "--quiet"),
            *("--output", f"spdx-json={part}"),
            *("--source-name", name, "--source-version", version),
        ),
        env={**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"},
        capture_output=True,
        text=True,
        timeout=_SCAN_S,
        check=False,
    )
    if done.returncode != 0:
        raise ImageBuildError(f"syft: {(done.stdout + done.stderr)[-_SHOWN:]}")
    document = json.loads(part.read_text())
    created = datetime.fromtimestamp(epoch, UTC)
    document["creationInfo"]["created"] = created.strftime("%Y-%m-%dT%H:%M:%SZ")
    document["documentNamespace"] = f"https://gpuwarden.dev/spdx/{name}/{version}/{_id(archive)}"
    part.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
    part.replace(target)


def _id(archive: Path) -> str:
    """The image's own digest: of its configuration, which names all layers."""
    with tarfile.open(archive) as opened:
        manifest = opened.extractfile("manifest.json")
        assert manifest is not None, "a docker archive"
        return str(json.load(manifest)[0]["Config"]).removesuffix(".json")
