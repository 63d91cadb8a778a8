"""Every reason code of the product, with the step it belongs to and its effect.

Codes are stable strings: metric labels, gRPC error details, events, audit
records and extender messages. A new code is added here first.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Effect(StrEnum):
    """What a refusal does to a node that was trusted until then."""

    TRANSIENT = "transient"
    """The lease runs out by itself."""
    REVOKE = "revoke"
    """Not eligible from now on, until the next accepted evidence."""
    QUARANTINE = "quarantine"
    """Revoked until an operator acts."""


class Stage(StrEnum):
    """Where a code arises."""

    STREAM = "stream"
    MESSAGE = "message"
    PLACEMENT = "placement"
    BINDING_WEBHOOK = "binding"
    BYPASS = "bypass"
    STATE = "state"
    API = "api"


class ReasonCode(StrEnum):
    """Closed set of codes; the order within a step is the order in which they win."""

    LIMIT_STREAMS = "LIMIT_STREAMS"
    LIMIT_RATE = "LIMIT_RATE"
    TLS_NO_CLIENT_CERT = "TLS_NO_CLIENT_CERT"
    TLS_RESUMED = "TLS_RESUMED"
    PEER_ID_INVALID = "PEER_ID_INVALID"
    PEER_FOREIGN_DOMAIN = "PEER_FOREIGN_DOMAIN"
    CHAIN_INVALID = "CHAIN_INVALID"
    SVID_EXPIRED = "SVID_EXPIRED"
    SVID_NOT_YET_VALID = "SVID_NOT_YET_VALID"
    PEER_ROLE_UNKNOWN = "PEER_ROLE_UNKNOWN"
    NODE_NAME_INVALID = "NODE_NAME_INVALID"
    ENROLLMENT_STALE = "ENROLLMENT_STALE"
    DIRECTORY_STALE = "DIRECTORY_STALE"
    NODE_UNKNOWN = "NODE_UNKNOWN"
    NODE_DENIED = "NODE_DENIED"
    SPIRE_ENTRY_NOT_FOUND = "SPIRE_ENTRY_NOT_FOUND"
    SPIRE_ENTRY_AMBIGUOUS = "SPIRE_ENTRY_AMBIGUOUS"
    SPIRE_ENTRY_WEAK = "SPIRE_ENTRY_WEAK"
    SPIRE_ENTRY_PRIVILEGED = "SPIRE_ENTRY_PRIVILEGED"
    SPIRE_PARENT_INVALID = "SPIRE_PARENT_INVALID"
    SPIRE_AGENT_NOT_FOUND = "SPIRE_AGENT_NOT_FOUND"
    SPIRE_AGENT_BANNED = "SPIRE_AGENT_BANNED"
    SPIRE_AGENT_EXPIRED = "SPIRE_AGENT_EXPIRED"
    SPIRE_ATTESTOR_DENIED = "SPIRE_ATTESTOR_DENIED"
    SPIRE_NODE_MISMATCH = "SPIRE_NODE_MISMATCH"
    AGENT_IMAGE_DENIED = "AGENT_IMAGE_DENIED"
    SPIRE_UNAVAILABLE = "SPIRE_UNAVAILABLE"
    SPIRE_STATUS_STALE = "SPIRE_STATUS_STALE"
    PROTOCOL_UNSUPPORTED = "PROTOCOL_UNSUPPORTED"
    STREAM_SUPERSEDED = "STREAM_SUPERSEDED"
    DUPLICATE_AGENT = "DUPLICATE_AGENT"
    MSG_TOO_LARGE = "MSG_TOO_LARGE"
    MSG_MALFORMED = "MSG_MALFORMED"
    TYPE_UNEXPECTED = "TYPE_UNEXPECTED"
    CHALLENGE_UNKNOWN = "CHALLENGE_UNKNOWN"
    CHALLENGE_EXPIRED = "CHALLENGE_EXPIRED"
    NONCE_REUSED = "NONCE_REUSED"
    NONCE_MISMATCH = "NONCE_MISMATCH"
    STREAM_MISMATCH = "STREAM_MISMATCH"
    SIGNER_MISMATCH = "SIGNER_MISMATCH"
    SIG_ALG_DENIED = "SIG_ALG_DENIED"
    SIG_INVALID = "SIG_INVALID"
    AUDIENCE_MISMATCH = "AUDIENCE_MISMATCH"
    NODE_NAME_MISMATCH = "NODE_NAME_MISMATCH"
    INNER_NONCE_MISMATCH = "INNER_NONCE_MISMATCH"
    CHALLENGE_DIGEST_MISMATCH = "CHALLENGE_DIGEST_MISMATCH"
    SEQ_REPLAY = "SEQ_REPLAY"
    SEQ_GAP = "SEQ_GAP"
    PREV_MISMATCH = "PREV_MISMATCH"
    BOOT_CHANGED = "BOOT_CHANGED"
    CLOCK_BACKWARDS = "CLOCK_BACKWARDS"
    CLOCK_SKEW = "CLOCK_SKEW"
    INVENTORY_INVALID = "INVENTORY_INVALID"
    INVENTORY_MADE_UP = "INVENTORY_MADE_UP"
    INVENTORY_INCOMPLETE = "INVENTORY_INCOMPLETE"
    INVENTORY_EMPTY = "INVENTORY_EMPTY"
    GPU_DENIED = "GPU_DENIED"
    GPU_CLAIMED_TWICE = "GPU_CLAIMED_TWICE"
    NODE_UID_CHANGED = "NODE_UID_CHANGED"
    SYSTEM_UUID_CHANGED = "SYSTEM_UUID_CHANGED"
    INVENTORY_NOT_ENROLLED = "INVENTORY_NOT_ENROLLED"
    INVENTORY_CHANGED = "INVENTORY_CHANGED"
    HW_MISSING = "HW_MISSING"
    HW_STALE = "HW_STALE"
    HW_CHAIN_INVALID = "HW_CHAIN_INVALID"
    HW_REVOKED = "HW_REVOKED"
    HW_NONCE_MISMATCH = "HW_NONCE_MISMATCH"
    HW_SIG_INVALID = "HW_SIG_INVALID"
    HW_FWID_MISMATCH = "HW_FWID_MISMATCH"
    HW_VERSION_MISMATCH = "HW_VERSION_MISMATCH"
    HW_IDENTITY_CHANGED = "HW_IDENTITY_CHANGED"
    HW_DEVTOOLS = "HW_DEVTOOLS"
    HW_MEASUREMENT_DENIED = "HW_MEASUREMENT_DENIED"
    POLICY_DENIED = "POLICY_DENIED"
    LEVEL_TOO_LOW = "LEVEL_TOO_LOW"
    CLASS_NOT_ALLOWED = "CLASS_NOT_ALLOWED"
    AUDIT_UNAVAILABLE = "AUDIT_UNAVAILABLE"
    ACCEPTED = "ACCEPTED"
    REQ_INVALID = "REQ_INVALID"
    CONTROLLER_NOT_READY = "CONTROLLER_NOT_READY"
    NODE_NO_EVIDENCE = "NODE_NO_EVIDENCE"
    NODE_STALE = "NODE_STALE"
    NODE_REFUSED = "NODE_REFUSED"
    NODE_QUARANTINED = "NODE_QUARANTINED"
    HASH_MISMATCH = "HASH_MISMATCH"
    CLASS_UNKNOWN = "CLASS_UNKNOWN"
    NODE_MODE = "NODE_MODE"
    EXACT_UNAVAILABLE = "EXACT_UNAVAILABLE"
    MAP_ELSEWHERE = "MAP_ELSEWHERE"
    GPU_NO_MATCH = "GPU_NO_MATCH"
    GPU_LOST = "GPU_LOST"
    GPU_BUSY = "GPU_BUSY"
    BINDING_DENIED_RECENTLY = "BINDING_DENIED_RECENTLY"
    POD_UNKNOWN = "POD_UNKNOWN"
    BINDING_STALE = "BINDING_STALE"
    BINDING_FORGED = "BINDING_FORGED"
    LEDGER_UNAVAILABLE = "LEDGER_UNAVAILABLE"
    LEDGER_CONFLICT = "LEDGER_CONFLICT"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    BYPASS_ENV = "BYPASS_ENV"
    BYPASS_ENV_FROM = "BYPASS_ENV_FROM"
    BYPASS_CDI = "BYPASS_CDI"
    BYPASS_NRI = "BYPASS_NRI"
    BYPASS_HOSTPATH = "BYPASS_HOSTPATH"
    BYPASS_DEVICE_LIST = "BYPASS_DEVICE_LIST"
    BYPASS_PRIVILEGED = "BYPASS_PRIVILEGED"
    BYPASS_HOST_PID = "BYPASS_HOST_PID"
    BYPASS_SCHEDULER = "BYPASS_SCHEDULER"
    BYPASS_NODE_NAME = "BYPASS_NODE_NAME"
    BYPASS_TOLERATION = "BYPASS_TOLERATION"
    BYPASS_RUNTIME_CLASS = "BYPASS_RUNTIME_CLASS"
    BYPASS_CLAIM = "BYPASS_CLAIM"
    BYPASS_RESOURCE = "BYPASS_RESOURCE"
    BYPASS_EPHEMERAL = "BYPASS_EPHEMERAL"
    BYPASS_ANNOTATION = "BYPASS_ANNOTATION"
    BYPASS_UNINJECTED = "BYPASS_UNINJECTED"
    CONTROLLER_CLOCK_SUSPECT = "CONTROLLER_CLOCK_SUSPECT"
    NVML_UNAVAILABLE = "NVML_UNAVAILABLE"
    CHECKPOINT_INCONSISTENT = "CHECKPOINT_INCONSISTENT"
    LOG_RESET = "LOG_RESET"
    ADMISSION_FAILED = "ADMISSION_FAILED"
    ROLE_DENIED = "ROLE_DENIED"
    CANDIDATE_UNKNOWN = "CANDIDATE_UNKNOWN"
    QUARANTINE_UNKNOWN = "QUARANTINE_UNKNOWN"
    ENROLLMENT_CONFLICT = "ENROLLMENT_CONFLICT"
    RESERVATION_UNKNOWN = "RESERVATION_UNKNOWN"
    RESERVATION_CONFLICT = "RESERVATION_CONFLICT"
    RESERVATION_EXPIRED = "RESERVATION_EXPIRED"
    RESERVATION_PENDING = "RESERVATION_PENDING"
    RESERVATION_IN_FORCE = "RESERVATION_IN_FORCE"
    RESERVATION_IN_USE = "RESERVATION_IN_USE"
    TOKEN_INVALID = "TOKEN_INVALID"  # noqa: S105 -- the name of a reason
    TOKEN_REVIEW_UNAVAILABLE = "TOKEN_REVIEW_UNAVAILABLE"  # noqa: S105 -- likewise
    CERTIFICATE_INVALID = "CERTIFICATE_INVALID"
    ACCESS_REVIEW_UNAVAILABLE = "ACCESS_REVIEW_UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal as a value: the one code and a short text for people (no secrets, one line)."""

    code: ReasonCode
    detail: str = ""


