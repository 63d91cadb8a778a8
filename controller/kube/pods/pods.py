"""The pods of the cluster: cached, indexed by node, read past the cache, evicted.

Must not decide about a pod: it answers and does what it is asked for.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Final

from controller.access import FoundPod
from controller.admission.eviction import EvictedPod, evicted_after_s
from controller.admission.hints.request import job_type_of
from controller.admission.pod import AdmittedPod, decode_admitted
from controller.binding.request import BoundPod, PodsUnavailableError, StoredPod
from controller.kube.api.cache import Cache, Change
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import EVICTION, PODS, ApiError, Entry, Kind, Metadata
from controller.ledger.record import (
    Origin,
    PodGone,
    PodRef,
    PodSeen,
    PodSight,
    in_claiming_order,
    key_of,
)
from controller.ledger.reservation_id import is_early_id
from controller.ledger.restore import LivePod
from controller.placement.keys import ASSIGNED_UUIDS, RESERVATION_ID, RequirementRules
from controller.placement.pod import Pod
from controller.placement.requirements import (
    Requirements,
    RequirementsInvalid,
    controlling_owner,
    read_requirements,
    share_group,
)
from controller.runs.pod_run import PodRun, run_of
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S, rfc3339

_MIRROR: Final = "kubernetes.io/config.mirror"
"""What kubelet writes on the copy of a static pod: the hash that is the pod's UID on the node."""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod of the cluster."""

    namespace: str
    name: str
    uid: str
    node: str
    """Empty until it is bound."""
    has_ended: bool
    """Succeeded or Failed: it holds nothing any more."""
    asks: bool
    """It carries a requirement, or one that cannot be read."""
    uses_gpus: bool
    """In an enforced namespace it would be managed."""
    waiting: AdmittedPod | None = None
    """The whole pod, while it is not bound and has not ended: the binding decision needs it."""
    held: LivePod | None = None
    """The reservation that it carries once it is bound; nobody has checked the id yet."""
    needs: Requirements | RequirementsInvalid | None = None
    """What it asks for until it ends, as in an enforced namespace; None for nothing of ours."""
    evicted_after_s: int | None = None
    """How long after its node was given the taint of managed nodes it goes; None where it stays."""
    static_uid: str = ""
    """The UID that its node knows a static pod by: that of the API server's copy is another one.
    Empty for other pods."""
    is_deleted: bool = False
    """Its deletion was asked for; it may still run."""
    job_type: str = ""
    """Of one that is bound, has not ended and may have GPUs; for hints."""
    run: PodRun | None = None
    """Of one with a job type or an owner, from its binding on, also once it has ended."""


def pod_kind(rules: RequirementRules) -> Kind[KnownPod]:
    """Pods, with what `rules` make of their requirements."""

    def read(body: bytes) -> tuple[Metadata, KnownPod]:
        pod = decode_admitted(body)
        found, node = _metadata_of(pod), pod.spec.node_name or ""
        asked, has_ended = read_requirements(pod, rules), pod.has_ended
        return found, KnownPod(
            found.namespace,
            found.name,
            found.uid,
            node=node,
            has_ended=has_ended,
            asks=asked.asks,
            uses_gpus=asked.may_count,
            waiting=None if node or has_ended else pod,
            held=_held(found, node, pod, asked.needs),
            needs=asked.needs if asked.may_count and not has_ended else None,
            evicted_after_s=evicted_after_s(pod) if node and not has_ended else None,
            static_uid=pod.annotations.get(_MIRROR, ""),
            is_deleted=pod.metadata.deletion_timestamp is not None,
            job_type=job_type_of(pod) if node and not has_ended and asked.may_count else "",
            run=run_of(pod, asked.needs, body, rules.managed_resources),
        )

    return Kind(PODS, read)


def _metadata_of(pod: AdmittedPod) -> Metadata:
    found = pod.metadata
    return Metadata(
        name=found.name or "",
        namespace=found.namespace or "",
        uid=found.uid or "",
        resource_version=found.resource_version or "",
    )


def _held(
    found: Metadata, node: str, pod: Pod, needs: Requirements | RequirementsInvalid
) -> LivePod | None:
    reservation = pod.annotations.get(RESERVATION_ID)
    if not node or reservation is None:
        return None
    ref = PodRef(found.namespace, found.name, found.uid, controlling_owner(pod))
    gpus = in_claiming_order(tuple(pod.annotations.get(ASSIGNED_UUIDS, "").split(",")))
    origin = Origin.ADMISSION if is_early_id(reservation) else Origin.BINDING_WEBHOOK
    return LivePod(ref, node, reservation, gpus, origin, share_group(pod, needs))


