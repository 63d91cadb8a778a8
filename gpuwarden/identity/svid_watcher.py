"""Keeps this process's SVID current: the watchdog over the Workload API.

One thread of its own builds the watch, probes it and rebuilds it as `watchdog`
decides, takes what `svid.appraise` accepts, and publishes it as one immutable snapshot.
Readers never wait and never get an SVID that has expired or was withdrawn. It does
not dial, sign or write anything.
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, Self

from gpuwarden.clock import Clock
from gpuwarden.identity.svid import (
    IdentityWithdrawnError,
    Offer,
    OfferRefusedError,
    Svid,
    Wanted,
    appraise,
    end_of,
    is_behind,
    is_same,
    is_stale,
    lifetime_of,
)
from gpuwarden.identity.watchdog import Limits, Step, Watchdog
from gpuwarden.identity.workload_api import (
    SpiffeWorkloadApi,
    WorkloadApiDeniedError,
    WorkloadApiError,
)
from gpuwarden.moment import NS_PER_S, utc

_LOG = logging.getLogger(__name__)
_JOIN_SECONDS = 2.0
_RETRIES_PER_LIFETIME = 16


class Watch(Protocol):
    """An open watch on the Workload API."""

    def latest(self) -> Offer:
        """The last update; raises WorkloadApiError if the watch has ended."""

    def close(self) -> None:
        """End it."""


class WorkloadApi(Protocol):
    """Where SVIDs come from; both calls block and raise WorkloadApiError."""

    def fetch(self) -> Offer:
        """Ask once."""

    def watch(self, updated: Callable[[], None]) -> Watch:
        """Stay connected; `updated` is called from any thread after a change."""


@dataclass(frozen=True, slots=True)
class SvidFacts:
    """What metrics show of the watcher."""

    svid_expires_seconds: float
    """Until the served SVID ends; 0 while none is served."""
    generation: int
    rebuilds: int
    """Watches built so far, the first included."""
    failures: int
    """Fetches, watches and offers that failed so far."""
    watching: bool


class SvidWatcher:
    """An `SvidSource` over the Workload API; thread-safe. Use `start` and `close`, or `with`."""

    def __init__(
        self,
        workload_api: WorkloadApi,
        wanted: Wanted,
        clock: Clock,
        limits: Limits | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._api = workload_api
        self._wanted = wanted
        self._clock = clock
        self._jitter = jitter
        self._dog = Watchdog(limits or Limits())
        self._watch: Watch | None = None
        self._svid: Svid | None = None
        self._generation = 0
        self._served = False
        self._trouble = "not asked yet"
        self._rebuilds = 0
        self._failures = 0
        self._subscribers: tuple[Callable[[], None], ...] = ()
        self._subscribing = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="svid-watcher", daemon=True)

    @classmethod
    def dialing(
        cls, endpoint: str, wanted: Wanted, clock: Clock, limits: Limits | None = None
    ) -> Self:
        """A SVID watcher over the Workload API at `endpoint` (`unix:///path` or a path)."""
        limits = limits or Limits()
        api = SpiffeWorkloadApi(
            endpoint,
            wanted,
            fetch_timeout=limits.fetch_timeout,
            first_update_timeout=limits.first_update_timeout,
        )
        return cls(api, wanted, clock, limits)

    def current(self) -> Svid | None:
        """The current SVID, or None while there is none that is valid now."""
        svid = self._svid
        return svid if svid is not None and self._wall() < end_of(svid) else None

    def state(self) -> str:
        """One line: the SVID that is served, or why there is none, and what is wrong at present."""
        svid, trouble = self.current(), self._trouble
        if svid is not None:
            line = f"SVID {svid.spiffe_id} generation {svid.generation} until {end_of(svid):%FT%TZ}"
            return f"{line}; {trouble}" if trouble else line
        if not trouble and self._svid is not None:
            trouble = f"expired at {end_of(self._svid):%FT%TZ}"
        return f"no SVID: {trouble}"

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` from the watcher's thread after each change; returns how to stop it."""
        with self._subscribing:
            self._subscribers = (*self._subscribers, notify)

        def stop() -> None:
            with self._subscribing:
                self._subscribers = tuple(x for x in self._subscribers if x is not notify)

        return stop

    def facts(self) -> SvidFacts:
        """The numbers for metrics."""
        svid = self.current()
        left = 0.0 if svid is None else (end_of(svid) - self._wall()).total_seconds()
        return SvidFacts(left, self._generation, self._rebuilds, self._failures, self._dog.watching)

    def start(self) -> None:
        """Start the thread; returns at once, with or without an SVID."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a call into the Workload API that is under way is left to its timeout."""
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            self.turn()
            self._wake.wait(self._dog.wait_seconds(self._boot(), overdue=self._overdue()))
        self._end_watch()

    def turn(self) -> None:
        """Do what is due now; the thread's loop body, public for tests with a fake clock."""
        try:
            self._look()
            step = self._dog.step(self._boot(), overdue=self._overdue())
            if step is Step.BUILD:
                self._build()
            elif step is Step.PROBE:
                self._probe()
        except Exception as error:  # noqa: BLE001 - the thread must outlive whatever a library raises
            self._fail(error)
        if not self._dog.watching:
            self._end_watch()
        if self._dog.withdrawn:
            self._svid = None
        self._announce()

    def _fail(self, error: Exception) -> None:
        denied = isinstance(error, WorkloadApiDeniedError)
        event = self._dog.denied if denied else self._dog.failed
        self._dog = event(self._boot(), self._jitter())
        self._failures += 1
        self._complain(str(error) if isinstance(error, WorkloadApiError) else f"bug: {error!r}")

    def _look(self) -> None:
        """Take the watch's last update."""
        if self._watch is not None:
            self._take(self._watch.latest())

    def _build(self) -> None:
        """Replace the watch; a fetch first, because its error comes at once and is exact."""
        self._end_watch()
        self._dog = self._dog.ended()
        self._api.fetch()
        self._watch = self._api.watch(self._wake.set)
        self._rebuilds += 1
        self._take(self._watch.latest())
        svid = self._svid
        retry = self._dog.limits.overdue_retry
        if svid is not None:
            retry = lifetime_of(svid).total_seconds() / _RETRIES_PER_LIFETIME
        self._dog = self._dog.built(self._boot(), retry)

    def _probe(self) -> None:
        fresh = self._api.fetch()
        behind = self._watch is None or is_behind(self._watch.latest(), fresh)
        self._dog = self._dog.probed(self._boot(), behind=behind)

    def _take(self, offer: Offer) -> None:
        svid = self._svid
        if svid is not None and is_same(svid, offer):
            self._trouble = self._trouble if self._dog.denials else ""
            return
        try:
            self._svid = appraise(
                offer,
                self._wanted,
                self._wall(),
                self._dog.limits.max_lifetime,
                self._generation + 1,
            )
        except OfferRefusedError as error:
            if isinstance(error, IdentityWithdrawnError):
                self._svid = None
            self._failures += str(error) != self._trouble
            self._complain(str(error))
            return
        self._generation += 1
        self._trouble = ""
        self._served = False

    def _complain(self, text: str) -> None:
        """Keep the reason for `state`; log it once, not at every attempt."""
        if text != self._trouble:
            self._trouble = text
            _LOG.warning("SVID svid_watcher: %s", text)

    def _announce(self) -> None:
        """Tell subscribers about a new SVID, and about the loss of the last one."""
        served = self.current() is not None
        if served == self._served:
            return
        self._served = served
        for notify in self._subscribers:
            try:
                notify()
            except Exception:  # noqa: BLE001 - one bad subscriber must not stop the others
                _LOG.exception("SVID svid_watcher: a subscriber failed")

    def _overdue(self) -> bool:
        svid = self.current()
        return svid is None or is_stale(svid, self._wall())

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _boot(self) -> float:
        return self._clock.boottime_ns() / NS_PER_S

    def _wall(self) -> datetime:
        return utc(self._clock.wall_ns())
