"""Claims and settlements of one moment share a statement, and each comes out as if it had been alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.devstack.ports import free_port
from relay.domain.errors import DatabaseUnreachable
from relay.domain.policies import DeadLetterClass
from relay.ports import ClaimedMessage
from tests.integration.consuming import LEASE, claimed, inbox_row
from tests.integration.publishing import query
from tests.integration.wire import Wire, wire
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@dataclass
class Inbox:
    """An inbox whose statements are counted, and what a test does to its rows."""

    adapter: PostgresInboxAdapter
    url: str
    way: Wire

    async def filled(self, count: int, **values: Any) -> list[UUID]:
        rows = [inbox_row(seq, **values) for seq in range(1, count + 1)]
        await self.adapter.insert(rows)
        return [row.message_id for row in rows]

    async def claim(self, ids: list[UUID], max_attempts: int = 20) -> list[ClaimedMessage | None]:
        return await asyncio.gather(*(self.adapter.claim(id, LEASE, max_attempts) for id in ids))

    async def mark(self, claims: list[ClaimedMessage]) -> list[bool]:
        marked = await self.adapter.mark_all_processed(claims)
        return [claim in marked for claim in claims]

    def change(self, id: UUID, assignment: str) -> None:
        query(self.url, f"UPDATE inbox_messages SET {assignment} WHERE message_id = %s", id)

    def column(self, name: str, ids: list[UUID]) -> list[Any]:
        rows = query(self.url, f"SELECT message_id, {name} FROM inbox_messages")
        values = {row["message_id"]: row[name] for row in rows}
        return [values[id] for id in ids]

    @asynccontextmanager
    async def locked(self, id: UUID) -> AsyncIterator[None]:
        """Somebody else has a row in an open transaction."""
        async with await psycopg.AsyncConnection.connect(self.url) as other:
            await other.execute("SELECT 1 FROM inbox_messages WHERE message_id = %s FOR UPDATE", [id])
            yield

    async def somebody_waits(self) -> None:
        locks = "datname = current_database() AND wait_event_type = 'Lock'"
        sql = f"SELECT count(*) AS n FROM pg_stat_activity WHERE {locks}"

        async def waits() -> bool:
            return bool(query(self.url, sql)[0]["n"])

        await eventually("a statement waits for a lock", waits)


@pytest.fixture
def way(database_url: str) -> Iterator[Wire]:
    with wire(urlsplit(database_url).port or 0) as way:
        yield way


@pytest.fixture
async def inbox(database_url: str, way: Wire) -> AsyncIterator[Inbox]:
    pool = Pool(way.through(database_url), max_size=4, application_name="groups")
    await pool.open()
    yield Inbox(PostgresInboxAdapter(pool), database_url, way)
    await pool.close()


def held(claims: list[ClaimedMessage | None]) -> list[ClaimedMessage]:
    assert all(claims)
    return [claim for claim in claims if claim is not None]


# --- fewer statements ---


async def test_fifty_claims_and_settlements_take_a_few_statements(inbox: Inbox) -> None:
    ids = await inbox.filled(50)
    before = inbox.way.statements.copy()
    claims = held(await inbox.claim(ids))
    assert [claim.row.message_id for claim in claims] == ids
    assert await inbox.mark(claims) == [True] * 50
    assert sum((inbox.way.statements - before).values()) <= 4
    assert None not in inbox.column("processed_at", ids)


async def test_they_are_planned_once_however_many_they_take(inbox: Inbox) -> None:
    """Planning takes longer than claiming a few rows does."""
    statements = "SELECT name, generic_plans FROM pg_prepared_statements"
    pool = Pool(inbox.url, max_size=1, application_name="plans")
    await pool.open()
    adapter = PostgresInboxAdapter(pool)
    for size in [*range(2, 9)] * 4:
        ids = await inbox.filled(size)
        claims = held(await asyncio.gather(*(adapter.claim(id, LEASE) for id in ids)))
        await adapter.mark_all_processed(claims)
    async with pool.connection() as conn:
        generic = [plans for _, plans in await (await conn.execute(statements)).fetchall()]
    await pool.close()
    assert len(generic) == 2
    assert min(generic) > 10


# --- each as if it were alone ---


async def test_each_gets_its_own_row_or_none(inbox: Inbox) -> None:
    free, taken, expired, later, processed, dead = ids = await inbox.filled(6)
    inbox.change(taken, "claim_token = gen_random_uuid(), claimed_until = now() + interval '1 hour'")
    inbox.change(expired, "claim_token = gen_random_uuid(), claimed_until = now() - interval '1 s', attempts = 3")
    inbox.change(later, "next_attempt_at = now() + interval '1 hour'")
    inbox.change(processed, "processed_at = now()")
    inbox.change(dead, "dead_lettered_at = now(), dead_letter_reason = 'x', dead_letter_class = 'poison'")
    claims = await inbox.claim([*ids, uuid4()])
    assert [claim and (claim.row.message_id, claim.attempts) for claim in claims] == [
        (free, 1),
        None,
        (expired, 4),
        None,
        None,
        None,
        None,
    ]


async def test_rejected_and_exhausted_messages_come_rejected_and_are_not_counted(inbox: Inbox) -> None:
    _, rejected, exhausted = ids = await inbox.filled(3)
    inbox.change(rejected, "attempts = 2, dead_letter_reason = 'why', dead_letter_class = 'poison'")
    inbox.change(exhausted, "attempts = 5")
    claims = held(await inbox.claim(ids, max_attempts=5))
    assert [claim.attempts for claim in claims] == [1, 2, 5]
    kinds = [claim.row.rejected and claim.row.rejected.kind for claim in claims]
    assert kinds == [None, DeadLetterClass.POISON, DeadLetterClass.EXHAUSTED]


async def test_messages_with_other_limits_do_not_share_them(inbox: Inbox) -> None:
    ids = await inbox.filled(2)
    for id in ids:
        inbox.change(id, "attempts = 5")
    strict, patient = await asyncio.gather(
        inbox.adapter.claim(ids[0], LEASE, 5), inbox.adapter.claim(ids[1], LEASE, 6)
    )
    assert strict is not None
    assert patient is not None
    assert (strict.row.rejected is None, patient.row.rejected is None) == (False, True)


async def test_of_many_who_claim_a_message_at_once_one_gets_it(inbox: Inbox) -> None:
    [id] = ids = await inbox.filled(1)
    claims = await inbox.claim([id] * 20)
    assert Counter(claim is None for claim in claims) == {True: 19, False: 1}
    assert inbox.column("attempts", ids) == [1]


async def test_only_who_lost_his_claim_hears_of_it(inbox: Inbox) -> None:
    ids = await inbox.filled(3)
    claims = held(await inbox.claim(ids))
    inbox.change(ids[1], "claimed_until = now() - interval '1 second'")
    await claimed(inbox.adapter, claims[1].row)
    assert await inbox.mark(claims) == [True, False, True]
    assert [at is not None for at in inbox.column("processed_at", ids)] == [True, False, True]


async def test_a_dead_message_is_not_marked_as_processed(inbox: Inbox) -> None:
    ids = await inbox.filled(2)
    claims = held(await inbox.claim(ids))
    inbox.change(ids[0], "dead_letter_reason = 'x', dead_letter_class = 'exhausted'")
    assert await inbox.mark(claims) == [False, True]


# --- and nobody for the others' sake worse off ---


async def test_a_locked_row_keeps_only_its_own_claim_waiting(inbox: Inbox) -> None:
    first, *rest = await inbox.filled(5)
    async with asyncio.timeout(30):
        async with inbox.locked(first):
            waiting = asyncio.create_task(inbox.adapter.claim(first, LEASE))
            claims = held(await inbox.claim(rest))
            await inbox.somebody_waits()
            assert await inbox.mark(claims) == [True] * 4
        assert await waiting is not None


async def test_a_locked_row_keeps_only_its_own_settlement_waiting(inbox: Inbox) -> None:
    ids = await inbox.filled(5)
    first, *rest = held(await inbox.claim(ids))
    async with asyncio.timeout(30):
        async with inbox.locked(ids[0]):
            waiting = asyncio.create_task(inbox.adapter.mark_all_processed([first]))
            assert await inbox.mark(rest) == [True] * 4
            await inbox.somebody_waits()
        assert await waiting


async def test_who_gives_up_does_not_cost_the_others_their_claims(inbox: Inbox) -> None:
    ids = await inbox.filled(10)
    tasks = [asyncio.create_task(inbox.adapter.claim(id, LEASE)) for id in ids]
    await asyncio.sleep(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [isinstance(result, ClaimedMessage) for result in results[1:]] == [True] * 9


async def test_without_a_database_everybody_hears_of_it() -> None:
    pool = Pool(f"postgresql://u@127.0.0.1:{free_port()}/none", max_size=2, application_name="groups")
    await pool.open()
    adapter = PostgresInboxAdapter(pool)
    results = await asyncio.gather(*(adapter.claim(uuid4(), LEASE) for _ in range(20)), return_exceptions=True)
    assert [type(result) for result in results] == [DatabaseUnreachable] * 20
    claim = ClaimedMessage(uuid4(), inbox_row(), 1)
    marks = await asyncio.gather(*(adapter.mark_all_processed([claim]) for _ in range(20)), return_exceptions=True)
    assert [type(result) for result in marks] == [DatabaseUnreachable] * 20
    await pool.close()
