"""Who a client certificate names, and which answers name nobody."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.access import Person
from controller.people.identity import (
    ANONYMOUS,
    MAX_NAME,
    MAX_PERSON_BYTES,
    person_of,
    person_of_certificate,
)
from gpuwarden.identity.chain import MAX_CERTIFICATE_BYTES, MAX_INTERMEDIATES
from gpuwarden.reasons import ReasonCode, Refusal

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)


class Ca:
    """A cluster's CA as kubeadm makes one: its certificates have no alternative names."""

    def __init__(self, name: str, above: "Ca | None" = None, *, is_ca: bool = True) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = above or self
        self.certificate = (
            _builder(self.name, issuer.name, self.key.public_key(), NOW - HOUR, NOW + HOUR)
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .sign(issuer.key, hashes.SHA256())
        )

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def issue(
        self,
        *names: str,
        groups: tuple[str, ...] = (),
        usages: tuple[x509.ObjectIdentifier, ...] = CLIENT,
        begins: datetime = NOW - HOUR,
        ends: datetime = NOW + HOUR,
    ) -> bytes:
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, x) for x in groups),
                *(x509.NameAttribute(NameOID.COMMON_NAME, x) for x in names),
            ]
        )
        key = ec.generate_private_key(ec.SECP256R1()).public_key()
        builder = _builder(subject, self.name, key, begins, ends)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.DER)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


CA = Ca("kubernetes")
ROOTS = (CA.certificate,)


def code_of(found: object) -> tuple[ReasonCode, str]:
    assert isinstance(found, Refusal)
    return found.code, found.detail


# --- certificates


def test_the_common_name_is_the_user_and_organizations_are_groups() -> None:
    leaf = CA.issue("jane", groups=("team-a", "on-call"), ends=NOW + HOUR / 2)
    found = person_of_certificate([leaf], ROOTS, NOW)
    assert not isinstance(found, Refusal)
    person, ends = found
    assert (person.username, person.uid) == ("jane", "")
    assert person.groups == ("team-a", "on-call", "system:authenticated")
    ((key, values),) = person.extra
    assert key == "authentication.kubernetes.io/credential-id"
    assert values[0].startswith("X509SHA256=")
    assert len(values[0]) == len("X509SHA256=") + 64
    assert ends == NOW + HOUR / 2


@pytest.mark.parametrize("usages", [(), (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE,), CLIENT])
def test_a_certificate_without_usages_is_for_everything(
    usages: tuple[x509.ObjectIdentifier, ...],
) -> None:
    found = person_of_certificate([CA.issue("jane", usages=usages)], ROOTS, NOW)
    assert not isinstance(found, Refusal)


def test_intermediates_that_the_client_sends_are_followed() -> None:
    below = Ca("below", CA)
    leaf = below.issue("jane")
    assert not isinstance(person_of_certificate([leaf, below.der], ROOTS, NOW), Refusal)
    assert code_of(person_of_certificate([leaf], ROOTS, NOW)) == (
        ReasonCode.CERTIFICATE_INVALID,
        "the client certificate: no client CA of the cluster vouches for it now",
    )


@pytest.mark.parametrize("at", [NOW - HOUR, NOW + HOUR])
def test_the_first_and_last_moment_of_a_certificate_count(at: datetime) -> None:
    assert not isinstance(person_of_certificate([CA.issue("jane")], ROOTS, at), Refusal)


@pytest.mark.reason("CERTIFICATE_INVALID")
@pytest.mark.parametrize(
    ("chain", "text"),
    [
        ([Ca("kubernetes").issue("jane")], "no client CA of the cluster vouches for it now"),
        ([CA.issue("jane", ends=NOW - HOUR / 2)], "no client CA"),
        ([CA.issue("jane", begins=NOW + HOUR / 2)], "no client CA"),
        ([CA.issue("jane", usages=(ExtendedKeyUsageOID.SERVER_AUTH,))], "not for clients"),
        ([CA.issue()], "it has 0 common names, expected one"),
        ([CA.issue("jane", "root")], "it has 2 common names, expected one"),
        ([CA.issue(ANONYMOUS)], "it is anonymous"),
        ([CA.issue("jane", groups=("system:unauthenticated",))], "it is anonymous"),
        ([CA.issue("jane\n")], "printable"),
        ([b"junk"], "it cannot be used"),
        ([CA.issue("jane"), *[CA.der] * (MAX_INTERMEDIATES + 1)], "too long"),
        ([b"x" * (MAX_CERTIFICATE_BYTES + 1)], "too large"),
    ],
)
def test_what_is_no_certificate_of_a_user(chain: list[bytes], text: str) -> None:
    code, detail = code_of(person_of_certificate(chain, ROOTS, NOW))
    assert code is ReasonCode.CERTIFICATE_INVALID
    assert text in detail


def test_the_longest_chain_counts() -> None:
    authorities = [CA]
    for number in range(MAX_INTERMEDIATES):
        authorities.append(Ca(f"below-{number}", authorities[-1]))
    leaf = authorities[-1].issue("jane")
    chain = [leaf, *(x.der for x in reversed(authorities[1:]))]
    assert len(chain) == 1 + MAX_INTERMEDIATES
    assert not isinstance(person_of_certificate(chain, ROOTS, NOW), Refusal)


def test_a_user_s_certificate_signs_for_nobody() -> None:
    user = Ca("jane", CA, is_ca=False)
    chain = [user.issue("root"), user.der]
    assert code_of(person_of_certificate(chain, ROOTS, NOW))[0] is ReasonCode.CERTIFICATE_INVALID


def test_without_a_certificate_or_client_ca_nobody_is_anybody() -> None:
    assert code_of(person_of_certificate([], ROOTS, NOW))[0] is ReasonCode.TLS_NO_CLIENT_CERT
    code, detail = code_of(person_of_certificate([CA.issue("jane")], (), NOW))
    assert code is ReasonCode.CERTIFICATE_INVALID
    assert "client CA is not known" in detail


# --- names


def test_a_person_has_all_that_the_api_server_says() -> None:
    found = person_of("jane", ["a", "b"], "uid-1", {"z": ["1"], "k": ["2", "3"]})
    assert found == Person("jane", ("a", "b"), "uid-1", (("k", ("2", "3")), ("z", ("1",))))


@pytest.mark.parametrize(
    ("username", "groups", "text"),
    [
        ("", (), "it names no user"),
        (ANONYMOUS, ("system:authenticated",), "it is anonymous"),
        ("jane", ("system:unauthenticated",), "it is anonymous"),
        ("a" * (MAX_NAME + 1), (), "printable"),
        ("a\nb", (), "printable"),
        ("jane", ("g" * MAX_PERSON_BYTES,), f"more than {MAX_PERSON_BYTES} bytes"),
    ],
)
def test_who_is_nobody(username: str, groups: tuple[str, ...], text: str) -> None:
    found = person_of(username, groups)
    assert isinstance(found, str)
    assert text in found


def test_the_bounds_themselves_count() -> None:
    assert isinstance(person_of("a" * MAX_NAME), Person)
    room = MAX_PERSON_BYTES - len("jane") - len("u") - len("key") - len("value")
    assert isinstance(person_of("jane", ["g" * room], "u", {"key": ["value"]}), Person)
    assert isinstance(person_of("jane", ["g" * (room + 1)], "u", {"key": ["value"]}), str)
