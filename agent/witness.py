"""Keeps the last audit checkpoint of every log origin and puts it into signed evidence.

That makes every agent a witness of every controller's log: what `gpuwarden.audit.witness`
concludes is kept, across restarts, and an alarm stays for good. An alarm accuses a log;
it does not concern this node and stops nothing.
"""

from collections.abc import Callable
from typing import Final

from gpuwarden.audit.note import NoteError
from gpuwarden.audit.witness import Alarm, Shown, Witnessed, conclude, origin_of, remembered
from gpuwarden.evidence.model import LogAlarm, WitnessedCheckpoint, WitnessedLog

MAX_ORIGINS: Final = 32
MAX_ALARMS: Final = 8
MAX_NOTE: Final = 2048
"""Characters of a checkpoint that is kept: those of all origins have to fit into evidence."""
_TEXT: Final = 300


class CheckpointWitness:
    """Checkpoints and alarms by origin.

    `changed` hears that there is something new to keep, `alarmed` of each new alarm.
    """

    def __init__(
        self,
        logs: tuple[WitnessedLog, ...],
        alarms: tuple[LogAlarm, ...],
        *,
        changed: Callable[[], None],
        alarmed: Callable[[LogAlarm], None],
        wall_ms: Callable[[], int],
    ) -> None:
        """`logs` and `alarms` are what an earlier process has kept."""
        self._known: dict[str, Witnessed] = {}
        for log in logs[:MAX_ORIGINS]:
            self._remember(log)
        self._alarms = {(one.origin, one.code): one for one in alarms[:MAX_ALARMS]}
        self._changed = changed
        self._alarmed = alarmed
        self._wall_ms = wall_ms

    def checkpoints(self) -> tuple[WitnessedCheckpoint, ...]:
        """The last one of every origin, sorted by origin."""
        return tuple(
            WitnessedCheckpoint(origin=origin, checkpoint=known.note)
            for origin, known in sorted(self._known.items())
        )

    def logs(self) -> tuple[WitnessedLog, ...]:
        """What to keep of them."""
        return tuple(
            WitnessedLog(origin=origin, checkpoint=known.note, key=str(known.key))
            for origin, known in sorted(self._known.items())
        )

    def alarms(self) -> tuple[LogAlarm, ...]:
        """The first of each kind and origin."""
        return tuple(self._alarms.values())

    def witness(self, shown: Shown) -> None:
        """Take note of what came with a verified challenge."""
        origin = origin_of(shown) if len(shown.note) <= MAX_NOTE else None
        if origin is None:
            return
        before = self._known.get(origin)
        if before is None and len(self._known) >= MAX_ORIGINS:
            return
        after, alarm = conclude(before, shown)
        if after is not None:
            self._known[origin] = after
        if alarm is not None:
            self._alarm(alarm)
        if after is not None and (before is None or after.note != before.note):
            self._changed()

    def _alarm(self, alarm: Alarm) -> None:
        key = alarm.origin, alarm.code.value
        if key in self._alarms or len(self._alarms) >= MAX_ALARMS:
            return
        kept = LogAlarm(
            code=alarm.code.value,
            origin=alarm.origin,
            detail=alarm.detail[:_TEXT],
            known=alarm.known,
            seen=alarm.seen,
            wall_ms=str(self._wall_ms()),
        )
        self._alarms[key] = kept
        self._alarmed(kept)
        self._changed()

    def _remember(self, log: WitnessedLog) -> None:
        try:
            known = remembered(log.checkpoint, log.key)
        except NoteError:
            return
        self._known[known.checkpoint.origin] = known
