"""Incidents in the table dead_letters: recorded, listed and decided on (DESIGN §7)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from relay.adapters.postgres.attempt_rows import with_attempts
from relay.adapters.postgres.bounded import CELL, bounded
from relay.adapters.postgres.paging import Page, Row, bounds, filters
from relay.adapters.postgres.pool import Connection, query
from relay.adapters.postgres.row_operations import (
    Operations,
    Refusal,
    as_key,
    audit,
    coded,
    named,
    reasons,
    who,
)
from relay.adapters.postgres.sql import statement
from relay.domain.disclosure import clean
from relay.domain.errors import InvalidRequest, NotParked, RelayError
from relay.domain.expiry import NEVER, in_words
from relay.domain.identity import Identity
from relay.domain.incidents import (
    Candidate,
    IncidentFilter,
    IncidentStatus,
    ParkedHead,
    RecordedIncident,
    close_refusal,
    gone,
    release_refusal,
    reopen_refusal,
    requeue_refusal,
    unknown,
    wake_refusal,
)
from relay.domain.letters import Letter, Match
from relay.domain.operators import Operator, Outcome, judge
from relay.domain.policies import DeadLetterClass
from relay.domain.search import like
from relay.domain.traceparent import trace_id
from relay.ports import Compared, DeadPlace


class PostgresIncidents(Operations):
    """Keeps one incident for each time a message dies, however often its dead letter is read.

    Nothing is requeued automatically: operators decide (building block 2.4).
    """

    kind = "dlq"
    body = "original"
    one = "incidents/incident"
    orders = ("recorded",)

    async def record_rows(self, ids: Sequence[UUID]) -> Sequence[RecordedIncident]:
        """See the port."""
        async with self._source() as conn, conn.transaction():
            return await _record(conn, rows=dict.fromkeys(ids, (None, None)))

    async def record_letters(self, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
        """See the port."""
        try:
            async with self._source() as conn, conn.transaction():
                return await _record_letters(conn, letters)
        except psycopg.DataError:
            if len(letters) == 1:
                return await self.record_letters([letters[0].bare()])
        # PostgreSQL refuses one of them, so each is recorded alone.
        return [found for it in letters for found in await self.record_letters([it])]

    async def compare(self, before: DeadPlace | None, limit: int) -> Compared:
        """See the port."""
        at, id = before or (None, None)
        async with self._source() as conn, conn.transaction():
            [row] = await query(conn, "incidents/compare", before=at, below=id, limit=limit)
            missing, false, count, *last = row
            if false:
                await conn.execute(statement("incidents/displace"), {"ids": false})
            recorded = await _record(conn, rows=dict.fromkeys(missing, (None, None))) if missing else []
        return Compared(recorded, tuple(last) if count == limit else None)

    async def declare(self, subscription: str) -> None:
        """Let the incidents of a subscription be corrected from now on. Repeatable."""
        await self._do("incidents/declare", subscription=subscription)

    async def uncorrected(self, subscription: str, limit: int) -> Sequence[Row]:
        """Open incidents whose correction has not run, the oldest first, with the ids that people see."""
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            parameters = {"subscription": subscription, "limit": limit}
            await cursor.execute(statement("incidents/uncorrected"), parameters)
            rows = [named(row, "message_id") for row in await cursor.fetchall()]
        return [{name: it for name, it in row.items() if name not in ("originals", "row_id")} for row in rows]

    async def corrected(self, id: int, how: str) -> None:
        """Note that a correction has run."""
        await self._do("incidents/correct", id=id, correction=how)

    async def uncorrectable(self, id: int, error: str) -> None:
        """Note that a correction has failed. That alerts."""
        error = clean(error)
        name = "incidents/correct_failed+correct"
        await self._do(name, id=id, correction=f"failed: {error}", error=error)

    async def _do(self, name: str, /, **parameters: Any) -> None:
        async with self._source() as conn:
            await conn.execute(statement(name), parameters)

    async def find(
        self,
        wanted: IncidentFilter,
        limit: int,
        *,
        before: int | None = None,
        short: bool = False,
        oldest: bool = False,
    ) -> Page[Row]:
        """Up to ``limit`` incidents without their messages, the newest first, or the oldest.

        ``before``: behind this number. ``short``: look at the first only, if the filter may pass over many,
        and for unconfirmed ones.
        """
        passes, asked = short and _passes_over(wanted), _parameters(wanted, limit, before)
        page = await self._page("incidents/incidents", asked, short=passes, oldest=oldest)
        unconfirmed = 0
        if wanted.confirmed:
            others = replace(wanted, confirmed=False, kinds=(DeadLetterClass.UNCONFIRMED,))
            unconfirmed = (await self._page("incidents/incidents", _parameters(others, 1), short=short)).total
        rows = [coded(named(row, "message_id"), "reason") for row in page.items]
        return Page(rows, page.total, page.reach, unconfirmed)

    async def groups(self, wanted: IncidentFilter, most: int, *, short: bool = False) -> Sequence[Row]:
        """How many incidents have each code of a reason, by class, among the newest ``most`` that fit.

        ``short``: as of `find`.
        """
        short = short and _passes_over(wanted)
        return await self._groups("reason", "class", "incidents/incidents", _parameters(wanted, most), short=short)

    def _key(self, row: Row) -> Any:
        return row["id"]

    async def get(self, id: int, *, body: bool = True) -> Row | None:
        """One incident with its headers, its original message and its history, or None."""
        row = await self._detail(id, body=body)
        return None if row is None else _with_attempts(coded(named(row, "message_id"), "reason"))

    async def requeue(self, ids: Sequence[int], by: Operator, expires_in: timedelta | None = None) -> Outcome:
        """Requeue messages in the failing consumer's inbox, with new attempts.

        They do not return to the stream, so no other consumer sees them again. An incident is refused with
        UNKNOWN_INCIDENT, INCIDENT_CLOSED, UNREADABLE_MESSAGE or NOT_REQUEUEABLE, and with EXPIRED if its message
        is stale and gets no new time: ``expires_in``.
        """
        async with self._source() as conn, conn.transaction():
            refusal = requeue_refusal if expires_in is None else _refusal_with_time
            wanted, refused = await _judged(conn, ids, refusal)
            if expires_in is not None and wanted:
                by = replace(by, about={**by.about, "expires_in": in_words(expires_in)})
                which = {"ids": list(wanted), "expires_in": None if expires_in == NEVER else expires_in}
                await conn.execute(statement("incidents/set_expiry"), which)
            return await _requeue(conn, wanted, by, refused)

    async def discard(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Give up messages permanently. Raises InvalidRequest without a note.

        An incident is refused with UNKNOWN_INCIDENT or INCIDENT_CLOSED.
        """
        return await self._close(ids, IncidentStatus.DISCARDED, "dlq.discard", by)

    async def resolve(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Close incidents that were solved by other means. Otherwise like `discard`."""
        return await self._close(ids, IncidentStatus.RESOLVED, "dlq.resolve", by)

    async def reopen(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Open discarded and resolved incidents again. Nothing runs, and no alert is sent.

        An incident is refused with UNKNOWN_INCIDENT or NOT_REOPENABLE.
        """
        async with self._source() as conn, conn.transaction():
            wanted, refused = await _judged(conn, ids, reopen_refusal)
            deed = None
            if wanted:
                await conn.execute(statement("incidents/reopen"), {"ids": wanted})
                deed = await audit(conn, "dlq.reopen", wanted, by, refused)
        return Outcome(tuple(map(str, wanted)), tuple(refused), deed)

    async def snooze(self, ids: Sequence[int], by: Operator, *, duration: timedelta | None) -> Outcome:
        """Hide incidents from the open ones for a time. Then they are open again, and an alert names them again.

        An incident is refused with UNKNOWN_INCIDENT or INCIDENT_CLOSED.
        """
        refusal, action = (close_refusal, "dlq.snooze") if duration else (wake_refusal, "dlq.wake")
        async with self._source() as conn, conn.transaction():
            wanted, refused = await _judged(conn, ids, refusal)
            deed = None
            if wanted:
                await conn.execute(statement("incidents/snooze"), {"ids": wanted, "duration": duration})
                deed = await audit(conn, action, wanted, by, refused)
        return Outcome(tuple(map(str, wanted)), tuple(refused), deed)

    async def wake(self, ids: Sequence[int], by: Operator) -> Outcome:
        """Open snoozed incidents again, without another alert. Any other is refused with INCIDENT_CLOSED."""
        return await self.snooze(ids, by, duration=None)

    async def _close(self, ids: Sequence[int], status: IncidentStatus, action: str, by: Operator) -> Outcome:
        if not (by.note or "").strip():
            raise InvalidRequest("say why", field="note")
        async with self._source() as conn, conn.transaction():
            wanted, refused = await _judged(conn, ids, close_refusal)
            deed = await _closed(conn, wanted, status, action, by, refused) if wanted else None
        return Outcome(tuple(map(str, wanted)), tuple(refused), deed)


async def _record_letters(conn: Connection, letters: Sequence[Letter]) -> Sequence[RecordedIncident]:
    """Record the rows that letters name, and as unconfirmed the letters that no row confirms."""
    matches = await _matches(conn, letters)
    dead = {it.message_id: (it.letter_stream, it.letter_seq) for it, match in matches if match is Match.DEAD}
    new = await _record(conn, rows=dead)
    # Of the dead rows somebody else may have recorded some meanwhile, who knows no letter.
    ours = {it.message_id for it in new}
    known = [
        it for it, match in matches if match is Match.KNOWN or (match is Match.DEAD and it.message_id not in ours)
    ]
    if known:
        columns = _columns(known, "message_id", "occurrence", "letter_stream", "letter_seq")
        await conn.execute(statement("incidents/place"), columns)
    strange = [it.unconfirmed(match) for it, match in matches if match not in (Match.KNOWN, Match.DEAD)]
    return [*new, *await _record(conn, letters=strange)]


async def _matches(conn: Connection, letters: Sequence[Letter]) -> Sequence[tuple[Letter, Match]]:
    """Ask the inbox about each letter."""
    readable = [it for it in letters if it.readable]
    found = await query(conn, "incidents/match", **_columns(readable, "message_id", "occurrence", "subscription"))
    unreadable = [(it, Match.UNREADABLE) for it in letters if not it.readable]
    return [*((readable[place], Match(match)) for place, match in found), *unreadable]


async def _record(
    conn: Connection,
    *,
    rows: Mapping[UUID, tuple[str | None, int | None]] = MappingProxyType({}),
    letters: Sequence[Letter] = (),
) -> Sequence[RecordedIncident]:
    """Record incidents in the open transaction; returns the new ones. No other function does.

    ``rows``: dead rows, and where their letters are. ``letters``: those that no row confirms.
    """
    found: list[Sequence[Any]] = []
    if rows:
        streams, seqs = zip(*rows.values(), strict=True)
        columns = {"message_id": list(rows), "letter_stream": list(streams), "letter_seq": list(seqs)}
        found += await query(conn, "incidents/record", **columns)
    if letters:
        columns = _columns(letters, *(field.name for field in fields(Letter)))
        columns["kind"] = [letter.kind.value for letter in letters]
        columns["headers"] = [json.dumps(dict(letter.headers)) for letter in letters]
        columns["originals"] = [json.dumps(it.originals) if it.originals else None for it in letters]
        found += await query(conn, "incidents/record_unconfirmed", **columns)
    return [_recorded(row) for row in found]


def _columns(letters: Sequence[Letter], *names: str) -> dict[str, list[Any]]:
    return {name: [getattr(letter, name) for letter in letters] for name in names}


def _with_attempts(row: Row) -> Row:
    """Return an incident with the attempts at its message, as far as the inbox has it."""
    now = {name: row.pop(f"{name}_now") for name in ("attempts", "requeues", "processed", "dead", "running")}
    return with_attempts(
        row,
        counted=now["attempts"] or 0,
        rounds=now["requeues"] or 0,
        ended=now["processed"] or now["dead"],
        outcome="processed" if now["processed"] else "dead",
        runs=bool(now["running"]) and not (now["processed"] or now["dead"]),
    )


def _passes_over(wanted: IncidentFilter) -> bool:
    """Whether a list may read many incidents that do not fit. Indexes find those of a message or a correlation."""
    found = filters(wanted) - {"kinds", "confirmed"}
    return not found & {"message_id", "correlation_id"} and bool(wanted.kinds or found)


def _parameters(wanted: IncidentFilter, limit: int, before: int | None = None) -> dict[str, Any]:
    statuses = [status.value for status in wanted.statuses] or None
    return {
        **asdict(wanted),
        "statuses": statuses,
        "event_type": like(wanted.event_type),
        # A snoozed incident is stored as an open one.
        "stored": statuses and ["open" if it == "snoozed" else it for it in statuses],
        "kinds": [kind.value for kind in wanted.kinds] or None,
        "message_name": None if wanted.message_id is None else Identity.of(str(wanted.message_id)).shown,
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


def _refusal_with_time(candidate: Candidate) -> RelayError | None:
    return requeue_refusal(replace(candidate, stale=False))


async def _judged(
    conn: Connection, ids: Sequence[int], refusal: Callable[[Candidate], RelayError | None]
) -> tuple[list[int], list[tuple[str, RelayError]]]:
    """Lock incidents, and apply a rule to each."""
    rows = await query(conn, "incidents/lock", ids=list(ids))
    found = {id: Candidate(IncidentStatus(status), *rest) for id, status, *rest in rows}
    return judge(ids, found, refusal, unknown)


async def _requeue(conn: Connection, ids: Sequence[int], by: Operator, refused: Sequence[Refusal] = ()) -> Outcome:
    """Make the inbox rows of incidents due at once. An incident that has no row to reset is refused."""
    reset = {id for (id,) in await query(conn, "inbox/requeue", ids=list(ids))}
    done = [id for id in ids if id in reset]
    refused = [*refused, *((str(id), gone()) for id in ids if id not in reset)]
    status, deed = IncidentStatus.REQUEUED, None
    if done:
        deed = await _closed(conn, done, status, "dlq.requeue", by, refused)
    return Outcome(tuple(map(str, done)), tuple(refused), deed)


async def _closed(
    conn: Connection,
    ids: Sequence[int],
    status: IncidentStatus,
    action: str,
    by: Operator,
    refused: Sequence[Refusal],
) -> int:
    """Close incidents. A key that was blocked goes on: with its message if that is requeued, else without."""
    which = {"ids": list(ids)}
    await conn.execute(statement("incidents/close"), {**which, "status": status.value, **who(by)})
    if status is not IncidentStatus.REQUEUED:
        await conn.execute(statement("outbox/skip_heads"), which)
    await conn.execute(statement("outbox/release_heads"), which)
    return await audit(conn, action, ids, by, refused)


# --- keys that are parked behind a dead letter (DESIGN §6) ---


class PostgresParkedKeys(Operations):
    """Only changes rows: the sweep then finds the messages that may run."""

    async def list(self, limit: int, offset: int, subscription: str | None = None) -> Sequence[Row]:
        """Some of the parked keys, of one subscription or of all (None), the longest parked first."""
        which = {"limit": limit, "offset": offset, "subscription": subscription}
        async with self._source() as conn, conn.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(await bounded(conn, "inbox/parked_keys", which, CELL), which)
            return [named(row, "head") for row in await cursor.fetchall()]

    async def release(
        self,
        keys: Sequence[str] | None,
        subscription: str | None,
        by: Operator,
        counted: Sequence[str] | None = None,
    ) -> Outcome:
        """Release keys by name, or all (None), of one subscription or of all (None).

        ``counted``: only these, as ``subscription/key``; one that is not parked any more is left out.

        They go on in order: first the dead head, with new attempts, then the messages behind it. A key is refused
        with NOT_PARKED, UNREADABLE_MESSAGE, or NOT_REQUEUEABLE while the head's dead letter is not recorded yet.
        """
        parameters = {
            "keys": None if keys is None else [*keys],
            "subscription": subscription,
            "counted": None if counted is None else [*counted],
        }
        async with self._source() as conn, conn.transaction():
            heads = [ParkedHead(*row) for row in await query(conn, "inbox/lock_parked", **parameters)]
            wanted, refused = judge((), {head.name: head for head in heads}, release_refusal, _not_parked)
            refused += [(key, _not_parked(key)) for key in dict.fromkeys(keys or ()) if key not in _keys(heads)]
            deed = None
            if wanted:
                released = [head for head in heads if head.name in wanted]
                dead = [it.incident for it in released if it.dead and it.incident is not None]
                await _requeue(conn, dead, by.besides)
                which = {"subscriptions": [it.subscription for it in released], "keys": _keys(released)}
                await conn.execute(statement("inbox/release_keys"), which)
                deed = await audit(conn, "parked.release", wanted, by, refused)
        return Outcome(tuple(wanted), tuple(refused), deed)


def _keys(heads: Iterable[ParkedHead]) -> Sequence[str]:
    return [head.key for head in heads]


def _not_parked(_key: str) -> RelayError:
    return NotParked("is not parked", hint="relay parked list")
