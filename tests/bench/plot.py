"""Growth curves as one SVG: small panels, both axes logarithmic. Standard library only."""

import math
from collections.abc import Sequence
from html import escape

from tests.bench.page import amount
from tests.bench.results import Curve, Point

_WIDTH, _HEIGHT = 360, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 22, 40, 40
_COLUMNS = 2
_FOOT = 26
_BESIDE = {"start": 5, "middle": 0, "end": 8}
_INK, _GRID, _LINE = "#333333", "#dddddd", "#1f6fb4"


def svg(curves: Sequence[Curve]) -> str:
    """All curves, two panels in a row; the dashed line is growth in proportion to the nodes."""
    rows = -(-len(curves) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + _FOOT
    foot = text(width / 2, height - 9, "over the number of nodes; dashed: in proportion", "middle")
    panels = "".join(
        f'<g transform="translate({at % _COLUMNS * _WIDTH} {at // _COLUMNS * _HEIGHT})">'
        f"{_panel(curve)}</g>\n"
        for at, curve in enumerate(curves)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>\n{panels}{foot}\n</svg>\n'
    )


class _Axes:
    """From nodes and values to places in a panel."""

    def __init__(self, points: Sequence[Point]) -> None:
        sizes, values = [x.nodes for x in points], [x.value for x in points]
        self.low, self.high = _decades(values)
        self._left, self._right = math.log10(sizes[0]), math.log10(sizes[-1])

    def x(self, nodes: float) -> float:
        share = (math.log10(nodes) - self._left) / (self._right - self._left)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values)))
    high = math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _panel(curve: Curve) -> str:
    axes = _Axes(curve.points)
    heading = f"{escape(curve.title)}, {escape(curve.unit)}"
    parts = [f'<g font-size="13">{text(_WIDTH / 2, 20, heading, "middle")}</g>']
    for power in range(axes.low, axes.high + 1):
        y = axes.y(10.0**power)
        parts.append(rule(_LEFT, y, _WIDTH - _RIGHT, y))
        parts.append(text(_LEFT - 6, y + 4, amount(10.0**power), "end"))
    for point in curve.points:
        x = axes.x(point.nodes)
        parts.append(rule(x, _TOP, x, _HEIGHT - _BOTTOM))
        parts.append(text(x, _HEIGHT - _BOTTOM + 18, f"{point.nodes:,}", "middle"))
    parts.append(_proportional(axes, curve.points))
    path = " ".join(f"{axes.x(p.nodes):.1f},{axes.y(p.value):.1f}" for p in curve.points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="2"/>')
    for point in curve.points:
        x, y = axes.x(point.nodes), axes.y(point.value)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{_LINE}"/>')
        anchor = {curve.points[0]: "start", curve.points[-1]: "end"}.get(point, "middle")
        parts.append(text(x + _BESIDE[anchor], y - 9, amount(point.value), anchor))
    return "".join(parts)


def _proportional(axes: _Axes, points: Sequence[Point]) -> str:
    """From the last point back, as far as it stays inside the panel."""
    last = points[-1]
    nodes = max(points[0].nodes, last.nodes * 10.0**axes.low / last.value)
    first = last.value * nodes / last.nodes
    return rule(axes.x(nodes), axes.y(first), axes.x(last.nodes), axes.y(last.value), dashed=True)


def rule(x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> str:
    """A line of the grid, or a dashed one."""
    style = f'stroke="{_LINE}" stroke-dasharray="4 4"' if dashed else f'stroke="{_GRID}"'
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def text(x: float, y: float, words: str, anchor: str) -> str:
    """Words, already escaped."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_INK}">{words}</text>'
