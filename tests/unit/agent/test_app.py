"""The composition root with fakes in the place of everything outside."""

import asyncio
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent import __main__ as program
from agent.app import ExitCode, Parts, real_parts, run_agent
from agent.claims.host import HostFacts
from agent.gpu.facts import DriverReloadedError, Failed
from agent.gpu.inventory import KnownGpu
from agent.gpu.reading import EventKind, GpuEvent, NvmlState
from agent.gpu.source import NvmlInventorySource, StuckCall
from agent.settings import AgentListenSettings, AgentSection, AgentSettings
from agent.state import AgentState, RememberedGpu, RememberedNotice, StateFile
from gpuwarden.clock import SystemClock
from gpuwarden.settings.values import Address, Duration
from tests.builders.attesting import AGENT, NODE, reading, xid
from tests.builders.ca import TRUST_DOMAIN, SpiffeCa
from tests.builders.challenges import CLUSTER, CONTROLLER
from tests.fakes.agent_ports import FakeGpus, FakeSvids, PlainDialer
from tests.fakes.fake_controller import FakeController
from tests.hang import HANG_S

CA = SpiffeCa()
SVID = CA.svid(AGENT)
REPLICA = Address("10.0.0.1", 9443)
HOST = HostFacts(arch="x86_64", boot_id="00000000-0000-4000-8000-000000000001", system_uuid=None)
REMEMBERED = RememberedGpu(uuid="GPU-1", pci_bus_id="0:1:0.0", nvml_index=0)


class NoLookUps:
    """A resolver for literal addresses; `fault` is raised instead."""

    fault: Exception | None = None

    async def resolve(self, controller: Address) -> frozenset[Address]:
        if self.fault is not None:
            raise self.fault
        return frozenset({controller})


def settings(folder: Path, restart_after: str = "3m") -> AgentSettings:
    return AgentSettings(
        trust_domain=TRUST_DOMAIN,
        cluster=CLUSTER,
        workload_api=f"unix://{folder}/none.sock",
        agent=AgentSection(
            node_name=NODE,
            controllers=(REPLICA,),
            state_dir=folder / "state",
            nvml_timeout=Duration.parse("100ms"),
            nvml_restart_after=Duration.parse(restart_after),
        ),
        listen=AgentListenSettings(ops=Address("127.0.0.1", 0)),
    )


