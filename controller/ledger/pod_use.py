"""Which GPUs a node shows in the hands of pods, and whether the ledger explains that. Pure.

One rule for whoever chooses GPUs and for whoever grants them: a GPU is nobody else's while the
node's last report shows that kubelet has given it to a pod, or that a process of a pod uses it
for which the ledger does not hold it. Kubelet tells pods by their names, which an earlier pod may
have had: so nothing explains what it has given. Processes of no pod are not this rule's business.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.fleet.sharded_map import ShardedMap
from controller.fleet.view import Acceptance
from controller.ledger.record import key_of
from controller.ledger.release import GivenDevice, UseReport, card_of
from controller.ledger.store import Entry

Users = Mapping[str, frozenset[str | None]]
"""As of `UseReport`."""


@dataclass(frozen=True, slots=True)
class Holders:
    """Whom GPUs are held for at one moment."""

    entries: ShardedMap[Entry] = field(default_factory=ShardedMap, compare=False)
    """Of the ledger's snapshot."""
    edition: int = 0
    """Another one where a GPU that stays held has other pods than before."""


class CardUse(NamedTuple):
    """What the node shows of pods on one GPU or MIG device; of none of them there is none."""

    card: str
    """UUID, as driver and kubelet name it."""
    keys: tuple[str, ...]
    """`key_of` the card and, since the driver names the whole GPU for their processes, of its MIG
    devices: a pod that holds one of these explains its process."""
    uids: frozenset[str]
    """Of the pods whose processes use it."""
    is_given: bool
    """Whether kubelet has given it to a pod."""


def users_of(acceptance: Acceptance) -> Users | None:
    """Whose processes the evidence shows; None where they could not be read."""
    if acceptance.processes is None:
        return None
    found: dict[str, set[str | None]] = {}
    for process in acceptance.processes:
        found.setdefault(process.gpu, set()).add(process.pod_uid)
    return {gpu: frozenset(users) for gpu, users in found.items()}


def given_in(acceptance: Acceptance) -> frozenset[GivenDevice]:
    """What the evidence shows as given by kubelet."""
    allocations = acceptance.allocations or ()
    return frozenset(GivenDevice(x.namespace, x.pod, x.device) for x in allocations)


def uses_in(acceptance: Acceptance) -> tuple[CardUse, ...]:
    """What the evidence shows of pods."""
    return _uses(users_of(acceptance), given_in(acceptance), acceptance.with_parts)


def use_of(report: UseReport, card: str) -> CardUse | None:
    """What the report shows of pods on one GPU that has no parts."""
    users = {card: (report.users or {}).get(card, frozenset())}
    given = (x for x in report.given or () if card_of(x.device) == card)
    return next(iter(_uses(users, given, lambda gpu: (gpu,))), None)


def is_taken(use: CardUse, holders: Holders) -> bool:
    """Whether the card is in the hands of a pod that the ledger does not hold it for."""
    return use.is_given or has_stranger(use, holders)


def has_stranger(use: CardUse, holders: Holders) -> bool:
    """Whether a pod uses the card that the ledger holds nothing of it for."""
    if not use.uids:
        return False
    entries = [x for key in use.keys if (x := holders.entries.get(key)) is not None]
    return not use.uids <= {holder.pod.uid for x in entries for holder in x.record.holders}


def _uses(
    users: Users | None,
    given: Iterable[GivenDevice],
    with_parts: Callable[[str], tuple[str, ...]],
) -> tuple[CardUse, ...]:
    by_process = {
        gpu: uids
        for gpu, pods in (users or {}).items()
        if (uids := frozenset(uid for uid in pods if uid is not None))
    }
    by_kubelet = {card for x in given if (card := card_of(x.device)) is not None}
    return tuple(
        CardUse(
            card,
            tuple(key_of(x) for x in with_parts(card)),
            by_process.get(card, frozenset()),
            card in by_kubelet,
        )
        for card in by_process.keys() | by_kubelet
    )
