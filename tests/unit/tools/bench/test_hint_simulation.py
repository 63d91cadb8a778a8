"""The simulator of hints: its bookkeeping, and that nodes are those of /filter and /prioritize."""

import xml.etree.ElementTree as ET
from itertools import combinations

import pytest

from controller.placement.filter_and_score import filter_nodes, prioritize_nodes
from controller.placement.gpu_type import chosen_types
from controller.placement.keys import RequirementRules
from controller.placement.requirements import Requirements, parse_requirements
from controller.placement.snapshot import DeviceUse
from tests.bench.hints.admission import WithHints, WithoutHints, pod_of
from tests.bench.hints.compare import simulated
from tests.bench.hints.outcome import SEEDS, Arm, Load, Outcome, interval, outcome
from tests.bench.hints.page import page, svg
from tests.bench.hints.placement import Extending, KubeScheduler, anti_affinity, scenes
from tests.bench.hints.simulation import PLACES, Cluster, Ended, Running, Waiting, simulate
from tests.bench.hints.workload import JOB_TYPES, Job, Workload, workload
from tests.bench.page import BEGIN, END
from tests.builders.pods import as_pod

JOBS = 70
FEW = workload(3, jobs=JOBS, load=4.0)
"""More than the fleet can run at once."""


@pytest.mark.parametrize("arm", list(Arm))
async def test_every_job_runs_once_on_gpus_that_nobody_else_has(arm: Arm) -> None:
    ended = await simulated(FEW, arm, 3)
    assert sorted(x.job.number for x in ended) == list(range(JOBS))
    assert [x.ended for x in ended] == sorted(x.ended for x in ended)
    for one in ended:
        assert len({*one.gpus}) == one.job.type.gpus
        assert {*one.gpus} <= {*PLACES[one.node].uuids}
        assert one.job.type.fits(PLACES[one.node].model)
        assert one.job.arrives <= one.began
        assert one.ended - one.began >= one.alone * (1 - 1e-9)
    assert any(x.began > x.job.arrives for x in ended), "nobody waited"
    for one, other in combinations(ended, 2):
        if {*one.gpus} & {*other.gpus}:
            assert one.ended <= other.began or other.ended <= one.began


async def test_a_seed_gives_the_same_run_again_and_over_http() -> None:
    truth = workload(3, jobs=20, load=1.0)
    assert truth == workload(3, jobs=20, load=1.0)
    assert truth.seconds == FEW.seconds != workload(4, jobs=20, load=1.0).seconds
    first = await simulated(truth, Arm.WITH, 3)
    assert await simulated(truth, Arm.WITH, 3, http=True) == first
    assert await simulated(truth, Arm.WITH, 4) != first


class Checked:
    """Asks /filter's and /prioritize's own functions about each node that is chosen."""

    def __init__(self) -> None:
        extending = Extending(0)
        self._inner = KubeScheduler(extending, extending.ask, 3)
        self._scenes = scenes(0)
        self.refused = 0

    async def place(self, pod: Waiting, cluster: Cluster) -> str | None:
        chosen = await self._inner.place(pod, cluster)
        needs = parse_requirements(as_pod(pod_of(pod.job)), RequirementRules(), enforced=False)
        assert isinstance(needs, Requirements)
        assert needs.count == pod.job.type.gpus
        scene = self._scenes.now(DeviceUse(busy=cluster.busy))
        passed = filter_nodes([*PLACES], needs, scene).passed
        points = prioritize_nodes(passed, needs, scene)
        if chosen is None:
            assert passed == []
            self.refused += 1
        else:
            assert points[chosen] == max(points.values()) > 0
        return chosen


async def test_without_hints_a_pod_goes_where_prioritize_gives_most() -> None:
    checked = Checked()
    assert len(await simulate(FEW, WithoutHints(), checked)) == JOBS
    assert checked.refused > 0


async def test_hints_lead_to_the_types_that_they_name() -> None:
    """The first jobs that arrive find room on every type that suits them best, or nearly so."""
    calm = workload(5, jobs=12, load=0.2)
    placed: dict[int, Waiting] = {}

    class Noting(KubeScheduler):
        async def place(self, pod: Waiting, cluster: Cluster) -> str | None:
            placed[pod.job.number] = pod
            return await super().place(pod, cluster)

    extending, weights = Extending(60), []
    for one in await simulate(calm, WithHints(), Noting(extending, extending.ask, 5)):
        annotations = placed[one.job.number].document["metadata"]["annotations"]
        chosen = chosen_types(annotations)
        assert len(chosen) > 1
        weights.append(chosen[one.gpu_type])
        assert placed[one.job.number].priority in {250, 500, 750, 1000}
    assert min(weights) > 80
    assert max(weights) == 100


# --- how fast jobs run

NODE = "h100-0"
TYPE = PLACES[NODE].model.gpu_type
SLOWED, OTHER = JOB_TYPES[-1], JOB_TYPES[-2]
TRUTH = Workload(
    (),
    {(SLOWED.name, TYPE): 100.0, (OTHER.name, TYPE): 40.0},
    {
        (SLOWED.name, OTHER.name): 1.0,
        (OTHER.name, SLOWED.name): 0.5,
        (SLOWED.name, SLOWED.name): 0.0,
        (OTHER.name, OTHER.name): 0.0,
    },
)


