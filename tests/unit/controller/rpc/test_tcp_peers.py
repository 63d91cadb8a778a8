import socket
import sys
from pathlib import Path

import pytest

from controller.rpc.tcp_peers import tcp_peers

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
LINE = "   {n}: {local} {remote} {state} 00000000:00000000 00:00000000 00000000     0\n"


def table(path: Path, *rows: tuple[str, str, str]) -> Path:
    lines = (LINE.format(n=n, local=x, remote=y, state=z) for n, (x, y, z) in enumerate(rows))
    path.write_text(HEAD + "".join(lines))
    return path


@pytest.mark.skipif(sys.byteorder != "little", reason="the table is of a little-endian machine")
def test_established_connections_to_the_port_are_named_as_grpc_does(tmp_path: Path) -> None:
    ipv4 = table(
        tmp_path / "tcp",
        ("00000000:24E3", "00000000:0000", "0A"),
        ("0100000A:24E3", "0201A8C0:A2C4", "01"),
        ("0100000A:24E3", "0301A8C0:A2C4", "06"),
        ("0100000A:24E4", "0401A8C0:A2C4", "01"),
    )
    ipv6 = table(
        tmp_path / "tcp6",
        ("0" * 24 + "01000000:24E3", "B80D0120" + "0" * 16 + "01000000:0FA0", "01"),
        ("0" * 24 + "01000000:24E3", "0000000000000000FFFF00000501A8C0:0FA1", "01"),
    )
    assert tcp_peers(9443, (ipv4, ipv6, tmp_path / "missing")) == {
        "ipv4:192.168.1.2:41668",
        "ipv6:[2001:db8::1]:4000",
        "ipv4:192.168.1.5:4001",
    }


def test_a_connection_of_this_machine_is_found_while_it_is_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            mine = f"ipv4:127.0.0.1:{client.getsockname()[1]}"
            assert tcp_peers(port) == {mine}
