"""What the database of a context says for alarms, besides its backlogs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from relay.adapters.postgres.controls import controls_in
from relay.adapters.postgres.pool import Source, query
from relay.domain.alarms import PausedPart
from relay.domain.controls import Act

#: So many rows of each kind are looked at.
_COUNTED: Final = 2_000


@dataclass(frozen=True, slots=True)
class Lately:
    """``count`` times ``what`` happened to a ``subject`` lately; that has been an alarm for ``since`` seconds."""

    what: str
    subject: str
    count: int
    since: float | None


@dataclass(frozen=True, slots=True)
class KnownCondition:
    """A condition that the scheduler has seen: an alarm, or an error of `relay health`, by its class."""

    kind: str
    code: str
    subject: str
    since: datetime
    value: float | None


class PostgresAlarms:
    """Reads a bounded number of rows, and takes no locks. Raises DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source, counted: int = _COUNTED) -> None:
        self._source, self._counted = source, counted

    async def lately(self, within: timedelta, surge: int) -> Sequence[Lately]:
        """Return what has happened ``within`` a time. More than ``surge`` dead letters are a surge."""
        async with self._source() as conn:
            rows = await query(conn, "alarms/lately", within=within, surge=surge, counted=self._counted)
        return [Lately(*row) for row in rows]

    async def dead_since(self) -> tuple[float | None, float | None]:
        """Return for how many seconds the first dead event, and the first failed task, have waited."""
        async with self._source() as conn:
            [(events, tasks)] = await query(conn, "alarms/dead_since", counted=self._counted)
        return events, tasks

    async def known(self) -> Sequence[KnownCondition]:
        """Return the conditions that the scheduler has seen and that last."""
        async with self._source() as conn:
            rows = await query(conn, "alarms/known", counted=self._counted)
        return [KnownCondition(*row) for row in rows]

    async def paused(self, context: str) -> Collection[PausedPart]:
        """Return what somebody has paused on purpose: its rules do not hold."""
        async with self._source() as conn:
            found = await controls_in(conn)
        return [
            PausedPart(context=context, kind=it.what.value, name=it.name) for it in found if it.act is Act.PAUSE
        ]
