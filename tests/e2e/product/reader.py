"""Somebody who types what a page of the documentation says, in front of a lab's cluster."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.e2e.lab.fake_nodes import KIND_LABEL
from tests.e2e.lab.lab import Lab
from tests.e2e.product.installation import DEPLOY

ROOT: Final = DEPLOY.parent
_PATIENCE_S: Final = 660
"""More than any page tells a command to wait."""
_VARIES: Final = (
    (r"\b[0-9a-f]{8}(?:[0-9a-f-]*[0-9a-f])?\b", "HEX"),
    (r"\b\d+(?:\.\d+)*[smhd]?\b", "0"),
    (r"\s+", " "),
)
"""From cluster to cluster, or by the second."""


class Reader:
    """With the repository's folders, kubectl, a kubeconfig and one page."""

    def __init__(self, lab: Lab, folder: Path, page: str, *programs: Path) -> None:
        """`folder`: is made, for files that the page's commands write; `programs`: more than
        kubectl.
        """
        self.lab = lab
        self._folder = folder
        self._page = (ROOT / page).read_text()
        folder.mkdir()
        for name in ("deploy", "examples"):
            (folder / name).symlink_to(ROOT / name)
        kubectl = lab.site.programs["kubectl"]
        self._path = ":".join(str(x.parent) for x in (kubectl, *programs))

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        """In a shell, in the repository's folder."""
        return subprocess.run(
            ["/bin/bash", "-euo", "pipefail", "-O", "expand_aliases", "-c", command],
            cwd=self._folder,
            env={
                "PATH": f"{self._path}:{os.environ['PATH']}",
                "KUBECONFIG": str(self.lab.kubeconfig),
                "HOME": str(self._folder),
            },
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )

    def do(self, command: str) -> str:
        """What it prints, standard error last; it succeeds."""
        done = self.run(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout + done.stderr

    def commands(self, section: str) -> Sequence[str]:
        """What the page says to type below this heading, by block."""
        found: list[str] = re.findall(
            r"^```sh\n(.*?)^```", self._section(section), re.MULTILINE | re.DOTALL
        )
        assert found
        return found

    def answers(self, section: str) -> Sequence[tuple[str, Sequence[str]]]:
        """Commands of this section with the lines that the page shows right below them.

        Where it shows `…`, something is left out.
        """
        block = r"^```{}\n((?:(?!```).*\n)+)```\n"
        shown = f"{block.format('sh')}\n{block.format('')}"
        found: list[tuple[str, str]] = re.findall(shown, self._section(section), re.MULTILINE)
        assert found
        return [(command, [x for x in text.splitlines() if x != "…"]) for command, text in found]

    def lacks(self, shown: Sequence[str], command: str, **named: str) -> set[str]:
        """Lines that the page shows and the command did not print; it succeeds.

        `named`: what is called so on the page, by its name here.
        """
        said = self.do(command)
        for name, own in named.items():
            said = said.replace(own, name)
        return {_alike(x) for x in shown} - {_alike(x) for x in said.splitlines()}

    def walk(self, *sections: str) -> None:
        """Run all commands of these sections of the page."""
        for section in sections:
            for command in self.commands(section):
                self.do(command)

    def _section(self, heading: str) -> str:
        (text,) = re.findall(
            rf"^## {heading}.*?\n(.*?)(?=^## |\Z)", self._page, re.MULTILINE | re.DOTALL
        )
        return str(text)

    def traces(self) -> set[str]:
        """Kind and name of every object that says gpuwarden anywhere; Events end by themselves."""
        api = self.lab.api
        groups = [
            f"/apis/{x['preferredVersion']['groupVersion']}" for x in api.get("/apis")["groups"]
        ]
        found = set()
        for group in ("/api/v1", *groups):
            for resource in api.get(group)["resources"]:
                if "list" not in resource["verbs"] or resource["kind"] == "Event":
                    continue
                for item in api.get(f"{group}/{resource['name']}")["items"]:
                    if "gpuwarden" in json.dumps(item).replace(KIND_LABEL, ""):
                        found.add(f"{resource['kind']} {item['metadata']['name']}")
        return found


def _alike(line: str) -> str:
    """Without what differs from cluster to cluster, or by the second."""
    for pattern, instead in _VARIES:
        line = re.sub(pattern, instead, line)
    return line.strip()
