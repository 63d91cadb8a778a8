"""Certificates that gpuwarden manages itself, kept in the Kubernetes API and copied into files.

The leader writes what `controller.certificates.plan` says, and a replica that has waited for it in
vain: each write is conditional, so two do not undo each other's. Every replica copies the leaves of
its listeners into files, which the listeners follow. No decision about trust in nodes depends on
it. What cannot be read is a fault that names the object; nothing is written over it.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, NoReturn, assert_never

from controller.certificates.files import CertificateFiles
from controller.certificates.issuing import CertificateMaker
from controller.certificates.leaves import (
    AUTHORITY,
    AUTHORITY_SECRET,
    TRUST_BUNDLE,
    LeafSpec,
    leaf_specs,
)
from controller.certificates.material import Authorities, Leaf, MaterialError, fingerprint
from controller.certificates.plan import (
    Bundles,
    Change,
    Found,
    Held,
    Plan,
    PutAuthorities,
    PutBundle,
    PutLeaf,
    Read,
    Target,
    TargetKind,
    Terms,
    Unreadable,
    Write,
    is_trusted,
    plan,
)
from controller.kube.api.client import ApiClient
from controller.kube.api.resources import (
    BINDINGS_WEBHOOKS,
    PODS,
    PODS_WEBHOOKS,
    SECRETS,
    ApiError,
    Resource,
)
from controller.kube.objects.certificate_objects import (
    CONTROLLER_PODS,
    RESOURCES,
    are_of_one_revision,
    read_authority_secret,
    read_leaf_secret,
    read_target,
    shown,
    write_request,
)
from controller.record import AuditLog, Json, Record
from gpuwarden.audit.record import RecordKind
from gpuwarden.clock import Clock
from gpuwarden.moment import NS_PER_S, rfc3339, utc, wall_ns
from gpuwarden.telemetry import names
from gpuwarden.telemetry.logs import logger
from gpuwarden.telemetry.metrics import Instruments
from gpuwarden.telemetry.names import Event

POLL_S: Final = 10.0
FIRST_POLL_S: Final = 0.5
"""Before the files of every listener are there."""
STARVED_S: Final = 20.0
"""So long a replica that waits for its first files leaves writing to the leader: one of another
configuration (certificates by others, an older version) leads on and makes none."""
_MOST_PASSES: Final = 8
"""In a row, each by what the one before has left; a first installation takes four."""
_ACTOR: Final = "controller"

TARGETS: Final = (
    Target(TargetKind.MUTATING, PODS_WEBHOOKS),
    Target(TargetKind.MUTATING, BINDINGS_WEBHOOKS),
    Target(TargetKind.VALIDATING, PODS_WEBHOOKS),
    Target(TargetKind.CONFIG_MAP, TRUST_BUNDLE),
)


class ManagedCertificates:
    """One per process; used from one event loop."""

    def __init__(
        self,
        api: ApiClient,
        files: CertificateFiles,
        *,
        namespace: str,
        terms: Terms,
        listeners: Iterable[str],
        clock: Clock,
        instruments: Instruments,
        audit: AuditLog,
        leads: Callable[[], bool],
        jitter: Callable[[], float],
    ) -> None:
        """`listeners`: those that wait for their files. `leads`: whether this replica writes."""
        self._api = api
        self._files = files
        self._namespace = namespace
        self._terms = terms
        self._specs = leaf_specs(namespace)
        self._awaited = tuple(x for x in self._specs if x.name in set(listeners))
        self._clock = clock
        self._audit = audit
        self._leads = leads
        self._jitter = jitter
        self._maker = CertificateMaker()
        self._log = logger("certificates")
        self._writes = instruments.counter(names.CERTIFICATE_WRITES)
        self._ends: dict[str, int] = {}
        """Wall time of the end of each certificate that is known, by name."""
        for name in (AUTHORITY, *(x.name for x in self._specs)):
            gauge = instruments.gauge(names.MANAGED_CERTIFICATE_EXPIRY).labels(name)
            gauge.set_function(partial(self._seconds_left, name))
        self._faults: tuple[str, ...] = ()
        self._began_ns: int | None = None
        self.complete = asyncio.Event()
        """The files of every listener are there."""

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, NoReturn]]:
        """What has to run, once."""
        return {"managed certificates": self.follow()}

    async def follow(self) -> NoReturn:
        """Reconcile forever; ends by cancellation only."""
        while True:
            await self.reconcile()
            seconds = FIRST_POLL_S if self._missing() else POLL_S
            await asyncio.sleep(seconds * (1.0 + self._jitter() / 5))

    async def reconcile(self) -> None:
        """Write what is due, if this replica is to; then copy what is stored into files."""
        faults: list[str] = []
        if self._began_ns is None:
            self._began_ns = self._clock.boottime_ns()
        try:
            if self._writes_now():
                faults += await self._lead()
            faults += await self._copy()
        except ApiError as error:
            faults = [f"the Kubernetes API: {error}"]
        found = tuple(dict.fromkeys(faults))
        for fault in found:
            if fault not in self._faults:
                self._log.warning(Event.CERTIFICATES_FAULT, reason=fault)
        self._faults = found
        if not self._missing():
            self.complete.set()

    def waiting(self) -> str | None:
        """What listeners wait for before they can open; None where nothing is missing."""
        missing = self._missing()
        if not missing:
            return None
        because = f" ({'; '.join(self._faults)})" if self._faults else ""
        return f"waiting for Secret {', '.join(x.secret for x in missing)}{because}"

    def warnings(self) -> tuple[str, ...]:
        """What somebody should know of the managed certificates."""
        return tuple(f"certificates: {fault}" for fault in self._faults)

    def _missing(self) -> tuple[LeafSpec, ...]:
        return tuple(x for x in self._awaited if not self._files.has(x.name))

    def _seconds_left(self, name: str) -> float:
        ends = self._ends.get(name)
        return math.nan if ends is None else (ends - self._clock.wall_ns()) / NS_PER_S

    # --- every replica

    async def _copy(self) -> list[str]:
        faults = []
        webhooks = await self._webhooks() if self._missing() else {}
        for spec in self._specs:
            if spec.is_client:
                continue
            found = await self._leaf(spec)
            match found:
                case Unreadable(text):
                    faults.append(text)
                case Found(_, leaf):
                    if not self._files.has(spec.name) and not is_trusted(leaf, webhooks):
                        continue  # of an earlier time; who leads, or is starved, publishes it
                    try:
                        self._files.write(spec.name, leaf)
                    except OSError as error:
                        faults.append(f"files of {spec.name}: {error.strerror}")
                        continue
                    self._note_ends(spec, leaf)
        return faults

    async def _webhooks(self) -> dict[Target, Read[Bundles]]:
        return {x: await self._target(x) for x in TARGETS if not x.is_ours}

    def _note_ends(self, spec: LeafSpec, leaf: Leaf) -> None:
        self._ends[spec.name] = wall_ns(leaf.ends)
        for authority in leaf.trusted:
            if leaf.is_issued_by(authority):
                self._ends[AUTHORITY] = wall_ns(authority.not_valid_after_utc)

    # --- the leader, or who has waited for it in vain

    def _writes_now(self) -> bool:
        return self._leads() or self._is_starved()

    def _is_starved(self) -> bool:
        if self._began_ns is None or not self._missing():
            return False
        return self._clock.boottime_ns() - self._began_ns >= STARVED_S * NS_PER_S

    async def _lead(self) -> list[str]:
        found = Plan()
        is_mixed, faults = await self._mixed()
        for _ in range(_MOST_PASSES):
            held = await self._held(is_mixed=is_mixed)
            now = utc(self._clock.wall_ns()).replace(microsecond=0)
            found = plan(held, now, self._terms, self._maker)
            outcomes = [await self._write(x) for x in found.writes]
            failures = [x for x in outcomes if isinstance(x, str)]
            if failures or False in outcomes or not found.writes:
                return [*faults, *found.faults, *failures]
        return [*faults, *found.faults]

    async def _mixed(self) -> tuple[bool, list[str]]:
        """Whether controllers of several revisions run, or may, and what hides it."""
        try:
            page = await self._api.labelled(PODS, self._namespace, CONTROLLER_PODS)
            return not are_of_one_revision(page.items or ()), []
        except (ApiError, MaterialError) as error:
            if isinstance(error, ApiError) and error.status == 0:
                raise
            return True, [f"pods of the controllers: {error}"]

    async def _write(self, write: Write) -> bool | str:
        """Whether it was taken; a fault where it could not be. Raises ApiError for no answer."""
        request = write_request(write, self._namespace)
        if not self._writes_now():
            return False
        try:
            if request.is_new:
                await self._api.create(request.resource, request.body, request.namespace)
            else:
                await self._api.patch(
                    request.resource,
                    request.name,
                    request.body,
                    request.namespace,
                    content_type=request.content_type,
                )
        except ApiError as error:
            result = "conflict" if error.is_conflict else "failed"
            self._writes.labels(result).inc()
            if error.status == 0:
                raise
            # Somebody wrote before; the next pass reads what.
            return False if error.is_conflict else f"{request.shown}: {error}"
        self._writes.labels("written").inc()
        self._log.info(Event.CERTIFICATES_WRITTEN, object=request.shown, **_facts(write))
        record = _record(write)
        if record is not None:
            self._audit.note(record)
        return True

    async def _held(self, *, is_mixed: bool) -> Held:
        """Everything, the authorities last: `plan` relies on that order."""
        targets = {target: await self._target(target) for target in TARGETS}
        leaves = {spec: await self._leaf(spec) for spec in self._specs}
        for spec, leaf in leaves.items():
            if isinstance(leaf, Found) and spec.is_client:
                self._note_ends(spec, leaf.value)
        return Held(targets, leaves, await self._authorities(), is_mixed)

    async def _target(self, target: Target) -> Read[Bundles]:
        namespace = self._namespace if target.is_ours else None
        body = await self._get(shown(target), RESOURCES[target.kind], target.name, namespace)
        return read_target(target, body) if isinstance(body, bytes) else body

    async def _leaf(self, spec: LeafSpec) -> Read[Leaf]:
        body = await self._get(f"Secret {spec.secret}", SECRETS, spec.secret, self._namespace)
        return read_leaf_secret(spec, body) if isinstance(body, bytes) else body

    async def _authorities(self) -> Read[Authorities]:
        name = AUTHORITY_SECRET
        body = await self._get(f"Secret {name}", SECRETS, name, self._namespace)
        return read_authority_secret(body) if isinstance(body, bytes) else body

    async def _get(
        self, what: str, resource: Resource, name: str, namespace: str | None
    ) -> bytes | Unreadable | None:
        """None where there is no such object; raises ApiError where the API does not answer."""
        try:
            return await self._api.get(resource, name, namespace)
        except ApiError as error:
            if error.is_not_found:
                return None
            if error.status == 0:
                raise
            return Unreadable(f"{what}: {error}")


# --- what people read


def _facts(write: Write) -> dict[str, Json]:
    """What it is now, never a key."""
    match write:
        case PutAuthorities():
            certificate, change = write.authorities.current.certificate, write.change.value
        case PutLeaf():
            certificate, change = write.leaf.certificate, "issued" if write.is_new else "bundle"
        case PutBundle():
            return {"change": "bundle"}
        case _:
            assert_never(write)
    return {
        "change": change,
        "certificate": fingerprint(certificate),
        "ends": rfc3339(wall_ns(certificate.not_valid_after_utc), digits=0),
    }


def _record(write: Write) -> Record | None:
    """For the audit log: authorities that come and go, leaves that are issued."""
    match write:
        case PutAuthorities() if write.change is not Change.PUBLISHED:
            subject = AUTHORITY
            more: dict[str, Json] = {"trusted": [fingerprint(x) for x in write.authorities.trusted]}
        case PutLeaf() if write.is_new:
            subject, more = write.spec.name, {}
        case _:
            return None
    refs = _facts(write)
    return Record(
        kind=RecordKind.CERTIFICATE_CHANGE,
        actor=_ACTOR,
        subject=f"certificate/{subject}",
        decision=str(refs.pop("change")),
        refs=refs | more,
    )
