"""Steps 16 to 18: what authentic evidence proves, and whether that is acceptable here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from controller.fleet.attestation_result import (
    Accepted,
    AppraisedInventory,
    EnrollmentChange,
    Refused,
    refused,
)
from controller.fleet.enrollment import Candidate, ContestedClaim, enrolled_by_uuid
from controller.fleet.faults import Fault, after_evidence, in_force
from controller.fleet.view import compacted
from controller.policy import Level, Policy
from controller.verifier.challenge import IssuedChallenge
from controller.verifier.context import (
    HardwareAppraisal,
    HardwareQuestion,
    Snapshots,
    Standing,
    VerifierSettings,
)
from controller.verifier.inventory import (
    InventoryQuestion,
    accepted_gpus,
    contested_claims,
    enrolled_uuids,
    inventory_refusals,
    lost_gpus,
    malformed_refusals,
    next_record,
    offered_gpus,
    shown_system_uuid,
    unenrolled_lost,
    unread_migs,
)
from controller.verifier.message import Opened
from controller.verifier.reads import failed_reads_of, readable, warnings_of_readings
from controller.verifier.session import NodeStanding
from gpuwarden.evidence.auxiliary_facts import (
    Dropped,
    without_malformed_facts,
    without_malformed_use,
)
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import ClassDocument, attestation_hash, class_document
from gpuwarden.evidence.known_inventory import KnownInventory
from gpuwarden.evidence.model import Evidence, FailedRead, Inventory, LostGpu
from gpuwarden.evidence.node_identity import NodeIdentity, identity_digest, node_identity
from gpuwarden.evidence.stand_in import is_stand_in
from gpuwarden.evidence.strict_json import quote
from gpuwarden.evidence.use_rules import contradictions
from gpuwarden.reasons import ReasonCode, Refusal

MAX_WARNINGS: Final = 16
"""Kept of one evidence: they are shown with every list of nodes, so one node must not fill it."""

_FOR_AN_OPERATOR: Final = frozenset(
    {
        ReasonCode.NODE_UID_CHANGED,
        ReasonCode.SYSTEM_UUID_CHANGED,
        ReasonCode.INVENTORY_NOT_ENROLLED,
        ReasonCode.INVENTORY_CHANGED,
    }
)
"""Refusals that say nothing worse of the hardware than that it is not the enrolled one."""


@dataclass(frozen=True, slots=True)
class Appraiser:
    """Appraises evidence by steps 16 to 18, with all that these need besides it."""

    settings: VerifierSettings
    hardware: HardwareAppraisal
    known: Snapshots
    issued: IssuedChallenge
    found: NodeStanding
    now_ns: int

    def appraise(self, opened: Opened, evidence: Evidence) -> Accepted | Refused:
        """Accepted, or refused with all findings of the first step that has any.

        An inventory that equals the stream's last one keeps its documents and hashes.
        """
        before = opened.stream.appraised
        if before is not None and not before.shows(evidence):
            before = None
        if before is None:
            shown = _shown(evidence)
            if found := malformed_refusals(shown.judged(evidence)) or self._made_up(evidence):
                return _refused(opened, found)
            shown = shown.compacted()
        else:
            shown = _Shown(
                before.known.inventory, before.failed_reads, before.inventory, before.dropped
            )
        question = self._question(opened, shown.judged(evidence))
        lost = lost_gpus(
            question.evidence.inventory, question.enrolled_gpus, question.reads.missing
        )
        contested = contested_claims(question)
        if found := inventory_refusals(question, contested):
            refusal = _refused(opened, found, lost, contested)
            return replace(refusal, candidate=_candidate(refusal, question))
        standing = self._standing(opened, question)
        if isinstance(standing, Refusal):
            return _refused(opened, (standing,), lost)
        if standing is not question.standing:
            question = replace(question, standing=standing)
        if before is None or not before.holds(standing, question.node.uid):
            before = self._appraised(question, shown)
        if found := policy_refusals(
            self.known.policy, before.document, standing.level, before.attestation_hash
        ):
            return _refused(opened, found, lost)
        return self._accepted(opened, question, before, lost)

    def _made_up(self, evidence: Evidence) -> tuple[Refusal, ...]:
        if self.settings.evaluation or not is_stand_in(evidence.inventory):
            return ()
        driver = quote(str(evidence.inventory.host.driver))
        return (Refusal(ReasonCode.INVENTORY_MADE_UP, f"driver {driver}: the GPUs are made up"),)

    def _standing(self, opened: Opened, question: InventoryQuestion) -> Standing | Refusal:
        """Step 17; no more than level `none` in an evaluation."""
        standing = self.hardware(
            HardwareQuestion(
                question.evidence,
                opened.stream,
                question.enrolled_gpus,
                self.found.standing,
                self.now_ns,
            )
        )
        if self.settings.evaluation and isinstance(standing, Standing):
            return replace(standing, level=Level.NONE)
        return standing

    def _question(self, opened: Opened, evidence: Evidence) -> InventoryQuestion:
        name, enrollment, policy = opened.stream.node, self.known.enrollment, self.known.policy
        record = enrollment.records.get(name)
        enrolled_gpus = enrolled_by_uuid(record)
        evidence, odd_use = without_malformed_use(evidence)
        reads = readable(evidence, enrolled_gpus)
        answering = evidence.inventory.gpus
        return InventoryQuestion(
            evidence=msgspec.structs.replace(evidence, inventory=reads.inventory),
            answering=answering,
            reads=reads,
            odd_use=odd_use,
            node_name=name,
            node=self.found.node,
            standing=self.found.standing,
            enrollment=enrollment,
            policy=policy,
            enrollment_required=self.settings.enrollment_required,
            record=record,
            enrolled_gpus=enrolled_gpus,
            pool=policy.pool(name),
        )

    def _appraised(self, question: InventoryQuestion, shown: "_Shown") -> AppraisedInventory:
        document, identity = self._class(question), self._identity(question)
        return AppraisedInventory(
            known=KnownInventory.of(shown.sent),
            failed_reads=shown.failed_reads,
            inventory=shown.inventory,
            dropped=shown.dropped,
            standing=question.standing,
            node_uid=question.node.uid,
            document=document,
            attestation_hash=attestation_hash(document),
            class_document=canonical_json(document),
            identity_digest=identity_digest(identity),
            identity_document=canonical_json(identity),
        )

    def _class(self, question: InventoryQuestion) -> ClassDocument:
        standing = question.standing
        return class_document(
            question.evidence.inventory,
            level=standing.level,
            trust_domain=self.settings.trust_domain,
            attestor=standing.attestor,
            spdm=standing.spdm,
        )

    def _identity(self, question: InventoryQuestion) -> NodeIdentity:
        return node_identity(
            question.evidence.inventory,
            trust_domain=self.settings.trust_domain,
            cluster=self.settings.cluster,
            node_name=question.node_name,
            node_uid=question.node.uid,
            spire_agent=question.standing.spire_agent,
            identity_keys=question.standing.identity_keys,
        )

    def _accepted(
        self,
        opened: Opened,
        question: InventoryQuestion,
        appraised: AppraisedInventory,
        lost: tuple[LostGpu, ...],
    ) -> Accepted:
        stream = opened.stream
        if stream.appraised is not appraised:
            stream = replace(stream, appraised=appraised)
        known_faults = question.record.faults if question.record else ()
        faults = after_evidence(known_faults, question.evidence, question.policy.consequence)
        return Accepted(
            node=question.node_name,
            stream=stream,
            evidence=question.evidence,
            evidence_digest=opened.digest,
            level=question.standing.level,
            attestor=question.standing.attestor,
            attestation_hash=appraised.attestation_hash,
            class_document=appraised.class_document,
            identity_digest=appraised.identity_digest,
            identity_document=appraised.identity_document,
            lost=lost,
            warnings=_warnings(opened, question, appraised.dropped),
            challenge_issued_ns=self.issued.issued_ns,
            fresh_until_ns=self.issued.issued_ns + self.settings.lease_ns,
            enrollment=_enrollment(opened, question, faults),
            unhealthy=in_force(faults, question.policy.consequence),
        )


@dataclass(frozen=True, slots=True)
class _Shown:
    """An inventory as it was sent, and what is left of it without malformed facts."""

    sent: Inventory
    failed_reads: tuple[FailedRead, ...]
    """As they were sent."""
    inventory: Inventory
    dropped: tuple[Dropped, ...]

    def judged(self, evidence: Evidence) -> Evidence:
        """The evidence with what is left; what was dropped counts as not read."""
        reads = (*self.failed_reads, *failed_reads_of(self.dropped))
        return msgspec.structs.replace(evidence, inventory=self.inventory, failed_reads=reads)

    def compacted(self) -> "_Shown":
        """The same, sharing with others what is large."""
        sent = compacted(self.sent)
        left = sent if self.inventory is self.sent else compacted(self.inventory)
        return replace(self, sent=sent, inventory=left)


def _shown(evidence: Evidence) -> _Shown:
    left, dropped = without_malformed_facts(evidence.inventory)
    return _Shown(evidence.inventory, evidence.failed_reads, left, dropped)


def unreadable(opened: Opened, refusal: Refusal) -> Refused:
    """Authentic bytes that hold no inventory."""
    return _refused(opened, (refusal,))


def _refused(
    opened: Opened,
    findings: Sequence[Refusal],
    lost: tuple[LostGpu, ...] = (),
    contested: tuple[ContestedClaim, ...] = (),
) -> Refused:
    return replace(
        refused(findings[0], opened.stream.node),
        findings=tuple(findings),
        stream=opened.stream,
        lost=lost,
        contested=contested,
        evidence_digest=opened.digest,
    )


def _candidate(refusal: Refused, question: InventoryQuestion) -> Candidate | None:
    if refusal.code not in _FOR_AN_OPERATOR:
        return None
    return Candidate(
        code=refusal.code,
        node_uid=question.node.uid,
        spire_agent=question.standing.spire_agent,
        gpus=offered_gpus(question),
        evidence_digest=refusal.evidence_digest,
        system_uuid=shown_system_uuid(question.evidence.inventory),
    )


def _warnings(
    opened: Opened, question: InventoryQuestion, dropped: tuple[Dropped, ...]
) -> tuple[str, ...]:
    found = (
        *((opened.warning,) if opened.warning else ()),
        *warnings_of_readings(question.evidence, question.reads),
        *(str(x) for x in (*dropped, *question.odd_use)),
        *unenrolled_lost(question.evidence.inventory, question.enrolled_gpus),
        *contradictions(question.evidence, frozenset(question.enrolled_gpus)),
    )
    more = len(found) - MAX_WARNINGS
    return found if more <= 0 else (*found[:MAX_WARNINGS], f"and {more} more")


def _enrollment(
    opened: Opened, question: InventoryQuestion, faults: tuple[Fault, ...]
) -> EnrollmentChange | None:
    before = question.record
    after = next_record(
        before,
        node=question.node_name,
        node_uid=question.node.uid,
        instance=opened.stream.hello.instance_id,
        standing=question.standing,
        gpus=accepted_gpus(
            question.evidence.inventory,
            question.enrolled_gpus,
            question.standing.identity_keys,
            enrolled_uuids(question),
            unread_migs(question.evidence),
        ),
        system_uuid=shown_system_uuid(question.evidence.inventory),
        faults=faults,
    )
    return None if after == before else EnrollmentChange(before, after)


# --- step 18: what the cluster accepts, whatever a pod may ask for


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
    if level.rank < policy.min_level.demanded.rank:
        yield Refusal(ReasonCode.LEVEL_TOO_LOW, f"level {level}, {policy.min_level} is the least")


def _class(policy: Policy, attestation_hash: str) -> Iterator[Refusal]:
    if policy.allowed_hashes is not None and attestation_hash not in policy.allowed_hashes:
        yield Refusal(
            ReasonCode.CLASS_NOT_ALLOWED, f"{attestation_hash} is not a class of this cluster"
        )
