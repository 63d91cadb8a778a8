"""What a soak found, what of it is a fault, and how it reads on a terminal. Pure."""

import math
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.soak.log_lines import Kind, Sorted
from tests.soak.slope import Sample, Slope, Trend, medians, settled, slope, trend

WIDTH: Final = 80
_SHOWN: Final = 10
"""Unexplained lines on a terminal; the report has all."""
_LONGEST: Final = 300
_MIB: Final = 1024
_LONG_LIFE: Final = 0.5
"""Of the longest life: a shorter one is mostly warm-up."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What was asked for; times in seconds."""

    minutes: float
    nodes: int
    pods_per_minute: float
    rotate_s: float
    kill_s: float
    limit_kib_per_min: float
    """Growth of memory that still counts as flat."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one process over its life; of those of a replica the one that lived longest."""

    process: str
    minutes: float
    first_kib: float
    last_kib: float
    slope: Slope | None
    trend: Trend
    points: tuple[Sample, ...] = ()
    """What the slope is made of."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Pods: how many, and how long they waited for a node."""

    created: int
    bound: int
    ended: Mapping[str, int]
    """By how they ended."""
    left: Sequence[str]
    """Never bound."""
    twice: Sequence[str]
    """GPUs that two pods had at a time."""
    p50_ms: float | None
    p99_ms: float | None


@dataclass(frozen=True, slots=True)
class Ledger:
    """Reservations beside the pods that ought to have them."""

    compared: int
    """While pods ran."""
    differences: Sequence[str]
    left: int
    """When no pod was left."""


@dataclass(frozen=True, slots=True)
class Agents:
    """What the simulated agents have seen."""

    streams_opened: int
    accepted: int
    rotated: int
    """SVIDs that agents took."""
    refused: Mapping[str, int]
    """By reason code."""
    alarms: Mapping[str, int]
    """About controllers' audit logs."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A phase that did not come to its end by itself."""

    phase: str
    after_s: float
    outstanding: Sequence[str]
    """Pods, reservations, nodes or threads that it waited for."""
    why: str = ""
    """What ended it; empty: its time was over."""


@dataclass(frozen=True, slots=True)
class Report:
    """All of a soak."""

    shape: Shape
    kills: int
    rotations: int
    certificates_taken: Mapping[str, int]
    """How often controllers took a new certificate, by listener."""
    memory: Sequence[Memory]
    pods: Placed
    ledger: Ledger
    agents: Agents
    logs: Sorted
    audit: Mapping[str, str]
    """What `gpuwarden audit verify` said of each replica's log; empty where it is whole."""
    failed: Sequence[str] = ()
    """Threads that have raised, and programs that ended by themselves."""
    stuck: Sequence[Stuck] = ()


EXPECTED_REFUSALS: Final = {
    "STREAM_SUPERSEDED": "of two streams of an agent the older one ends, when its SVID rotates",
    "CHALLENGE_EXPIRED": "a newer answer was heard first, or, at the start, this one came too late",
}


def memory_of(
    lives: Mapping[tuple[str, int], Sequence[Sample]], limit: float
) -> tuple[Memory, ...]:
    """Judge the longest life of each program; `lives` by its name and process id."""
    longest: dict[str, Sequence[Sample]] = {}
    for (name, _), samples in lives.items():
        if name not in longest or _lasts(samples) > _lasts(longest[name]):
            longest[name] = samples
    enough_s = _LONG_LIFE * max(map(_lasts, longest.values()), default=0)
    return tuple(_judged(name, longest[name], limit, enough_s) for name in sorted(longest))


def differences(sides: Mapping[str, Sequence[object]]) -> list[str]:
    """What only one of two sides has, each as often as it has it more than the other."""
    (one, ours), (other, theirs) = ((name, Counter(items)) for name, items in sides.items())
    found = {one: ours - theirs, other: theirs - ours}
    return [f"only {name} have {x}" for name, more in found.items() for x in more.elements()]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that `share` of all do not exceed; None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def faults(report: Report) -> list[str]:
    """Everything for which the soak failed, a line each."""
    pods, ledger, limit = report.pods, report.ledger, report.shape.limit_kib_per_min
    found = [stuck_fault(x) for x in report.stuck]
    found += [f"ended early: {x}" for x in report.failed]
    found += [
        f"memory of {x.process} is not shown to be flat: {_interval(x.slope)}, limit {limit:g}"
        for x in report.memory
        if x.trend in {Trend.GROWS, Trend.UNDECIDED}
    ]
    found += [f"never bound: {name}" for name in pods.left]
    found += [f"a GPU in two pods: {x}" for x in pods.twice]
    found += [f"ledger and API differ: {x}" for x in ledger.differences]
    found += [f"an unexplained error of {x.program}: {x.text}" for x in report.logs.unexplained]
    found += [
        f"agents were refused: {code}, {count} times"
        for code, count in report.agents.refused.items()
        if code not in EXPECTED_REFUSALS
    ]
    found += [f"agents accuse an audit log: {code}" for code in report.agents.alarms]
    found += [
        f"the audit log of {one} is broken: {why}" for one, why in report.audit.items() if why
    ]
    if ledger.left:
        found.append(f"{ledger.left} reservations are left without any pod")
    nothing = {
        "memory was judged": sum(x.trend is not Trend.SHORT for x in report.memory),
        "pods were bound": pods.bound,
        "reservations were there to compare": ledger.compared,
        "replicas were killed": report.kills,
        "certificates were rotated": report.rotations,
        "SVIDs were taken by agents": report.agents.rotated,
        "serving certificates were taken": sum(report.certificates_taken.values()),
    }
    return found + [f"it shows nothing: no {what}" for what, count in nothing.items() if not count]


