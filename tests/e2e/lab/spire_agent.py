"""SPIRE agents: real, one per simulated node, with the `unix` workload attestor."""

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from spiffe import WorkloadApiClient

from tests.e2e.lab.program import Program, Site
from tests.e2e.lab.spire_server import TRUST_DOMAIN, SpireServer

_CLI_S = 30


class NodeCa:
    """Issues the certificates that simulated nodes attest with (`x509pop`)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "nodes of the lab")])
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = folder / "node-ca.pem"
        self.pem.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, node: str, uid: str) -> tuple[Path, Path]:
        """Certificate and key files that name the node; each call makes new ones."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, node)])
        names = [
            x509.UniformResourceIdentifier(f"x509pop://{TRUST_DOMAIN}/node-name/{node}"),
            x509.UniformResourceIdentifier(f"x509pop://{TRUST_DOMAIN}/node-uid/{uid}"),
        ]
        certificate = (
            self._builder(name, key)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(_signing(), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        stem = f"{node}-{certificate.serial_number:x}"[:60]
        pem, key_pem = self._folder / f"{stem}.pem", self._folder / f"{stem}.key"
        pem.write_bytes(certificate.public_bytes(Encoding.PEM))
        key_pem.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pem, key_pem

    def _builder(self, name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=1))
            .not_valid_after(now + timedelta(days=1))
        )


class SpireAgent(Program):
    """One agent; attests by the node's certificate, or by a join token where it has none."""

    def __init__(
        self,
        site: Site,
        server: SpireServer,
        name: str,
        *,
        certificate: tuple[Path, Path] | None = None,
        join_token: str = "",
    ) -> None:
        super().__init__(site, name)
        self.socket = self.data / "api.sock"
        self.server = server
        self._certificate = certificate
        self._join_token = join_token

    @property
    def workload_api(self) -> str:
        """As `SPIFFE_ENDPOINT_SOCKET` wants it."""
        return f"unix://{self.socket}"

    def arguments(self) -> Sequence[str]:
        (self.data / "bundle.pem").write_text(self.server.bundle())
        config = self.data / "agent.conf"
        config.write_text(self._config())
        token = ("-joinToken", self._join_token) if self._join_token else ()
        return (str(self.site.programs["spire-agent"]), "run", "-config", str(config), *token)

    def is_ready(self) -> bool:
        done = subprocess.run(
            [self.site.programs["spire-agent"], "healthcheck", "-socketPath", self.socket],
            capture_output=True,
            timeout=_CLI_S,
            check=False,
        )
        return done.returncode == 0

    def signed_by(self) -> str:
        """Id of the authority of the SVID that it hands out to this user."""
        with WorkloadApiClient(self.workload_api) as client:
            leaf = client.fetch_x509_context(timeout=_CLI_S).default_svid.leaf
        key = leaf.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
        return (key.key_identifier or b"").hex()

    def trusted(self) -> set[str]:
        """Ids of the authorities in the bundle that it hands out."""
        with WorkloadApiClient(self.workload_api) as client:
            context = client.fetch_x509_context(timeout=_CLI_S)
        domain = context.default_svid.spiffe_id.trust_domain
        bundle = context.x509_bundle_set.get_bundle_for_trust_domain(domain)
        roots = bundle.x509_authorities if bundle else set()
        keys = (x.extensions.get_extension_for_class(x509.SubjectKeyIdentifier) for x in roots)
        return {key.value.digest.hex() for key in keys}

    def _config(self) -> str:
        return f"""
agent {{
  data_dir = "{self.data}"
  socket_path = "{self.socket}"
  server_address = "{self.site.place.address}"
  server_port = "{self.server.port}"
  trust_domain = "{TRUST_DOMAIN}"
  trust_bundle_path = "{self.data}/bundle.pem"
  log_level = "INFO"
  experimental {{
    sync_interval = "1s"
  }}
}}
plugins {{
  {self._attestor()}
  KeyManager "disk" {{
    plugin_data {{ directory = "{self.data}" }}
  }}
  WorkloadAttestor "unix" {{
    plugin_data {{}}
  }}
}}
"""

    def _attestor(self) -> str:
        if self._certificate is None:
            return 'NodeAttestor "join_token" {\n    plugin_data {}\n  }'
        certificate, key = self._certificate
        return f"""NodeAttestor "x509pop" {{
    plugin_data {{
      certificate_path = "{certificate}"
      private_key_path = "{key}"
    }}
  }}"""


def _signing() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
