"""The policy file: its decoding to a `Policy`, and reading it again when it changes.

An invalid file is refused as a whole with every fault named, and the policy in force stays.
`policy_of` is the one way from a document to a policy, for the custom resources too; what a
document may hold stands in `gpuwarden.policy.document`.
"""

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from controller.policy import (
    AttestationClass,
    AttestorRules,
    ClassHash,
    Consequence,
    Level,
    MigStrategy,
    NodeMode,
    NodePool,
    Policy,
)
from gpuwarden.finding import Finding
from gpuwarden.policy.document import (
    MAX_BYTES,
    ClassDocumentEntry,
    PolicyDocument,
    PolicyInvalidError,
    parse_time,
    read_policy,
)
from gpuwarden.policy.texts import image_digest


def decode_policy(data: bytes, *, opaque_hashes: bool = False) -> Policy:
    """Decode a policy file; raises PolicyInvalidError with all its faults.

    `opaque_hashes` allows seed-style hashes (only with insecure static hashes).
    """
    document = read_policy(data, opaque_hashes=opaque_hashes)
    return policy_of(document, hashlib.sha256(data).hexdigest())


@dataclass(frozen=True, slots=True)
class PolicyChange:
    """What a poll found: a policy to use from now on, or why the old one stays."""

    policy: Policy | None
    findings: tuple[Finding, ...]


class PolicyFile:
    """One file on disk, read when asked; blocking, a few milliseconds."""

    def __init__(self, path: Path, *, opaque_hashes: bool = False) -> None:
        """Read the file; raises PolicyInvalidError when it is no policy now."""
        self._path = path
        self._opaque_hashes = opaque_hashes
        self._seen = b""
        change = self.refresh()
        if change is None or change.policy is None:
            raise PolicyInvalidError(change.findings if change else ())
        self.current: Policy = change.policy
        """The policy in force: of the last valid file."""

    async def poll(self) -> PolicyChange | None:
        """As `refresh`, beside the event loop."""
        return await asyncio.to_thread(self.refresh)

    def refresh(self) -> PolicyChange | None:
        """Read the file; None when it is as it was the last time."""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            fault = Finding(str(self._path), error.strerror or "unreadable", "a readable file")
            return self._news(b"unreadable " + fault.value.encode(), PolicyChange(None, (fault,)))
        digest = hashlib.sha256(data).digest()
        if digest == self._seen:
            return None
        try:
            change = PolicyChange(decode_policy(data, opaque_hashes=self._opaque_hashes), ())
        except PolicyInvalidError as error:
            change = PolicyChange(None, error.findings)
        return self._news(digest, change)

    def _news(self, seen: bytes, change: PolicyChange) -> PolicyChange | None:
        if seen == self._seen:
            return None
        self._seen = seen
        if change.policy is not None:
            self.current = change.policy
        return change


def policy_of(document: PolicyDocument, digest: str) -> Policy:
    """The policy that a judged document says; `digest` names it in audit."""
    return Policy(
        classes=MappingProxyType({entry.name: _class(entry) for entry in document.classes}),
        allowed_hashes=_set(document.allowed_hashes),
        min_level=Level(document.min_level),
        allowed_drivers=_set(document.drivers.allowed),
        denied_drivers=frozenset(document.drivers.denied),
        allowed_vbios=_set(document.vbios.allowed),
        denied_vbios=frozenset(document.vbios.denied),
        attestors=_attestors(document),
        denied_keys=frozenset(document.denied_keys),
        labels=MappingProxyType(dict(document.labels)),
        pools=tuple(
            NodePool(
                pool.pattern,
                None if pool.mode is None else NodeMode(pool.mode),
                frozenset(pool.uuids),
                frozenset(pool.serials),
                pool.honours_variable,
                None if pool.mig_strategy is None else MigStrategy(pool.mig_strategy),
            )
            for pool in document.pools
        ),
        default_mode=NodeMode(document.default_mode),
        processes_count_as_use=document.processes_count_as_use,
        evicts_mismatched=document.evict_mismatched,
        xids=MappingProxyType({int(x): Consequence(each) for x, each in document.xids.items()}),
        hint_weight=document.hint_weight,
        digest=digest,
    )


def _attestors(document: PolicyDocument) -> Mapping[str, AttestorRules] | None:
    if document.attestors is None:
        return None
    return MappingProxyType(
        {
            name: AttestorRules(
                None if rules.selectors is None else tuple(rules.selectors),
                None if rules.images is None else frozenset(map(_digest, rules.images)),
            )
            for name, rules in document.attestors.items()
        }
    )


def _class(entry: ClassDocumentEntry) -> AttestationClass:
    hashes = tuple(
        ClassHash(item.hash, parse_time(item.not_before), parse_time(item.not_after))
        for item in entry.hashes
    )
    return AttestationClass(entry.name, hashes, Level(entry.min_level))


def _digest(image: str) -> str:
    return image_digest(image) or image


def _set(values: list[str] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)
