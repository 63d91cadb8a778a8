from controller.explain.gpu_history import MOST, Holding, Place, history_rows
from gpuwarden.audit.gpu_history import GpuHistory, Hold, Stay


def stay(number: int, until: str | None = None, index: int | None = None) -> Stay:
    at = f"since-{number}"
    return Stay(f"gpu-{number}", at, until, "vm", index, "bus", None, "digest", "lab/a", number)


def hold(number: int, until: str | None = None, state: str = "confirmed") -> Hold:
    at = f"since-{number}"
    return Hold("team-a", "p", "u", "GPU-a", "gpu-1", "r", at, until, state, "lab/a", number)


def history(stays: tuple[Stay, ...] = (), holds: tuple[Hold, ...] = ()) -> GpuHistory:
    return GpuHistory("GPU-a", "165", "H100", stays, holds, (), "oldest")


def test_rows_are_those_of_the_history_newest_first() -> None:
    found = history_rows(
        history((stay(1, "moved"), stay(2, None, 3)), (hold(3, "over", "expired"), hold(4, None)))
    )
    assert found.places == [
        Place("gpu-2", 3, "since-2", "", "digest", 2),
        Place("gpu-1", None, "since-1", "moved", "digest", 1),
    ]
    same = ("team-a", "p", "u", "GPU-a", "gpu-1", "r")
    assert found.holdings == [
        Holding(*same, "since-4", "", "", 4),
        Holding(*same, "since-3", "over", "expired", 3),
    ]
    assert found.records_since == "oldest"


def test_of_many_the_last() -> None:
    many = range(1, MOST + 2)
    found = history_rows(history(tuple(map(stay, many)), tuple(map(hold, many))))
    assert [x.record for x in found.places] == [*reversed(many)][:MOST]
    assert [x.record for x in found.holdings] == [*reversed(many)][:MOST]
