"""Which certificates there are, for whom, and in which Secrets. Pure."""

from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY: Final = "authority"
AUTHORITY_SECRET: Final = "gpuwarden-authority"  # noqa: S105 - a name
TRUST_BUNDLE: Final = "gpuwarden-ca"
"""ConfigMap with what clients have to trust."""
EXTENDER: Final = "gpuwarden-extender"
"""By this name the dedicated scheduler asks for the managed certificate, where there are two."""
_SCHEDULER: Final = "gpuwarden-scheduler"


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """One certificate; `name` is the listener's as in the settings, or what its client is."""

    name: str
    secret: str
    common_name: str
    names: tuple[str, ...] = ()
    """DNS names of a server."""

    @property
    def is_client(self) -> bool:
        """Whether a client shows it; no server can, and no client can show a server's."""
        return not self.names


def leaf_specs(namespace: str) -> tuple[LeafSpec, ...]:
    """All of them, for gpuwarden in this namespace."""
    return (
        _server("admission", "gpuwarden-webhook-tls", "gpuwarden-admission", namespace),
        _server("extender", "gpuwarden-extender-tls", EXTENDER, namespace),
        _server("api", "gpuwarden-http-api-tls", "gpuwarden-api", namespace),
        _server("access", "gpuwarden-access-tls", "gpuwarden-access", namespace),
        LeafSpec("scheduler", "gpuwarden-scheduler-client-tls", _SCHEDULER),
    )


def purpose_of(spec: LeafSpec) -> x509.ObjectIdentifier:
    """The one extended key usage of the certificate."""
    return ExtendedKeyUsageOID.CLIENT_AUTH if spec.is_client else ExtendedKeyUsageOID.SERVER_AUTH


def is_for(spec: LeafSpec, certificate: x509.Certificate) -> bool:
    """Whether the certificate has the names and the purpose of the leaf, and no others."""
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if [one.value for one in common] != [spec.common_name]:
        return False
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        return list(usages) == [purpose_of(spec)] and _names(certificate) == set(spec.names)
    except (x509.ExtensionNotFound, ValueError):
        return False


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return set(found.get_values_for_type(x509.DNSName))


def _server(name: str, secret: str, service: str, namespace: str) -> LeafSpec:
    names = (service, f"{service}.{namespace}", f"{service}.{namespace}.svc")
    return LeafSpec(name, secret, service, (*names, f"{service}.{namespace}.svc.cluster.local"))
