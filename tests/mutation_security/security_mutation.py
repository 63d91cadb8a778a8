"""What one entry of the table is: edits of the sources, and the tests that must notice them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """`before` must stand exactly once in `path`."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class SecurityMutation:
    """A protection that is taken out, and the tests (`path::name`) that must fail then."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


def one(name: str, path: str, before: str, after: str, *tests: str) -> SecurityMutation:
    return SecurityMutation(name, (Edit(path, before, after),), tests)
