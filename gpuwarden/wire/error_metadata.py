"""How a reason code travels beside a gRPC status, and a notice beside every answer.

The controller writes the code into trailing metadata and in front of the status
message; clients read the metadata and never parse the message.
"""

from typing import Final

REASON_KEY: Final = "gpuwarden-reason"
"""Trailing metadata: the stable reason code, for example `ROLE_DENIED`."""

FIELD_KEY: Final = "gpuwarden-field"
"""Trailing metadata: the request field that was wrong, where one was."""

NOTICE_KEY: Final = "gpuwarden-notice"
"""Initial metadata: what a person has to know before they believe any answer."""
