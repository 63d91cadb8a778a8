"""The images that docs/images.md builds and pushes are those that the chart names."""

import os
import re
import subprocess
from pathlib import Path

from tests.builders.console_commands import page_commands
from tests.chart.rendering import REQUIRED, pods, render
from tests.docs_pages.site import ROOT
from tests.hang import HANG_S

PAGE = "docs/images.md"


def test_docker_builds_and_pushes_what_the_chart_names(tmp_path: Path) -> None:
    """Typed with a program in Docker's place that notes what it is asked."""
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    docker.chmod(0o755)
    typed = [x.text for x in page_commands(PAGE) if x.section == "Build and push"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    shell = ["/bin/sh", "-euc", "\n".join(typed)]
    subprocess.run(shell, cwd=ROOT, env={"PATH": path}, timeout=HANG_S, check=True)
    asked = (tmp_path / "asked").read_text().splitlines()
    built = {x[2]: x[1] for x in map(_BUILD.fullmatch, asked) if x}
    pushed = {x.removeprefix("push ") for x in asked if x.startswith("push ")}
    assert set(built) == pushed == named(registry())
    for image, file in built.items():
        assert (ROOT / file).is_file()
        assert f"/gpuwarden-{file.removeprefix('Dockerfile.')}:" in image


_BUILD = re.compile(r"build -f (\S+) -t (\S+) \.")


def registry() -> str:
    """What the page says to give the chart."""
    (found,) = re.findall(r"`imageRegistry: (\S+)`", (ROOT / PAGE).read_text())
    return str(found)


def named(image_registry: str) -> set[str]:
    found = render({**REQUIRED, "imageRegistry": image_registry})
    images = {x["image"] for spec in pods(found).values() for x in spec["containers"]}
    return {x for x in images if "/gpuwarden-" in x}
