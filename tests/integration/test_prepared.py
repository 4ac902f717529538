"""Statements that libpq sends for us: whatever becomes of one, the next that uses the connection is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.adapters.postgres import array
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.pipeline import BEGIN, COMMIT, as_sent, fetch, run_all
from relay.adapters.postgres.pool import Pool
from relay.domain.errors import DatabaseUnreachable
from relay.ports import ClaimedMessage
from tests.integration.consuming import LEASE, inbox_row
from tests.integration.publishing import query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

WAITING = "FROM pg_stat_activity WHERE application_name = 'prepared' AND wait_event_type = 'Lock'"


@dataclass
class Inbox:
    """An inbox on one connection."""

    pool: Pool
    url: str
    ids: list[UUID]

    def __post_init__(self) -> None:
        self.adapter = PostgresInboxAdapter(self.pool)

    async def claim(self, id: UUID) -> ClaimedMessage | None:
        return await self.adapter.claim(id, LEASE)

    async def waits(self, task: asyncio.Task[ClaimedMessage | None]) -> None:
        async def found() -> bool:
            return task.done() or bool(query(self.url, f"SELECT pid {WAITING}"))

        await eventually("the statement waits", found)
        assert not task.done()

    def backend(self) -> int:
        [row] = query(self.url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'prepared'")
        return int(row["pid"])


@pytest.fixture
async def inbox(database_url: str) -> AsyncIterator[Inbox]:
    pool = Pool(database_url, max_size=1, application_name="prepared")
    await pool.open()
    rows = [inbox_row(seq) for seq in range(1, 6)]
    inbox = Inbox(pool, database_url, [row.message_id for row in rows])
    await inbox.adapter.insert(rows)
    yield inbox
    await pool.close()


async def test_a_row_comes_as_the_driver_reads_it(inbox: Inbox) -> None:
    columns = "message_id, subject, headers, body, occurred_at, stream_seq, attempts, event_type, correlation_id"
    claim = await inbox.claim(inbox.ids[0])
    assert claim is not None
    [row] = query(inbox.url, f"SELECT {columns} FROM inbox_messages WHERE message_id = %s", inbox.ids[0])
    assert claim.attempts == row.pop("attempts") == 1
    assert {name: getattr(claim.row, name) for name in row} == row


async def test_what_the_driver_has_forgotten_is_prepared_again(inbox: Inbox) -> None:
    assert await inbox.claim(inbox.ids[0])
    async with inbox.pool.connection() as conn:
        await conn.execute("DEALLOCATE ALL")
    assert await inbox.claim(inbox.ids[1])


async def test_what_was_never_prepared_keeps_no_other_statement_from_being_run(inbox: Inbox) -> None:
    """Who prepared it was cancelled: the server knows the one statement, not the other."""
    one, two = await inbox.claim(inbox.ids[0]), await inbox.claim(inbox.ids[1])
    assert one is not None
    assert two is not None
    assert await inbox.adapter.mark_all_processed([one]) == [one]
    async with inbox.pool.connection() as conn:
        prepared = await (await conn.execute("SELECT name, statement FROM pg_prepared_statements")).fetchall()
        [claim] = [name for name, statement in prepared if "claim_token = " in statement and "claim" in name]
        await conn.execute(f"DEALLOCATE {claim}".encode())
    assert await inbox.claim(inbox.ids[2])
    assert await inbox.adapter.mark_all_processed([two]) == [two]


async def test_one_statement_that_is_gone_keeps_no_other_of_its_round_trip_from_being_run(inbox: Inbox) -> None:
    """The driver deallocates all. Some are prepared again before the one that is missed."""
    sent = [as_sent(BEGIN), as_sent(COMMIT)]
    async with inbox.pool.connection() as conn:
        await run_all(conn, sent)
        await conn.execute("DEALLOCATE ALL")
        with pytest.raises(psycopg.errors.InvalidSqlStatementName):
            await run_all(conn, sent[:1])
        await run_all(conn, sent[:1])
        # Whether the second one is missed now, or was forgotten with the first, is not said.
        with suppress(psycopg.errors.InvalidSqlStatementName):
            await run_all(conn, sent)
        await conn.rollback()
        await run_all(conn, sent)


async def test_who_is_cancelled_leaves_a_connection_to_the_others(inbox: Inbox) -> None:
    async with await psycopg.AsyncConnection.connect(inbox.url) as other:
        await other.execute("SELECT FROM inbox_messages WHERE message_id = %s FOR UPDATE", [inbox.ids[0]])
        task = asyncio.create_task(inbox.claim(inbox.ids[0]))
        await inbox.waits(task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(20):
            assert await inbox.claim(inbox.ids[1])


async def test_a_connection_lost_meanwhile_is_an_outage(inbox: Inbox) -> None:
    async with await psycopg.AsyncConnection.connect(inbox.url) as other:
        await other.execute("SELECT FROM inbox_messages WHERE message_id = %s FOR UPDATE", [inbox.ids[0]])
        task = asyncio.create_task(inbox.claim(inbox.ids[0]))
        await inbox.waits(task)
        query(inbox.url, "SELECT pg_terminate_backend(%s)", inbox.backend())
        async with asyncio.timeout(20):
            with pytest.raises(DatabaseUnreachable):
                await task
            assert await inbox.claim(inbox.ids[1])


async def test_a_connection_lost_before_is_not_lent(inbox: Inbox) -> None:
    assert await inbox.claim(inbox.ids[0])
    ended = inbox.backend()
    query(inbox.url, "SELECT pg_terminate_backend(%s)", ended)
    gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
    await eventually("the backend ends", lambda: not query(inbox.url, gone, ended))
    async with asyncio.timeout(20):
        assert await inbox.claim(inbox.ids[1])


async def test_values_that_do_not_fit_into_the_socket_arrive(inbox: Inbox) -> None:
    ids = [*inbox.ids, *(uuid4() for _ in range(100_000))]
    values = {"ids": array.of_plain(ids), "tokens": array.of_plain(ids)}
    async with asyncio.timeout(30), inbox.pool.connection() as conn:
        assert await fetch(conn, ("inbox/mark_many_processed", values)) == []
        assert await fetch(conn, ("inbox/mark_many_processed", values)) == []


async def test_the_servers_refusal_is_raised_and_the_connection_stays(inbox: Inbox) -> None:
    before = inbox.backend()
    async with inbox.pool.connection() as conn:
        with pytest.raises(psycopg.errors.InvalidTextRepresentation):
            await fetch(conn, ("inbox/mark_many_processed", {"ids": "{no id}", "tokens": "{}"}))
    assert await inbox.claim(inbox.ids[0])
    assert inbox.backend() == before
