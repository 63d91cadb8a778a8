"""The CLI's own SVID, from files or once from the Workload API, and whom it must meet.

Both ways are appraised alike: key and leaf belong together, the chain leads to the
bundle, dates hold. Nothing is kept or renewed.
"""

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from gpuwarden.cli.options import Connection
from gpuwarden.cli.outcome import CliError, ExitCode
from gpuwarden.identity.chain import ChainError, spiffe_id_of
from gpuwarden.identity.offer import Offer, OfferRefusedError, appraise
from gpuwarden.identity.spiffe_id import Role, SpiffeId, SpiffeIdError, parse_spiffe_id
from gpuwarden.identity.svid import Svid

_MAX_LIFETIME: Final = timedelta(days=31)
"""Operators may hold longer SVIDs than workloads; the server has its own limit."""
_MAX_PEM_BYTES: Final = 1024 * 1024
_FETCH_SECONDS: Final = 5.0
_READERS: Final = frozenset({Role.INSPECTOR, Role.OPERATOR})


def own_svid(connection: Connection) -> Svid:
    """Our SVID as the options name it; raises CliError."""
    given = {"--svid": connection.svid, "--key": connection.key, "--bundle": connection.bundle}
    if not any(given.values()):
        return _from_workload_api(connection.workload_api)
    missing = [name for name, path in given.items() if path is None]
    if missing:
        raise CliError(ExitCode.USAGE, f"{' and '.join(missing)} missing; all three go together")
    return _from_files(*(path for path in given.values() if path is not None))


def expected_controller(connection: Connection, own: SpiffeId) -> SpiffeId:
    """The SPIFFE ID that the controller must have; raises CliError."""
    if connection.controller_id is not None:
        try:
            return parse_spiffe_id(connection.controller_id)
        except SpiffeIdError as error:
            raise CliError(ExitCode.USAGE, f"--controller-id: {error}") from None
    prefix, _, role = own.path.rpartition("/")[0].rpartition("/")
    if role in set(Role):
        return SpiffeId(own.trust_domain, f"{prefix}/{Role.CONTROLLER}")
    raise CliError(ExitCode.USAGE, f"{own} tells no path prefix; give --controller-id")


def is_reader(spiffe_id: SpiffeId) -> bool:
    """Whether the identity has a role that may read the fleet, whatever the path prefix."""
    return spiffe_id.path.rpartition("/")[0].rpartition("/")[2] in _READERS


def _from_files(svid: Path, key: Path, bundle: Path) -> Svid:
    chain = _certificates("--svid", svid)
    try:
        private_key = load_pem_private_key(_read("--key", key, secret=True), password=None)
        spiffe_id = spiffe_id_of(chain[0])
    except (TypeError, ValueError, UnsupportedAlgorithm):
        raise CliError(ExitCode.USAGE, f"--key: {key} is not an unencrypted PEM key") from None
    except (ChainError, SpiffeIdError) as error:
        raise CliError(ExitCode.USAGE, f"--svid: {svid}: {error}") from None
    roots = tuple(_certificates("--bundle", bundle))
    return _appraised(Offer(str(spiffe_id), private_key, tuple(chain), roots, (str(spiffe_id),)))


def _from_workload_api(endpoint: str | None) -> Svid:
    # Imported here: the library takes longer to load than a local question takes to answer.
    from gpuwarden.identity.workload_api import (  # noqa: PLC0415 - see above
        SpiffeWorkloadApi,
        WorkloadApiDeniedError,
        WorkloadApiError,
    )

    if not endpoint:
        text = "no SVID: give --svid, --key and --bundle, or --workload-api"
        raise CliError(ExitCode.USAGE, text)
    api = SpiffeWorkloadApi(
        endpoint, is_reader, fetch_timeout=_FETCH_SECONDS, first_update_timeout=_FETCH_SECONDS
    )
    try:
        offer = api.fetch()
    except WorkloadApiError as error:
        denied = isinstance(error, WorkloadApiDeniedError)
        code = ExitCode.NOT_AUTHORISED if denied else ExitCode.NOT_REACHABLE
        raise CliError(code, f"Workload API at {endpoint}: {error}") from None
    if not any(is_reader(parse_spiffe_id(offered)) for offered in offer.offered):
        text = f"Workload API offers no inspector or operator, only {', '.join(offer.offered[:8])}"
        raise CliError(ExitCode.NOT_AUTHORISED, text)
    return _appraised(offer)


def _appraised(offer: Offer) -> Svid:
    try:
        return appraise(offer, lambda _: True, datetime.now(UTC), _MAX_LIFETIME, generation=1)
    except OfferRefusedError as error:
        raise CliError(ExitCode.NOT_AUTHORISED, f"own SVID cannot be used: {error}") from None


def _certificates(option: str, path: Path) -> Sequence[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(_read(option, path))
    except ValueError:
        raise CliError(ExitCode.USAGE, f"{option}: {path} holds no PEM certificates") from None


def _read(option: str, path: Path, *, secret: bool = False) -> bytes:
    try:
        with path.open("rb") as file:
            if secret and os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
                raise CliError(ExitCode.USAGE, f"{option}: {path} is open to others; chmod o= it")
            content = file.read(_MAX_PEM_BYTES + 1)
    except OSError as error:
        raise CliError(ExitCode.USAGE, f"{option}: {path}: {error.strerror}") from None
    if len(content) > _MAX_PEM_BYTES:
        raise CliError(ExitCode.USAGE, f"{option}: {path} is larger than {_MAX_PEM_BYTES} bytes")
    return content
