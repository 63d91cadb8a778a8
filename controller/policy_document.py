"""The policy file's document: keys, types and what each means. Shapes only.

The same shape as the custom resources. `policy_file` decodes it; the JSON Schema
for editors is made from it.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

API_VERSION = "config.gpuwarden.dev/v1alpha1"
KIND = "Policy"

_Text = Annotated[str, Meta(min_length=1, max_length=253)]
_Hash = Annotated[str, Meta(min_length=1, max_length=253)]
_Levels = Literal["L0", "L1", "L2", "L3"]
_Modes = Literal["env", "plugin", "per-gpu", "dra"]


class _Section(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True
):
    """Parent of every mapping below."""


class ClassHashDocument(_Section, frozen=True):
    """One hash of a class, and when it counts (RFC 3339 with offset; notAfter no longer does)."""

    hash: _Hash
    not_before: str | None = None
    not_after: str | None = None


class ClassDocumentEntry(_Section, frozen=True):
    """A named set of hashes; several of them let a driver upgrade roll through a fleet."""

    name: _Text
    hashes: Annotated[list[ClassHashDocument], Meta(min_length=1, max_length=256)]
    min_level: _Levels = "L0"


class VersionsDocument(_Section, frozen=True):
    """Versions that may and may not be; no `allowed` = any."""

    allowed: Annotated[list[_Text], Meta(min_length=1, max_length=1024)] | None = None
    denied: Annotated[list[_Text], Meta(max_length=1024)] = []


class AttestorDocument(_Section, frozen=True):
    """What is demanded of nodes whose SPIRE agent attested in this way; no `images` = any."""

    selectors: Annotated[list[_Text], Meta(min_length=1, max_length=64)] | None = None
    images: Annotated[list[_Text], Meta(min_length=1, max_length=1024)] | None = None


class PoolDocument(_Section, frozen=True):
    """Nodes by name pattern (`*`, `?`, `[…]`), their mode, and what enrolment demands."""

    pattern: _Text
    mode: _Modes | None = None
    uuids: Annotated[list[_Text], Meta(max_length=100_000)] = []
    serials: Annotated[list[_Text], Meta(max_length=100_000)] = []
    honours_variable: bool = False
    mig_strategy: Literal["none", "single", "mixed"] | None = None


class PolicyDocument(_Section, frozen=True):
    """The whole file. What is left out demands nothing."""

    api_version: Literal["config.gpuwarden.dev/v1alpha1"]
    kind: Literal["Policy"]
    classes: Annotated[list[ClassDocumentEntry], Meta(max_length=1024)] = []
    allowed_hashes: Annotated[list[_Hash], Meta(min_length=1, max_length=4096)] | None = None
    min_level: _Levels = "L0"
    drivers: VersionsDocument = VersionsDocument()
    vbios: VersionsDocument = VersionsDocument()
    attestors: dict[str, AttestorDocument] | None = None
    denied_keys: Annotated[list[_Text], Meta(max_length=100_000)] = []
    labels: Annotated[dict[str, str], Meta(max_length=1024)] = {}
    pools: Annotated[list[PoolDocument], Meta(max_length=1024)] = []
    default_mode: _Modes = "plugin"
    processes_count_as_use: bool = True
    evict_mismatched: bool = False