def waiting(number: int, kind: str = SLOWED.name, *avoided: str) -> Waiting:
    (found,) = (x for x in JOB_TYPES if x.name == kind)
    return Waiting(Job(number, found, 0.0, 1.0), {}, 0, avoided)


def ends(cluster: Cluster) -> Ended:
    found = cluster.next_end()
    assert found is not None
    return cluster.end(found[1], found[0])


def test_a_job_is_slowed_while_another_is_there() -> None:
    """One takes 60 seconds at two thirds of its speed: of the other's 100 are 70 left then."""
    cluster = Cluster(TRUTH)
    cluster.start(waiting(0), NODE, 0.0)
    cluster.start(waiting(1, OTHER.name), NODE, 0.0)
    other, slowed = ends(cluster), ends(cluster)
    assert (other.job.number, other.ended, other.alone, other.beside) == (1, 60, 40, (SLOWED.name,))
    assert (slowed.ended, slowed.alone, slowed.beside) == (130.0, 100.0, ())
    assert cluster.busy == frozenset()
    assert cluster.next_end() is None


def test_a_node_that_is_full_or_too_small_runs_nothing_more() -> None:
    cluster = Cluster(TRUTH)
    for number in range(4):
        cluster.start(waiting(number), NODE, 0.0)
    with pytest.raises(RuntimeError, match="h100-0 cannot run etl"):
        cluster.start(waiting(4), NODE, 0.0)
    with pytest.raises(RuntimeError, match="l4-0 cannot run train-large"):
        cluster.start(waiting(5, "train-large"), "l4-0", 0.0)


def test_anti_affinity_counts_what_either_side_avoids() -> None:
    def runs(*pods: Waiting) -> list[Running]:
        return [Running(x, PLACES[NODE], (), 0.0, 1.0) for x in pods]

    pod = waiting(0, SLOWED.name, OTHER.name)
    on = {
        "empty": runs(),
        "avoided": runs(waiting(1, OTHER.name)),
        "avoids": runs(waiting(2, "render", SLOWED.name), waiting(3, OTHER.name)),
    }
    assert anti_affinity(on, pod) == {"empty": 100, "avoided": 50, "avoids": 0}
    assert anti_affinity({"empty": runs()}, pod) == {"empty": 0}


# --- what it comes to


def test_an_outcome_sums_up_what_ended() -> None:
    jobs = [
        Ended(Job(0, SLOWED, 10.0, 1.0), NODE, TYPE, ("a",), 70.0, 190.0, 100.0, ()),
        Ended(Job(1, SLOWED, 20.0, 1.0), NODE, "worse", ("b",), 20.0, 260.0, 240.0, ()),
    ]
    truth = Workload((), {**{(SLOWED.name, x): 600.0 for x in _types()}, **TRUTH.seconds}, {})
    found = outcome(truth, jobs)
    assert found.makespan_h == pytest.approx(260 / 3600)
    assert found.completion_min == pytest.approx(3.5)
    assert found.waiting_min == pytest.approx(0.5)
    assert found.interference_h == pytest.approx(20 / 3600)
    assert found.on_best == 50
    assert list(found.curve) == [pytest.approx(1.8)]


def _types() -> set[str]:
    return {x.model.gpu_type for x in PLACES.values()}


def test_the_interval_is_students() -> None:
    found = interval([0.0, 2.0] * 5)
    assert found.mean == 1.0
    assert found.reach == pytest.approx(2.262 * (10 / 9) ** 0.5 / 10**0.5)
    with pytest.raises(ValueError, match="3 values, expected 10"):
        interval([1.0, 2.0, 3.0])


def comparison() -> Load:
    def of(value: float) -> list[Outcome]:
        curve = (2.0 * value, value)
        return [Outcome(value, value, value, value, 10 * value, curve) for _ in SEEDS]

    values = dict(zip(Arm, (4.0, 3.0, 2.0), strict=True))
    return Load("Busy", 0.5, {arm: of(value) for arm, value in values.items()})


def test_the_page_has_means_and_paired_differences() -> None:
    text = page([comparison()], "plot.svg", 1000)
    assert text.startswith(BEGIN)
    assert text.endswith(END)
    assert "1,000 jobs of 8 types on 64 GPUs of 4 types, seeds 1 to 10." in text
    assert "### Busy: arriving work is 50% of what the fleet does" in text
    assert "| makespan, hours | 4.0 | 3.0 | -25.0 ± 0.0 % | 2.0 |" in text
    best = "| on the best type, % of jobs | 40.0 | 30.0 | -10.0 ± 0.0 | 20.0 |"
    assert best in text


def test_the_plot_is_well_formed_and_inside_its_panels() -> None:
    drawing = ET.fromstring(svg([comparison()]))  # noqa: S314 - written a moment ago
    found = drawing.findall(".//{*}polyline")
    assert len(found) == len(Arm)
    for line in found:
        (x1, y1), (x2, y2) = (map(float, x.split(",")) for x in line.attrib["points"].split())
        assert 0 < x1 < x2 < 360
        assert 0 < y1 < y2 < 290
