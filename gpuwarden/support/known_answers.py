"""What may be told of `/readyz`: which fields leave, and which of their words. Pure."""

import json
import re
from ipaddress import ip_address
from typing import Any, Final

from gpuwarden.settings.values import Address
from gpuwarden.support.known_words import known_words
from gpuwarden.support.part import Content

_MOST: Final = 64
_HEADS: Final = frozenset({"draining", "first round", "svid", "audit", "stores", "directory"})
_STATES: Final = frozenset({"connecting", "open", "accepted"})
_LEVELS: Final = frozenset({"L0", "L1", "L2", "L3"})
_HASH: Final = re.compile(r"v1:sha256:[0-9a-f]{64}")


def told_reasons(reasons: object) -> list[dict[str, object]]:
    """Each reason as the part that it begins with, and the words that are known."""
    return [
        {"about": _among(text.partition(":")[0], _HEADS), "words": known_words(text)}
        for text in _list(reasons)
        if isinstance(text, str)
    ]


def told_readiness(body: bytes) -> Content:
    """For an agent's or a controller's answer; raises ValueError where it is none."""
    answer = json.loads(body)
    if not isinstance(answer, dict):
        raise TypeError("not an object")
    return Content(
        {
            "ready": answer.get("ready") is True,
            "reasons": told_reasons(answer.get("reasons")),
            "warnings": told_reasons(answer.get("warnings")),
            "alarms": [known_words(str(one)) for one in _list(answer.get("alarms"))],
            "identity": known_words(str(answer.get("identity", ""))),
            "replicas": [
                _replica(one) for one in _list(answer.get("replicas")) if isinstance(one, dict)
            ],
        },
        ("reasons", "detail", "identity"),
    )


def _replica(one: dict[str, Any]) -> dict[str, object]:
    fresh = one.get("freshForSeconds")
    return {
        "address": _address(one.get("address")),
        "state": _among(one.get("state"), _STATES),
        "codes": known_words(str(one.get("code", ""))),
        "about": known_words(str(one.get("detail", ""))),
        "level": _among(one.get("level"), _LEVELS),
        "attestationHash": _hash(one.get("attestationHash")),
        "freshForSeconds": fresh if isinstance(fresh, int) else None,
    }


def _address(text: object) -> str | None:
    """Of a replica it is an IP address; a name could be anything."""
    try:
        address = Address.parse(str(text))
        ip_address(address.host)
    except ValueError:
        return None
    return str(address)


def _hash(text: object) -> str | None:
    return text if isinstance(text, str) and _HASH.fullmatch(text) else None


def _among(text: object, known: frozenset[str]) -> str | None:
    return text if isinstance(text, str) and text in known else None


def _list(value: object) -> list[object]:
    return value[:_MOST] if isinstance(value, list) else []
