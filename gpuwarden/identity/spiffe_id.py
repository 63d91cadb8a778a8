"""SPIFFE IDs, parsed strictly, and the roles that gpuwarden puts into their paths.

Source: SPIFFE-ID standard, sections 2 and 2.1 to 2.3. Paths are exact: no
percent-encoding, no empty, `.` or `..` segments, no trailing slash.
Pure; imports no other module of the product.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

_MAX_URI = 2048
_MAX_TRUST_DOMAIN = 255
_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]+")
_SEGMENT = re.compile(r"[A-Za-z0-9._-]+")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_MAX_NODE_NAME = 253


class SpiffeIdError(ValueError):
    """The text is not a SPIFFE ID; the message is what was expected."""


@dataclass(frozen=True, slots=True)
class SpiffeId:
    """A SPIFFE ID; `path` is empty or starts with `/`."""

    trust_domain: str
    path: str

    def __str__(self) -> str:
        return f"spiffe://{self.trust_domain}{self.path}"


class Role(StrEnum):
    """What a peer is to gpuwarden, taken from the first segment below the path prefix."""

    AGENT = "agent"
    CONTROLLER = "controller"
    INSPECTOR = "inspector"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class PeerName:
    """A role and, except for the controller, the name it is held under."""

    role: Role
    name: str


def parse_spiffe_id(text: str) -> SpiffeId:
    """Parse a SPIFFE ID; raises SpiffeIdError for anything that is not exactly one."""
    if len(text.encode("utf-8", "surrogatepass")) > _MAX_URI:
        raise SpiffeIdError(f"SPIFFE ID longer than {_MAX_URI} bytes")
    scheme, separator, rest = text.partition("://")
    if scheme != "spiffe" or not separator:
        raise SpiffeIdError(f"SPIFFE ID must start with spiffe://, got {text[:80]!r}")
    trust_domain, slash, path = rest.partition("/")
    parse_trust_domain(trust_domain)
    if not slash:
        return SpiffeId(trust_domain, "")
    for segment in path.split("/"):
        if not _SEGMENT.fullmatch(segment) or segment in {".", ".."}:
            raise SpiffeIdError(f"SPIFFE ID has a bad path segment {segment[:80]!r}")
    return SpiffeId(trust_domain, f"/{path}")


def parse_trust_domain(text: str) -> str:
    """Return `text` if it is a trust domain name, else raise SpiffeIdError."""
    if len(text) > _MAX_TRUST_DOMAIN or not _TRUST_DOMAIN.fullmatch(text):
        raise SpiffeIdError(f"trust domain must match [a-z0-9._-]{{1,255}}, got {text[:80]!r}")
    return text


def is_node_name(text: str) -> bool:
    """Whether `text` is an RFC 1123 subdomain, as Kubernetes demands of node names."""
    return len(text) <= _MAX_NODE_NAME and all(_LABEL.fullmatch(x) for x in text.split("."))


def agent_id(trust_domain: str, prefix: str, node_name: str) -> SpiffeId:
    """The identity of the agent on `node_name`."""
    return SpiffeId(trust_domain, f"{prefix}/{Role.AGENT}/{node_name}")


def controller_id(trust_domain: str, prefix: str) -> SpiffeId:
    """The identity that all controller replicas share."""
    return SpiffeId(trust_domain, f"{prefix}/{Role.CONTROLLER}")


def peer_name(spiffe_id: SpiffeId, prefix: str) -> PeerName | None:
    """Role and name behind an ID, or None for any other path.

    The name of an agent is not yet checked to be a node name; see `is_node_name`.
    """
    if not spiffe_id.path.startswith(f"{prefix}/"):
        return None
    match spiffe_id.path[len(prefix) + 1 :].split("/"):
        case ["controller"]:
            return PeerName(Role.CONTROLLER, "")
        case ["agent" | "inspector" | "operator" as role, name]:
            return PeerName(Role(role), name)
        case _:
            return None
