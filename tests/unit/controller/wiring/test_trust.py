"""SPIRE and the agents' streams: what the settings make of them, and whose clock is believed."""

import asyncio
from types import SimpleNamespace
from typing import Any

from controller.binding.asked_rounds import LEAST_NS
from controller.operations.readiness import ClockAnchor
from controller.recorders.trust import SpireRecorder
from controller.rpc.attestation import AttestationService, StreamTable
from controller.settings import ControllerSettings
from controller.spire.facts import LiveSpireFacts, no_spire_server
from controller.verifier.context import NoSpire
from controller.verifier.verifier import Verifier
from controller.wiring.trust import (
    SpireConfirmation,
    attestation_service,
    believed_moment,
    spire_confirmation,
    verifier_settings,
)
from gpuwarden.settings.loader import CONTROLLER as CONTROLLER_CONFIG
from gpuwarden.settings.loader import Inputs, load
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.spire import NOW_NS, S, spire_snapshot
from tests.builders.svids import FakeSvidSource
from tests.fakes.clock import FakeClock
from tests.fakes.recording_audit import RecordingAudit
from tests.hang import HANG_S


def settings(**changes: str) -> ControllerSettings:
    values = {
        "trustDomain": "example.org",
        "cluster": "test",
        "workloadApi": "unix:///run/spire.sock",
        **{f"spire.{key}": value for key, value in changes.items()},
    }
    flags = tuple((key, value, key) for key, value in values.items())
    return load(CONTROLLER_CONFIG, Inputs(flags)).settings


def parts(**changes: Any) -> SpireConfirmation:
    clock = FakeClock()
    anchor = ClockAnchor(clock.boottime_ns(), clock.wall_ns(), S)
    recorder = SpireRecorder(Instruments(Process.CONTROLLER, "test"), RecordingAudit())
    return spire_confirmation(settings(**changes), FakeSvidSource(), clock, anchor, recorder)


def service(binding: Any) -> AttestationService:
    anything: Any = SimpleNamespace(svids=None, audit=None, known=None, now=None)
    return attestation_service(
        settings(),
        anything,
        Verifier(verifier_settings(settings())),
        anything,
        recorder=anything,
        table=StreamTable(),
        binding=binding,
    )


def test_who_follows_releases_up_hears_of_accepted_evidence() -> None:
    heard: list[str] = []
    reconciler = SimpleNamespace(heard=heard.append, releases_on=lambda _node: False)
    service(SimpleNamespace(reconciler=reconciler)).heard("node-1")
    assert heard == ["node-1"]
    service(None).heard("node-1")
    assert heard == ["node-1"]


def test_a_node_that_is_asked_without_end_is_not_cut_off_and_may_report_failures_besides() -> None:
    """Each time a notice is sent, too, and the challenge that follows it is answered."""
    usage = service(None).usage
    moments = [number * LEAST_NS for number in range(1200) for _ in range(3)]
    assert {usage.message("agent", now_ns) for now_ns in moments} == {None}


async def test_without_a_server_nothing_is_asked() -> None:
    made = parts()
    assert isinstance(made.facts, NoSpire)
    assert (made.condition, made.poller) == (no_spire_server, None)


async def test_grace_and_poll_come_from_the_settings() -> None:
    made = parts(server="spire:8081", poll="4s", grace="0s")
    assert isinstance(made.facts, LiveSpireFacts)
    assert made.condition == made.facts.condition
    assert made.poller is not None
    assert made.poller.age_s(NOW_NS) == 0.0
    made.poller.snapshot = spire_snapshot(agents_ns=NOW_NS - 2 * S)
    assert made.poller.age_s(NOW_NS) == 2.0
    assert made.condition(NOW_NS + 4 * S - 1).error is None
    assert made.condition(NOW_NS + 4 * S).error is not None


async def test_the_first_snapshot_is_waited_for_but_not_for_ever() -> None:
    made = parts(server="spire:8081")
    assert made.poller is not None
    await made.poller.await_snapshot(0.01)
    waiting = asyncio.create_task(made.poller.await_snapshot(10.0))
    made.poller.answered.set()
    async with asyncio.timeout(HANG_S):
        await waiting


def test_a_wall_clock_that_jumps_ahead_is_not_believed() -> None:
    """It would make every SPIRE agent of the fleet look expired, and that revokes."""
    clock = FakeClock()
    anchor = ClockAnchor(clock.boottime_ns(), clock.wall_ns(), S)
    clock.advance(60)
    honest = believed_moment(clock, anchor)
    assert (honest.boottime_ns, honest.wall_ns) == (clock.boottime_ns(), clock.wall_ns())
    clock.wall += 7200 * S
    assert believed_moment(clock, anchor) == honest
    clock.wall -= 7300 * S
    assert believed_moment(clock, anchor).wall_ns == clock.wall_ns()
