"""Commit subjects: which are refused, and which commits are looked at."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.commit_subjects import fault, subjects


@pytest.mark.parametrize(
    "subject",
    [
        "binding: reject Bindings that set our annotations",
        "e2e: wait for the API server",
        "web, rpc: pass collaborators as arguments",
        "tests/e2e: process one pod at a time",
        "ledger: embed the id and feed it to the claim",
        "cli: bring back `fit`",
        f"a: {'add ' * 17}x",
    ],
)
def test_imperative_subjects_with_an_area_pass(subject: str) -> None:
    assert fault(subject) is None


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("binding: reject Bindings.", "full stop"),
        ("Reject Bindings that set our annotations", "`area: what`"),
        ("Binding: reject", "`area: what`"),
        ("binding:reject", "`area: what`"),
        ("binding: rejects Bindings", "'rejects'"),
        ("binding: rejected Bindings", "'rejected'"),
        ("binding: rejecting Bindings", "'rejecting'"),
        ("binding: Reject Bindings", "'Reject'"),
        ("binding: the webhook rejects Bindings", "'the'"),
        ("binding: ", "''"),
        (f"a: {'add ' * 17}xy", "73 characters"),
    ],
)
def test_a_fault_is_named(subject: str, text: str) -> None:
    assert text in (fault(subject) or "")


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> None:
        who = {f"GIT_{x}_{y}": "a@b" for x in ("AUTHOR", "COMMITTER") for y in ("NAME", "EMAIL")}
        alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(
            ["git", "-C", str(self.folder), *arguments],  # noqa: S607 - whichever git there is
            env={"PATH": os.environ["PATH"], **who, **alone},
            check=True,
        )

    def commit(self, subject: str) -> None:
        self.git("commit", "--quiet", "--allow-empty", "--message", f"{subject}\n\nWhy.")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_without_a_release_only_the_newest_commit_counts(repository: Repository) -> None:
    assert subjects(repository.folder) == []
    repository.commit("What was")
    repository.git("tag", "notes-1")
    repository.commit("a: add")
    assert subjects(repository.folder) == ["a: add"]


def test_all_commits_since_the_last_release_count_but_merges(repository: Repository) -> None:
    repository.commit("What was")
    repository.git("tag", "v1.0.0")
    assert subjects(repository.folder) == []
    repository.git("checkout", "--quiet", "-b", "side")
    repository.commit("a: add")
    repository.git("checkout", "--quiet", "main")
    repository.commit("b: add")
    repository.git("merge", "--quiet", "--no-edit", "side")
    assert sorted(subjects(repository.folder)) == ["a: add", "b: add"]


def test_a_tree_without_history_of_its_own_is_left_alone(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit("a: add")
    inside = repository.folder / "unpacked"
    inside.mkdir()
    assert subjects(inside) == []
    monkeypatch.setenv("PATH", str(inside))
    assert subjects(repository.folder) == []
