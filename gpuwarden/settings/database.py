"""A database of PostgreSQL, and how people write where it is. Pure."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

SCHEMES: Final = ("postgresql", "postgres")
USUAL_PORT: Final = 5432
_HOST: Final = re.compile(r"/[!-~]{1,100}|[A-Za-z0-9](?:[A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,63}")
_FILE: Final = re.compile(r"/[^\x00-\x1f\x7f]{1,4095}")


class SslMode(StrEnum):
    """How a connection to PostgreSQL is protected, as libpq says it."""

    DISABLE = "disable"
    ALLOW = "allow"
    PREFER = "prefer"
    REQUIRE = "require"
    VERIFY_CA = "verify-ca"
    VERIFY_FULL = "verify-full"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresDatabase:
    """Written `postgresql://USER@HOST:PORT/DATABASE?sslmode=MODE&sslrootcert=FILE`."""

    host: str
    """A name, an address, or the folder of a unix socket."""
    port: int = USUAL_PORT
    database: str
    user: str
    ssl_mode: SslMode = SslMode.REQUIRE
    ssl_root_cert: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a URL; one with a password is refused: URLs are shown."""
        parts = urlsplit(text)
        user, at, place = parts.netloc.rpartition("@")
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        options = dict(given)
        host, port = _host_and_port(place)
        found = cls(
            host=host,
            port=port,
            database=unquote(parts.path.removeprefix("/")),
            user=unquote(user),
            ssl_mode=SslMode(options.pop("sslmode", SslMode.REQUIRE)),
            ssl_root_cert=options.pop("sslrootcert", None),
        )
        names = (found.database, found.user)
        root = found.ssl_root_cert
        if (
            parts.scheme not in SCHEMES
            or not at
            or ":" in user
            or options
            or len(given) > len({name for name, _ in given})
            or parts.fragment
            or not (_HOST.fullmatch(found.host) and all(map(_NAME.fullmatch, names)))
            or (root is not None and not _FILE.fullmatch(root))
        ):
            raise ValueError("postgresql://USER@HOST:PORT/DATABASE")
        return found

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else quote(self.host, safe="")
        user, database = quote(self.user, safe=""), quote(self.database, safe="")
        root = f"&sslrootcert={quote(self.ssl_root_cert)}" if self.ssl_root_cert else ""
        return (
            f"postgresql://{user}@{host}:{self.port}/{database}?sslmode={self.ssl_mode.value}{root}"
        )


def _host_and_port(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]{2,45}\]|[^:\[\]]+)(?::([0-9]{1,5}))?", text)
    if found is None:
        raise ValueError("HOST:PORT")
    port = int(found[2] or USUAL_PORT)
    if not 0 < port < 1 << 16:
        raise ValueError("a port")
    return unquote(found[1].strip("[]")), port
