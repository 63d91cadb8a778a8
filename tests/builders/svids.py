"""SVIDs as this process would hold them, and what is needed to serve and dial with them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cryptography import x509

from gpuwarden.identity.spiffe_id import parse_spiffe_id
from gpuwarden.identity.svid import Svid
from sandbox.spiffe.ca import InsecureCa, IssuedSvid


def svid_of(
    issued: IssuedSvid, spiffe_id: str, roots: Iterable[x509.Certificate], generation: int = 1
) -> Svid:
    """`issued` as an SVID; the name is only what it claims to be, for hostile ones."""
    return Svid(
        parse_spiffe_id(spiffe_id), issued.private_key, issued.chain, tuple(roots), generation
    )


def new_svid(ca: InsecureCa, spiffe_id: str, *roots: x509.Certificate, generation: int = 1) -> Svid:
    """A good SVID from `ca`, which is its only root unless `roots` are given."""
    return svid_of(ca.issue(spiffe_id), spiffe_id, roots or (ca.certificate,), generation)


@dataclass
class FakeSvidSource:
    """An `SvidSource` that serves what a test puts into it."""

    svid: Svid | None = None
    subscribers: list[Callable[[], None]] = field(default_factory=list)

    def current(self) -> Svid | None:
        return self.svid

    def state(self) -> str:
        return "no SVID in this test" if self.svid is None else f"SVID {self.svid.spiffe_id}"

    def subscribe(self, notify: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(notify)
        return lambda: self.subscribers.remove(notify)

    def put(self, svid: Svid | None) -> None:
        self.svid = svid
        for notify in list(self.subscribers):
            notify()
