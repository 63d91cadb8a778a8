"""Says with which settings a controller runs: in its own log, and in the audit log.

Changes no setting, and shows no more of one than `config print` does.
"""

import hashlib

from controller.audit.record import Record
from controller.composition.parts import Parts
from controller.settings import ControllerSettings
from controller.trust_journal import CONTROLLER
from gpuwarden import __version__
from gpuwarden.audit.record import RecordKind
from gpuwarden.settings.key import ENV_PREFIX
from gpuwarden.settings.loader import Loaded
from gpuwarden.settings.report import effective, render
from gpuwarden.telemetry.logs import EventLogger
from gpuwarden.telemetry.names import Event


def announce_settings(loaded: Loaded[ControllerSettings], parts: Parts, log: EventLogger) -> None:
    """Tell the values, which came under a foreign name, and which stand-ins are insecure."""
    log.info(
        Event.CONFIG_EFFECTIVE,
        digest=_digest(loaded),
        settings={key: entry["value"] for key, entry in effective(loaded).items()},
    )
    for key, source in loaded.sources.items():
        if _is_alias(source):
            log.info(Event.CONFIG_ALIAS, key=key, source=source)
    for warning in parts.conditions.insecure:
        log.warning(Event.CONFIG_INSECURE, warning=warning)


def record_settings(loaded: Loaded[ControllerSettings], parts: Parts) -> None:
    """Note in the audit log what is in force: settings and policy by digest, store, version."""
    parts.audit.note(
        Record(
            RecordKind.CONFIG_CHANGE,
            actor=CONTROLLER,
            subject="settings",
            decision="in-force",
            refs={
                "config": _digest(loaded),
                "policy": parts.policy.current.digest,
                "store": parts.store.facts(),
                "version": __version__,
                "insecure": list(parts.conditions.insecure),
            },
        )
    )


def _is_alias(source: str) -> bool:
    """Whether a value came from a variable that is not named as ours are."""
    kind, _, variable = source.partition(" ")
    return kind == "environment" and not variable.startswith(ENV_PREFIX)


def _digest(loaded: Loaded[ControllerSettings]) -> str:
    """SHA-256 of the effective configuration as `config print` shows it."""
    return hashlib.sha256(render(loaded).encode()).hexdigest()
