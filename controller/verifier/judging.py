"""Steps 16 to 18: what authentic evidence proves, and whether that is acceptable here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from controller.fleet.claims import ContestedClaim
from controller.fleet.enrollment import Candidate, pins_by_uuid
from controller.fleet.sharing import compacted
from controller.verifier.acceptability import policy_refusals
from controller.verifier.challenge import IssuedChallenge
from controller.verifier.context import Snapshots, VerifierSettings
from controller.verifier.inventory import (
    InventoryQuestion,
    contested_claims,
    enrolled_uuids,
    inventory_refusals,
    malformed_refusals,
    warnings_about_reads,
)
from controller.verifier.judged import JudgedInventory
from controller.verifier.opening import Opened
from controller.verifier.pins import lost_gpus, next_record, pinned, shown, unpinned_lost
from controller.verifier.result import Accepted, EnrollmentChange, Refused, refused
from controller.verifier.seams import HardwareAppraisal, HardwareQuestion
from controller.verifier.standing import NodeStanding
from gpuwarden.evidence.canonical import canonical_json
from gpuwarden.evidence.class_document import ClassDocument, attestation_hash, class_document
from gpuwarden.evidence.model import Evidence, LostGpu
from gpuwarden.evidence.node_identity import NodeIdentity, identity_digest, node_identity
from gpuwarden.evidence.outline import KnownInventory
from gpuwarden.evidence.use_rules import contradictions
from gpuwarden.reasons import ReasonCode, Refusal

MAX_WARNINGS: Final = 16
"""Kept of one evidence: they are shown with every list of nodes, so one node must not fill it."""

_FOR_AN_OPERATOR: Final = frozenset(
    {
        ReasonCode.NODE_UID_CHANGED,
        ReasonCode.INVENTORY_NOT_ENROLLED,
        ReasonCode.INVENTORY_CHANGED,
    }
)
"""Refusals that say nothing worse of the hardware than that it is not the pinned one."""


@dataclass(frozen=True, slots=True)
class Judge:
    """What steps 16 to 18 need besides the evidence."""

    settings: VerifierSettings
    hardware: HardwareAppraisal
    known: Snapshots
    issued: IssuedChallenge
    found: NodeStanding
    now_ns: int

    def judge(self, opened: Opened, evidence: Evidence) -> Accepted | Refused:
        """Accepted, or refused with all findings of the first step that has any."""
        before = opened.stream.judged
        if before is not None and not before.shows(evidence):
            before = None
        if malformed := malformed_refusals(evidence, has_known_inventory=before is not None):
            return _refused(opened, malformed)
        if before is None:
            compact = compacted(evidence.inventory)
            evidence = msgspec.structs.replace(evidence, inventory=compact)
        elif evidence.inventory is not before.known.inventory:
            evidence = msgspec.structs.replace(evidence, inventory=before.known.inventory)
        question = self._question(opened, evidence)
        lost = lost_gpus(evidence.inventory, question.pins)
        contested = contested_claims(question)
        if found := inventory_refusals(question, contested):
            refusal = _refused(opened, found, lost, contested)
            return replace(refusal, candidate=_candidate(refusal, question))
        standing = self.hardware.appraise(
            HardwareQuestion(
                evidence, opened.stream, question.pins, self.found.standing, self.now_ns
            )
        )
        if isinstance(standing, Refusal):
            return _refused(opened, (standing,), lost)
        if standing is not question.standing:
            question = replace(question, standing=standing)
        if before is None or not before.holds(standing, question.node.uid):
            before = self._judged(question)
        if found := policy_refusals(
            self.known.policy, before.document, standing.level, before.attestation_hash
        ):
            return _refused(opened, found, lost)
        return self._accepted(opened, question, before, lost)

    def _question(self, opened: Opened, evidence: Evidence) -> InventoryQuestion:
        name, enrollment, policy = opened.stream.node, self.known.enrollment, self.known.policy
        record = enrollment.records.get(name)
        return InventoryQuestion(
            evidence=evidence,
            node_name=name,
            node=self.found.node,
            standing=self.found.standing,
            enrollment=enrollment,
            policy=policy,
            enrollment_required=self.settings.enrollment_required,
            record=record,
            pins=pins_by_uuid(record),
            pool=policy.pool(name),
        )

    def _judged(self, question: InventoryQuestion) -> JudgedInventory:
        document, identity = self._class(question), self._identity(question)
        return JudgedInventory(
            known=KnownInventory.of(question.evidence.inventory),
            failed_reads=question.evidence.failed_reads,
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
        judged: JudgedInventory,
        lost: tuple[LostGpu, ...],
    ) -> Accepted:
        stream = opened.stream
        return Accepted(
            node=question.node_name,
            stream=stream if stream.judged is judged else replace(stream, judged=judged),
            evidence=question.evidence,
            evidence_digest=opened.digest,
            level=question.standing.level,
            attestor=question.standing.attestor,
            attestation_hash=judged.attestation_hash,
            class_document=judged.class_document,
            identity_digest=judged.identity_digest,
            identity_document=judged.identity_document,
            lost=lost,
            warnings=_warnings(opened, question),
            challenge_issued_ns=self.issued.issued_ns,
            fresh_until_ns=self.issued.issued_ns + self.settings.lease_ns,
            enrollment=_enrollment(opened, question),
        )


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
        gpus=shown(question.evidence.inventory, question.standing.identity_keys),
        evidence_digest=refusal.evidence_digest,
    )


def _warnings(opened: Opened, question: InventoryQuestion) -> tuple[str, ...]:
    found = (
        *((opened.warning,) if opened.warning else ()),
        *warnings_about_reads(question.evidence),
        *unpinned_lost(question.evidence.inventory, question.pins),
        *contradictions(question.evidence, frozenset(question.pins)),
    )
    more = len(found) - MAX_WARNINGS
    return found if more <= 0 else (*found[:MAX_WARNINGS], f"and {more} more")


def _enrollment(opened: Opened, question: InventoryQuestion) -> EnrollmentChange | None:
    before = question.record
    after = next_record(
        before,
        node=question.node_name,
        node_uid=question.node.uid,
        instance=opened.stream.hello.instance_id,
        standing=question.standing,
        gpus=pinned(
            question.evidence.inventory,
            question.pins,
            question.standing.identity_keys,
            enrolled_uuids(question),
        ),
    )
    return None if after == before else EnrollmentChange(before, after)
