"""One soak: everything happens at once for some time, then it is looked at what is left."""

import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from sandbox.fleet.tally import rss_mib
from tests.e2e.lab.waiting import NeverError, until
from tests.e2e.product.controller import ROOT, Controller
from tests.e2e.product.ledger import Held, held, live
from tests.soak.cluster import PATIENCE_S, Cluster
from tests.soak.kinds import AGENTS, EXPECTED
from tests.soak.load import Load, described
from tests.soak.log_lines import Cause, ErrorLine, Format, Span, errors_in, sort
from tests.soak.report import Agents, Ledger, Report, Shape, Stuck, differences, memory_of
from tests.soak.slope import Sample
from tests.soak.watch import AGREE, BIND, CLIENT_ENDS, EMPTY, LOOK, WORK_ENDS, Phase, Watch, during
from tests.soak.workers import Workers

_SAMPLES: Final = 360
"""Of the memory of a process that lives for the whole of the time."""
_DOWN_SHARE: Final = 0.1
"""How long a killed replica stays away, of the time between two kills."""
_ROTATION_SHARE: Final = 0.8
"""In how much of the time between two rotations the agents get their SVIDs."""
_KIB: Final = 1024
_VERIFY_S: Final = 240
_POLL_S: Final = 0.2


class Soak:
    """`run` once."""

    def __init__(
        self, cluster: Cluster, shape: Shape, own_log: Path, workers: Workers, watch: Watch
    ) -> None:
        """`own_log`: of this process and the agents'; `workers`: follow the agents already."""
        self._cluster = cluster
        self._shape = shape
        self._own_log = own_log
        self._workers = workers
        self._watch = watch
        self._load = Load(
            cluster.pods, per_minute=shape.pods_per_minute, longest_s=max(shape.kill_s, 10)
        )
        self._lives: dict[tuple[str, int], list[Sample]] = {}
        self._spans = [Span(Cause.START, 0, time.time())]
        self._stuck: list[Stuck] = []
        self._sizes = cluster.lab.log_sizes()
        """Of all logs, when everything stood."""
        watch.state = self._state

    def run(self) -> Report:
        """Each wait has a limit: what is outstanding when it is over is in the report."""
        work, load = self._workers, self._load
        doing = {"kill": self._kill, "rotate": self._rotate, "measure": self._measure}
        follow = {"act on pods": load.act, "follow pods": load.follow}
        try:
            self._watch.enter(phase := during(self._shape.minutes))
            for name, what in {**doing, **follow}.items():
                work.start(name, what)
            if work.over.wait(phase.limit_s):
                self._stuck.append(self._watch.stuck("a thread has raised"))
            work.over.set()
            self._wait(WORK_ENDS, doing)
            ledger = self._compare()
            self._wait(CLIENT_ENDS, follow)
            return self._look(ledger)
        finally:
            work.over.set()
            load.close()

    def _state(self) -> str:
        pods, workers = self._load.placed(), self._workers
        return (
            f"{pods.created} pods created, {pods.bound} bound, {len(pods.left)} wait;"
            f" {self._count(Cause.KILL)} kills, {self._count(Cause.ROTATION)} rotations;"
            f" {len(self._load.errors)} errors of calls, {len(workers.failed)} of threads"
        )

    def _count(self, cause: Cause) -> int:
        return sum(x.cause is cause for x in self._spans)

    def _wait(self, phase: Phase, names: Collection[str]) -> None:
        """For these threads."""
        self._watch.enter(phase)
        try:
            self._workers.wait(names, phase.limit_s, self._note_running)
        except NeverError:
            self._stuck.append(self._watch.stuck())

    def _note_running(self, names: list[str]) -> None:
        missing = self._cluster.missing() if "kill" in names else []
        self._watch.note([*(f"thread {name}" for name in names), *missing])

    def _kill(self) -> None:
        """The second replica again and again, the first one once: its memory is followed then."""
        first, second = self._cluster.controllers
        for victim in itertools.chain([first], itertools.repeat(second)):
            if self._workers.over.wait(self._shape.kill_s):
                return
            with self._lasting(Cause.KILL, victim.name):
                victim.kill()
                self._workers.over.wait(self._shape.kill_s * _DOWN_SHARE)
                victim.launch()
                victim.ready(PATIENCE_S)
                self._cluster.wait_whole()

    def _rotate(self) -> None:
        every_s = self._shape.rotate_s
        while not self._workers.over.wait(every_s):
            takes_s = every_s * _ROTATION_SHARE
            with self._lasting(Cause.ROTATION, takes_s=takes_s):
                self._cluster.rotate(takes_s)

    @contextmanager
    def _lasting(self, cause: Cause, program: str = "", takes_s: float = 0) -> Iterator[None]:
        """What is done within; `takes_s`: how long it goes on by itself."""
        begun = time.time()
        try:
            yield
        finally:
            self._spans.append(Span(cause, begun, time.time() + takes_s, program))

    def _measure(self) -> None:
        begun = time.monotonic()
        pause_s = self._shape.minutes * 60 / _SAMPLES
        while not self._workers.over.wait(pause_s):
            for name, pid in self._cluster.processes().items():
                with suppress(OSError):  # it was killed in this moment, or is a zombie
                    if kib := rss_mib(pid) * _KIB:
                        sample = Sample(time.monotonic() - begun, kib)
                        self._lives.setdefault((name, pid), []).append(sample)

    def _compare(self) -> Ledger:
        """While pods run; then they are deleted, and nothing may be left of them."""
        load, api = self._load, self._cluster.lab.api
        self._settle(BIND, self._unbound)
        self._settle(AGREE, lambda: _differing(held(api), live(api)))
        ours, theirs = held(api), live(api)
        differ = _differing(ours, theirs)
        load.close()
        self._watch.enter(EMPTY)
        path = f"{self._cluster.pods.path}/pods"
        for pod in api.get(path)["items"]:
            api.delete(f"{path}/{pod['metadata']['name']}", grace_s=0)
        self._settle(EMPTY, lambda: [f"reservation {x}" for x in held(api)])
        return Ledger(len(theirs), differ, len(held(api)))

    def _unbound(self) -> list[str]:
        self._load.hold(BIND.limit_s)
        return [f"pod {x}" for x in self._load.waiting]

    def _settle(self, phase: Phase, left: Callable[[], list[str]]) -> None:
        """Until nothing is left; the report names what is."""
        self._watch.enter(phase)

        def is_done() -> bool:
            self._watch.note(found := left())
            return not found

        try:
            until(phase.name, is_done, timeout_s=phase.limit_s, poll_s=_POLL_S)
        except NeverError:
            if phase is BIND:  # once: each is a call
                self._watch.note([described(self._cluster.pods, x) for x in self._load.waiting])
            self._stuck.append(self._watch.stuck())

    def _look(self, ledger: Ledger) -> Report:
        """Ends the controllers: then their logs are whole."""
        self._watch.enter(LOOK)
        failed = list(self._workers.failed)
        failed += [
            f"{x.name} ended by itself" for x in self._cluster.controllers if not x.is_running
        ]
        for one in self._cluster.controllers:
            with self._lasting(Cause.STOP, one.name):
                one.stop()
        tally = self._cluster.fleet.report.tally
        errors = [*self._load.errors, *self._errors()]
        return Report(
            shape=self._shape,
            kills=self._count(Cause.KILL),
            rotations=self._count(Cause.ROTATION),
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
            logs=sort(errors, EXPECTED, self._spans),
            audit={one.name: _audit_fault(one) for one in self._cluster.controllers},
            failed=failed,
            stuck=self._stuck,
        )

    def _errors(self) -> list[ErrorLine]:
        """Of all programs; of Kubernetes' own those after everything stood."""
        year = datetime.now().astimezone().year
        found = errors_in(AGENTS, self._own_log.read_text(), Format.PLAIN, year)
        for log in self._cluster.lab.log_sizes():
            how = _format_of(log.stem)
            begin = 0 if how is Format.OURS else self._sizes.get(log, 0)
            written = log.read_bytes()[begin:].decode(errors="replace")
            found += errors_in(log.stem, written, how, year)
        return found

    def _certificates_taken(self) -> dict[str, int]:
        taken: Counter[str] = Counter()
        for one in self._cluster.controllers:
            for line in one.log.read_text().splitlines():
                if '"certificate"' in line and '"renewed"' in line:
                    taken[json.loads(line)["listener"]] += 1
        return dict(taken)


def _differing(ours: Sequence[Held], theirs: Sequence[Held]) -> list[str]:
    return differences({"ledger": ours, "pods": theirs})


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
