"""Ports for the lab's servers."""

import subprocess
import sys

import pytest

from tests.e2e.lab.place import free_port
from tests.hang import HANG_S

HOST = "127.0.0.1"
TAKES = """
import sys
from tests.e2e.lab.place import free_port
print(free_port("127.0.0.1"), flush=True)
sys.stdin.read()
"""


def test_a_port_that_is_given_is_not_given_again_while_its_process_lives() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        port = int(other.stdout.readline())
        just_that = range(port, port + 1)
        with pytest.raises(OSError, match=f"no free port of {port} to {port} "):
            free_port(HOST, just_that)
        other.stdin.close()
        other.wait(HANG_S)
        assert free_port(HOST, just_that) == port
        with pytest.raises(OSError, match="no free port"):
            free_port(HOST, just_that)
