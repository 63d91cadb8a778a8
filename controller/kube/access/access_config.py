"""Two ConfigMaps of the access for people: the cluster's client CAs, and how to verify us.

Both are looked at from time to time. Must not decide whom a certificate names.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec
from cryptography import x509

from controller.kube.api.client import ApiClient
from controller.kube.api.resources import (
    ACCESS_NAME,
    CLIENT_CA_NAME,
    CLIENT_CA_NAMESPACE,
    CONFIG_MAPS,
    ApiError,
)
from gpuwarden.moment import NS_PER_S

CLIENT_CA_KEY: Final = "client-ca-file"
AUTHORITY_KEY: Final = "ca.crt"
TOKENS_KEY: Final = "tokens-port"
CERTIFICATES_KEY: Final = "certificates-port"
EVERY_S: Final = 60.0
SOON_S: Final = 1.0
"""Until this replica leads, and while it is not known what to write."""
LASTS_NS: Final = 600 * NS_PER_S
"""For so long the client CAs count after they were read."""
_MAX_BYTES: Final = 1 << 20
_MOST_CAS: Final = 64


class _ConfigMap(msgspec.Struct, gc=False):
    data: dict[str, str] | None = None


_DECODER: Final = msgspec.json.Decoder(_ConfigMap)


def _data_in(body: bytes) -> dict[str, str]:
    try:
        return _DECODER.decode(body).data or {}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError("a ConfigMap that is none") from None


# --- the cluster's client CAs


@dataclass(frozen=True, slots=True)
class _Read:
    pem: str
    roots: tuple[x509.Certificate, ...]
    at_ns: int


class ClientAuthorities:
    """The CAs whose client certificates the API server takes. One per process."""

    def __init__(
        self, api: ApiClient, boottime_ns: Callable[[], int], *, every_s: float = EVERY_S
    ) -> None:
        self._api = api
        self._boottime_ns = boottime_ns
        self._every_s = every_s
        self._read: _Read | None = None
        self._trouble: str | None = "they were not read yet"

    def now(self) -> tuple[x509.Certificate, ...]:
        """The CAs; none where they are not known, or were not read for ten minutes."""
        read = self._read
        if read is None or self._boottime_ns() - read.at_ns >= LASTS_NS:
            return ()
        return read.roots

    def warning(self) -> str | None:
        """Why no client certificate counts, or soon will not; None where all is well."""
        if self._trouble is None:
            return None
        return f"the cluster's client CAs (client certificates of people): {self._trouble}"

    async def follow(self) -> NoReturn:
        """Read them again and again."""
        while True:
            await self.read()
            await asyncio.sleep(self._every_s)

    async def read(self) -> None:
        """Read them once; what cannot be read leaves what is known in place for a while."""
        at_ns = self._boottime_ns()
        try:
            body = await self._api.get(CONFIG_MAPS, CLIENT_CA_NAME, CLIENT_CA_NAMESPACE)
            pem = _data_in(body).get(CLIENT_CA_KEY, "")
            known = self._read
            roots = known.roots if known is not None and known.pem == pem else _roots_in(pem)
        except ApiError as error:
            self._trouble = str(error)
            return
        self._read = _Read(pem, roots, at_ns)
        self._trouble = None if roots else f"{CLIENT_CA_NAME} has no {CLIENT_CA_KEY}"


def _roots_in(pem: str) -> tuple[x509.Certificate, ...]:
    """Raises ApiError."""
    if not pem:
        return ()
    if len(pem) > _MAX_BYTES:
        raise ApiError(f"{CLIENT_CA_KEY} has more than {_MAX_BYTES} bytes")
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        raise ApiError(f"{CLIENT_CA_KEY} holds no PEM certificates") from None
    if len(found) > _MOST_CAS:
        raise ApiError(f"{CLIENT_CA_KEY} holds more than {_MOST_CAS} certificates")
    return tuple(found)


# --- how to verify us


class AccessDocument:
    """Keeps the ConfigMap `gpuwarden-access` as it has to be; one replica does.

    The ConfigMap must exist: nobody can be given the right to create one of a name.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        *,
        wanted: Callable[[], dict[str, str] | None],
        leads: Callable[[], bool],
        every_s: float = EVERY_S,
        soon_s: float = SOON_S,
    ) -> None:
        """`wanted` is None while it is not known; blocks for a small file."""
        self._api = api
        self._namespace = namespace
        self._wanted = wanted
        self._leads = leads
        self._every_s = every_s
        self._soon_s = soon_s
        self._trouble: str | None = None

    def warning(self) -> str | None:
        """Why people may not be able to verify this controller; None where all is well."""
        return None if self._trouble is None else f"ConfigMap {ACCESS_NAME}: {self._trouble}"

    async def follow(self) -> NoReturn:
        """Compare it again and again."""
        while True:
            is_compared = self._leads() and await self.write()
            await asyncio.sleep(self._every_s if is_compared else self._soon_s)

    async def write(self) -> bool:
        """Write what differs, once; False where nobody knows what it should be."""
        wanted = self._wanted()
        if wanted is None:
            return False
        try:
            found = _data_in(await self._api.get(CONFIG_MAPS, ACCESS_NAME, self._namespace))
            if any(found.get(key) != text for key, text in wanted.items()):
                patch = {"data": wanted}
                await self._api.patch(CONFIG_MAPS, ACCESS_NAME, patch, self._namespace)
        except ApiError as error:
            self._trouble = str(error)
            return True
        self._trouble = None
        return True
