import threading
from pathlib import Path

import pytest

from tests.e2e.lab.cache import Shelf, cache_folder, key, sources

MODULE = [("go.mod", b"module x"), ("go.sum", b"y h1:z")]


def test_the_key_is_of_content_not_of_order() -> None:
    assert key(MODULE, ["-trimpath"]) == key(MODULE[::-1], ["-trimpath"])


@pytest.mark.parametrize(
    ("files", "flags"),
    [
        ([("go.mod", b"module w"), MODULE[1]], ["-trimpath"]),
        ([MODULE[0], ("go.sum", b"y h1:w")], ["-trimpath"]),
        ([*MODULE, ("main.go", b"package main")], ["-trimpath"]),
        (MODULE, ["-trimpath", "-tags=seccomp"]),
        ([("go.mo", b"dmodule x"), MODULE[1]], ["-trimpath"]),
    ],
)
def test_anything_else_is_another_build(files: list[tuple[str, bytes]], flags: list[str]) -> None:
    assert key(files, flags) != key(MODULE, ["-trimpath"])


def test_sources_are_the_module_files_and_our_go(tmp_path: Path) -> None:
    for name in ("go.mod", "go.sum", "main.go", "notes.md"):
        (tmp_path / name).write_text(name)
    assert sorted(name for name, _ in sources(tmp_path)) == ["go.mod", "go.sum", "main.go"]


def test_a_finished_build_is_there_whole(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "etcd", "k1")
    with shelf.filling() as folder:
        (folder / "etcd").write_text("program")
        assert not shelf.folder.exists()
    assert shelf.is_filled
    assert (shelf.folder / "etcd").read_text() == "program"
    assert [path.name for path in shelf.folder.parent.iterdir()] == ["etcd-k1"]


def fill(shelf: Shelf, fault: Exception | None) -> None:
    with shelf.filling() as folder:
        (folder / "etcd").write_text("program")
        if fault is not None:
            raise fault


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "etcd", "k1")
    with pytest.raises(RuntimeError, match="compiler"):
        fill(shelf, RuntimeError("compiler"))
    assert not shelf.is_filled
    assert list(shelf.folder.parent.iterdir()) == []


def test_what_a_killed_builder_left_is_removed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, "etcd", "k1")
    left = shelf.folder.parent / ".etcd-abc"
    others = shelf.folder.parent / ".runc-abc"
    for folder in (left, others):
        folder.mkdir(parents=True)
    with shelf.filling():
        assert not left.exists()
    assert others.exists()


def test_one_builder_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []
    inside, entered = threading.Event(), threading.Event()

    def second() -> None:
        inside.wait()
        entered.set()
        with Shelf(tmp_path, "etcd", "k1").locked():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with Shelf(tmp_path, "etcd", "k1").locked():
        inside.set()
        entered.wait()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_cache_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUWARDEN_LAB_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("GPUWARDEN_LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/gpuwarden-lab")
