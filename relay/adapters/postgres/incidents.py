"""Incidents in the table dead_letters: recorded, alerted, listed and decided on (DESIGN §7)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from typing import Any

from psycopg.rows import dict_row

from relay.adapters.postgres.paging import Page, Row, bounds
from relay.adapters.postgres.pool import Connection, query
from relay.adapters.postgres.row_operations import Operations, as_key, audit, coded, named, reasons, who
from relay.adapters.postgres.sql import statement
from relay.domain.errors import InvalidRequest, NotParked, RelayError
from relay.domain.incidents import (
    Candidate,
    IncidentFilter,
    IncidentStatus,
    Letter,
    ParkedHead,
    RecordedIncident,
    close_refusal,
    gone,
    release_refusal,
    requeue_refusal,
    unknown,
    wake_refusal,
)
from relay.domain.operators import Operator, Outcome, judge
from relay.domain.traceparent import trace_id


@dataclass(slots=True)
class _Alerts:
    """Incidents that are locked while an alert names them. The end of the block commits."""

    conn: Connection
    incidents: Sequence[RecordedIncident]

    async def mark(self) -> None:
        ids = [incident.id for incident in self.incidents]
        await self.conn.execute(statement("incidents/mark_alerted"), {"ids": ids})


class PostgresIncidents(Operations):
    """Keeps one incident for each time a message dies, however often its dead letter is read.

    Nothing is requeued automatically: operators decide (building block 2.4).
    """

    kind = "dlq"

    async def record(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """Record dead letters; returns the new ones. Repeatable."""
        names = [field.name for field in fields(Letter)]
        columns: dict[str, list[Any]] = {name: [getattr(letter, name) for letter in letters] for name in names}
        columns["kind"] = [letter.kind.value for letter in letters]
        columns["headers"] = [json.dumps(dict(letter.headers)) for letter in letters]
        columns["originals"] = [json.dumps(it.originals) if it.originals else None for it in letters]
        async with self._source() as conn:
            return [_recorded(row) for row in await query(conn, "incidents/record", **columns)]

    @asynccontextmanager
    async def unalerted(self, spacing: timedelta) -> AsyncIterator[_Alerts]:
        """Lock the open incidents without an alert; none while the last alert is younger than ``spacing``."""
        async with self._source() as conn, conn.transaction():
            [(due,)] = await query(conn, "incidents/alert_due", spacing=spacing)
            rows = await query(conn, "incidents/unalerted") if due else []
            yield _Alerts(conn, [_recorded(row) for row in rows])

    async def find(
        self, wanted: IncidentFilter, limit: int, *, before: int | None = None, short: bool = False
    ) -> Page[Row]:
        """Up to ``limit`` incidents without their messages, the newest first. ``before``: below this number.

        ``short`` changes nothing: dead letters are few.
        """
        page = await self._page("incidents/incidents", _parameters(wanted, limit, before))
        return Page([coded(named(row, "message_id"), "reason") for row in page.items], page.total)

    async def groups(self, wanted: IncidentFilter, most: int, *, short: bool = False) -> Sequence[Row]:
        """How many incidents have each code of a reason, by class, among the newest ``most`` that fit.

        ``short`` changes nothing.
        """
        return await self._groups("reason", "class", "incidents/incidents", _parameters(wanted, most))

    async def get(self, id: int) -> Row | None:
        """One incident with its headers, its original message and its history, or None."""
        row = await self._detail("incidents/incident", id)
        return None if row is None else coded(named(row, "message_id"), "reason")

    async def requeue(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Requeue messages in the failing consumer's inbox, with new attempts.

        They do not return to the stream, so no other consumer sees them again. An incident is refused with
        UNKNOWN_INCIDENT, INCIDENT_CLOSED, UNREADABLE_MESSAGE or NOT_REQUEUEABLE.
        """
        async with self._source() as conn, conn.transaction():
            wanted, refused = await _judged(conn, ids, requeue_refusal)
            done = await _requeue(conn, wanted, by)
        refused += [(str(id), gone()) for id in wanted if id not in done]
        return Outcome(tuple(str(id) for id in wanted if id in done), tuple(refused))

    async def discard(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Give up messages permanently. Raises InvalidRequest without a note.

        An incident is refused with UNKNOWN_INCIDENT or INCIDENT_CLOSED.
        """
        return await self._close(ids, IncidentStatus.DISCARDED, "dlq.discard", by)

    async def resolve(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Close incidents that were solved by other means. Otherwise like `discard`."""
        return await self._close(ids, IncidentStatus.RESOLVED, "dlq.resolve", by)

    async def snooze(self, ids: Sequence[int], by: Operator, *, duration: timedelta | None) -> Outcome:
        """Hide incidents from the open ones for a time. Then they are open again, and an alert names them again.

        An incident is refused with UNKNOWN_INCIDENT or INCIDENT_CLOSED.
        """
        refusal, action = (close_refusal, "dlq.snooze") if duration else (wake_refusal, "dlq.wake")
        async with self._source() as conn, conn.transaction():
            wanted, refused = await _judged(conn, ids, refusal)
            if wanted:
                await conn.execute(statement("incidents/snooze"), {"ids": wanted, "duration": duration})
                await audit(conn, action, wanted, by)
        return Outcome(tuple(map(str, wanted)), tuple(refused))

    async def wake(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Open snoozed incidents again, without another alert. Any other is refused with INCIDENT_CLOSED."""
        return await self.snooze(ids, by, duration=None)

    async def _close(self, ids: Sequence[int], status: IncidentStatus, action: str, by: Operator) -> Outcome:
        if not (by.note or "").strip():
            raise InvalidRequest("say why", field="note")
        async with self._source() as conn, conn.transaction():
            wanted, refused = await _judged(conn, ids, close_refusal)
            if wanted:
                await _closed(conn, wanted, status, action, by)
        return Outcome(tuple(map(str, wanted)), tuple(refused))


def _parameters(wanted: IncidentFilter, limit: int, before: int | None = None) -> dict[str, Any]:
    statuses = [status.value for status in wanted.statuses] or None
    return {
        **asdict(wanted),
        "statuses": statuses,
        # A snoozed incident is stored as an open one.
        "stored": statuses and ["open" if it == "snoozed" else it for it in statuses],
        "kinds": [kind.value for kind in wanted.kinds] or None,
        "message_name": wanted.message_id if isinstance(wanted.message_id, str) else None,
        "message_id": as_key(wanted.message_id),
        "correlation_id": as_key(wanted.correlation_id),
        **reasons("reason", wanted.reason),
        **bounds(limit, before),
    }


def _recorded(row: Sequence[Any]) -> RecordedIncident:
    """Return an incident with its ids as people see them. The last columns: ``traceparent``, the originals."""
    *columns, traceparent, originals = row
    names = ("id", "message_id", "subscription", "event_type", "correlation_id", "causation_id")
    values = named({**dict(zip(names, columns, strict=False)), "originals": originals}, "message_id")
    known = [*(values[name] for name in names), *columns[len(names) :], trace_id(traceparent)]
    return RecordedIncident(*known)


async def _judged(
    conn: Connection, ids: Sequence[int], refusal: Callable[[Candidate], RelayError | None]
) -> tuple[list[int], list[tuple[str, RelayError]]]:
    """Lock incidents, and apply a rule to each."""
    rows = await query(conn, "incidents/lock", ids=list(ids))
    found = {id: Candidate(IncidentStatus(status), *rest) for id, status, *rest in rows}
    return judge(ids, found, refusal, unknown)


async def _requeue(conn: Connection, ids: Sequence[int], by: Operator) -> set[int]:
    """Make the inbox rows of incidents due at once; return the incidents that had a row to reset."""
    done = {id for (id,) in await query(conn, "inbox/requeue", ids=list(ids))}
    if done:
        await _closed(conn, [id for id in ids if id in done], IncidentStatus.REQUEUED, "dlq.requeue", by)
    return done


async def _closed(conn: Connection, ids: Sequence[int], status: IncidentStatus, action: str, by: Operator) -> None:
    """Close incidents. A key that was blocked goes on: with its message if that is requeued, else without."""
    which = {"ids": list(ids)}
    await conn.execute(statement("incidents/close"), {**which, "status": status.value, **who(by)})
    if status is not IncidentStatus.REQUEUED:
        await conn.execute(statement("outbox/skip_heads"), which)
    await conn.execute(statement("outbox/release_heads"), which)
    await audit(conn, action, ids, by)


# --- keys that are parked behind a dead letter (DESIGN §6) ---


class PostgresParkedKeys(Operations):
    """Only changes rows: the sweep then finds the messages that may run."""

    async def list(self) -> Sequence[Row]:
        """All parked keys, the longest parked first."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(statement("inbox/parked_keys"))
            return [named(row, "head") for row in await cursor.fetchall()]

    async def release(self, keys: Sequence[str] | None, subscription: str | None, by: Operator) -> Outcome:
        """Release keys by name, or all (None), of one subscription or of all (None).

        They go on in order: first the dead head, with new attempts, then the messages behind it. A key is refused
        with NOT_PARKED, UNREADABLE_MESSAGE, or NOT_REQUEUEABLE while the head's dead letter is not recorded yet.
        """
        parameters = {"keys": None if keys is None else [*keys], "subscription": subscription}
        async with self._source() as conn, conn.transaction():
            heads = [ParkedHead(*row) for row in await query(conn, "inbox/lock_parked", **parameters)]
            wanted, refused = judge((), {head.name: head for head in heads}, release_refusal, _not_parked)
            refused += [(key, _not_parked(key)) for key in dict.fromkeys(keys or ()) if key not in _keys(heads)]
            if wanted:
                released = [head for head in heads if head.name in wanted]
                await _requeue(conn, [it.incident for it in released if it.dead and it.incident is not None], by)
                which = {"subscriptions": [it.subscription for it in released], "keys": _keys(released)}
                await conn.execute(statement("inbox/release_keys"), which)
                await audit(conn, "parked.release", wanted, by)
        return Outcome(tuple(wanted), tuple(refused))


def _keys(heads: Iterable[ParkedHead]) -> Sequence[str]:
    return [head.key for head in heads]


def _not_parked(_key: str) -> RelayError:
    return NotParked("is not parked", hint="relay parked list")
