"""A new snapshot takes trust away without waiting for evidence, and only trust that is there."""

from dataclasses import dataclass, field

from controller.fleet.attestation_result import Refused
from controller.fleet.directory import DirectorySnapshot, KnownNode
from controller.fleet.view import FleetSnapshot, NodeView
from controller.policy import DEFAULT_POLICY, Level
from controller.spire.poller import SLICE, Revocation
from controller.verifier.context import SpireQuestion, Standing
from gpuwarden.reasons import STEP_OF, ReasonCode, Refusal
from tests.builders.node_views import acceptance, fleet_of, node_view, past_refusal
from tests.builders.spire import NOW_NS, TD


@dataclass
class Answers:
    """What steps 7 to 9 say per node; L1 where nothing is said."""

    refusals: dict[str, ReasonCode] = field(default_factory=dict)
    asked: list[SpireQuestion] = field(default_factory=list)

    def entry(self, question: SpireQuestion) -> Refusal | None:
        self.asked.append(question)
        return self._at(question, 7)

    def agent(self, question: SpireQuestion) -> Standing | Refusal:
        return self._at(question, 8) or Standing(Level.L1, "k8s_psat", "agent")

    def image(self, question: SpireQuestion) -> Refusal | None:
        return self._at(question, 9)

    def _at(self, question: SpireQuestion, step: int) -> Refusal | None:
        code = self.refusals.get(question.node_name)
        return Refusal(code, "because") if code and STEP_OF[code] == step else None


@dataclass
class Bench:
    fleet: FleetSnapshot
    spire: Answers = field(default_factory=Answers)
    known: dict[str, KnownNode] = field(default_factory=dict)
    refused: list[tuple[Refused, str]] = field(default_factory=list)
    ended: list[tuple[str, Refusal]] = field(default_factory=list)

    def snapshot(self) -> FleetSnapshot:
        return self.fleet

    async def refuse(self, refusal: Refused, peer: str, /) -> None:
        self.refused.append((refusal, peer))

    def end_node(self, node: str, refusal: Refusal, /) -> None:
        assert self.refused[-1][0].node == node, "trust ends before the streams do"
        self.ended.append((node, refusal))

    async def carry_out(self) -> None:
        bench = self

        class Directory:
            def snapshot(self) -> DirectorySnapshot:
                return DirectorySnapshot(bench.known)

            def warning(self) -> str | None:
                return None

        await Revocation(
            trust_domain=TD,
            path_prefix="/gpuwarden",
            spire=self.spire,
            fleet=self,
            directory=Directory(),
            policy=lambda: DEFAULT_POLICY,
            boottime_ns=lambda: NOW_NS,
            refuser=self,
            streams=self,
        ).carry_out()


def trusted(name: str) -> NodeView:
    return node_view(name, acceptance=acceptance())


async def test_each_trusted_node_is_judged_as_itself() -> None:
    known = {"gpu-1": KnownNode("uid-1"), "gpu-2": KnownNode("uid-2")}
    bench = Bench(fleet_of(trusted("gpu-1"), trusted("gpu-2")), known=known)
    await bench.carry_out()
    assert [(str(x.peer), x.node_name, x.node) for x in bench.spire.asked] == [
        (f"spiffe://{TD}/gpuwarden/agent/{name}", name, node) for name, node in known.items()
    ]
    assert (bench.refused, bench.ended) == ([], [])


async def test_a_refusal_of_any_of_the_steps_revokes_and_ends_the_streams() -> None:
    codes = {
        "gpu-1": ReasonCode.SPIRE_ENTRY_NOT_FOUND,
        "gpu-2": ReasonCode.SPIRE_AGENT_BANNED,
        "gpu-3": ReasonCode.AGENT_IMAGE_DENIED,
    }
    bench = Bench(
        fleet_of(*map(trusted, ("gpu-0", *codes))),
        Answers(dict(codes)),
        {name: KnownNode() for name in ("gpu-0", *codes)},
    )
    await bench.carry_out()
    assert {x.node: x.code for x, _ in bench.refused} == codes
    assert {peer for _, peer in bench.refused} == {
        f"spiffe://{TD}/gpuwarden/agent/{name}" for name in codes
    }
    assert {node: x.code for node, x in bench.ended} == codes


async def test_a_transient_refusal_is_left_to_the_next_evidence() -> None:
    bench = Bench(
        fleet_of(trusted("gpu-1")),
        Answers({"gpu-1": ReasonCode.SPIRE_STATUS_STALE}),
        {"gpu-1": KnownNode()},
    )
    await bench.carry_out()
    assert (bench.refused, bench.ended) == ([], [])


async def test_nodes_that_are_not_trusted_now_are_not_judged() -> None:
    blocked = node_view(
        "gpu-1", acceptance=acceptance(), blocked=past_refusal(ReasonCode.SPIRE_AGENT_BANNED)
    )
    never, unknown = node_view("gpu-2", acceptance=None), trusted("gone")
    known = {"gpu-1": KnownNode(), "gpu-2": KnownNode()}
    bench = Bench(fleet_of(blocked, never, unknown), known=known)
    await bench.carry_out()
    assert bench.spire.asked == []


async def test_a_large_fleet_is_judged_whole_in_slices() -> None:
    names = [f"gpu-{number}" for number in range(2 * SLICE + 1)]
    bench = Bench(
        fleet_of(*map(trusted, names)),
        Answers(dict.fromkeys(names[-1:], ReasonCode.SPIRE_AGENT_BANNED)),
        {name: KnownNode() for name in names},
    )
    await bench.carry_out()
    assert len(bench.spire.asked) == len(names)
    assert [node for node, _ in bench.ended] == names[-1:]
