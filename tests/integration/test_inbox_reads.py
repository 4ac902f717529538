"""What the sweep, +WPI and the recovery read of the inbox: each lost row, once, and no row that is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import psycopg
import pytest

from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.domain.errors import DatabaseUnreachable
from relay.domain.model import Finished
from relay.domain.policies import DeadLetter, DeadLetterClass, Retry
from relay.ports import InboxRow
from tests.integration.consuming import LEASE, SUBSCRIPTION, claimed, inbox_row
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

GRACE = timedelta(seconds=5)


@pytest.fixture
async def inbox(database_url: str) -> AsyncIterator[PostgresInboxAdapter]:
    pool = Pool(database_url, max_size=4, application_name="inbox")
    await pool.open()
    yield PostgresInboxAdapter(pool, grace=GRACE)
    await pool.close()


async def settled(inbox: PostgresInboxAdapter) -> dict[str, InboxRow]:
    """One row in every state; their stream sequences count from 1 in this order."""
    names = ("fresh", "running", "later", "processed", "dead", "rejected")
    rows = {name: inbox_row(seq) for seq, name in enumerate(names, start=1)}
    await inbox.insert(list(rows.values()))
    claims = {name: await claimed(inbox, row) for name, row in rows.items() if name != "fresh"}
    await inbox.record_error(claims["later"], Retry(timedelta(hours=1), "boom"))
    await inbox.mark_all_processed([claims["processed"]])
    await inbox.mark_dead_lettered(claims["dead"])
    await inbox.reject(claims["rejected"], DeadLetter("why", DeadLetterClass.DETERMINISTIC))
    await inbox.release(claims["rejected"], timedelta(0))
    return rows


def age(url: str, *columns: str) -> None:
    """Let a minute go by for these columns."""
    for column in columns:
        query(url, f"UPDATE inbox_messages SET {column} = {column} - interval '1 minute'")


# --- overdue ---


async def test_a_row_is_overdue_when_no_queue_brought_it_within_the_grace_and_then_once_per_grace(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    assert await inbox.overdue(SUBSCRIPTION, 10) == []
    age(database_url, "enqueued_at")
    assert await inbox.overdue(SUBSCRIPTION, 10) == [row.message_id]
    assert await inbox.overdue(SUBSCRIPTION, 10) == []
    age(database_url, "enqueued_at")
    assert await inbox.overdue(SUBSCRIPTION, 10) == [row.message_id]


async def test_rows_that_run_or_wait_or_are_finished_are_not_overdue(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    rows = await settled(inbox)
    age(database_url, "enqueued_at")
    # "later" was to be enqueued in an hour, so even a minute on it is not.
    assert set(await inbox.overdue(SUBSCRIPTION, 10)) == {rows["fresh"].message_id, rows["rejected"].message_id}
    query(database_url, "UPDATE inbox_messages SET enqueued_at = now() - interval '2 hours'")
    assert rows["later"].message_id not in await inbox.overdue(SUBSCRIPTION, 10)


async def test_a_row_whose_worker_died_is_overdue_when_its_lease_is_over(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    await claimed(inbox, row)
    age(database_url, "enqueued_at")
    assert await inbox.overdue(SUBSCRIPTION, 10) == []
    age(database_url, "claimed_until")
    assert await inbox.overdue(SUBSCRIPTION, 10) == [row.message_id]


async def test_a_retry_that_was_lost_is_overdue_a_grace_after_its_time(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    await inbox.record_error(await claimed(inbox, row), Retry(timedelta(seconds=30), "boom"))
    age(database_url, "next_attempt_at", "enqueued_at")
    assert await inbox.overdue(SUBSCRIPTION, 10) == [row.message_id]


async def test_the_oldest_come_first_and_no_more_than_asked_for(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    rows = [inbox_row(seq) for seq in range(1, 4)]
    foreign = inbox_row(9, subscription="other")
    for row in [*rows, foreign]:
        await inbox.insert([row])
        age(database_url, "enqueued_at")
    assert set(await inbox.overdue(SUBSCRIPTION, 2)) == {row.message_id for row in rows[:2]}
    assert await inbox.overdue(SUBSCRIPTION, 2) == [rows[2].message_id]


async def test_two_sweeps_share_the_rows_and_do_not_wait_for_each_other(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    locked, free = inbox_row(1), inbox_row(2)
    await inbox.insert([locked, free])
    age(database_url, "enqueued_at")
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT 1 FROM inbox_messages WHERE message_id = %s FOR UPDATE", [locked.message_id])
        assert await asyncio.wait_for(inbox.overdue(SUBSCRIPTION, 10), 60) == [free.message_id]


# --- waiting ---


async def test_the_unfinished_rows_wait_whatever_their_state(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    rows = await settled(inbox)
    await inbox.insert([inbox_row(9, subscription="other")])
    replies = [rows[name].ack_subject for name in ("fresh", "running", "later", "rejected")]
    assert sorted(await waiting(inbox, 10)) == sorted(replies)


async def waiting(inbox: PostgresInboxAdapter, page: int) -> list[str]:
    return [reply async for replies in inbox.waiting(SUBSCRIPTION, page) for reply in replies]


async def test_of_many_waiting_rows_all_are_told_those_received_first_before_the_others(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    rows = [inbox_row(seq) for seq in range(1, 8)]
    for row in rows[:3]:
        await inbox.insert([row])
    await inbox.insert(rows[3:])  # in one transaction, so at one time: a page may end between them
    told = await waiting(inbox, 2)
    assert told[:3] == [row.ack_subject for row in rows[:3]]
    assert sorted(told) == sorted(row.ack_subject for row in rows)


# --- ranges of the stream ---


async def test_the_missing_are_the_sequences_without_a_row_of_this_subscription(
    inbox: PostgresInboxAdapter,
) -> None:
    await inbox.insert([inbox_row(2), inbox_row(4), inbox_row(3, stream="OTHER"), inbox_row(5, subscription="o")])
    assert await inbox.missing(SUBSCRIPTION, "UP", 0, 6) == [1, 3, 5, 6]
    assert await inbox.missing(SUBSCRIPTION, "UP", 1, 5) == [3, 5]
    assert await inbox.missing(SUBSCRIPTION, "UP", 3, 4) == []
    assert await inbox.missing(SUBSCRIPTION, "UP", 6, 6) == []


async def test_of_a_huge_range_the_latest_part_is_compared(inbox: PostgresInboxAdapter) -> None:
    await inbox.insert([inbox_row(10**9)])
    found = await inbox.missing(SUBSCRIPTION, "UP", 0, 10**9)
    assert (len(found), found[-1]) == (99_999, 10**9 - 1)


async def test_the_finished_are_known_by_their_reply_subjects_a_second_later(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    rows = await settled(inbox)
    # Their acknowledgement may still be on its way.
    assert await inbox.finished(SUBSCRIPTION, "UP", 0, 6) == []
    age(database_url, "received_at", "processed_at", "dead_lettered_at")
    processed, dead = rows["processed"], rows["dead"]
    assert (processed.stream_seq, dead.stream_seq) == (4, 5)
    both = [Finished(row.message_id, row.stream_seq, row.ack_subject) for row in (processed, dead)]
    assert await inbox.finished(SUBSCRIPTION, "UP", 0, 6) == both
    assert await inbox.finished(SUBSCRIPTION, "UP", 3, 5) == both
    assert await inbox.finished(SUBSCRIPTION, "UP", 4, 5) == both[1:]
    assert await inbox.finished(SUBSCRIPTION, "UP", 3, 4) == both[:1]
    assert await inbox.finished(SUBSCRIPTION, "OTHER", 0, 6) == []
    assert await inbox.finished("other", "UP", 0, 6) == []


async def test_a_database_that_is_gone_is_an_outage() -> None:
    url = "postgresql://nobody@127.0.0.1:9/nothing?connect_timeout=1"
    pool = Pool(url, max_size=1, application_name="inbox")
    pool.timeout = 0.2
    await pool.open()
    adapter = PostgresInboxAdapter(pool)
    try:
        for ask in (adapter.ping(), adapter.insert([inbox_row()]), adapter.claim(inbox_row().message_id, LEASE)):
            with pytest.raises(DatabaseUnreachable):
                await ask
    finally:
        await pool.close()