def stuck_fault(found: Stuck) -> str:
    """A line of everything that was outstanding."""
    left = "; ".join(found.outstanding) or "nothing that is known"
    why = f" ({found.why})" if found.why else ""
    return f"not done after {found.after_s:g} s: {found.phase}{why}; outstanding: {left}"


def unfinished(found: Stuck) -> dict[str, Any]:
    """For programs, instead of a whole report: there was none."""
    return {"faults": [stuck_fault(found)], "stuck": [asdict(found)]}


def document(report: Report) -> dict[str, Any]:
    """For programs: everything, and the faults."""
    return {"faults": faults(report), **asdict(report)}


def table(report: Report) -> str:
    """For people, at most 80 columns."""
    shape, pods, agents, ledger = report.shape, report.pods, report.agents, report.ledger
    happened = f"{report.kills} kills, {report.rotations} rotations"
    differ = f"{len(ledger.differences)} differ"
    lines = [
        f"soak: {shape.minutes:g} min, {shape.nodes} nodes, {happened}",
        "",
        f"{'memory':<14}{'min':>6}{'MiB then':>10}{'now':>8}{'KiB/min':>10}  {'95 %':<19}trend",
        *map(_memory, report.memory),
        "",
        f"pods       {pods.created} created, {pods.bound} bound; {_listed(pods.ended)}",
        f"to bind    p50 {_ms(pods.p50_ms)}, p99 {_ms(pods.p99_ms)}",
        f"ledger     {ledger.compared} reservations compared with the API's pods, {differ}",
        f"agents     {agents.accepted} rounds accepted, {agents.rotated} SVIDs taken",
        f"streams    {agents.streams_opened} opened; refused {_listed(agents.refused) or 'none'}",
        f"listeners  took new certificates: {_listed(report.certificates_taken) or 'never'}",
        f"audit logs {_audit(report)}",
        "",
        "errors that a soak brings" if report.logs.explained else "no errors in any log",
        *(line for kind in report.logs.explained for line in _kind(kind)),
    ]
    lines += _verdict(faults(report))
    wrapped = (part for line in lines for part in _wrapped(line))
    return "\n".join(wrapped) + "\n"


def _judged(process: str, samples: Sequence[Sample], limit: float, enough_s: float) -> Memory:
    found = slope(settled(samples))
    first, last, lasts_s = samples[0].kib, samples[-1].kib, _lasts(samples)
    judged = trend(found, limit) if lasts_s >= enough_s else Trend.SHORT
    points = tuple(medians(settled(samples)))
    return Memory(process, lasts_s / 60, first, last, found, judged, points)


def _lasts(samples: Sequence[Sample]) -> float:
    return samples[-1].at_s - samples[0].at_s


def _memory(one: Memory) -> str:
    slope_of = "-" if one.slope is None else f"{one.slope.kib_per_min:.1f}"
    return (
        f"{one.process:<14}{one.minutes:>6.1f}{one.first_kib / _MIB:>10.1f}"
        f"{one.last_kib / _MIB:>8.1f}{slope_of:>10}  {_interval(one.slope):<19}{one.trend.value}"
    )


def _interval(found: Slope | None) -> str:
    return "too few samples" if found is None else f"{found.low:.1f} to {found.high:.1f}"


def _kind(kind: Kind) -> list[str]:
    return [f"{kind.count:>6}  {kind.name}", f"        {kind.why}"]


def _audit(report: Report) -> str:
    broken = [one for one, why in report.audit.items() if why]
    return f"broken: {', '.join(broken)}" if broken else f"{len(report.audit)} verified"


def _verdict(found: Sequence[str]) -> list[str]:
    if not found:
        return ["", "soak: passed"]
    shown = [f"  {x[:_LONGEST]}" for x in found[:_SHOWN]]
    more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ["", f"soak: FAILED, {len(found)} faults", *shown, *more]


def _wrapped(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, replace_whitespace=False) or [""]


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
