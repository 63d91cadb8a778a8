import os
import socket
import stat
from pathlib import Path

import pytest

from controller.rpc.server import SocketInUseError, claim_socket, owner_only


def _bind(path: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    return server


def test_a_free_path_is_left_alone(tmp_path: Path) -> None:
    claim_socket(tmp_path / "fleet.sock")
    assert list(tmp_path.iterdir()) == []


def test_a_stale_socket_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    _bind(path).close()
    claim_socket(path)
    assert not path.exists()


def test_a_living_server_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    with _bind(path) as server:
        server.listen()
        with pytest.raises(SocketInUseError, match="another process serves"):
            claim_socket(path)
    assert path.exists()


def test_a_server_too_busy_to_answer_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    with _bind(path) as server:
        server.listen(0)
        clients = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(str(path))
        with pytest.raises(SocketInUseError, match="another process serves"):
            claim_socket(path)
        for client in clients:
            client.close()


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "fleet.sock"
    path.write_text("precious")
    with pytest.raises(SocketInUseError, match="is not a socket"):
        claim_socket(path)
    assert path.read_text() == "precious"


def test_a_path_that_is_too_long_or_no_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketInUseError, match="longer than 107 bytes"):
        claim_socket(tmp_path / ("x" * 108))
    (tmp_path / "file").write_text("")
    with pytest.raises(SocketInUseError, match="Not a directory"):
        claim_socket(tmp_path / "file" / "fleet.sock")


def test_what_is_created_inside_is_the_owners_alone_and_the_umask_comes_back(
    tmp_path: Path,
) -> None:
    before = os.umask(0o022)
    try:
        with owner_only(), _bind(tmp_path / "s"):
            mode = stat.S_IMODE((tmp_path / "s").stat().st_mode)
        assert mode == 0o600
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