@dataclass
class Bench:
    folder: Path
    controller: FakeController
    svids: FakeSvids = field(default_factory=lambda: FakeSvids(SVID))
    gpus: FakeGpus = field(default_factory=FakeGpus)
    resolver: NoLookUps = field(default_factory=NoLookUps)
    given: list[tuple[KnownGpu, ...]] = field(default_factory=list)
    signals: int = 0
    restart_after: str = "3m"

    def make_gpus(self, known: tuple[KnownGpu, ...]) -> FakeGpus:
        self.given.append(known)
        return self.gpus

    def on_signal(self) -> None:
        self.signals += 1

    async def run(self) -> ExitCode:
        parts = Parts(
            host=HOST,
            gpus=self.make_gpus,
            identity=self.svids,
            dialer=PlainDialer({REPLICA: self.folder / "c"}),
            resolver=self.resolver,
            state_file=StateFile(self.folder / "state"),
            clock=SystemClock(),
            jitter=lambda: 0.0,
        )
        async with asyncio.timeout(HANG_S):
            wanted = settings(self.folder, self.restart_after)
            return await run_agent(wanted, parts, on_signal=self.on_signal)

    async def run_until(self, holds: Callable[[], bool], then: Callable[[], Any]) -> ExitCode:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(self.run())
            await self.controller.until(holds)
            result = then()
            if asyncio.iscoroutine(result):
                await result
        return running.result()

    def accepted(self) -> bool:
        return bool(self.controller.all_evidence)

    def state(self) -> AgentState:
        return StateFile(self.folder / "state").load()


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory() as folder:
        controller = FakeController(CA.svid(CONTROLLER), SVID.leaf)
        await controller.start(Path(folder) / "c")
        yield Bench(Path(folder), controller)
        await controller.stop()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_in_order(
    bench: Bench, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    code = await bench.run_until(bench.accepted, lambda: signal.raise_signal(number))
    assert code is ExitCode.STOPPED
    assert bench.signals == 1
    assert bench.controller.streams[0].ended
    assert bench.gpus.closed
    assert bench.svids.calls == ["start", "close"]
    assert bench.state().instance_id == bench.controller.streams[0].hello.instance_id
    lines = capsys.readouterr().out.splitlines()
    events = ["process.stopping", "stream.closed", "process.stopped"]
    said = [line for line in lines if any(event in line for event in events)]
    assert len(said) == 3
    assert all(event in line for event, line in zip(events, said, strict=True))
    assert "this agent stops" in said[1]
    [announced] = [json.loads(line) for line in lines if line.startswith("{")]
    assert announced["event"] == "agent.listening"
    assert announced["ops"].startswith("127.0.0.1:")


async def test_a_stuck_library_ends_it(bench: Bench) -> None:
    bench.gpus.stuck_call = StuckCall("nvmlDeviceGetCount", 15.0)
    assert await bench.run() is ExitCode.NVML_STUCK


async def test_a_new_driver_ends_it_after_its_news_went_out(bench: Bench) -> None:
    async def exchange_driver() -> None:
        error = DriverReloadedError(Failed("nvmlInitWithFlags", "LIB_RM_VERSION_MISMATCH"))
        bench.gpus.news.put_nowait(GpuEvent(EventKind.DRIVER_RELOAD, None, None, str(error)))
        bench.gpus.fault = error
        await bench.controller.challenge(bench.controller.streams[0])

    code = await bench.run_until(bench.accepted, exchange_driver)
    assert code is ExitCode.DRIVER_RELOADED
    assert bench.controller.failures == [("driver-reload", None)]


UNREADABLE = reading(0, state=NvmlState.UNAVAILABLE, detail="nvmlInitWithFlags: UNKNOWN")


async def test_it_ends_when_nothing_can_be_read_for_long_and_counts_that(bench: Bench) -> None:
    bench.gpus.answer, bench.restart_after = UNREADABLE, "1ms"
    assert await bench.run() is ExitCode.NVML_UNREADABLE
    assert bench.gpus.begun > 1
    assert bench.gpus.closed
    assert bench.state().unreadable_ends == 1
    assert await bench.run() is ExitCode.NVML_UNREADABLE
    assert bench.state().unreadable_ends == 2


async def test_it_never_ends_while_a_reading_succeeds(bench: Bench) -> None:
    """The last reading may be old: what is there now decides."""
    bench.gpus.answer, bench.restart_after = UNREADABLE, "1ms"
    old = AgentState(
        instance_id="x",
        boot_id=HOST.boot_id,
        logs=(),
        log_alarms=(),
        gpus=(),
        unreadable_ends=2,
    )
    StateFile(bench.folder / "state").keep(old)

    async def heal_then_stop() -> None:
        bench.gpus.answer = reading(1)
        begun = bench.gpus.begun
        async with asyncio.timeout(HANG_S):
            while bench.gpus.begun == begun:  # noqa: ASYNC110 -- it reads without being asked
                await asyncio.sleep(0.01)
        signal.raise_signal(signal.SIGTERM)

    assert await bench.run_until(bench.accepted, heal_then_stop) is ExitCode.STOPPED
    assert bench.state().unreadable_ends == 0


async def test_an_unforeseen_fault_ends_it(bench: Bench) -> None:
    bench.resolver.fault = ZeroDivisionError("bug")
    assert await bench.run() is ExitCode.FAULT
    assert bench.gpus.closed


async def test_bad_news_reaches_the_controller(bench: Bench) -> None:
    async def tell() -> None:
        bench.gpus.news.put_nowait(xid())
        await bench.controller.until(lambda: bool(bench.controller.all_news))
        signal.raise_signal(signal.SIGTERM)

    assert await bench.run_until(bench.accepted, tell) is ExitCode.STOPPED


@pytest.mark.parametrize(("boot_id", "told"), [(HOST.boot_id, [("xid", 48)]), ("another", [])])
async def test_what_was_not_acknowledged_outlives_the_process_and_not_the_boot(
    bench: Bench, boot_id: str, told: list[tuple[str, int]]
) -> None:
    notice = RememberedNotice(
        kind="xid", gpu="GPU-1", xid=48, detail="XID 48", happened_ms=7, count=1
    )
    old = AgentState(
        instance_id="x", boot_id=boot_id, logs=(), log_alarms=(), gpus=(), notices=(notice,)
    )
    StateFile(bench.folder / "state").keep(old)
    await bench.run_until(bench.accepted, lambda: signal.raise_signal(signal.SIGTERM))
    assert bench.controller.failures == told
    assert bench.state().notices == ()


async def test_what_no_controller_acknowledges_is_kept(bench: Bench) -> None:
    bench.controller.refuse_notice = "ENROLLMENT_STALE"

    async def tell() -> None:
        bench.gpus.news.put_nowait(xid(48))
        await bench.controller.until(lambda: bool(bench.controller.all_news))
        signal.raise_signal(signal.SIGTERM)

    await bench.run_until(bench.accepted, tell)
    [kept] = bench.state().notices
    assert (kept.kind, kept.xid) == ("xid", 48)
    assert kept.happened_ms > 0


@pytest.mark.parametrize(
    ("boot_id", "given"),
    [(HOST.boot_id, (KnownGpu("GPU-1", "0:1:0.0", 0),)), ("another", ())],
)
async def test_gpus_are_remembered_within_one_boot(
    bench: Bench, boot_id: str, given: tuple[KnownGpu, ...]
) -> None:
    old = AgentState(instance_id="x", boot_id=boot_id, logs=(), log_alarms=(), gpus=(REMEMBERED,))
    StateFile(bench.folder / "state").keep(old)
    bench.gpus.known = (KnownGpu("GPU-2", "0:2:0.0", 1),)
    await bench.run_until(bench.accepted, lambda: signal.raise_signal(signal.SIGTERM))
    assert bench.given == [given]
    assert [gpu.uuid for gpu in bench.state().gpus] == ["GPU-2"]


async def test_without_an_svid_challenges_would_have_no_roots(bench: Bench) -> None:
    def withdraw() -> None:
        bench.svids.change(None)

    async def challenge_then_stop() -> None:
        withdraw()
        await bench.controller.challenge(bench.controller.streams[0])
        await bench.controller.until(lambda: bench.controller.streams[0].ended)
        signal.raise_signal(signal.SIGTERM)

    await bench.run_until(bench.accepted, challenge_then_stop)
    assert len(bench.controller.all_evidence) == 1


async def test_a_state_folder_that_is_none_does_not_matter(bench: Bench) -> None:
    (bench.folder / "state").write_text("a file")
    bench.gpus.answer = reading(2)
    code = await bench.run_until(bench.accepted, lambda: signal.raise_signal(signal.SIGTERM))
    assert code is ExitCode.STOPPED


def test_the_real_parts_are_made_without_touching_anything(tmp_path: Path) -> None:
    parts = real_parts(settings(tmp_path))
    assert isinstance(parts.gpus(()), NvmlInventorySource)
    assert parts.identity.current() is None
    assert 0 <= parts.jitter() < 1


def test_the_program_refuses_bad_settings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        program.main(["--config", "/nowhere/agent.yaml"])
    assert ended.value.code == ExitCode.BAD_CONFIGURATION
    assert "/nowhere/agent.yaml" in capsys.readouterr().err
