"""Whom to evict, and when to ask again."""

from controller.binding.use import AGAIN_NS, AT_ONCE, Evictions, UseFault, UseFaultKind
from tests.builders.node_use import NODE, ref


def fault(kind: UseFaultKind, name: str = "train-0", gpu: str = "GPU-a") -> UseFault:
    return UseFault(kind, NODE, gpu, ref(name))


OTHER = fault(UseFaultKind.OTHER_GPU)


def test_only_pods_that_have_what_they_must_not_have() -> None:
    evictions = Evictions()
    for kind in UseFaultKind:
        is_due = evictions.due([fault(kind)], 0) == (ref(),)
        assert is_due == (kind in {UseFaultKind.OTHER_GPU, UseFaultKind.UNFIT_GPU}), kind
    unknown = UseFault(UseFaultKind.OTHER_GPU, NODE, "GPU-a", None, "uid-9")
    assert evictions.due([unknown], 0) == ()


def test_each_pod_once() -> None:
    evictions = Evictions()
    several = [OTHER, fault(UseFaultKind.UNFIT_GPU, gpu="GPU-b")]
    assert evictions.due(several, 0) == (ref(),)
    evictions.asked(ref(), done=True, now_ns=0)
    assert evictions.due(several, 10 * AGAIN_NS) == ()


def test_what_was_refused_is_asked_again_after_a_while() -> None:
    evictions = Evictions()
    evictions.asked(ref(), done=False, now_ns=0)
    assert evictions.due([OTHER], AGAIN_NS - 1) == ()
    assert evictions.due([OTHER], AGAIN_NS) == (ref(),)


def test_when_it_is_over_it_is_forgotten() -> None:
    evictions = Evictions()
    evictions.asked(ref(), done=True, now_ns=0)
    assert evictions.due([], 1) == ()
    assert evictions.due([OTHER], 2) == (ref(),)


def test_never_all_at_once() -> None:
    many = [fault(UseFaultKind.OTHER_GPU, f"train-{n}") for n in range(AT_ONCE + 1)]
    assert len(Evictions().due(many, 0)) == AT_ONCE
