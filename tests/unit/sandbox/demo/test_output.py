"""What the demo does where nobody reads it any more."""

import subprocess
import sys

import pytest

from sandbox.nvml.build import ROOT
from tests.hang import HANG_S

NOBODY_READS = """
import logging, os, sys
from sandbox.demo.output import NobodyReadsError, is_read, say

say("somebody reads")
reading, writing = os.pipe()
for stream in {streams}:
    os.dup2(writing, stream)
os.close(reading)
assert not is_read()
logging.getLogger("asyncio").warning("what a library writes to standard error")
try:
    say("nobody reads")
except NobodyReadsError:
    say("nobody reads this either")
    sys.exit(7)
"""


@pytest.mark.parametrize("streams", [(1,), (1, 2)], ids=["output", "both"])
def test_the_exit_status_is_that_of_the_demo(streams: tuple[int, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOBODY_READS.format(streams=streams)],
        env={"PYTHONPATH": str(ROOT)},  # PYTHONUNBUFFERED would leave nothing to be written
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "somebody reads\n")
    said = "" if 2 in streams else "what a library writes to standard error\n"
    assert done.stderr == said
