"""Replaces the text of syntax nodes; knows that `ast` counts columns in UTF-8 bytes. Pure."""

import ast
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes `start` to `end` of the source become `text`."""

    start: int
    end: int
    text: str


class Spans:
    """A source and where its lines begin."""

    def __init__(self, source: str) -> None:
        self._bytes = source.encode()
        self._begins = [0]
        for line in self._bytes.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))

    @classmethod
    def of(cls, source: str) -> Self:
        """Read a source."""
        return cls(source)

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler) -> tuple[int, int]:
        """First byte of the node and the byte after it."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._begins[node.lineno - 1] + node.col_offset
        return start, self._begins[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr | ast.stmt | ast.excepthandler) -> str:
        """The node as it is written."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def instead(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """Write `text` where the node stands."""
        return Edit(*self.span(node), text)

    def between(self, left: ast.expr, right: ast.expr, before: str, after: str) -> Edit | None:
        """Write `after` for the operator `before` that stands between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self._bytes[start:end].decode()
        at = gap.find(before)
        if at < 0 or "#" in gap:
            return None
        start += len(gap[:at].encode())
        return Edit(start, start + len(before.encode()), after)

    def edited(self, edit: Edit) -> str:
        """The whole source with the edit made."""
        return (self._bytes[: edit.start] + edit.text.encode() + self._bytes[edit.end :]).decode()

    def lines(self, edit: Edit) -> tuple[str, str]:
        """The lines that the edit touches, before and after it, with white space folded."""
        first = max(x for x in self._begins if x <= edit.start)
        last = min(x for x in self._begins if x >= max(edit.end, first + 1))
        before = self._bytes[first:last]
        after = self._bytes[first : edit.start] + edit.text.encode() + self._bytes[edit.end : last]
        return _folded(before), _folded(after)


def _folded(text: bytes) -> str:
    return " ".join(text.decode().split())
