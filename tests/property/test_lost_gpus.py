"""Whatever comes and goes: no GPU that was known is dropped in silence, and no index moves."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.claims.host import HostFacts
from agent.gpu.facts import DeviceSurvey, Failed, GpuFacts, LinkState, MigState, PciAddress, Survey
from agent.gpu.inventory import KnownGpu, conclude
from gpuwarden.evidence.model import Fabric, Gpu, LostGpu

HOST = HostFacts(arch="x86_64", boot_id="b", system_uuid=None)
FACTS = GpuFacts(
    serial=None,
    board_part_number=None,
    product=None,
    vbios=None,
    gsp=None,
    memory_bytes=None,
    ecc=None,
    mig=MigState(None, (), ()),
    virt=None,
    compute_capability=None,
    architecture=None,
    compute_mode=None,
    persistence_mode=None,
    links=LinkState((), switched=False, failures=()),
    fabric=Fabric(kind="none", cluster_uuid=None, clique=None),
    platform=None,
    module_id=None,
    pids=(),
)

Slot = st.sampled_from(["answers", "lost", "handle lost", "gone", "no uuid", "no handle"])
Rounds = st.lists(st.lists(Slot, min_size=5, max_size=5), min_size=1, max_size=4)


def bus(slot: int) -> str:
    """In hex of either case: order is that of numbers, not of letters."""
    number = f"{slot + 9:02x}"
    return f"00000000:{number.upper() if slot % 2 else number}:00.0"


def device(index: int, slot: int, state: str) -> DeviceSurvey:
    address = PciAddress(bus(slot), "10de:2330", "0000:0000")
    lost = Failed("call", "GPU_IS_LOST")
    unknown = Failed("call", "UNKNOWN")
    match state:
        case "answers":
            return DeviceSurvey(index, address, f"GPU-{slot}", FACTS, None)
        case "lost":
            return DeviceSurvey(index, address, None, None, lost)
        case "handle lost":
            return DeviceSurvey(index, lost, lost, None, lost)
        case "no uuid":
            return DeviceSurvey(index, address, unknown, None, unknown)
        case _:
            return DeviceSurvey(index, unknown, unknown, None, unknown)


def survey(states: list[str]) -> Survey:
    """NVML closes the gap that a GPU leaves: its indices do not name a place."""
    present = [(slot, state) for slot, state in enumerate(states) if state != "gone"]
    devices = tuple(device(index, slot, state) for index, (slot, state) in enumerate(present))
    return Survey(driver=None, cuda=None, cc=None, devices=devices, count=len(devices))


@settings(max_examples=200)
@given(Rounds)
def test_known_gpus_answer_or_are_lost(rounds: list[list[str]]) -> None:
    known: tuple[KnownGpu, ...] = ()
    for states in (["answers"] * 5, *rounds):
        found = conclude(survey(states), known, HOST, lambda _: None)
        known = found.known
        cards: list[Gpu | LostGpu] = [*found.inventory.gpus, *found.inventory.lost]
        uuids = {card.uuid for card in cards}
        assert len(uuids) == len(cards)
        assert {gpu.uuid for gpu in known} == {f"GPU-{slot}" for slot in range(5)}
        assert uuids == {f"GPU-{slot}" for slot in range(5)}
        assert not found.failed_reads
        for slot, state in enumerate(states):
            answers = f"GPU-{slot}" in {gpu.uuid for gpu in found.inventory.gpus}
            assert answers == (state == "answers")
        assert all(card.uuid == f"GPU-{card.index}" for card in cards)


@given(Rounds)
def test_a_conclusion_depends_on_nothing_but_its_arguments(rounds: list[list[str]]) -> None:
    known = tuple(KnownGpu(f"GPU-{slot}", bus(slot), slot) for slot in range(5))
    for states in rounds:
        first, second = (conclude(survey(states), known, HOST, lambda _: None) for _ in "ab")
        assert msgspec.json.encode(first.inventory) == msgspec.json.encode(second.inventory)
