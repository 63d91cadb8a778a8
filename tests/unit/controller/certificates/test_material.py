"""What a Secret may hold, and what certificates are made of."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store

from controller.certificates.issuing import BACKDATED
from controller.certificates.leaves import is_for, leaf_specs
from controller.certificates.material import (
    MOST_AUTHORITIES,
    MOST_CERTIFICATE_BYTES,
    MOST_KEY_BYTES,
    Authorities,
    MaterialError,
    authority_entries,
    leaf_entries,
    pem_of,
    read_authorities,
    read_leaf,
)
from tests.builders.managed_certificates import DAY, MAKER, NOW, SPECS, authorities, leaf

PEM = (Encoding.PEM, PrivateFormat.PKCS8)


def entries(held: Authorities) -> dict[str, bytes]:
    return {name: x for name, x in authority_entries(held).items() if x is not None}


class TestReading:
    def test_authorities_come_back_as_they_were_written(self) -> None:
        held = authorities()
        text = "2027-01-15T08:00:00Z"
        found = read_authorities(entries(held), text)
        assert found == held
        assert found.next is not None
        assert held.next is not None
        assert found.next.key.private_numbers() == held.next.key.private_numbers()
        alone = replace(held, next=None, former=(held.current.certificate,), published=None)
        assert read_authorities(entries(alone), None) == alone
        assert set(entries(alone)) == {"current.crt", "current.key", "former.crt"}

    def test_an_entry_that_is_not_needed_any_more_is_taken_away(self) -> None:
        written = authority_entries(replace(authorities(), next=None))
        assert (written["next.crt"], written["next.key"], written["former.crt"]) == (None,) * 3

    def test_a_leaf_comes_back_as_it_was_written(self) -> None:
        made = leaf("admission", authorities())
        assert read_leaf(leaf_entries(made)) == made

    @pytest.mark.parametrize(
        "text", ["", "yesterday", "2027-01-15T08:00:00", "0001-01-01T00:00:00+14:00"]
    )
    def test_a_time_that_is_none_is_an_error(self, text: str) -> None:
        with pytest.raises(MaterialError, match="annotation: expected a time"):
            read_authorities(entries(authorities()), text)

    def test_every_entry_is_named_when_it_cannot_be_used(self) -> None:
        held, made = authorities(), leaf("api", authorities())
        good, other = leaf_entries(made), leaf_entries(leaf("api", held))
        for name in good:
            for wrong, why in ((None, "there is none"), (b"\x00", "expected"), (b"", "expected")):
                content = {key: x for key, x in good.items() if key != name}
                content |= {} if wrong is None else {name: wrong}
                with pytest.raises(MaterialError, match=f"^{name}: {why}"):
                    read_leaf(content)
        with pytest.raises(MaterialError, match=r"^tls\.key: expected the key of the certificate"):
            read_leaf({**good, "tls.key": other["tls.key"]})
        with pytest.raises(MaterialError, match=r"^tls\.crt: 2 certificates, expected one"):
            read_leaf({**good, "tls.crt": good["tls.crt"] * 2})

    def test_sizes_are_bounded(self) -> None:
        good = leaf_entries(leaf("api", authorities()))
        for name, most in (
            ("tls.crt", MOST_CERTIFICATE_BYTES),
            ("tls.key", MOST_KEY_BYTES),
            ("ca.crt", MOST_AUTHORITIES * MOST_CERTIFICATE_BYTES),
        ):
            padded = good[name] + b"\n" * (most - len(good[name]))
            read_leaf({**good, name: padded})
            with pytest.raises(MaterialError, match=f"{name}: {most + 1} bytes, at most {most}"):
                read_leaf({**good, name: padded + b"\n"})
        one = pem_of((authorities().current.certificate,))
        assert len(read_leaf({**good, "ca.crt": one * 8}).trusted) == 8
        with pytest.raises(MaterialError, match=r"ca\.crt: 9 certificates, at most 8"):
            read_leaf({**good, "ca.crt": one * 9})

    def test_only_an_authority_on_p256_issues(self) -> None:
        good, held = entries(authorities()), authorities()
        made = leaf_entries(leaf("api", held))
        with pytest.raises(
            MaterialError, match=r"current\.crt: expected the certificate of an auth"
        ):
            read_authorities(
                {**good, "current.crt": made["tls.crt"], "current.key": made["tls.key"]}, None
            )
        bare = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bare")])
        for key in (
            ec.generate_private_key(ec.SECP384R1()),
            rsa.generate_private_key(65537, 2048),
        ):
            content = key.private_bytes(*PEM, NoEncryption())
            with pytest.raises(
                MaterialError, match=r"current\.key: expected an ECDSA key on P-256"
            ):
                read_authorities({**good, "current.key": content}, None)
        locked = held.current.key.private_bytes(*PEM, BestAvailableEncryption(b"secret"))
        with pytest.raises(MaterialError, match=r"current\.key: expected a PEM private key"):
            read_authorities({**good, "current.key": locked}, None)
        without = x509.CertificateBuilder(
            bare, bare, held.current.key.public_key(), 1, NOW, NOW + DAY
        ).sign(held.current.key, SHA256())
        with pytest.raises(
            MaterialError, match=r"current\.crt: expected the certificate of an auth"
        ):
            read_authorities({**entries(held), "current.crt": pem_of((without,))}, None)

    def test_nothing_shows_a_key(self) -> None:
        held, made = authorities(), leaf("api", authorities())
        for text in (repr(held), repr(made), str(held), str(made)):
            assert "PRIVATE" not in text
            assert "EllipticCurvePrivateKey" not in text


class TestWhatIsMade:
    def test_authorities_sign_leaves_and_no_authorities(self) -> None:
        certificate = authorities().current.certificate
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        assert (basic.critical, basic.value.ca, basic.value.path_length) == (True, True, 0)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        assert (usage.key_cert_sign, usage.digital_signature) == (True, False)
        assert certificate.not_valid_before_utc == NOW - BACKDATED

    def test_every_key_name_and_serial_number_is_another(self) -> None:
        held = authorities()
        assert held.next is not None
        one, two = held.current.certificate, held.next.certificate
        assert one.subject != two.subject
        assert one.serial_number != two.serial_number
        assert one.public_key() != two.public_key()
        assert leaf("api", held).key != leaf("api", held).key

    @pytest.mark.parametrize("name", ["admission", "extender", "api", "access"])
    def test_a_server_is_verified_by_its_service_and_is_no_client(self, name: str) -> None:
        held = authorities()
        made, spec = leaf(name, held), SPECS[name]
        verifier = PolicyBuilder().store(Store(list(held.trusted))).time(NOW.replace(tzinfo=None))
        server = x509.DNSName(f"{spec.common_name}.gpuwarden-system.svc")
        assert verifier.build_server_verifier(server).verify(made.certificate, [])
        usages = made.certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH]
        assert spec.names[0] == spec.common_name
        assert all(len(x) <= 253 for x in leaf_specs("n" * 63)[0].names)

    def test_the_scheduler_is_a_client_and_no_server(self) -> None:
        made = leaf("scheduler", authorities()).certificate
        (name,) = made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert name.value == "gpuwarden-scheduler"
        usages = made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
        assert is_for(SPECS["scheduler"], made)

    def test_a_certificate_without_usages_is_for_nothing(self) -> None:
        held = authorities()
        assert not is_for(
            replace(SPECS["api"], common_name=_common_name(held)), held.current.certificate
        )


def test_a_leaf_begins_before_it_is_made_for_clocks_that_are_behind() -> None:
    now = datetime(2027, 3, 1, tzinfo=UTC)
    held = authorities()
    made = MAKER.leaf(SPECS["api"], held.current, held.bundle, now, now + DAY)
    assert made.certificate.not_valid_before_utc == now - timedelta(hours=1)
    assert made.ends == now + DAY


def _common_name(held: Authorities) -> str:
    (name,) = held.current.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(name.value)
