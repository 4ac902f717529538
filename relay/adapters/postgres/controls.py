"""Pauses and limits of a context, in the table ``controls``. The rules are in `relay.domain.controls`.

A subscription's pause stands in ``handler_circuits``, too, where every claim looks already: so it costs nothing,
and holds from its commit on, for workers of the release before as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Final

from psycopg.errors import UndefinedTable

from relay.adapters.postgres.pool import Connection, Source, query
from relay.adapters.postgres.row_operations import audit
from relay.adapters.postgres.sql import statement
from relay.domain.controls import (
    NO_LIMIT,
    OF_KEY,
    UNCONTROLLED,
    Act,
    Control,
    Controls,
    Limit,
    What,
    check_end,
    check_limit,
    rate_key,
)
from relay.domain.disclosure import clean
from relay.domain.errors import DatabaseUnreachable
from relay.domain.operators import Operator

#: How old what a process knows may be, in seconds.
_FRESH_S: Final = 1.0
#: How many rows that were put off go on with one statement.
_RELEASED: Final = 2_000
_RELEASES: Final = {
    (What.TASK_TYPE, Act.PAUSE): "controls/release_tasks",
    (What.TASK_TYPE, Act.LIMIT): "controls/release_tasks",
    (What.TASK_QUEUE, Act.PAUSE): "controls/release_tasks",
    (What.EVENT_TYPE, Act.PAUSE): "controls/release_events",
    (What.SUBSCRIPTION, Act.LIMIT): "controls/release_messages",
}


class PostgresControls:
    """The controls of a context. All methods raise DatabaseUnreachable and SchemaMissing."""

    def __init__(self, source: Source) -> None:
        self._source = source

    async def in_force(self) -> Sequence[Control]:
        """What is paused or limited now."""
        async with self._source() as conn:
            return await controls_in(conn)

    async def pause(self, what: What, name: str, until: datetime | None, by: Operator) -> Control:
        """Pause something, or change the end of its pause; returns the pause. Raises InvalidRequest."""
        async with self._source() as conn:
            async with conn.transaction():
                await _check_end(conn, until)
                await _set(conn, what, name, Act.PAUSE, by, until=until)
                if what is What.SUBSCRIPTION:
                    await _do(conn, "controls/hold_subscription", name=name, until=until)
                await audit(conn, "control pause", [f"{what.value} {name}".strip()], by)
            # A pause may have become shorter.
            await _release(conn, what, name, Act.PAUSE)
            return await _get(conn, what, name, Act.PAUSE)

    async def resume(self, what: What, name: str, by: Operator) -> bool:
        """End a pause; False if there is none. What has waited goes on within seconds."""
        async with self._source() as conn:
            async with conn.transaction():
                found = await _lock(conn, what, name, Act.PAUSE)
                await _do(conn, "controls/end", what=what.value, name=name, act=Act.PAUSE.value)
                if what is What.SUBSCRIPTION:
                    await _do(conn, "controls/resume_subscription", name=name)
                if found is not None and found[2]:
                    await audit(conn, "control resume", [f"{what.value} {name}".strip()], by)
            await _release(conn, what, name, Act.PAUSE)
        return found is not None and found[2]

    async def limit(self, what: What, name: str, limit: Limit, until: datetime | None, by: Operator) -> Limit:
        """Limit something, or lift its limit if ``limit`` is empty; returns the limit before.

        Raises InvalidRequest.
        """
        check_limit(what, limit)
        async with self._source() as conn:
            async with conn.transaction():
                await _check_end(conn, until)
                before = await self._limited(conn, what, name, limit, until, by, "control limit")
            await _release(conn, what, name, Act.LIMIT)
        return before

    async def restore(self, what: What, name: str, by: Operator) -> Limit | None:
        """Put the former limit back; returns it, or None if nothing was ever limited."""
        async with self._source() as conn:
            async with conn.transaction():
                found = await _lock(conn, what, name, Act.LIMIT)
                if found is None:
                    return None
                _, former, _ = found
                await self._limited(conn, what, name, former, None, by, "control restore")
            await _release(conn, what, name, Act.LIMIT)
        return former

    async def _limited(
        self, conn: Connection, what: What, name: str, limit: Limit, until: datetime | None, by: Operator, act: str
    ) -> Limit:
        found = await _lock(conn, what, name, Act.LIMIT)
        before = found[0] if found is not None and found[2] else NO_LIMIT
        await _set(conn, what, name, Act.LIMIT, by, until=until, limit=limit, former=before)
        await audit(conn, act, [f"{what.value} {name}: {before} -> {limit}"], by)
        return before


async def controls_in(conn: Connection) -> Sequence[Control]:
    """What is paused or limited now. A limit that limits nothing is kept for its former one, and not returned."""
    found = [_control(row) for row in await query(conn, "controls/in_force")]
    return [it for it in found if it.act is Act.PAUSE or it.limit]


class KnownControls:
    """What a process knows of the controls of a context. A look at it costs no statement.

    When what is known is older than ``fresh`` seconds, a look has it read again, and does not wait for that. Twice
    as old, it counts as unknown. So an idle process reads nothing, and a busy one a few rows a second, whatever it
    handles.
    """

    def __init__(self, source: Source, *, fresh: float = _FRESH_S) -> None:
        self._controls, self._fresh = PostgresControls(source), fresh
        self._known, self._read_at = UNCONTROLLED, float("-inf")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading: asyncio.Task[None] | None = None

    def look(self) -> Controls | None:
        """What is known; None if that is too old: ask `now`. Safe in any thread."""
        age = time.monotonic() - self._read_at
        if age <= self._fresh:
            return self._known
        if self._loop is None or age > 2 * self._fresh:
            return None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._begin)
        return self._known

    async def now(self) -> Controls:
        """What is in force. In an outage what was known last; raises DatabaseUnreachable if nothing was."""
        if (known := self.look()) is not None:
            return known
        self._loop = asyncio.get_running_loop()
        await asyncio.shield(self._begin())
        return self._known

    def _begin(self) -> asyncio.Task[None]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(_retrieve)
        return self._reading

    async def _read(self) -> None:
        begun = time.monotonic()
        try:
            self._known = Controls.of(await self._controls.in_force())
        except DatabaseUnreachable:
            if self._read_at == float("-inf"):
                raise
        self._read_at = begun


def _retrieve(task: asyncio.Task[None]) -> None:
    """Whoever waits for a read gets its error. If nobody does, the next look reads again."""
    if not task.cancelled():
        task.exception()


async def paused_beside(conn: Connection) -> Sequence[Control]:
    """The controls of a database; none if its tables are those of the release before."""
    try:
        async with conn.transaction():
            return await controls_in(conn)
    except UndefinedTable:
        return ()


def _control(row: Sequence[Any]) -> Control:
    what, name, act, until, concurrency, interval, per_key, *former, reason, by, since = row
    return Control(
        what=What(what),
        name=name,
        act=Act(act),
        until=until,
        limit=_limit(concurrency, interval, per_key),
        former=_limit(*former),
        reason=reason,
        by=by,
        since=since,
    )


async def _get(conn: Connection, what: What, name: str, act: Act) -> Control:
    return next(it for it in await controls_in(conn) if (it.what, it.name, it.act) == (what, name, act))


async def _lock(conn: Connection, what: What, name: str, act: Act) -> tuple[Limit, Limit, bool] | None:
    """The limit of a control, the one before it, and whether it is in force. Holds its row until the commit."""
    rows = await query(conn, "controls/lock", what=what.value, name=name, act=act.value)
    if not rows:
        return None
    [(_, concurrency, interval, per_key, *former, in_force)] = rows
    return _limit(concurrency, interval, per_key), _limit(*former), in_force


def _limit(concurrency: int | None, interval: timedelta | None, per_key: bool) -> Limit:
    return Limit(concurrency=concurrency, interval=interval, per_key=per_key)


async def _set(
    conn: Connection,
    what: What,
    name: str,
    act: Act,
    by: Operator,
    *,
    until: datetime | None,
    limit: Limit = NO_LIMIT,
    former: Limit = NO_LIMIT,
) -> None:
    await _do(
        conn,
        "controls/set",
        what=what.value,
        name=name,
        act=act.value,
        until=until,
        concurrency=limit.concurrency,
        interval=limit.interval,
        per_key=limit.per_key,
        former_concurrency=former.concurrency,
        former_interval=former.interval,
        former_per_key=former.per_key,
        reason=None if by.note is None else clean(by.note),
        by=clean(by.actor),
    )


async def _check_end(conn: Connection, until: datetime | None) -> None:
    if until is not None:
        [(now,)] = await query(conn, "controls/now")
        check_end(until, now)


async def _release(conn: Connection, what: What, name: str, act: Act) -> None:
    """Let what was put off go on. If this is cut off, the rest goes on by itself, within 15 minutes."""
    if act is Act.LIMIT:
        key = rate_key(what, name)
        await _do(conn, "controls/forget_slots", type=key)
        await _do(conn, "controls/forget_keys", rate=key + OF_KEY)
    if (release := _RELEASES.get((what, act))) is None:
        return
    terms = {"name": name, "limit": _RELEASED}
    if what in (What.TASK_TYPE, What.TASK_QUEUE):
        terms |= {"what": what.value, "waits_for": ["resume"] if act is Act.PAUSE else ["turn", "room"]}
    while await _do(conn, release, **terms) == _RELEASED:
        pass
    if release == "controls/release_messages":
        await _do(conn, "controls/enqueue_subscription", name=name)


async def _do(conn: Connection, file: str, /, **parameters: Any) -> int:
    return (await conn.execute(statement(file), parameters)).rowcount
