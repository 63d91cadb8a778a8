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
_PATIENCE_S: Final = 400


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
        (text,) = re.findall(
            rf"^## {section}.*?\n(.*?)(?=^## |\Z)", self._page, re.MULTILINE | re.DOTALL
        )
        found: list[str] = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        assert found
        return found

    def walk(self, *sections: str) -> None:
        """Run all commands of these sections of the page."""
        for section in sections:
            for command in self.commands(section):
                self.do(command)

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