_EFFECTS: Final[Mapping[int, Mapping[ReasonCode, Effect]]] = {
    1: {
        ReasonCode.LIMIT_STREAMS: Effect.TRANSIENT,
        ReasonCode.LIMIT_RATE: Effect.TRANSIENT,
    },
    2: {
        ReasonCode.TLS_NO_CLIENT_CERT: Effect.TRANSIENT,
        ReasonCode.TLS_RESUMED: Effect.TRANSIENT,
    },
    3: {
        ReasonCode.PEER_ID_INVALID: Effect.TRANSIENT,
        ReasonCode.PEER_FOREIGN_DOMAIN: Effect.TRANSIENT,
    },
    4: {
        ReasonCode.CHAIN_INVALID: Effect.TRANSIENT,
        ReasonCode.SVID_EXPIRED: Effect.TRANSIENT,
        ReasonCode.SVID_NOT_YET_VALID: Effect.TRANSIENT,
    },
    5: {
        ReasonCode.PEER_ROLE_UNKNOWN: Effect.TRANSIENT,
        ReasonCode.NODE_NAME_INVALID: Effect.TRANSIENT,
    },
    6: {
        ReasonCode.ENROLLMENT_STALE: Effect.TRANSIENT,
        ReasonCode.DIRECTORY_STALE: Effect.TRANSIENT,
        ReasonCode.NODE_UNKNOWN: Effect.TRANSIENT,
        ReasonCode.NODE_DENIED: Effect.REVOKE,
    },
    7: {
        ReasonCode.SPIRE_ENTRY_NOT_FOUND: Effect.REVOKE,
        ReasonCode.SPIRE_ENTRY_AMBIGUOUS: Effect.REVOKE,
        ReasonCode.SPIRE_ENTRY_WEAK: Effect.REVOKE,
        ReasonCode.SPIRE_ENTRY_PRIVILEGED: Effect.REVOKE,
        ReasonCode.SPIRE_PARENT_INVALID: Effect.REVOKE,
    },
    8: {
        ReasonCode.SPIRE_AGENT_NOT_FOUND: Effect.REVOKE,
        ReasonCode.SPIRE_AGENT_BANNED: Effect.REVOKE,
        ReasonCode.SPIRE_AGENT_EXPIRED: Effect.REVOKE,
        ReasonCode.SPIRE_ATTESTOR_DENIED: Effect.REVOKE,
        ReasonCode.SPIRE_NODE_MISMATCH: Effect.REVOKE,
    },
    9: {
        ReasonCode.AGENT_IMAGE_DENIED: Effect.REVOKE,
        ReasonCode.SPIRE_UNAVAILABLE: Effect.TRANSIENT,
        ReasonCode.SPIRE_STATUS_STALE: Effect.TRANSIENT,
    },
    10: {
        ReasonCode.PROTOCOL_UNSUPPORTED: Effect.TRANSIENT,
        ReasonCode.STREAM_SUPERSEDED: Effect.TRANSIENT,
        ReasonCode.DUPLICATE_AGENT: Effect.QUARANTINE,
    },
    11: {
        ReasonCode.MSG_TOO_LARGE: Effect.TRANSIENT,
        ReasonCode.MSG_MALFORMED: Effect.TRANSIENT,
        ReasonCode.TYPE_UNEXPECTED: Effect.TRANSIENT,
    },
    12: {
        ReasonCode.CHALLENGE_UNKNOWN: Effect.TRANSIENT,
        ReasonCode.CHALLENGE_EXPIRED: Effect.TRANSIENT,
        ReasonCode.NONCE_REUSED: Effect.REVOKE,
        ReasonCode.NONCE_MISMATCH: Effect.REVOKE,
        ReasonCode.STREAM_MISMATCH: Effect.REVOKE,
    },
    13: {
        ReasonCode.SIGNER_MISMATCH: Effect.REVOKE,
        ReasonCode.SIG_ALG_DENIED: Effect.REVOKE,
        ReasonCode.SIG_INVALID: Effect.REVOKE,
    },
    14: {
        ReasonCode.AUDIENCE_MISMATCH: Effect.REVOKE,
        ReasonCode.NODE_NAME_MISMATCH: Effect.REVOKE,
        ReasonCode.INNER_NONCE_MISMATCH: Effect.REVOKE,
        ReasonCode.CHALLENGE_DIGEST_MISMATCH: Effect.REVOKE,
    },
    15: {
        ReasonCode.SEQ_REPLAY: Effect.REVOKE,
        ReasonCode.SEQ_GAP: Effect.REVOKE,
        ReasonCode.PREV_MISMATCH: Effect.REVOKE,
        ReasonCode.BOOT_CHANGED: Effect.TRANSIENT,
        ReasonCode.CLOCK_BACKWARDS: Effect.REVOKE,
        ReasonCode.CLOCK_SKEW: Effect.TRANSIENT,
    },
    16: {
        ReasonCode.INVENTORY_INVALID: Effect.REVOKE,
        ReasonCode.INVENTORY_MADE_UP: Effect.REVOKE,
        ReasonCode.INVENTORY_INCOMPLETE: Effect.TRANSIENT,
        ReasonCode.INVENTORY_EMPTY: Effect.TRANSIENT,
        ReasonCode.GPU_DENIED: Effect.REVOKE,
        ReasonCode.GPU_CLAIMED_TWICE: Effect.REVOKE,
        ReasonCode.NODE_UID_CHANGED: Effect.QUARANTINE,
        ReasonCode.SYSTEM_UUID_CHANGED: Effect.QUARANTINE,
        ReasonCode.INVENTORY_NOT_ENROLLED: Effect.REVOKE,
        ReasonCode.INVENTORY_CHANGED: Effect.QUARANTINE,
    },
    17: {
        ReasonCode.HW_MISSING: Effect.REVOKE,
        ReasonCode.HW_STALE: Effect.TRANSIENT,
        ReasonCode.HW_CHAIN_INVALID: Effect.REVOKE,
        ReasonCode.HW_REVOKED: Effect.QUARANTINE,
        ReasonCode.HW_NONCE_MISMATCH: Effect.REVOKE,
        ReasonCode.HW_SIG_INVALID: Effect.REVOKE,
        ReasonCode.HW_FWID_MISMATCH: Effect.REVOKE,
        ReasonCode.HW_VERSION_MISMATCH: Effect.REVOKE,
        ReasonCode.HW_IDENTITY_CHANGED: Effect.QUARANTINE,
        ReasonCode.HW_DEVTOOLS: Effect.REVOKE,
        ReasonCode.HW_MEASUREMENT_DENIED: Effect.REVOKE,
    },
    18: {
        ReasonCode.POLICY_DENIED: Effect.REVOKE,
        ReasonCode.LEVEL_TOO_LOW: Effect.REVOKE,
        ReasonCode.CLASS_NOT_ALLOWED: Effect.REVOKE,
    },
    19: {
        ReasonCode.AUDIT_UNAVAILABLE: Effect.TRANSIENT,
    },
}
"""Verification step (attestation design, section 3) -> the refusals that it can give.

Revoke and quarantine apply from step 6 on only, where the refusal belongs to a known node.
"""

EFFECT_OF: Final[Mapping[ReasonCode, Effect]] = {
    code: effect for effects in _EFFECTS.values() for code, effect in effects.items()
}
"""Effect of each refusal of verification on a node that was trusted."""

STEP_OF: Final[Mapping[ReasonCode, int]] = {
    **{code: step for step, effects in _EFFECTS.items() for code in effects},
    ReasonCode.ACCEPTED: max(_EFFECTS),
}
"""Verification step of each code that a step can give."""
