"""The circuits of subscriptions, in the table ``handler_circuits``. The rules are in `relay.domain.circuit`.

A circuit costs nothing while its handler does well. Only failures that look like an outage are reported, those of
a process at the same time in one transaction. The statements that claim messages read the table, which is almost
empty.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row

from relay.adapters.postgres import array
from relay.adapters.postgres.pool import Connection, Pool, query
from relay.adapters.postgres.sql import statement
from relay.domain.circuit import Circuit, CircuitPolicy, Reported, Successes, Witness
from relay.domain.disclosure import clean

#: How many of the rows that a context processed last are read to find those of one subscription.
_MOST_READ: Final = 20_000
#: Among how many waiting messages a probe is chosen.
_MOST_CANDIDATES: Final = 10_000
#: Which messages become probes in turn; see the statement.
_IN_TURN: Final = ("newest", "oldest", "longest")


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a report led to. ``excused``: the failures cost no attempt, because the handler is away."""

    before: Circuit
    after: Circuit
    excused: bool

    @property
    def has_opened(self) -> bool:
        """Whether this report has opened the circuit."""
        return self.after.is_open and not self.before.is_open


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCircuit:
    """An open circuit, by the database's clock.

    ``probe``: what has become of its probe. It is answered, running, waiting, or gone: it cannot be called.
    ``resumed``: the subscription was paused, and what has waited is not enqueued yet; ``open`` may be False then.
    """

    subscription: str
    probe_id: UUID | None
    probe_at: datetime | None
    probe: str
    now: datetime
    open: bool = True
    resumed: bool = False


