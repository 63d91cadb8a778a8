"""Takes out of a text what looks like a secret, before anybody keeps or shows it. Pure.

For text that came from outside: a peer may send a token or a key where a name belongs,
and what refuses it quotes it, into logs and into an audit log that forgets nothing.
"""

import re
from typing import Final

REDACTED: Final = "<redacted>"
_SECRET: Final = re.compile(
    r"-----BEGIN [A-Z0-9 ]{1,40}-----.*?(?:-----END [A-Z0-9 ]{1,40}-----|\Z)"
    r"|\beyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,4}"
    r"|\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"
    r"|(?<=://)[^/\s:@]{1,256}:[^/\s@]{1,256}(?=@)",
    re.IGNORECASE | re.DOTALL,
)
"""PEM, whole or cut off; JOSE tokens in their compact form; credentials in headers and URLs."""


def without_secrets(text: str) -> str:
    """The text with REDACTED in the place of each PEM block, token and password."""
    return _SECRET.sub(REDACTED, text)


def error_line(error: Exception, secret: str = "") -> str:
    """An error in one line, without what looks like a secret, and without this one."""
    text = " ".join(without_secrets(str(error)).split()) or type(error).__name__
    return text.replace(secret, REDACTED) if secret else text
