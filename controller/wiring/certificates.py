"""Certificates that gpuwarden manages itself: which listeners use them, and what keeps them.

Without `certificates.selfManaged` nothing of this exists, and files come from others.
"""

from datetime import timedelta
from pathlib import Path

from controller.certificates.files import CertificateFiles
from controller.certificates.plan import Terms
from controller.kube.objects.certificates import ManagedCertificates
from controller.record import AuditLog
from controller.settings import ControllerSettings
from controller.web.tls import TlsFiles, TlsFilesError
from controller.wiring.cluster import Cluster
from gpuwarden.settings.values import Duration


def tls_files(
    settings: ControllerSettings, certificate: Path, private_key: Path, client_ca: Path | None
) -> TlsFiles:
    """The files of a listener, which may come later where gpuwarden writes them itself."""
    is_managed = managed_listener(settings, certificate) is not None
    return TlsFiles(certificate, private_key, client_ca, may_come_later=is_managed)


def managed_listener(settings: ControllerSettings, certificate: Path | None) -> str | None:
    """Whose managed certificate this file is; None where others give it."""
    section = settings.certificates.self_managed
    if not section.enabled or certificate is None or certificate.parent.parent != section.folder:
        return None
    return certificate.parent.name


def managed_certificates(
    settings: ControllerSettings, cluster: Cluster | None, audit: AuditLog
) -> ManagedCertificates | None:
    """None where others give the files; raises TlsFilesError without the Kubernetes API."""
    section = settings.certificates.self_managed
    if not section.enabled:
        return None
    if cluster is None:
        raise TlsFilesError(
            "certificates.selfManaged.enabled: true, expected false where the Kubernetes API is"
            " not used, because they are kept in Secrets"
        )
    sections = (settings.admission, settings.extender, settings.api, settings.access)
    found = (managed_listener(settings, one.tls.cert) for one in sections)
    return cluster.managed_certificates(
        CertificateFiles(section.folder),
        terms=Terms(
            authority=_span(section.authority_lifetime),
            leaf=_span(section.leaf_lifetime),
            renew_before=_span(section.renew_before),
        ),
        listeners=frozenset(x for x in found if x is not None),
        audit=audit,
    )


def _span(duration: Duration) -> timedelta:
    return timedelta(seconds=duration.seconds)
