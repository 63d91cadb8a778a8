"""Every program sets gRPC's C core before anything can import `grpc`: quiet, and out of forks."""

import ast
import subprocess
import sys
import tomllib

import pytest

from tests.architecture.test_names import ROOT
from tests.hang import HANG_S

FIRST = "gpuwarden.telemetry.grpc_core"
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
PROGRAMS = (
    *(target.partition(":")[0] for target in SCRIPTS.values()),
    "sandbox.__main__",
    "sandbox.agent_main",
    "sandbox.controller_main",
    "sandbox.spiffe.__main__",
)
NOISE = f"""
import os, sys, {FIRST}
import asyncio
from grpc import aio

async def main():
    async with aio.insecure_channel("unix:/nowhere/at/all") as channel:
        await channel.unary_unary("/a/b")(b"")

try:
    asyncio.run(main())
except aio.AioRpcError:
    print("refused with", os.environ["GRPC_VERBOSITY"])
"""
FORK = f"""
import os, {FIRST}
import asyncio
from grpc import aio

async def main():
    server = aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with aio.insecure_channel(f"127.0.0.1:{{port}}") as channel:
        await channel.channel_ready()
        child = os.fork()
        if not child:
            os._exit(len(os.listdir("/proc/self/task")))
        print("threads:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    await server.stop(None)

asyncio.run(main())
"""


def imported_first(module: str) -> str | None:
    """The first import that is not of the standard library."""
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            if name.partition(".")[0] not in sys.stdlib_module_names:
                return name
    return None


@pytest.mark.parametrize("module", PROGRAMS)
def test_a_program_imports_it_before_everything_else(module: str) -> None:
    assert imported_first(module) == FIRST


@pytest.mark.parametrize(("asked", "lines"), [(None, False), ("INFO", True)])
def test_the_core_says_nothing_unless_asked(asked: str | None, *, lines: bool) -> None:
    environment = {"PYTHONPATH": str(ROOT)} | ({} if asked is None else {"GRPC_VERBOSITY": asked})
    run = subprocess.run(
        [sys.executable, "-c", NOISE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert run.stdout == f"refused with {asked or 'NONE'}\n"
    assert bool(run.stderr) is lines, run.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_that_is_forked_beside_calls_has_no_threads_of_the_core() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert run.stdout == "threads: 1\n", run.stderr
