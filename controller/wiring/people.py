"""The listeners for people with a kubeconfig: TLS from files; one for tokens, one for certificates.

Constructs and connects only. Must not know what is answered to them.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from controller.access import Person
from controller.kube.access.access_config import AUTHORITY_KEY, CERTIFICATES_KEY, TOKENS_KEY
from controller.operations.readiness import ListenerState
from controller.people.reviews import AccessReviews, TokenReviews
from controller.people.roles import Roles
from controller.recorders.people import LISTENER, PeopleRecorder
from controller.rpc.interceptor import Authenticate, AuthorizationInterceptor, CallObserver
from controller.rpc.people import certificate_person, token_person
from controller.rpc.server import AddService, RpcServer, people_server
from controller.settings import ControllerSettings
from controller.web.tls import Reload, ServingTls, TlsFiles
from controller.wiring.certificates import tls_files
from controller.wiring.cluster import Cluster
from gpuwarden.clock import Clock
from gpuwarden.identity.server_credentials import ServerPem, pem_credentials

_RELOAD_S: Final = 10.0
_MAX_AUTHORITY_BYTES: Final = 256 << 10


class PeopleAccess:
    """One for the process."""

    def __init__(
        self,
        settings: ControllerSettings,
        files: TlsFiles,
        cluster: Cluster,
        *,
        clock: Clock,
        recorder: PeopleRecorder,
    ) -> None:
        """Raises TlsFilesError for files that cannot serve; `servers` reads what comes later."""
        self._settings = settings
        self._clock = clock
        self._recorder = recorder
        self._files = files
        self._tls = None if files.may_come_later else ServingTls(files)
        self._reported: str | None = None
        recorder.show_certificate(self._seconds_left)
        self.roles = Roles(
            AccessReviews(
                cluster.access_reviewer(),
                boottime_ns=clock.boottime_ns,
                reviewed=partial(recorder.reviewed, "right"),
            )
        )
        self._tokens: TokenReviews[Person] = TokenReviews(
            cluster.person_reviewer(),
            boottime_ns=clock.boottime_ns,
            reviewed=partial(recorder.reviewed, "token"),
        )
        self._client_cas = cluster.client_authorities()
        self._roots_pem: tuple[Sequence[x509.Certificate], bytes] = ((), b"")
        self._ports: Mapping[str, str] | None = None
        self._document = None
        if settings.access.tls.ca is not None:
            self._document = cluster.access_document(self._published)

    def servers(
        self, services: tuple[AddService, ...], observer: CallObserver, notice: str
    ) -> tuple[RpcServer, RpcServer]:
        """The server that takes tokens and the one that takes certificates; not started.

        Raises TlsFilesError for files that may come later and have not.
        """
        tls = self._tls = self._tls or ServingTls(self._files)
        listen = self._settings.listen
        serve = partial(self._server, services=services, observer=observer, notice=notice)
        by_token = serve(
            "accessTokens",
            str(listen.access_tokens),
            token_person(self._tokens, self.roles),
            partial(self._without_clients, tls),
        )
        by_certificate = serve(
            "accessCertificates",
            str(listen.access_certificates),
            certificate_person(self._client_cas.now, self.roles),
            partial(self._with_clients, tls),
        )
        self._ports = {
            TOKENS_KEY: by_token.address.rpartition(":")[2],
            CERTIFICATES_KEY: by_certificate.address.rpartition(":")[2],
        }
        return by_token, by_certificate

    def tasks(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        """What has to run, each once."""
        tasks: dict[str, Coroutine[Any, Any, None]] = {
            "access certificates": self._watch_certificates(),
            "access client authorities": self._client_cas.follow(),
        }
        if self._document is not None:
            tasks["access document"] = self._document.follow()
        return tasks

    def state(self) -> ListenerState | None:
        """What both serve; None until their files have come."""
        if self._tls is None:
            return None
        return ListenerState(
            LISTENER, self._tls.certificates, demands_certificate=False, client_ends=None
        )

    def warnings(self) -> tuple[str, ...]:
        """What somebody should know of these listeners."""
        document = None if self._document is None else self._document.warning()
        certificate = None if self._tls is None else self._tls.warning()
        texts = (certificate, self._client_cas.warning(), document)
        return tuple(f"access: {text}" for text in texts if text is not None)

    def _server(
        self,
        listener: str,
        address: str,
        authenticate: Authenticate,
        pem: Callable[[], ServerPem | None],
        *,
        services: tuple[AddService, ...],
        observer: CallObserver,
        notice: str,
    ) -> RpcServer:
        return people_server(
            listener=f"listen.{listener}",
            address=address,
            credentials=pem_credentials(
                pem,
                partial(self._recorder.not_served, listener),
                demands_certificates=listener == "accessCertificates",
            ),
            interceptor=AuthorizationInterceptor(
                authenticate=authenticate,
                observer=observer,
                clock=self._clock,
                notice=notice,
                again_s=self._settings.access.review_again.seconds,
            ),
            services=services,
        )

    # --- on gRPC's threads: values that the event loop replaces as a whole

    def _without_clients(self, tls: ServingTls) -> ServerPem:
        return ServerPem(*tls.pem)

    def _with_clients(self, tls: ServingTls) -> ServerPem | None:
        roots = self._client_cas.now()
        if not roots:
            return None
        known, pem = self._roots_pem
        if known is not roots:
            pem = b"".join(one.public_bytes(Encoding.PEM) for one in roots)
            self._roots_pem = (roots, pem)
        return ServerPem(*tls.pem, pem)

    # --- certificates

    def _seconds_left(self) -> float:
        return math.nan if self._tls is None else self._tls.seconds_left()

    async def _watch_certificates(self) -> None:
        while self._tls is not None:
            await asyncio.sleep(_RELOAD_S)
            found, error = self._tls.reload(), self._tls.last_error
            if found is Reload.CHANGED or (error is not None and error != self._reported):
                self._recorder.certificate_changed(error)
            self._reported = error

    def _published(self) -> dict[str, str] | None:
        """What the ConfigMap has to hold; None where the file cannot be read now."""
        path = self._settings.access.tls.ca
        if path is None or self._ports is None:
            return None
        try:
            with path.open("rb") as file:
                authority = file.read(_MAX_AUTHORITY_BYTES + 1).decode("ascii")
            x509.load_pem_x509_certificates(authority.encode())
        except (OSError, ValueError) as error:
            self._recorder.no_authority(path, error)
            return None
        return {AUTHORITY_KEY: authority, **self._ports}


def people_access(
    settings: ControllerSettings,
    cluster: Cluster | None,
    *,
    clock: Clock,
    recorder: PeopleRecorder,
) -> PeopleAccess | None:
    """None without `access.tls`, and without a cluster, which knows people."""
    tls = settings.access.tls
    if cluster is None or tls.cert is None or tls.key is None:
        return None
    files = tls_files(settings, tls.cert, tls.key, None)
    return PeopleAccess(settings, files, cluster, clock=clock, recorder=recorder)
