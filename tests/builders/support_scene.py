"""A controller's state for support bundles, with a text of the test's wherever others write."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

from controller.audit.checkpoints import Published
from controller.audit.log import Condition, DurableLog
from controller.explain.node import RecentRefusals
from controller.fleet.directory import DirectorySnapshot
from controller.fleet.enrollment import (
    Candidate,
    EnrolledGpu,
    EnrollmentRecord,
    MemoryEnrollmentStore,
    QuarantineEntry,
)
from controller.fleet.view import FleetSnapshot
from controller.operations.readiness import ClockAnchor, Conditions, ProcessState
from controller.policies.in_force import PolicyInForce
from controller.recorders.support_bundle import ControllerState
from controller.recorders.trust import WitnessAlarms
from controller.rpc.attestation import AttestSession, StreamTable
from gpuwarden.audit.checkpoint import TreeHead
from gpuwarden.evidence.model import Host, LogAlarm
from gpuwarden.reasons import ReasonCode
from gpuwarden.settings.loader import CONTROLLER, Inputs, Loaded, load
from gpuwarden.support.part import Part
from gpuwarden.telemetry import names
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Process
from tests.builders.node_views import acceptance, fleet_of, gpu_view, node_view, past_refusal
from tests.builders.svids import FakeSvidSource
from tests.fakes.clock import FakeClock
from tests.fakes.recording_audit import RecordingAudit

ID = "spiffe://example.org/gpuwarden/controller"


@dataclass
class FakeAudit:
    condition: Condition
    published: Published | None
    waiting: int = 3


@dataclass
class Directory:
    text: str

    def snapshot(self) -> DirectorySnapshot:
        return DirectorySnapshot({})

    def warning(self) -> str | None:
        return self.text


@dataclass
class TalkativeSvids(FakeSvidSource):
    text: str = ""

    def state(self) -> str:
        return f"no SVID: UNAVAILABLE {self.text}"


class Stream(AttestSession):
    def __init__(self) -> None:
        pass

    def end(self, _refusal: object, /) -> None:
        pass


@dataclass
class SupportScene:
    """`text` is written wherever a peer, an operator, a file or a library may write."""

    text: str = "what somebody wrote"
    environment: Mapping[str, str] = field(default_factory=dict)
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.instruments = Instruments(Process.CONTROLLER, "0")
        self.refusals = RecentRefusals(self.clock.wall_ns)
        self.svids = TalkativeSvids(text=self.text)
        self.streams = StreamTable()
        for node in ("bad", "good", "good"):
            self.streams.add(node, Stream())
        self.alarms = WitnessAlarms(self.instruments, RecordingAudit())
        alarm = LogAlarm("CHECKPOINT_INCONSISTENT", *[self.text] * 5)
        self.alarms.report("bad", self.text, (alarm,))
        self.fleet = self._fleet()
        self.audit = FakeAudit(
            Condition(available=False, low=True, reason=f"No space left on device: {self.text}"),
            Published(
                note=self.text,
                head=TreeHead(9, bytes(32)),
                log="ab" * 16,
                key=self.text,
                key_changes=(self.text,),
                proofs={3: (self.text,)},
                unprovable=frozenset(),
            ),
        )
        self.loaded = self._settings()

    def state(self) -> ControllerState:
        return ControllerState(
            loaded=self.loaded,
            conditions=self._conditions(),
            fleet=lambda: self.fleet,
            streams=self.streams,
            refusals=self.refusals,
            alarms=self.alarms,
            audit=cast("DurableLog", self.audit),
            store_facts=lambda: {"kind": "sqlite", "generation": 4, "created": False},
            metrics=self._metrics,
        )

    async def parts(self, state: ControllerState | None = None) -> dict[str, Part]:
        made: AsyncIterator[Part] = (state or self.state()).parts()
        return {part.name: part async for part in made}

    def _settings(self) -> Loaded[Any]:
        required = {
            "GPUWARDEN_TRUST_DOMAIN": "example.org",
            "GPUWARDEN_CLUSTER": "c1",
            "GPUWARDEN_WORKLOAD_API": "unix:///run/spire.sock",
        }
        return load(CONTROLLER, Inputs(environment={**required, **self.environment}))

    def _conditions(self) -> Conditions:
        candidate = Candidate("INVENTORY_CHANGED", self.text, self.text, (), self.text)
        record = EnrollmentRecord(
            "bad",
            node_uid=self.text,
            spire_agent=self.text,
            gpus=(EnrolledGpu(self.text, self.text, self.text, self.text),),
            instance=self.text,
            superseded=(self.text,),
            denial=QuarantineEntry("INVENTORY_CHANGED", self.text, self.text, 5, candidate),
        )
        foreign = replace(
            record, node="foreign", denial=QuarantineEntry(self.text, self.text, self.text, 6)
        )
        clock = self.clock
        return Conditions(
            times=self.loaded.settings.attestation,
            clock=clock,
            svids=self.svids,
            directory=Directory(self.text),
            store=MemoryEnrollmentStore((record, foreign)),
            audit=cast("DurableLog", self.audit),
            policy_in_force=PolicyInForce(
                None,
                audit=RecordingAudit(),
                instruments=self.instruments,
                changed=lambda _policy: None,
            ),
            state=ProcessState(ClockAnchor(0, 0, 1), listening_since_ns=clock.boottime_ns()),
            insecure=(self.text,),
        )

    def _fleet(self) -> FleetSnapshot:
        text = self.text
        refusal = past_refusal(ReasonCode.INVENTORY_CHANGED, text, count=2)
        accepted = acceptance(
            host=Host(driver=text, cuda=text, cc=text, arch=text, system_uuid=text),
            gpus=(gpu_view(0, serial=text, uuid=text, product=text, unhealthy=text),),
            evidence_digest=text,
            identity_digest=text,
            identity_document=text.encode(),
            class_document=text.encode(),
            instance_id=text,
            boot_id=text,
            agent_version=text,
            warnings=(text,),
            processes_by_gpu=MappingProxyType({text: 4}),
        )
        good = acceptance(fresh_until_ns=self.clock.boottime_ns() + 9_000_000_000)
        return fleet_of(
            node_view("good", acceptance=good),
            node_view(
                "bad",
                acceptance=accepted,
                blocked=refusal,
                refusals=(refusal,),
                warnings=(text,),
                candidate=Candidate("INVENTORY_CHANGED", text, text, (), text),
            ),
        )

    def _metrics(self) -> bytes:
        self.instruments.counter(names.EVIDENCE).labels(f"{self.text} x").inc()
        return self.instruments.render() + f'# {self.text}\nother{{a="{self.text}"}} 1\n'.encode()
