"""Slots of a rate in ``task_rates``, for the fleet: of a type of tasks, a subscription, or one key of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from relay.adapters.postgres.pool import Connection, query
from relay.adapters.postgres.sql import statement
from relay.domain.tasks import PutOff, Rate, slot


async def turn(
    conn: Connection,
    rate: str,
    interval: timedelta | None,
    *,
    promised: bool,
    again: Callable[[Rate], timedelta | None] = lambda _: None,
) -> PutOff | None:
    """Lock a rate until the commit. If it has no free slot now, promise one and return PutOff.

    ``again``: when one asks again that has a promise, if not at the next free slot.
    """
    if interval is None:
        return None
    [row] = await query(conn, "tasks/lock_rate", type=rate)
    known = Rate(*row)
    if known.free_in > interval:
        # No slot of this rate is further away: the rate was lower before a deploy, or the clock was set back.
        await conn.execute(statement("controls/forget_slots"), {"type": rate})
        return None
    delay = slot(known, interval, promised=promised)
    if delay <= timedelta(0):
        return None
    if not promised:
        await conn.execute(statement("tasks/promise_slot"), {"type": rate, "delay": delay})
    else:
        delay = again(known) or delay
    return PutOff(delay, "turn")


async def begin(conn: Connection, rate: str, interval: timedelta, *, per_key: bool) -> None:
    """Take the slot. Only after the claim, because the interval is between starts."""
    await conn.execute(statement("tasks/take_slot"), {"type": rate, "interval": interval})
    if per_key:
        await conn.execute(statement("tasks/forget_keys"))
