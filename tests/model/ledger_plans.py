"""Small worlds that are visited as a whole, and larger ones that are visited as far as time is.

`python -m tests.model.ledger_plans [STATES]` visits all of them, the larger ones up to STATES.
"""

import sys
import time
from dataclasses import replace
from typing import Final

from controller.ledger.record import ShareGroup
from tests.model.explorer import explore
from tests.model.ledger_world import KUBELET, Call, Plan, Rules, Steps

_N: Final = ("n1",)
_P_THEN_Q: Final = (Call(0, 0, "n1", (0,)), Call(0, 1, "n1", (0,)))
_P_THEN_Q_THEN_R: Final = (*_P_THEN_Q, Call(0, 2, "n1", (0,)))
_P_HAS_IT: Final = (
    "0 claims 0",
    "0 writes 0 for v1.k.0-n1-1",
    "0 answers 0",
    "binding 0 lands",
    "0 sees pod 0",
    "0 moves 0 of v1.k.0-n1-1 to Confirmed",
    "a copy is made",
)
_P_AND_Q: Final = (Call(0, 0, "n1", (0,)), Call(1, 1, "n1", (0,)))
_P_TWICE: Final = (Call(0, 0, "n1", (0,)), Call(1, 0, "n1", (0,)))
_P_TWICE_BOTH: Final = (Call(0, 0, "n1", (0, 1)), Call(1, 0, "n1", (0, 1)))
_KUBELET_IN_TURN: Final = (Call(KUBELET, 0, "n1", (0,)), Call(KUBELET, 1, "n1", (0,)))

PUT_BACK: Final = "a share group and a stranger, the store is put back to an old copy"
ORDERED: Final = "an operator releases, the replica crashes"
WHOLE: Final = {
    "two pods want one GPU, two replicas claim": Plan(_N, 2, _P_AND_Q, svid_watcher=(1,)),
    "two replicas see to one attempt, one crashes": Plan(
        _N, 1, (Call(0, 0, "n1", (0,)),), crashes=1
    ),
    "one replica crashes between writes, answers are lost, a creation comes late": Plan(
        _N,
        2,
        _P_THEN_Q,
        crashes=1,
        lost_answers=1,
        late_creations=1,
        replicas=1,
    ),
    "one pod, two nodes, two Bindings in flight": Plan(
        ("n1", "n2"), 1, (Call(0, 0, "n1", (0,)), Call(1, 0, "n2", (1,))), svid_watcher=(1,)
    ),
    "a record is removed by force, the replica crashes": Plan(
        _N, 2, _P_THEN_Q, crashes=1, removals=1, replicas=1
    ),
    "the store is put back to an old copy": Plan(_N, 2, _P_THEN_Q, restores=1, replicas=1),
    "reports are on their way while the pod ends": Plan(
        _N, 2, _P_THEN_Q, slow_reports=True, overlooked=1, replicas=1
    ),
    "a retry at the other replica": Plan(_N, 1, _P_TWICE, svid_watcher=(1,)),
    "a share group": Plan(_N, 2, _P_THEN_Q, share=ShareGroup("ns", "owner", "n1:0"), replicas=1),
    PUT_BACK: Plan(
        _N,
        3,
        _P_THEN_Q_THEN_R,
        share=ShareGroup("ns", "owner", "n1:0"),
        strangers=(1,),
        restores=1,
        deletions=False,
        begins=_P_HAS_IT,
        replicas=1,
    ),
    ORDERED: Plan(_N, 2, _P_THEN_Q, crashes=1, orders=1, replicas=1),
    "an operator releases, two replicas see to it": Plan(
        _N, 1, (Call(0, 0, "n1", (0,)),), orders=1
    ),
    "two replicas record what kubelet gave, one crashes": Plan(
        _N, 1, _KUBELET_IN_TURN[:1], crashes=1
    ),
    "kubelet gives a GPU to two pods in turn": Plan(
        _N, 2, _KUBELET_IN_TURN, slow_reports=True, overlooked=1, replicas=1
    ),
    "kubelet gives a GPU to a later pod of the same name, the replica crashes": Plan(
        _N, 2, _KUBELET_IN_TURN, same_name=True, crashes=1, slow_reports=True, replicas=1
    ),
    "kubelet gives another GPU to a later pod of the same name": Plan(
        ("n1", "n1"),
        2,
        (Call(KUBELET, 0, "n1", (0,)), Call(KUBELET, 1, "n1", (1,))),
        same_name=True,
        replicas=1,
    ),
}
"""Visited as a whole in each run of the tests."""

LARGE: Final = {
    "a share group and a stranger, pods are deleted": replace(WHOLE[PUT_BACK], deletions=True),
    "an operator releases, the store is put back to an old copy": Plan(
        _N, 2, _P_THEN_Q, restores=1, orders=1, replicas=1
    ),
    "kubelet gives a GPU to two pods in turn, two replicas record it": Plan(
        _N, 2, _KUBELET_IN_TURN, overlooked=1
    ),
    "a retry at the other replica, crash and lost answer": Plan(
        _N, 1, _P_TWICE, svid_watcher=(1,), crashes=1, lost_answers=1
    ),
    "two pods want overlapping GPUs": Plan(
        ("n1", "n1"), 2, (Call(0, 0, "n1", (0, 1)), Call(1, 1, "n1", (1,))), svid_watcher=(1,)
    ),
    "everything fails once": Plan(
        _N, 2, _P_AND_Q, crashes=1, lost_answers=1, late_creations=1, svid_watcher=(1,)
    ),
    "everything fails once, both see to it": Plan(
        _N, 2, _P_AND_Q, crashes=1, lost_answers=1, late_creations=1, removals=1, restores=1
    ),
    "three claims of two GPUs": Plan(
        ("n1", "n1"), 2, (*_P_TWICE_BOTH, Call(1, 1, "n1", (1,))), lost_answers=1
    ),
}

NO_DELETIONS: Final = Plan(_N, 1, _P_TWICE, svid_watcher=(1,), deletions=False)
"""A pod that stays: for what must end nevertheless."""
BOTH_GPUS: Final = Plan(("n1", "n1"), 1, _P_TWICE_BOTH, lost_answers=1, svid_watcher=())
"""Only claims: for faults in them."""


def main() -> None:
    """Visit all plans; says how many states there were."""
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    for name, plan in (WHOLE | LARGE).items():
        began = time.monotonic()
        found = explore(Steps(plan, Rules()), most=most)
        extent = "all" if found.complete else "the first"
        seconds = time.monotonic() - began
        sys.stdout.write(f"{name}: {extent} {found.states:,} states, {seconds:.0f} s\n")
        if found.stuck:
            sys.stdout.write("stuck:\n" + "\n".join(found.stuck) + "\n")
            sys.exit(1)


if __name__ == "__main__":
    main()
