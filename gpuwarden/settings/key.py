"""What a key of the configuration is: the description that hangs on each settings field.

Names follow from the fields: `challenge_ttl` in section `attestation` is the key
`attestation.challengeTtl`, the flag `--attestation.challengeTtl` and the environment
variable `GPUWARDEN_ATTESTATION_CHALLENGE_TTL`. Pure.
"""

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from gpuwarden.settings.kinds import Kind

ENV_PREFIX = "GPUWARDEN_"
FILE_SUFFIX = "_FILE"


@dataclass(frozen=True, slots=True)
class Spec:
    """Stands in a field's `Annotated` and makes it a key."""

    kind: Kind[Any]
    help: str
    secret: bool = False
    """Never shown; may also be given as the name of a file that holds it."""
    default_from: str = ""
    """Environment variable that gives the default, below the file in rank."""
    aliases: tuple[str, ...] = ()
    """Environment variables of other programs that are accepted for the same thing."""
    alias_adds: bool = False
    """Whether an alias adds to the default list instead of replacing it."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key with its place: `path` names sections and field as in the file."""

    path: tuple[str, ...]
    spec: Spec
    default: Any
    """The default, or `dataclasses.MISSING` where the key is required."""

    @property
    def name(self) -> str:
        """`attestation.challengeTtl`."""
        return ".".join(self.path)

    @property
    def env(self) -> str:
        """`GPUWARDEN_ATTESTATION_CHALLENGE_TTL`."""
        return environment_name(self.path)

    @property
    def required(self) -> bool:
        """Whether there is no default at all."""
        return self.default is dataclasses.MISSING

    def shown(self, value: object) -> str:
        """Return the value as people may see it."""
        if value is None:
            return "none"
        return "<redacted>" if self.spec.secret else self.spec.kind.show(value)


def environment_name(path: tuple[str, ...]) -> str:
    """Name of the variable for a key's path."""
    return ENV_PREFIX + "_".join(_screaming(part) for part in path)


def keys_of(settings: type, prefix: tuple[str, ...] = ()) -> Iterator[Key]:
    """Yield every key of a settings class in order of declaration, sections included."""
    hints = get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        path = (*prefix, _camel(field.name))
        hint = hints[field.name]
        if get_origin(hint) is Annotated:
            yield Key(path, get_args(hint)[1], _default(field))
        else:
            yield from keys_of(hint, path)


def build(settings: type, values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 -- one function builds every section class
    """Make a settings object from the values of all its keys by name."""
    hints = get_type_hints(settings, include_extras=True)
    arguments = {}
    for field in dataclasses.fields(settings):
        path = (*prefix, _camel(field.name))
        if get_origin(hints[field.name]) is not Annotated:
            arguments[field.name] = build(hints[field.name], values, path)
        else:
            arguments[field.name] = values[".".join(path)]
    return settings(**arguments)


def _default(field: "dataclasses.Field[Any]") -> Any:  # noqa: ANN401 -- keys have any type
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _camel(snake: str) -> str:
    first, *rest = snake.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _screaming(camel: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).upper()
