"""The pods of the cluster as the gate and the ledger ask for them: the copy, and past it.

The copy answers at once. A read goes to the API server's store, so that what it says was true
after the question; a touch changes the pod, so that every older Binding of it fails.
"""

from http import HTTPStatus

from controller.binding.stored_pod import PodsUnavailableError, StoredPod
from controller.http_api.finalizing import FoundPod
from controller.kube.api import ApiClient
from controller.kube.errors import ApiError
from controller.kube.micro_time import micro_time
from controller.kube.objects import Kind, KnownPod
from controller.kube.reflection import Change, Entry, Reflection
from controller.kube.resources import PODS
from controller.ledger.adoption import LivePod
from controller.ledger.pods import PodGone, PodSeen, PodSight
from controller.ledger.record import PodRef, key_of
from gpuwarden.clock import Clock

TOUCHED = "touched.gpuwarden.dev/at"
"""An annotation beside our prefix: what stands under that does not change after creation."""
_RELIED_ON_NS = 15 * 1_000_000_000
"""An older copy is not asked about pods that are to be bound."""
_ANOTHER = frozenset({HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY})
"""How a patch fails that names another UID than the object's."""


class ClusterPods:
    """Used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        kind: Kind[KnownPod],
        reflection: Reflection[KnownPod],
        *,
        replica: str,
        clock: Clock,
    ) -> None:
        self._api = api
        self._kind = kind
        self._reflection = reflection
        self._replica = replica
        self._clock = clock
        self._live: dict[str, LivePod] = {}
        self._by_gpu: dict[str, dict[str, LivePod]] = {}

    def observe(self, changes: tuple[Change[KnownPod], ...], _asked_ns: int | None) -> None:
        """The copy changed."""
        for change in changes:
            live = None if change.new is None else _live(change.new.value)
            self._index(change.key, self._live.get(change.key), live)
            if live is not None:
                self._live[change.key] = live
            else:
                self._live.pop(change.key, None)

    def live(self) -> tuple[LivePod, ...]:
        """Bound pods that have not ended and say that they hold GPUs, from the copy."""
        return tuple(self._live.values())

    def holding(self, gpu: str) -> tuple[LivePod, ...]:
        """Those of `live` that say that they hold this GPU."""
        return tuple(self._by_gpu.get(key_of(gpu), {}).values())

    def reread(self) -> None:
        """Have the copy made anew, soon."""
        self._reflection.relist()

    def known(self, namespace: str, name: str) -> StoredPod | None:
        """From the copy; None where it does not know, or is too old to be relied on."""
        fresh_at_ns = self._reflection.fresh_at_ns
        if fresh_at_ns is None or self._clock.boottime_ns() - fresh_at_ns >= _RELIED_ON_NS:
            return None
        entry = self._reflection.objects.get(f"{namespace}/{name}")
        return None if entry is None else _stored(entry)

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
        """What the copy says of a pod by its UID; that it lacks one proves nothing."""
        entry = self._reflection.objects.get(f"{pod.namespace}/{pod.name}")
        return None if entry is None or entry.uid != pod.uid else _seen(entry.value)

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

    async def touch(self, pod: PodRef) -> PodSeen | PodGone:
        """Change the pod of that UID and give it as stored; raises PodsUnavailableError."""
        at = f"{micro_time(self._clock.wall_ns())} {self._replica}"
        body = {"metadata": {"uid": pod.uid, "annotations": {TOUCHED: at}}}
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
