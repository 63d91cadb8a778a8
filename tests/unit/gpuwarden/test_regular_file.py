"""Only regular files, no waiting, nothing for others."""

import os
import socket
from pathlib import Path

import pytest

from gpuwarden.regular_file import (
    NotRegularError,
    open_new,
    open_to_read,
    private_files,
    private_folder,
    require_regular,
)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_regular_file_is_read_through_a_link_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        with open_to_read(tmp_path / name) as file:
            assert file.read() == b"content"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pipe", "pipe is a named pipe; expected a regular file"),
        ("link", "link is a named pipe; expected a regular file"),
        ("folder", "folder is a folder; expected a regular file"),
        ("socket", "socket is a socket; expected a regular file"),
        ("device", "device is a device; expected a regular file"),
    ],
)
def test_anything_else_is_refused_at_once(tmp_path: Path, name: str, says: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(NotRegularError, match=says) as caught:
            open_to_read(tmp_path / name)
    assert caught.value.strerror == says.partition(" is ")[2]


def test_what_is_put_there_in_between_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between looking and opening."""
    os.mkfifo(tmp_path / "pipe")
    regular = Path(__file__).stat()
    monkeypatch.setattr("gpuwarden.regular_file.Path.stat", lambda _path: regular)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(NotRegularError, match="a named pipe"):
        open_to_read(tmp_path / "pipe")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_an_open_descriptor_is_judged(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    descriptor = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(NotRegularError):
        require_regular(descriptor, tmp_path / "pipe")
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["nothing", "file", "pipe", "link"])
def test_a_new_file_takes_the_place_of_what_was_there(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "new", tmp_path / "target"
    target.write_bytes(b"precious")
    match kind:
        case "file":
            path.write_bytes(b"longer than what comes")
            path.chmod(0o666)
        case "pipe":
            os.mkfifo(path)
        case "link":
            path.symlink_to(target)
        case _:
            pass
    with open_new(path) as file:
        file.write(b"new")
    assert (path.read_bytes(), mode(path), path.is_symlink()) == (b"new", 0o600, False)
    assert target.read_bytes() == b"precious"


def test_a_new_file_does_not_take_the_place_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        open_new(tmp_path)


def test_a_folder_is_private_whoever_made_it(tmp_path: Path) -> None:
    made = tmp_path / "a" / "b"
    private_folder(made)
    assert mode(made) == 0o700
    made.chmod(0o2775)
    private_folder(made)
    assert made.stat().st_mode & 0o7777 == 0o700


def test_files_are_taken_from_others(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    folder = tmp_path / "folder"
    folder.mkdir()
    outside.touch(0o644)
    outside.chmod(0o644)
    (folder / "link").symlink_to(outside)
    (folder / "file").touch()
    (folder / "file").chmod(0o664)
    (folder / "own").touch()
    (folder / "own").chmod(0o400)
    (folder / "sub").mkdir()
    (folder / "sub").chmod(0o755)
    os.mkfifo(folder / "pipe")
    private_files(folder)
    modes = {name: mode(folder / name) for name in ("file", "own", "sub")}
    assert modes == {"file": 0o600, "own": 0o400, "sub": 0o755}
    assert mode(outside) == 0o644


def test_what_belongs_to_another_user_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o644)
    tmp_path.chmod(0o755)

    def refused(*_args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("gpuwarden.regular_file.os.fchmod", refused)
    monkeypatch.setattr("gpuwarden.regular_file.Path.chmod", refused)
    private_files(tmp_path)
    private_folder(tmp_path)
    assert (mode(tmp_path), mode(tmp_path / "file")) == (0o755, 0o644)
