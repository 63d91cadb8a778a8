import ssl
import stat
import threading
from ipaddress import ip_address
from pathlib import Path
from socket import socketpair

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.e2e.lab.kubeconfig import kubeconfig
from tests.e2e.lab.pki import Pair, Pki


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path / "pki")


def handshake(pki: Pki, server: Pair, client: Pair, name: str) -> dict[str, object]:
    """The peer certificate that the server saw; raises what the client raises."""
    near, far = socketpair()
    accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.ca))
    accepting.verify_mode = ssl.CERT_REQUIRED
    accepting.load_cert_chain(server.certificate, server.key)
    asking = ssl.create_default_context(cafile=str(pki.ca))
    asking.load_cert_chain(client.certificate, client.key)
    seen: list[dict[str, object]] = []

    def serve() -> None:
        with far:
            try:
                with accepting.wrap_socket(far, server_side=True) as stream:
                    stream.send(b"x")
                    seen.append(dict(stream.getpeercert() or {}))
            except OSError:
                return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with near, asking.wrap_socket(near, server_hostname=name) as stream:
            assert stream.recv(1) == b"x"
    finally:
        thread.join()
    return seen[0]


@pytest.mark.parametrize("name", ["127.0.0.1", "kubernetes.default.svc"])
def test_servers_are_trusted_by_their_names_and_clients_are_who_they_are(
    pki: Pki, name: str
) -> None:
    server = pki.issue("api", "kube-apiserver", names=["127.0.0.1", "kubernetes.default.svc"])
    client = pki.issue("admin", "lab-admin", groups=["system:masters"])
    peer = handshake(pki, server, client, name)
    assert peer["subject"] == (
        (("organizationName", "system:masters"),),
        (("commonName", "lab-admin"),),
    )


def test_another_name_is_refused(pki: Pki) -> None:
    server = pki.issue("api", "kube-apiserver", names=["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pki, server, server, "127.0.0.2")


def test_another_labs_certificate_is_refused(pki: Pki, tmp_path: Path) -> None:
    server = Pki(tmp_path / "other").issue("api", "kube-apiserver", names=["127.0.0.1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(pki, server, pki.issue("c", "c"), "127.0.0.1")


def test_names_are_addresses_where_they_can_be(pki: Pki) -> None:
    pair = pki.issue("k", "kubelet", names=["10.201.0.2", "real-0"])
    leaf = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("10.201.0.2")]
    assert names.get_values_for_type(x509.DNSName) == ["real-0"]
    assert leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "kubelet"


def test_keys_are_for_their_owner_only(pki: Pki) -> None:
    keys = [pki.issue("k", "k").key, pki.authority.key, pki.service_accounts.key]
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys} == {0o600}
    assert stat.S_IMODE(pki.ca.parent.stat().st_mode) == 0o700


def test_a_kubeconfig_names_files_and_holds_no_key(pki: Pki) -> None:
    pair = pki.issue("admin", "lab-admin")
    found = kubeconfig("https://127.0.0.1:1", pki.ca, pair)
    assert found["clusters"][0]["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority": str(pki.ca),
    }
    assert found["users"][0]["user"] == {
        "client-certificate": str(pair.certificate),
        "client-key": str(pair.key),
    }
    (context,) = found["contexts"]
    assert context["name"] == found["current-context"]
