"""Settings as a support bundle shows them: values of kinds that can hold no secret, no others.

A kind says so of itself (`Kind.closed`); a new key of an open kind is withheld until
somebody decides. Defaults stand in the documentation and are shown. Pure.
"""

from typing import Any, Final

from gpuwarden.redaction import REDACTED
from gpuwarden.settings.keys import Key
from gpuwarden.settings.loader import Loaded
from gpuwarden.support.part import Content

_DEFAULT: Final = "default"
_SOURCES: Final = ("flag", "environment", "default from", _DEFAULT)


def disclosed_settings(loaded: Loaded[Any]) -> Content:
    """Value and kind of source of each key; withheld are the keys whose value is not shown."""
    shown, withheld = {}, []
    for key in loaded.config.keys:
        value, source = loaded.values[key.name], loaded.sources[key.name]
        if not may_leave(key, source):
            withheld.append(key.name)
        shown[key.name] = {
            "value": key.shown(value) if may_leave(key, source) else REDACTED,
            "source": next((one for one in _SOURCES if source.startswith(one)), "file"),
        }
    return Content({"kind": loaded.config.kind, "settings": shown}, tuple(withheld))


def may_leave(key: Key, source: str) -> bool:
    """Whether the value of `key` may be shown to somebody outside."""
    if key.spec.secret:
        return False
    return key.spec.kind.closed or source == _DEFAULT
