"""Puts the HTTP API of a controller together from its settings. Starts nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

from controller.api_journal import ApiJournal
from controller.fleet.view import FleetSnapshot
from controller.http_api.authentication import Authentication, AuthenticationPorts
from controller.http_api.endpoint import ApiLimits, ApiPorts, Endpoint
from controller.http_api.finalizing import FinalizePorts, Finalizer
from controller.http_api.listing import Moment
from controller.http_api.token_reviews import TokenReviewer, TokenReviews
from controller.http_server import HttpServer
from controller.ledger.store import LedgerSnapshot, LedgerStore
from controller.policy import Policy
from controller.scheduling.device_labels import compile_labels
from controller.scheduling.selector import Selector
from controller.scheduling.serving_tls import Roots, TlsFiles
from controller.settings import ControllerSettings
from gpuwarden.clock import Clock

_NS: Final = 1e9


class KnownFleet(Protocol):
    """The fleet as people ask for it."""

    def snapshot(self) -> FleetSnapshot:
        """All nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSources:
    """What the API is made of; all of it is there already."""

    fleet: KnownFleet
    policy: Callable[[], Policy]
    ledger: LedgerStore | None
    finalize: FinalizePorts | None
    reviewer: TokenReviewer | None
    roots: Callable[[], Roots]
    journal: ApiJournal
    clock: Clock


def api_server(settings: ControllerSettings, sources: ApiSources) -> HttpServer | None:
    """The listener, or None without `api.tls`; raises TlsFilesError for files that cannot serve."""
    tls = settings.api.tls
    if tls.cert is None or tls.key is None:
        return None
    limits, finalize = ApiLimits(), sources.finalize
    endpoint = Endpoint(
        ApiPorts(
            authentication=_authentication(settings, sources),
            moment=_moment(sources),
            finalizer=None if finalize is None else Finalizer(finalize),
            sink=sources.journal,
            boottime_ns=sources.clock.boottime_ns,
        ),
        limits,
    )
    return HttpServer(
        endpoint.application(),
        address=settings.listen.api,
        tls=TlsFiles(tls.cert, tls.key),
        limits=limits,
        certificate_changed=sources.journal.certificate_changed,
        client_roots=sources.roots,
    )


def _authentication(settings: ControllerSettings, sources: ApiSources) -> Authentication:
    clock, reviews = sources.clock, None
    if sources.reviewer is not None:
        reviews = TokenReviews(
            sources.reviewer,
            boottime_ns=clock.boottime_ns,
            reviewed=sources.journal.reviewed,
        )
    return Authentication(
        AuthenticationPorts(
            reviews=reviews,
            roots=sources.roots,
            wall=lambda: datetime.fromtimestamp(clock.wall_ns() / _NS, UTC),
            trust_domain=settings.trust_domain,
            path_prefix=settings.path_prefix,
            readers=frozenset(settings.api.readers),
        )
    )


def _moment(sources: ApiSources) -> Callable[[], Moment]:
    labels = _Labels(sources.policy)

    def moment() -> Moment:
        ledger = LedgerSnapshot() if sources.ledger is None else sources.ledger.snapshot()
        now_ns = sources.clock.boottime_ns()
        return Moment(sources.fleet.snapshot(), ledger, labels(), now_ns)

    return moment


class _Labels:
    """The selectors behind the policy's labels, compiled once per policy."""

    def __init__(self, policy: Callable[[], Policy]) -> None:
        self._policy = policy
        self._made: tuple[Policy, Mapping[str, Selector]] | None = None

    def __call__(self) -> Mapping[str, Selector]:
        policy = self._policy()
        if self._made is None or self._made[0] is not policy:
            self._made = (policy, compile_labels(policy.labels))
        return self._made[1]
