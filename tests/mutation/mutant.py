"""One change of one source, and the name by which it is known from run to run. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Names a mutant without line numbers or counters, so that unrelated edits keep it.

    `before` and `after` are the source lines that the change touches, with white space folded.
    """

    path: str
    function: str
    """Qualified name, `<module>` outside any function or class."""
    operator: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """`text` is the whole source with the change made."""

    key: Key
    text: str
    first_line: int
    """Of the statement that holds the change, or of its header; 1-based."""
    last_line: int
    outermost: str | None
    """Qualified name of the function whose code holds the change; None: it runs on import."""
    outermost_line: int
    """Where that function begins, decorators included; 0 without one."""
