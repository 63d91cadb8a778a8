"""Pods that are not to be tried again yet: refused a moment ago, or in vain for too long.

Pure. Must not end attempts.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from controller.ledger.attempt import DEFAULT_LIMITS
from controller.ledger.record import PodRef
from controller.placement.cures import CURES, Cure
from gpuwarden.moment import NS_PER_S
from gpuwarden.reasons import ReasonCode, Refusal

# --- lost turns
# The API server stores a Binding a moment after the answer, unless another admission step refuses
# it. A pod that is refused there for ever would reserve the same GPU again with each retry. So when
# the time of its attempt is over it is refused itself, on every node: 90 s at first, and twice as
# long after each further loss.

FIRST_NS: Final = DEFAULT_LIMITS.binding_webhook_ns
"""As long as an attempt lasts: such a pod has a GPU half of the time at most."""
LONGEST_NS: Final = 16 * FIRST_NS
MOST: Final = 4096
"""Pods that are remembered; beyond, the oldest is forgotten first."""
OTHERS_FIRST: Final = Refusal(
    ReasonCode.RESERVATION_EXPIRED,
    "its Binding was let through and not stored in time: other pods go first for a while",
)

TurnRefusal = Callable[[str], Refusal | None]
"""What is against the pod of a UID now, because it has lost its turn."""


def no_turns(_pod_uid: str) -> Refusal | None:
    """Where nobody has lost one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How often a pod has lost it, and until when others go first."""

    lost: int
    until_ns: int
    is_back: bool = False
    """Whether the pod was tried again since."""


def after_loss(turn: Turn | None, now_ns: int) -> Turn:
    """Lost once more; while others go first nothing more can be lost."""
    if turn is not None and now_ns < turn.until_ns:
        return turn
    lost = 1 if turn is None else turn.lost + 1
    return Turn(lost, now_ns + min(FIRST_NS << (lost - 1), LONGEST_NS))


class LostTurns:
    """One per process; used from one event loop."""

    def __init__(self) -> None:
        self._turns: dict[str, tuple[PodRef, Turn]] = {}
        """By UID."""

    def __len__(self) -> int:
        return len(self._turns)

    def lose(self, pod: PodRef, now_ns: int) -> None:
        """The time of an attempt of the pod is over, and it was not bound."""
        uid = pod.uid or ""
        _, before = self._turns.pop(uid, (pod, None))
        while len(self._turns) >= MOST:
            del self._turns[next(iter(self._turns))]
        self._turns[uid] = pod, after_loss(before, now_ns)

    def refusal(self, pod_uid: str, now_ns: int) -> Refusal | None:
        """What is against the pod now."""
        found = self._turns.get(pod_uid)
        return OTHERS_FIRST if found is not None and now_ns < found[1].until_ns else None

    def take_back(self, now_ns: int) -> tuple[PodRef, ...]:
        """Pods that may be tried again from now on, each once."""
        over = [(x, turn) for x, turn in self._turns.values() if _is_due(turn, now_ns)]
        for pod, turn in over:
            self._turns[pod.uid or ""] = pod, replace(turn, is_back=True)
        return tuple(pod for pod, _ in over)

    def keep(self, waits: Callable[[PodRef], bool], now_ns: int) -> None:
        """Forget the pods that do not wait any more, and what is long over."""
        self._turns = {
            uid: (pod, turn)
            for uid, (pod, turn) in self._turns.items()
            if now_ns < turn.until_ns + LONGEST_NS and waits(pod)
        }


def _is_due(turn: Turn, now_ns: int) -> bool:
    return not turn.is_back and now_ns >= turn.until_ns


# --- recent refusals
# The scheduler tries a pod again whose Binding was refused, every 10 s at last. /filter asks here,
# so that the pod is not sent to the same refusal again. What time cures is forgotten after some
# seconds, and the pod is tried again then. What is about the pod itself, and only somebody else can
# cure, is said of every node, for as long as the scheduler leaves a pod alone by itself.

KEPT_NS: Final = 5 * NS_PER_S
KEPT_OF_POD_NS: Final = 300 * NS_PER_S
MOST_DENIALS: Final = 4096
"""Refusals that are remembered; beyond, the oldest is forgotten first."""
NONE: Final[frozenset[str]] = frozenset()


def is_tried_again(code: ReasonCode) -> bool:
    """Whether after some seconds it may be otherwise, and nothing says so.

    GPU_BUSY, too: /filter does not see every cause itself, such as a claim that is on its way.
    """
    return code is ReasonCode.GPU_BUSY or CURES.get(code) is Cure.TIME


class RecentDenials:
    """One per process; used from one event loop."""

    def __init__(self, *, kept_ns: int = KEPT_NS, most: int = MOST_DENIALS) -> None:
        self._kept_ns = kept_ns
        self._most = most
        self._until: dict[tuple[str, str], tuple[int, PodRef | None]] = {}
        """By pod UID and node, the oldest first: all are kept equally long. With the pod, where
        it is to be tried again then."""
        self._by_pod: dict[str, frozenset[str]] = {}
        self._of_pod: dict[str, tuple[int, Refusal]] = {}
        """By pod UID, the oldest first."""

    def __len__(self) -> int:
        return len(self._until) + len(self._of_pod)

    def add(self, pod: PodRef, node: str, refusal: Refusal, now_ns: int) -> None:
        """The binding webhook has denied the pod the node."""
        uid, code = pod.uid or "", refusal.code
        if CURES.get(code) is Cure.AUTHOR:
            self._of_pod.pop(uid, None)
            self._of_pod[uid] = now_ns + KEPT_OF_POD_NS, refusal
            while len(self._of_pod) > self._most:
                del self._of_pod[next(iter(self._of_pod))]
            return
        self._forget((uid, node))
        while len(self._until) >= self._most:
            self._forget(next(iter(self._until)))
        again = pod if is_tried_again(code) else None
        self._until[uid, node] = now_ns + self._kept_ns, again
        self._by_pod[uid] = self._by_pod.get(uid, NONE) | {node}

    def nodes(self, pod_uid: str, now_ns: int) -> frozenset[str]:
        """Nodes that the pod is not to be sent to now."""
        found = self._by_pod.get(pod_uid, NONE)
        return frozenset(x for x in found if self._until[pod_uid, x][0] > now_ns) if found else NONE

    def of_pod(self, pod_uid: str, now_ns: int) -> Refusal | None:
        """What is against the pod on every node."""
        found = self._of_pod.get(pod_uid)
        return found[1] if found is not None and now_ns < found[0] else None

    def forget_ended(self, now_ns: int) -> tuple[PodRef, ...]:
        """Forget the refusals that are over; return the pods that are to be tried again."""
        over = []
        for key, (until_ns, _) in self._until.items():
            if until_ns > now_ns:
                break
            over.append(key)
        again = {uid: pod for uid, node in over if (pod := self._until[uid, node][1]) is not None}
        for key in over:
            self._forget(key)
        self._of_pod = {k: x for k, x in self._of_pod.items() if now_ns < x[0]}
        return tuple(again.values())

    def _forget(self, key: tuple[str, str]) -> None:
        if self._until.pop(key, None) is None:
            return
        uid, node = key
        left = self._by_pod[uid] - {node}
        if left:
            self._by_pod[uid] = left
        else:
            del self._by_pod[uid]
