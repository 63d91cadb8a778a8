"""How a soak ends that has no whole report: there is one all the same, of where it was."""

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.product.controller import ROOT
from tests.hang import HANG_S
from tests.soak.__main__ import broke, told, write
from tests.soak.report import Stuck
from tests.soak.watch import Watch

GIVES_UP = """
import sys, threading
from pathlib import Path
from tests.soak.__main__ import give_up
from tests.soak.cluster import KeptLogs
from tests.soak.report import Stuck

class Fleet:
    def close(self):
        print("agents are ended", flush=True)

folder = Path(sys.argv[1])
stuck = Stuck("bind", 180.0, ("pod soak-1",), "its limit is exceeded")
threading.Thread(target=give_up, args=(folder, KeptLogs(folder / "logs"), Fleet(), stuck)).start()
threading.Event().wait()
"""


def faults_in(folder: Path) -> list[str]:
    found: list[str] = json.loads((folder / "report.json").read_text())["faults"]
    return found


def test_an_error_is_told_with_its_phase(tmp_path: Path) -> None:
    watch = Watch(lambda _: None, lambda _: None, lambda: 7.0)
    watch.note(["controller-0 does not run"])
    broke(tmp_path, watch, OSError("no port"))
    (fault,) = faults_in(tmp_path)
    assert "(OSError('no port')); outstanding: controller-0 does not run" in fault


def test_what_hangs_after_the_report_is_added_to_it(tmp_path: Path) -> None:
    write(tmp_path, {"faults": ["first"], "stuck": [], "kills": 3})
    told(tmp_path, Stuck("clean-up", 300, ("x",)))
    assert faults_in(tmp_path) == [
        "first",
        "not done after 300 s: clean-up; outstanding: x",
    ]
    assert json.loads((tmp_path / "report.json").read_text())["kills"] == 3


def test_a_process_whose_main_thread_hangs_ends_with_a_report(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GIVES_UP, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
    )
    assert done.returncode == 1, done.stderr
    (fault,) = faults_in(tmp_path)
    assert "bind (its limit is exceeded); outstanding: pod soak-1" in fault
    assert "agents are ended" in done.stdout
    assert "most recent call first" in (tmp_path / "threads.txt").read_text()
