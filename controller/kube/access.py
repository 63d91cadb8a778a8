"""How the API server is reached and what we show it, read anew whenever it may have changed.

In a pod: the service account's files, which kubelet replaces. Elsewhere: a kubeconfig.
`kubernetes.aio` reads both. Tokens and keys stay inside `Access` and out of every text.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import InClusterConfigLoader
from kubernetes.aio.config.kube_config import load_kube_config

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MAX_FILE_BYTES: Final = 1 << 20
_TOKEN: Final = re.compile(r"[!-~]{1,65536}")


class AccessError(Exception):
    """Credentials cannot be read or must not be used; says which and why, never what they are."""


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a connection needs."""

    configuration: Configuration = field(repr=False)
    authorization: str | None = field(repr=False)
    """Value of the Authorization header; None with client certificates."""
    material: bytes = field(repr=False)
    """Digest of server, CA, client certificate and key: another one needs new connections."""


class AccessSource(Protocol):
    """Reads the access of this process."""

    @property
    def reread_s(self) -> float:
        """Seconds after which what was read is read again."""

    async def read(self) -> Access:
        """Read it now; raises AccessError."""


class InCluster:
    """The service account of the pod that we run in (KEP-1205: the token is replaced)."""

    reread_s: Final = 60.0

    def __init__(self, environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> None:
        self._environ = environ
        self._folder = folder

    async def read(self) -> Access:
        """Read token and CA; raises AccessError."""
        configuration = Configuration()
        token, ca = self._folder / "token", self._folder / "ca.crt"
        loader = InClusterConfigLoader(  # type: ignore[no-untyped-call] # the library's
            token_filename=str(_small(token)),
            cert_filename=str(_small(ca)),
            try_refresh_token=False,
            environ=self._environ,
        )
        try:
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call] # the library's
        except (ConfigException, OSError, ValueError) as error:
            raise AccessError(f"service account in {self._folder}: {_reason(error)}") from None
        return _access(configuration, f"service account in {self._folder}")


class Kubeconfig:
    """A kubeconfig file, and one of its contexts."""

    reread_s: Final = 600.0

    def __init__(self, path: Path, context: str | None = None) -> None:
        self._path = path
        self._context = context

    async def read(self) -> Access:
        """Read the file and what it names; may run its exec plugin. Raises AccessError."""
        configuration = Configuration()
        _small(self._path)
        try:
            await load_kube_config(  # type: ignore[no-untyped-call] # the library's
                config_file=str(self._path),
                context=self._context,
                client_configuration=configuration,
                persist_config=False,
            )
        except Exception as error:  # noqa: BLE001 - whatever the library trips over, the file is unusable
            raise AccessError(f"kubeconfig {self._path}: {_reason(error)}") from None
        return _access(configuration, f"kubeconfig {self._path}")


def _access(configuration: Configuration, where: str) -> Access:
    if not configuration.verify_ssl:
        raise AccessError(f"{where}: insecure-skip-tls-verify is set; name the CA instead")
    if not configuration.host.startswith("https://"):
        raise AccessError(f"{where}: the server must be an https:// URL")
    configuration.client_session_kwargs = {"trust_env": False}
    return Access(configuration, _authorization(configuration, where), _material(configuration))


def _authorization(configuration: Configuration, where: str) -> str | None:
    """The library's `bearer TOKEN` as it came from a file, or `Basic …`."""
    text = configuration.api_key.pop("BearerToken", None)
    if text is None:
        return None
    scheme, _, secret = text.strip().partition(" ")
    if not _TOKEN.fullmatch(secret.strip()):
        raise AccessError(f"{where}: the token is empty or not printable ASCII")
    return f"{scheme.capitalize()} {secret.strip()}"


def _material(configuration: Configuration) -> bytes:
    digest = hashlib.sha256()
    names = (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)
    texts = (configuration.host, configuration.tls_server_name, configuration.proxy)
    for part in (
        *(_content(Path(x)) if x else b"" for x in names),
        *((x or "").encode() for x in texts),
    ):
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AccessError(f"{path}: {_reason(error)}") from None


def _small(path: Path) -> Path:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise AccessError(f"{path}: {_reason(error)}") from None
    if size > _MAX_FILE_BYTES:
        raise AccessError(f"{path} has {size} bytes, at most {_MAX_FILE_BYTES} are read")
    return path


def _reason(error: Exception) -> str:
    """No text of the library's but its own: a parser's error quotes what it read."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) if isinstance(error, ConfigException) else type(error).__name__
