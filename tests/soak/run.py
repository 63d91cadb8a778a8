"""One soak: everything happens at once for some time, then it is looked at what is left."""

import asyncio
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandbox.fleet.tally import rss_mib
from tests.e2e.lab.waiting import NeverError, until
from tests.e2e.product.controller import ROOT, Controller
from tests.e2e.product.ledger import held, live
from tests.soak.cluster import PATIENCE_S, Cluster
from tests.soak.kinds import AGENTS, EXPECTED
from tests.soak.load import Load
from tests.soak.log_lines import ErrorLine, Format, errors_in, sort
from tests.soak.report import Agents, Ledger, Report, Shape, differences, memory_of
from tests.soak.slope import Sample

_THREADS: Final = 16
_SAMPLES: Final = 360
"""Of the memory of a process that lives for the whole of the time."""
_DOWN_SHARE: Final = 0.1
"""How long a killed replica stays away, of the time between two kills."""
_ROTATION_SHARE: Final = 0.8
"""In how much of the time between two rotations the agents get their SVIDs."""
_KIB: Final = 1024
_VERIFY_S: Final = 600


class Soak:
    """`run` once."""

    def __init__(self, cluster: Cluster, shape: Shape, own_log: Path, kept: Path) -> None:
        """`own_log`: of this process and the agents'; `kept`: folder for copies of all logs."""
        self._cluster = cluster
        self._shape = shape
        self._own_log = own_log
        self._kept = kept
        self._over = threading.Event()
        self._lost = False
        self._load = Load(
            cluster.pods, per_minute=shape.pods_per_minute, longest_s=max(shape.kill_s, 10)
        )
        self._lives: dict[tuple[str, int], list[Sample]] = {}
        self._kills = 0
        self._rotations = 0
        self._sizes = cluster.lab.log_sizes()
        """Of all logs, when everything stood."""

    async def run(self) -> Report:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
        self._cluster.fleet.listen(self._fleet_lost)
        try:
            async with asyncio.TaskGroup() as tasks:
                doing = [
                    tasks.create_task(asyncio.to_thread(work))
                    for work in (self._kill, self._rotate, self._measure)
                ]
                for work in (self._load.act, self._load.follow):
                    tasks.create_task(asyncio.to_thread(work))
                await asyncio.sleep(self._shape.minutes * 60)
                self._over.set()
                await asyncio.wait(doing)
                ledger = await asyncio.to_thread(self._compare)
                self._load.close()
        finally:
            self._over.set()
            self._load.close()
        return await asyncio.to_thread(self._look, ledger)

    def _fleet_lost(self) -> None:
        self._lost = True

    def _kill(self) -> None:
        """The second replica again and again, the first one once: its memory is followed then."""
        first, second = self._cluster.controllers
        for victim in itertools.chain([first], itertools.repeat(second)):
            if self._over.wait(self._shape.kill_s):
                return
            victim.kill()
            self._kills += 1
            self._over.wait(self._shape.kill_s * _DOWN_SHARE)
            victim.launch()
            victim.ready(PATIENCE_S)
            self._cluster.wait_whole()

    def _rotate(self) -> None:
        every_s = self._shape.rotate_s
        while not self._over.wait(every_s):
            self._cluster.rotate(every_s * _ROTATION_SHARE)
            self._rotations += 1

    def _measure(self) -> None:
        begun = time.monotonic()
        pause_s = self._shape.minutes * 60 / _SAMPLES
        while not self._over.wait(pause_s):
            for name, pid in self._cluster.processes().items():
                with suppress(OSError):  # it was killed in this moment, or is a zombie
                    if kib := rss_mib(pid) * _KIB:
                        sample = Sample(time.monotonic() - begun, kib)
                        self._lives.setdefault((name, pid), []).append(sample)

    def _compare(self) -> Ledger:
        """While pods run; then they are deleted, and nothing may be left of them."""
        load, api = self._load, self._cluster.lab.api
        load.hold()
        with suppress(NeverError):  # the report names them
            until("every pod is bound", lambda: not load.waiting, timeout_s=PATIENCE_S)
        with suppress(NeverError):
            until("ledger and API agree", lambda: held(api) == live(api), timeout_s=PATIENCE_S)
        ours, theirs = held(api), live(api)
        differ = differences({"ledger": ours, "pods": theirs})
        load.close()
        path = f"{self._cluster.pods.path}/pods"
        for pod in api.get(path)["items"]:
            api.delete(f"{path}/{pod['metadata']['name']}", grace_s=0)
        with suppress(NeverError):
            until("no GPU is held", lambda: not held(api), timeout_s=PATIENCE_S)
        return Ledger(len(theirs), differ, len(held(api)))

    def _look(self, ledger: Ledger) -> Report:
        """Ends the controllers: then their logs are whole."""
        for one in self._cluster.controllers:
            one.stop()
        tally = self._cluster.fleet.report.tally
        if self._lost:
            raise RuntimeError(f"the agents' process ended by itself; its log is {self._own_log}")
        errors = [*self._load.errors, *self._errors()]
        return Report(
            shape=self._shape,
            kills=self._kills,
            rotations=self._rotations,
            certificates_taken=self._certificates_taken(),
            memory=memory_of(self._lives, self._shape.limit_kib_per_min),
            pods=self._load.placed(),
            ledger=ledger,
            agents=Agents(
                streams_opened=tally.opened,
                accepted=tally.accepted,
                rotated=tally.happened["rotate"],
                refused=dict(tally.refused),
                alarms=dict(tally.alarms),
            ),
            logs=sort(errors, EXPECTED),
            audit={one.name: _audit_fault(one) for one in self._cluster.controllers},
        )

    def _errors(self) -> list[ErrorLine]:
        """Of all programs; of Kubernetes' own those after everything stood."""
        self._kept.mkdir(parents=True, exist_ok=True)
        found = errors_in(AGENTS, self._own_log.read_text(), Format.PLAIN)
        for log in self._cluster.lab.log_sizes():
            shutil.copy(log, self._kept)
            how = _format_of(log.stem)
            begin = 0 if how is Format.OURS else self._sizes.get(log, 0)
            written = log.read_bytes()[begin:].decode(errors="replace")
            found += errors_in(log.stem, written, how)
        return found

    def _certificates_taken(self) -> dict[str, int]:
        taken: Counter[str] = Counter()
        for one in self._cluster.controllers:
            for line in one.log.read_text().splitlines():
                if '"certificate"' in line and '"renewed"' in line:
                    taken[json.loads(line)["listener"]] += 1
        return dict(taken)


def _format_of(program: str) -> Format:
    if program.startswith("controller-"):
        return Format.OURS
    return Format.ZAP if program == "etcd" else Format.KLOG


def _audit_fault(one: Controller) -> str:
    """What `gpuwarden audit verify` has against the replica's log; empty: nothing."""
    done = subprocess.run(
        (sys.executable, "-m", "gpuwarden.cli", "audit", "verify", str(one.data / "audit")),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_VERIFY_S,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr or str(done.returncode)
