"""What may be told of a text that others wrote: the words in it that we know. Pure.

An error may repeat what a peer, a file or a library said, secrets included. Its reason
codes, statuses and errors of the operating system come from closed sets, and say most of it.
"""

import errno
import os
import re
from typing import Final

from gpuwarden.reasons import ReasonCode

_MOST: Final = 8
_STATUSES: Final = frozenset(
    {
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "UNAUTHENTICATED",
    }
)
"""Of gRPC."""
_OURS: Final = frozenset(
    {
        "denied",
        "expired",
        "fault",
        "foreign",
        "lags",
        "locked",
        "refused",
        "timeout",
        "unreachable",
        "untrusted",
        "withdrawn",
        "wrong-identity",
    }
)
_KNOWN: Final = frozenset(code.value for code in ReasonCode) | _STATUSES | _OURS
_ERRORS: Final = {os.strerror(number): name for number, name in errno.errorcode.items()}
_WORD: Final = re.compile(r"[A-Za-z_-]{3,64}")
_LOOKED_AT: Final = 4096


def known_words(text: str) -> list[str]:
    """Sorted, each once; never anything that is not in our own lists."""
    text = text[:_LOOKED_AT]
    found = {word for word in _WORD.findall(text) if word in _KNOWN}
    found |= {name for message, name in _ERRORS.items() if message in text}
    return sorted(found)[:_MOST]
