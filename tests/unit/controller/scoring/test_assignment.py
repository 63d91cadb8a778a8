import math

import pytest

from controller.scoring.assignment import NotEnoughError, transport_plan, whole_assignment

INF = math.inf
Costs = list[list[float]]


def test_the_vector_of_the_older_service() -> None:
    plan = transport_plan([[1, 2], [2, 1], [1.5, 1.5]], [2, 2])
    assert plan == [
        pytest.approx([1, 0], abs=1e-3),
        pytest.approx([0, 1], abs=1e-3),
        pytest.approx([0.5, 0.5], abs=1e-3),
    ]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3, 1e12])
def test_costs_of_any_size_are_told_apart(scale: float) -> None:
    plan = transport_plan([[100 * scale, 200 * scale], [200 * scale, 100 * scale]], [1, 1])
    assert plan == [pytest.approx([1, 0], abs=1e-3), pytest.approx([0, 1], abs=1e-3)]


@pytest.mark.parametrize("costs", [[[0.0], [2.3e-309]], [[-1.7e308, 1.7e308], [1.7e308, -1.7e308]]])
def test_costs_at_the_ends_of_floats_give_whole_jobs(costs: list[list[float]]) -> None:
    plan = transport_plan(costs, [2] * len(costs[0]))
    assert [sum(row) for row in plan] == pytest.approx([1, 1])


def test_rows_and_columns_add_up_where_a_type_is_wanted_by_all() -> None:
    plan = transport_plan([[1, 9], [2, 9], [3, 9], [4, 9]], [1, 3])
    assert [sum(row) for row in plan] == pytest.approx([1] * 4)
    assert [sum(column) for column in zip(*plan, strict=True)] == pytest.approx([1, 3], abs=1e-4)


def test_equal_costs_are_shared_alike() -> None:
    assert transport_plan([[7, 7], [7, 7]], [1, 1]) == [pytest.approx([0.5, 0.5])] * 2


def test_a_type_without_room_gets_nothing() -> None:
    assert transport_plan([[1, 5]], [0, 1]) == [pytest.approx([0, 1])]


def test_an_infinite_cost_is_no_place() -> None:
    costs: Costs = [[1, INF], [1, 50]]
    plan = transport_plan(costs, [1, 1])
    assert plan[0] == pytest.approx([1, 0])
    assert whole_assignment(plan, costs, [1, 1]) == [0, 1]


def test_more_jobs_than_room() -> None:
    with pytest.raises(NotEnoughError, match="3 jobs, expected at most 2"):
        transport_plan([[1], [1], [1]], [2])
    assert transport_plan([], [1]) == []


def test_one_type_for_each_job_and_ties_go_to_the_first() -> None:
    costs: Costs = [[1, 2], [2, 1], [1.5, 1.5]]
    assert whole_assignment(transport_plan(costs, [2, 2]), costs, [2, 2]) == [0, 1, 0]


def test_a_job_moves_for_one_that_fits_nowhere_else() -> None:
    costs: Costs = [[1, 2], [1, INF]]
    assert whole_assignment([[0.9, 0.1], [0.6, 0.0]], costs, [1, 1]) == [1, 0]


def test_jobs_that_fit_the_same_place_alone() -> None:
    with pytest.raises(NotEnoughError, match="job 1 fits nowhere beside the others"):
        whole_assignment([[1, 0], [1, 0]], [[1, INF], [1, INF]], [1, 5])
