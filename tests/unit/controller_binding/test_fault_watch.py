"""A disagreement is told when it has come to stand, and when it is over."""

from controller.binding.use import MAX_PER_NODE, FaultWatch, UseFault, UseFaultKind
from tests.builders.node_use import NODE, ref

ONE = UseFault(UseFaultKind.OFF_BOOK, NODE, "GPU-a", ref())
TWO = UseFault(UseFaultKind.OTHER_GPU, NODE, "GPU-b", ref())
NOBODY = UseFault(UseFaultKind.OFF_BOOK, NODE, "GPU-b", None)


def test_one_report_alone_is_nothing_yet() -> None:
    watch = FaultWatch()
    assert watch.reported(NODE, [ONE]).begun == ()
    assert list(watch.standing()) == []
    assert watch.reported(NODE, []).ended == ()
    assert watch.reported(NODE, [ONE]).begun == ()


def test_it_is_told_once_however_many_reports_show_it() -> None:
    watch = FaultWatch()
    watch.reported(NODE, [ONE])
    assert watch.reported(NODE, [ONE, TWO]).begun == (ONE,)
    third = watch.reported(NODE, [ONE, TWO, NOBODY])
    assert (third.begun, third.ended) == ((TWO,), ())
    assert watch.counts() == {UseFaultKind.OFF_BOOK: 1, UseFaultKind.OTHER_GPU: 1}
    assert set(watch.standing()) == {ONE, TWO}


def test_it_is_over_with_the_first_report_that_does_not_show_it() -> None:
    watch = FaultWatch()
    for _ in range(3):
        watch.reported(NODE, [ONE])
    changes = watch.reported(NODE, [])
    assert (changes.begun, changes.ended) == ((), (ONE,))
    assert watch.counts() == {}
    watch.reported(NODE, [ONE])
    assert watch.reported(NODE, [ONE]).begun == (ONE,)


def test_a_report_that_could_not_read_everything_ends_nothing() -> None:
    watch = FaultWatch()
    for _ in range(2):
        watch.reported(NODE, [ONE])
    changes = watch.reported(NODE, [TWO], whole=False)
    assert (changes.begun, changes.ended) == ((), ())
    assert list(watch.standing()) == [ONE]
    assert watch.reported(NODE, [TWO]).ended == (ONE,)


def test_nodes_have_nothing_to_do_with_each_other() -> None:
    watch = FaultWatch()
    watch.reported(NODE, [ONE])
    assert watch.reported("gpu-2", [ONE]).begun == ()


def test_of_one_node_not_all_is_remembered() -> None:
    watch = FaultWatch()
    many = [UseFault(UseFaultKind.OFF_BOOK, NODE, f"GPU-{n}", None) for n in range(1000)]
    watch.reported(NODE, many)
    assert len(watch.reported(NODE, many).begun) == MAX_PER_NODE