class PodsByNode:
    """Which managed pods run on which node, and which wait: an index of the cached pods.

    `is_enforced` says whether a namespace makes every GPU pod in it managed.
    """

    def __init__(self, is_enforced: Callable[[str], bool]) -> None:
        self._is_enforced = is_enforced
        self._pods: dict[str, dict[str, KnownPod]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """Take changes of the cache."""
        for change in changes:
            if change.old is not None:
                self._remove(change.key, change.old.value)
            if change.new is not None and _counts(change.new.value):
                self._pods.setdefault(change.new.value.node, {})[change.key] = change.new.value

    def managed(self, node: str) -> Iterator[KnownPod]:
        """Managed pods that are bound to `node` and have not ended; `""`: that are not bound."""
        for pod in self._pods.get(node, {}).values():
            if self.is_managed(pod):
                yield pod

    def all_managed(self) -> Iterator[KnownPod]:
        """Managed pods that have not ended, wherever they are."""
        for node in self._pods:
            yield from self.managed(node)

    def is_managed(self, pod: KnownPod) -> bool:
        """Whether it asks for something of ours, or its namespace makes it do so."""
        return pod.asks or (pod.uses_gpus and self._is_enforced(pod.namespace))

    def any_waits(self) -> bool:
        """Whether a managed pod is not bound."""
        return next(self.managed(""), None) is not None

    def _remove(self, key: str, pod: KnownPod) -> None:
        there = self._pods.get(pod.node)
        if there is not None and there.pop(key, None) is not None and not there:
            del self._pods[pod.node]


def _counts(pod: KnownPod) -> bool:
    return not pod.has_ended and (pod.asks or pod.uses_gpus)


REINDEX_NS: Final = 5 * NS_PER_S
"""How often the index by UID is made at most."""


class ClusterBoundPods:
    """Implements BoundPods: what the comparison of nodes with their pods asks for.

    By name the cache answers at once. By UID it is asked only about pods that use a GPU without a
    reservation, with UIDs that an agent reports: so the index by UID is made every few seconds at
    most. Threads may ask too: the cache's objects do not change, and the index is swapped whole.
    """

    def __init__(
        self,
        cache: Cache[KnownPod],
        by_node: PodsByNode,
        boottime_ns: Callable[[], int],
    ) -> None:
        self._cache = cache
        self._by_node = by_node
        self._boottime_ns = boottime_ns
        self._keys: dict[str, str] = {}
        """By UID."""
        self._made_ns: int | None = None

    def named(self, namespace: str, name: str) -> BoundPod | None:
        """The pod of that name."""
        entry = self._cache.objects.get(f"{namespace}/{name}")
        return None if entry is None else self._bound(entry.value)

    def with_uid(self, uid: str) -> BoundPod | None:
        """The pod of that UID, for a static pod that of its node.

        A new one is found after a moment only.
        """
        found = self._known(uid)
        now_ns = self._boottime_ns()
        if found is None and (self._made_ns is None or now_ns - self._made_ns >= REINDEX_NS):
            bound = [(key, x) for key, x in self._cache.objects.items() if x.value.node]
            static = {x.value.static_uid: key for key, x in bound if x.value.static_uid}
            self._keys = static | {entry.uid: key for key, entry in bound}
            self._made_ns = now_ns
            found = self._known(uid)
        return None if found is None else self._bound(found.value)

    def managed(self, node: str) -> Iterator[BoundPod]:
        """Those of a node that ask for something of ours."""
        for pod in self._by_node.managed(node):
            found = self._bound(pod)
            if found is not None:
                yield found

    def _known(self, uid: str) -> Entry[KnownPod] | None:
        entry = self._cache.objects.get(self._keys.get(uid, ""))
        if entry is None or uid not in {entry.uid, entry.value.static_uid}:
            return None
        return entry

    def _bound(self, pod: KnownPod) -> BoundPod | None:
        if not pod.node or pod.has_ended:
            return None
        needs = pod.needs if self._by_node.is_managed(pod) else None
        return BoundPod(PodRef(pod.namespace, pod.name, pod.uid), pod.node, needs)


REQUEUED = "requeued.gpuwarden.dev/at"
"""An annotation beside our prefix: keys below that do not change after creation."""
_AWAKE_NS: Final = 1_500_000_000
"""A pod that another replica has requeued is tried, and answered, within that."""
_NEW_NS: Final = 2_500_000_000
"""The same of a new pod, whose time of creation is in whole seconds."""


def is_awake(pod: AdmittedPod, replica: str, wall_ns: int) -> bool:
    """Whether the scheduler tries the pod just now: a change would make its Binding fail.

    The pod is new, or another replica has requeued it a moment ago, by that one's wall clock.
    Where the clocks differ by more, the pod is requeued twice.
    """
    if _is_recent(pod.metadata.creation_timestamp or "", wall_ns, _NEW_NS):
        return True
    at, _, who = pod.annotations.get(REQUEUED, "").partition(" ")
    return bool(who) and who != replica and _is_recent(at, wall_ns, _AWAKE_NS)


def _is_recent(at: str, wall_ns: int, within_ns: int) -> bool:
    try:
        then = datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return False
    return abs(wall_ns - int(then * NS_PER_S)) < within_ns


_RELIED_ON_NS = 15 * NS_PER_S
"""An older cache is not asked about pods that are to be bound."""
_ANOTHER = frozenset({HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""How a patch fails that names another UID than the object's."""


class ClusterPods:
    """Single pods for binding decisions and the ledger: the cache, and reads past it.

    A read goes to the API server, so its answer was true after the question. A requeue changes the
    pod, so every older Binding of it fails. Used from one event loop.
    """

    def __init__(
        self,
        api: ApiClient,
        kind: Kind[KnownPod],
        cache: Cache[KnownPod],
        *,
        replica: str,
        clock: Clock,
    ) -> None:
        self._api = api
        self._kind = kind
        self._cache = cache
        self._replica = replica
        self._clock = clock
        self._live: dict[str, LivePod] = {}
        self._by_gpu: dict[str, dict[str, LivePod]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """Take changes of the cache."""
        for change in changes:
            live = None if change.new is None else _live(change.new.value)
            self._index(change.key, self._live.get(change.key), live)
            if live is not None:
                self._live[change.key] = live
            else:
                self._live.pop(change.key, None)

    def live(self) -> tuple[LivePod, ...]:
        """Bound pods that have not ended and carry GPUs, from the cache."""
        return tuple(self._live.values())

    def holding(self, gpu: str) -> tuple[LivePod, ...]:
        """Those of `live` that carry this GPU."""
        return tuple(self._by_gpu.get(key_of(gpu), {}).values())

    def replicas(self, namespace: str) -> tuple[str, ...]:
        """Pods of this replica's StatefulSet that have not ended, from the cache, by name."""
        before = f"{namespace}/{self._replica.rpartition('-')[0]}-"
        return tuple(
            sorted(
                entry.value.name
                for key, entry in self._cache.objects.items()
                if key.startswith(before)
                and key.removeprefix(before).isdigit()
                and not entry.value.has_ended
            )
        )

    def reread(self) -> None:
        """Have the cache listed again, soon."""
        self._cache.relist()

    def known(self, namespace: str, name: str) -> StoredPod | None:
        """From the cache; None where it has none or is too old to be relied on."""
        if not self._is_relied_on():
            return None
        entry = self._cache.objects.get(f"{namespace}/{name}")
        return None if entry is None else _stored(entry)

    def evicted(self, nodes: Collection[str]) -> tuple[EvictedPod, ...]:
        """Pods of these nodes that the taint of managed nodes evicts; on any thread.

        Raises PodsUnavailableError.
        """
        if not self._is_relied_on():
            raise PodsUnavailableError("the pods were not read lately")
        pods = (entry.value for entry in self._cache.objects.values())
        return tuple(
            EvictedPod(pod.node, pod.namespace, pod.name, pod.evicted_after_s)
            for pod in pods
            if pod.evicted_after_s is not None and pod.node in nodes
        )

    async def read(self, namespace: str, name: str) -> StoredPod | None:
        """At its newest; None where there is none. Raises PodsUnavailableError."""
        try:
            entry = await self._read(namespace, name)
        except ApiError as error:
            raise PodsUnavailableError(f"the pod could not be read: {error}") from None
        return None if entry is None else _stored(entry)

    async def document(self, namespace: str, name: str) -> bytes | None:
        """The whole pod at its newest; None where there is none. Raises PodsUnavailableError."""
        try:
            return await self._api.get(PODS, name, namespace)
        except ApiError as error:
            if error.is_not_found:
                return None
            raise PodsUnavailableError(f"the pod could not be read: {error}") from None

    def sight(self, pod: PodRef) -> PodSight:
        """The cached pod of that UID; a missing one proves nothing."""
        entry = self._cache.objects.get(f"{pod.namespace}/{pod.name}")
        return None if entry is None or entry.uid != pod.uid else _seen(entry.value)

    def is_leaving(self, pod: PodRef) -> bool:
        """Whether the pod of that UID is being deleted, or the cache has it no more."""
        entry = self._cache.objects.get(f"{pod.namespace}/{pod.name}")
        return entry is None or entry.uid != pod.uid or entry.value.is_deleted

    async def look(self, pod: PodRef) -> PodSeen | PodGone:
        """The pod of that UID at its newest; raises PodsUnavailableError."""
        return (await self.find(pod)).sight

    async def find(self, pod: PodRef) -> FoundPod:
        """The pod of that UID at its newest, with what it holds; raises PodsUnavailableError."""
        try:
            entry = await self._read(pod.namespace, pod.name or "")
        except ApiError as error:
            raise PodsUnavailableError(str(error)) from None
        if entry is None or entry.uid != pod.uid:
            return FoundPod(PodGone(), None)
        return FoundPod(_seen(entry.value), entry.value.held)

    async def requeue(self, pod: PodRef) -> PodSeen | PodGone:
        """Change the pod of that UID and give it as stored; raises PodsUnavailableError."""
        at = f"{rfc3339(self._clock.wall_ns(), digits=6)} {self._replica}"
        body = {"metadata": {"uid": pod.uid, "annotations": {REQUEUED: at}}}
        try:
            answer = await self._api.patch(PODS, pod.name or "", body, pod.namespace)
            _, entry = self._kind.entry(answer)
        except ApiError as error:
            if error.is_not_found:
                return PodGone()
            if error.status in _ANOTHER and isinstance(await self.look(pod), PodGone):
                return PodGone()
            raise PodsUnavailableError(str(error)) from None
        return _seen(entry.value) if entry.uid == pod.uid else PodGone()

    def _is_relied_on(self) -> bool:
        fresh_at_ns = self._cache.fresh_at_ns
        return fresh_at_ns is not None and self._clock.boottime_ns() - fresh_at_ns < _RELIED_ON_NS

    def _index(self, key: str, old: LivePod | None, new: LivePod | None) -> None:
        if old is not None:
            for gpu in {key_of(x) for x in old.gpus}:
                self._by_gpu[gpu].pop(key)
                if not self._by_gpu[gpu]:
                    del self._by_gpu[gpu]
        if new is not None:
            for gpu in {key_of(x) for x in new.gpus}:
                self._by_gpu.setdefault(gpu, {})[key] = new

    async def _read(self, namespace: str, name: str) -> Entry[KnownPod] | None:
        try:
            _, entry = self._kind.entry(await self._api.get(PODS, name, namespace))
        except ApiError as error:
            if error.is_not_found:
                return None
            raise
        return entry


def _live(pod: KnownPod) -> LivePod | None:
    return None if pod.has_ended else pod.held


def _stored(entry: Entry[KnownPod]) -> StoredPod:
    pod = entry.value
    return StoredPod(entry.uid, entry.version, pod.node, pod.has_ended, pod.waiting)


def _seen(pod: KnownPod) -> PodSeen:
    reservation = None if pod.held is None else pod.held.reservation
    return PodSeen(pod.uid, pod.node, reservation, pod.has_ended)


class PodEvictor:
    """Implements Evictor by the Eviction API (policy/v1), which heeds disruption budgets."""

    def __init__(self, api: ApiClient) -> None:
        self._api = api

    async def evict(self, pod: PodRef) -> str:
        """Evict the pod of that UID; empty where that was done or it is gone, else why not."""
        name = pod.name or ""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._api.create_below(PODS, name, EVICTION, body, pod.namespace)
        except ApiError as error:
            if error.is_not_found or error.is_conflict:  # gone, or another pod by now
                return ""
            if error.status == HTTPStatus.TOO_MANY_REQUESTS:
                return f"a disruption budget is against it: {error}"
            return str(error)
        return ""
