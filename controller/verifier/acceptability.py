"""Step 18: what the cluster accepts at all, whatever a pod may ask for."""

from collections.abc import Iterator

from controller.fleet.view import Level
from controller.policy import Policy
from gpuwarden.evidence.class_document import ClassDocument
from gpuwarden.reasons import ReasonCode, Refusal


def policy_refusals(
    policy: Policy, document: ClassDocument, level: Level, attestation_hash: str
) -> tuple[Refusal, ...]:
    """Everything that policy holds against this class, in the order of the reason codes."""
    return (
        *_versions(policy, document),
        *_level(policy, level),
        *_class(policy, attestation_hash),
    )


def _versions(policy: Policy, document: ClassDocument) -> Iterator[Refusal]:
    driver = document.platform.driver
    if not _allowed(driver, policy.allowed_drivers, policy.denied_drivers):
        yield Refusal(ReasonCode.POLICY_DENIED, f"driver {driver} is not acceptable")
    for vbios in sorted({str(x.vbios) for x in document.gpus if not _vbios_ok(policy, x.vbios)}):
        yield Refusal(ReasonCode.POLICY_DENIED, f"VBIOS {vbios} is not acceptable")


def _vbios_ok(policy: Policy, vbios: str | None) -> bool:
    return _allowed(vbios, policy.allowed_vbios, policy.denied_vbios)


def _allowed(version: str | None, allowed: frozenset[str] | None, denied: frozenset[str]) -> bool:
    """An unknown version is on no list, so it passes no allow-list."""
    return version not in denied and (allowed is None or version in allowed)


def _level(policy: Policy, level: Level) -> Iterator[Refusal]:
    if level.rank < policy.min_level.rank:
        yield Refusal(ReasonCode.LEVEL_TOO_LOW, f"level {level}, {policy.min_level} is the least")


def _class(policy: Policy, attestation_hash: str) -> Iterator[Refusal]:
    if policy.allowed_hashes is not None and attestation_hash not in policy.allowed_hashes:
        yield Refusal(
            ReasonCode.CLASS_NOT_ALLOWED, f"{attestation_hash} is not a class of this cluster"
        )
