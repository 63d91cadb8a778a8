"""The controller's settings, where the controller's own code looks for them."""

from gpuwarden.settings.controller import (
    AttestationSettings,
    AuditSettings,
    ClockSettings,
    ControllerListenSettings,
    ControllerSettings,
    Enrollment,
    ExtenderSettings,
    ExtenderTlsSettings,
    KubernetesSettings,
    KubernetesUse,
    LimitSettings,
    PolicySettings,
    SpireSettings,
    StoreKind,
    StoreSettings,
)

__all__ = [
    "AttestationSettings",
    "AuditSettings",
    "ClockSettings",
    "ControllerListenSettings",
    "ControllerSettings",
    "Enrollment",
    "ExtenderSettings",
    "ExtenderTlsSettings",
    "KubernetesSettings",
    "KubernetesUse",
    "LimitSettings",
    "PolicySettings",
    "SpireSettings",
    "StoreKind",
    "StoreSettings",
]
