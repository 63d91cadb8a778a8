"""How a person is named who acts through an identity that others share. Pure.

Such a name is what the caller says, and proves nothing. It has no blank and no comma, so that it
cannot be read as more than a name.
"""

import re
from typing import Final

PERSON: Final = "1 to 100 letters, digits and characters of ._@:+/-"
_PERSON: Final = re.compile(r"[A-Za-z0-9._@:+/-]{1,100}")


def is_person(text: str) -> bool:
    """Whether a person may be named so."""
    return _PERSON.fullmatch(text) is not None