class PostgresCircuits:
    """The circuits of a context. All methods raise DatabaseUnreachable."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def report(self, subscription: str, reports: Sequence[Reported], policy: CircuitPolicy) -> Ruling:
        """Take failures as evidence. This may open the circuit, and then gives attempts back."""
        async with self._pool.connection() as conn:
            async with conn.transaction():
                before, now = await _locked(conn, subscription)
                after = await _reported(conn, subscription, before, reports, policy, now)
                opens = after.is_open and not before.is_open
                excused = before.excuses(policy, now) or (opens and not before.flaps(now))
                lost = _lost(after, reports) if opens and excused else {}
                held = await _give_back(conn, lost)
                if after != before:
                    after = replace(after, witnesses={}) if opens else after
                    await _set(conn, subscription, after)
            for id in held:
                await _give_back(conn, {id: lost[id]}, wait=True)
            return Ruling(before, after, excused)

    async def close(self, subscription: str, probe_id: UUID) -> timedelta | None:
        """Close a circuit because its probe was answered; returns how long it was open.

        None if it is closed, or has another probe.
        """
        async with self._pool.connection() as conn, conn.transaction():
            circuit, now = await _locked(conn, subscription)
            if circuit.opened_at is None or circuit.probe_id != probe_id:
                return None
            await _set(conn, subscription, circuit.closed(now))
            return now - circuit.opened_at

    async def released(self, subscription: str) -> None:
        """Note that what has waited for the end of a pause is enqueued."""
        async with self._pool.connection() as conn:
            await conn.execute(statement("circuits/released"), {"subscription": subscription})

    async def open_ones(self) -> Sequence[OpenCircuit]:
        """The open circuits, and what has become of their probes; and pauses that have ended."""
        async with self._pool.connection() as conn:
            return [OpenCircuit(**row) for row in await _rows(conn, "circuits/open")]

    async def choose_probe(
        self, subscription: str, patience: timedelta, *, keep: UUID | None, ordered: bool
    ) -> UUID | None:
        """Choose the message to try next; None if none waits, or if it is too early.

        ``keep``: the probe that was chosen before and still waits. ``patience``: when to choose again if nobody
        takes it.
        """
        async with self._pool.connection() as conn, conn.transaction():
            circuit, now = await _locked(conn, subscription)
            if circuit.probe_at is None or now < circuit.probe_at:
                return None
            chosen = keep if keep is not None and keep == circuit.probe_id else None
            if chosen is None:
                name = "circuits/choose+in_turn" if ordered else "circuits/choose"
                which = _IN_TURN[circuit.probes % len(_IN_TURN)]
                rows = await query(conn, name, subscription=subscription, limit=_MOST_CANDIDATES, which=which)
                chosen = rows[0][0] if rows else None
            if chosen is not None:
                await _set(conn, subscription, circuit.probing(chosen, now + patience))
            return chosen


async def _reported(
    conn: Connection,
    subscription: str,
    circuit: Circuit,
    reports: Sequence[Reported],
    policy: CircuitPolicy,
    now: datetime,
) -> Circuit:
    """The circuit after a report. One that has opened still has its witnesses."""
    if circuit.is_open:
        probed = circuit.probe_id in {it.message_id for it in reports}
        return circuit.probe_failed(reports, policy, now) if probed else circuit
    noted = circuit.noting(reports, now)
    if not noted.suspects(reports, policy):
        return noted
    successes = await _successes(conn, subscription, noted, now)
    noted = noted.after(successes)
    if noted.is_away(reports, successes, policy, now):
        return noted.opened(reports, policy, now)
    return noted.counting_again(policy, now)


def _lost(opened: Circuit, reports: Sequence[Reported]) -> dict[UUID, int]:
    """The attempts that an outage has cost so far, without the calls that are reported now."""
    current = {it.message_id for it in reports}
    lost = {id: it.calls - (id in current) for id, it in opened.witnesses.items()}
    return {id: attempts for id, attempts in lost.items() if attempts}


async def _give_back(conn: Connection, attempts: Mapping[UUID, int], *, wait: bool = False) -> Sequence[UUID]:
    """Give attempts back; returns the messages whose rows are locked, unless it is to ``wait`` for them."""
    if not attempts:
        return []
    values = {"ids": array.of_plain(attempts), "attempts": array.of_plain(attempts.values())}
    rows = await query(conn, "circuits/give_back" if wait else "circuits/give_back+not_locked", **values)
    done = {id for (id,) in rows}
    return [id for id in attempts if id not in done]


async def _successes(conn: Connection, subscription: str, circuit: Circuit, now: datetime) -> Successes:
    since = circuit.since or now
    earliest = min([since, *(it.first for it in circuit.witnesses.values())])
    terms = {"subscription": subscription, "since": since, "earliest": earliest, "limit": _MOST_READ}
    [row] = await query(conn, "circuits/successes", **terms)
    return Successes(*row)


async def _locked(conn: Connection, subscription: str) -> tuple[Circuit, datetime]:
    place = {"subscription": subscription}
    while not (rows := await _rows(conn, "circuits/lock", **place)):
        await conn.execute(statement("circuits/make"), place)
    now = rows[0].pop("now")
    return Circuit(**{**rows[0], "witnesses": _witnesses(rows[0]["witnesses"])}), now


async def _rows(conn: Connection, name: str, **parameters: Any) -> list[dict[str, Any]]:
    async with conn.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement(name), parameters)
        return await cursor.fetchall()


def _witnesses(stored: Mapping[str, Sequence[Any]]) -> dict[UUID, Witness]:
    return {
        UUID(id): Witness(datetime.fromtimestamp(first, UTC), datetime.fromtimestamp(latest, UTC), calls, base)
        for id, (first, latest, calls, base) in stored.items()
    }


async def _set(conn: Connection, subscription: str, circuit: Circuit) -> None:
    witnesses = {
        str(id): [it.first.timestamp(), it.latest.timestamp(), it.calls, it.base]
        for id, it in circuit.witnesses.items()
    }
    values = {**asdict(circuit), "witnesses": json.dumps(witnesses)}
    values["reason"] = None if circuit.reason is None else clean(circuit.reason)
    await conn.execute(statement("circuits/set"), {**values, "subscription": subscription})
