"""PostgresInboxAdapter: what is inserted, who may claim a row, and what a lost claim can no longer do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.sql import statement
from relay.domain.errors import MalformedMessage
from relay.domain.policies import DeadLetter, DeadLetterClass, Retry
from relay.ports import ClaimedMessage, InboxRow
from tests.integration.consuming import LEASE, claimed, inbox_row
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio

EXPIRED = timedelta(0)
VERDICT = DeadLetter("no such vibe", DeadLetterClass.DETERMINISTIC)

Write = Callable[[PostgresInboxAdapter, ClaimedMessage], Awaitable[bool]]


async def _mark_all(inbox: PostgresInboxAdapter, claim: ClaimedMessage) -> bool:
    return await inbox.mark_all_processed([claim]) == [claim]


WRITES: dict[str, Write] = {
    "renew": lambda inbox, claim: inbox.renew(claim, LEASE),
    "mark_all_processed": _mark_all,
    "record_error": lambda inbox, claim: inbox.record_error(claim, Retry(timedelta(seconds=5), "boom")),
    "expire": lambda inbox, claim: inbox.expire(claim),
    "reject": lambda inbox, claim: inbox.reject(claim, VERDICT),
    "mark_dead_lettered": lambda inbox, claim: inbox.mark_dead_lettered(claim),
    "release": lambda inbox, claim: inbox.release(claim, timedelta(seconds=5)),
}


@pytest.fixture
async def inbox(database_url: str) -> AsyncIterator[PostgresInboxAdapter]:
    pool = Pool(database_url, max_size=4, application_name="inbox")
    await pool.open()
    yield PostgresInboxAdapter(pool)
    await pool.close()


def stored(url: str, row: InboxRow) -> dict[str, Any]:
    return query(url, "SELECT * FROM inbox_messages WHERE message_id = %s", row.message_id)[0]


def change(url: str, row: InboxRow, assignment: str) -> None:
    query(url, f"UPDATE inbox_messages SET {assignment} WHERE message_id = %s", row.message_id)


# --- insert ---


async def test_a_message_is_stored_with_all_that_was_read_of_it(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row(
        7,
        body=b"\x00 any bytes \xff",
        headers={"Actor-Id": "Grüße"},
        event_version=3,
        occurred_at=datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        partition_key="vibe:v1",
        correlation_id=uuid4(),
        causation_id=uuid4(),
    )
    await inbox.insert([row])
    claim = await claimed(inbox, row)
    assert claim.row == row
    assert claim.attempts == 1
    assert stored(database_url, row)["enqueued_at"] is not None


async def test_an_insert_tells_what_is_new_what_is_known_and_what_is_done(inbox: PostgresInboxAdapter) -> None:
    processed, dead, waiting, new = (inbox_row(seq) for seq in range(1, 5))
    await inbox.insert([processed, dead, waiting])
    await inbox.mark_all_processed([await claimed(inbox, processed)])
    await inbox.mark_dead_lettered(await claimed(inbox, dead))
    known = await inbox.insert([new, processed, waiting, dead])
    assert [(it.message_id, it.new, it.done) for it in known] == [
        (new.message_id, True, False),
        (processed.message_id, False, True),
        (waiting.message_id, False, False),
        (dead.message_id, False, True),
    ]


async def test_an_insert_of_nothing_asks_nobody(inbox: PostgresInboxAdapter) -> None:
    assert await inbox.insert([]) == []


async def test_a_message_twice_in_one_batch_becomes_one_row_with_the_later_reply_subject(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    first, other = inbox_row(1), inbox_row(2)
    again = first._replace(stream_seq=3, ack_subject="reply.again")
    known = await inbox.insert([first, other, again])
    assert [it.message_id for it in known] == [first.message_id, other.message_id]
    assert stored(database_url, first)["ack_subject"] == "reply.again"


async def test_a_known_message_keeps_its_state_and_gets_the_new_reply_subject_and_place(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row(1, headers={"Actor-Id": "ann"})
    await inbox.insert([row])
    await inbox.record_error(await claimed(inbox, row), Retry(timedelta(minutes=1), "boom"))
    before = stored(database_url, row)
    again = row._replace(ack_subject="reply.again", stream_seq=9, body=b"other", headers={}, event_type="other")
    await inbox.insert([again])
    assert stored(database_url, row) == before | {"ack_subject": "reply.again", "stream_seq": 9}
    await inbox.insert([row._replace(ack_subject="")])
    assert stored(database_url, row)["ack_subject"] == "reply.again"


@pytest.mark.parametrize(
    "bad",
    [
        {"headers": {"Actor-Id": "a\x00b"}},
        {"headers": {"Actor-Id": "\udcff"}},
        {"partition_key": "a\x00b"},
        {"event_version": 2**31},
    ],
)
async def test_a_value_that_postgresql_refuses_is_a_malformed_message_and_nothing_of_the_batch_is_stored(
    inbox: PostgresInboxAdapter, database_url: str, bad: dict[str, Any]
) -> None:
    with pytest.raises(MalformedMessage):
        await inbox.insert([inbox_row(1), inbox_row(2, **bad)])
    assert query(database_url, "SELECT * FROM inbox_messages") == []
    await inbox.insert([inbox_row(3)])


# --- claim ---


async def test_a_row_is_claimed_once(inbox: PostgresInboxAdapter) -> None:
    row = inbox_row()
    await inbox.insert([row])
    claims = await asyncio.gather(*(inbox.claim(row.message_id, LEASE) for _ in range(8)))
    assert [claim.attempts for claim in claims if claim is not None] == [1]


async def test_an_unknown_message_cannot_be_claimed(inbox: PostgresInboxAdapter) -> None:
    assert await inbox.claim(uuid4(), LEASE) is None


async def test_a_row_cannot_be_claimed_before_its_next_attempt_is_due(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    await inbox.record_error(await claimed(inbox, row), Retry(timedelta(minutes=1), "boom"))
    assert await inbox.claim(row.message_id, LEASE) is None
    change(database_url, row, "next_attempt_at = now()")
    assert (await claimed(inbox, row)).attempts == 2


async def test_a_lease_that_ran_out_can_be_taken_over_and_a_renewed_one_cannot(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    first = await claimed(inbox, row, EXPIRED)
    assert await inbox.renew(first, LEASE)
    assert await inbox.claim(row.message_id, LEASE) is None
    change(database_url, row, "claimed_until = now() - interval '1 millisecond'")
    second = await claimed(inbox, row)
    assert (second.attempts, second.token != first.token) == (2, True)


@pytest.mark.parametrize("ending", ["mark_all_processed", "mark_dead_lettered"])
async def test_a_finished_row_is_never_claimed(inbox: PostgresInboxAdapter, ending: str) -> None:
    row = inbox_row()
    await inbox.insert([row])
    assert await WRITES[ending](inbox, await claimed(inbox, row))
    assert await inbox.claim(row.message_id, LEASE) is None


async def test_claiming_a_rejected_row_is_no_attempt(inbox: PostgresInboxAdapter) -> None:
    """Rejected on arrival, or after its handler was asked: the handler is not asked again."""
    unreadable, refused = inbox_row(1, rejected=VERDICT, event_type=None), inbox_row(2)
    await inbox.insert([unreadable, refused])
    await inbox.reject(await claimed(inbox, refused, EXPIRED), VERDICT)
    for row, attempts in ((unreadable, 0), (refused, 1)):
        claim = await claimed(inbox, row)
        assert (claim.attempts, claim.row.rejected) == (attempts, VERDICT)


# --- settling ---


@pytest.mark.parametrize("write", WRITES)
async def test_a_lost_claim_writes_nothing(inbox: PostgresInboxAdapter, database_url: str, write: str) -> None:
    row = inbox_row()
    await inbox.insert([row])
    lost = await claimed(inbox, row, EXPIRED)
    successor = await claimed(inbox, row)
    before = stored(database_url, row)
    assert not await WRITES[write](inbox, lost)
    assert stored(database_url, row) == before
    assert await WRITES[write](inbox, successor)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("ending", ["mark_all_processed", "mark_dead_lettered", "record_error", "release"])
async def test_a_claim_that_was_given_up_writes_nothing(
    inbox: PostgresInboxAdapter, database_url: str, ending: str, write: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    claim = await claimed(inbox, row)
    assert await WRITES[ending](inbox, claim)
    before = stored(database_url, row)
    assert not await WRITES[write](inbox, claim)
    assert stored(database_url, row) == before


async def test_a_processed_row_says_when_and_waits_for_nothing(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    await inbox.mark_all_processed([await claimed(inbox, row)])
    after = stored(database_url, row)
    assert after["processed_at"] >= after["received_at"]
    assert (after["claim_token"], after["claimed_until"], after["next_attempt_at"]) == (None, None, None)


async def test_a_row_received_by_a_clock_ahead_of_the_databases_can_still_be_processed(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    """chk_inbox_processed_after_received would refuse it: after a failover the new server's clock may lag."""
    row = inbox_row()
    await inbox.insert([row])
    change(database_url, row, "received_at = now() + interval '1 minute'")
    assert await inbox.mark_all_processed([await claimed(inbox, row)])
    assert stored(database_url, row)["processed_at"] == stored(database_url, row)["received_at"]


@pytest.mark.parametrize("write", ["record_error", "release"])
async def test_the_next_attempt_is_timed_by_the_databases_clock(
    inbox: PostgresInboxAdapter, database_url: str, write: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    claim = await claimed(inbox, row)
    [before] = query(database_url, "SELECT clock_timestamp() + interval '5 seconds' AS due")
    assert await WRITES[write](inbox, claim)
    [after] = query(database_url, "SELECT clock_timestamp() + interval '5 seconds' AS due")
    found = stored(database_url, row)
    assert before["due"] <= found["next_attempt_at"] <= after["due"]
    # The sweep counts from the moment it is due, not from now.
    assert before["due"] <= found["enqueued_at"] <= after["due"]
    assert (found["claim_token"], found["claimed_until"]) == (None, None)


async def test_errors_are_stored_without_control_characters_and_within_bounds(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    text = "a\x00b\x1b[31m\n" + "x" * 5_000
    await inbox.record_error(await claimed(inbox, row), Retry(timedelta(0), text))
    assert stored(database_url, row)["last_error"] == "a b [31m " + "x" * (2_000 - 9)


async def test_a_rejected_row_keeps_its_verdict_until_the_dead_letter_is_stored(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    claim = await claimed(inbox, row)
    assert await inbox.reject(claim, VERDICT)
    rejected = stored(database_url, row)
    assert (rejected["dead_letter_reason"], rejected["dead_letter_class"]) == ("no such vibe", "deterministic")
    assert (rejected["dead_lettered_at"], rejected["last_error"]) == (None, "no such vibe")
    assert await inbox.mark_dead_lettered(claim)
    assert stored(database_url, row)["dead_lettered_at"] is not None


NOTE = """
CREATE TABLE noted (setting text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
CREATE TRIGGER note BEFORE UPDATE ON inbox_messages FOR EACH ROW EXECUTE FUNCTION note()
"""


@pytest.mark.parametrize(
    "name", ["inbox/claim", "inbox/claim_many", "inbox/claim+in_turn", "inbox/claim_many+in_turn"]
)
async def test_a_claim_does_not_wait_for_the_disk_and_what_follows_does(
    inbox: PostgresInboxAdapter, database_url: str, name: str
) -> None:
    row = inbox_row(1)
    await inbox.insert([row])
    id, token = row.message_id, uuid4()
    parameters = {
        "ids": [id],
        "again": [],
        "alone": True,
        "message_id": id,
        "token": token,
        "lease": LEASE,
        "max_attempts": 9,
        "exhausted": "",
        "expired": "",
    }
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(NOTE)
        assert connection.execute(statement(name), parameters | {"exhausted": ""}).rowcount == 1
        assert connection.execute(statement("inbox/mark_processed"), parameters).rowcount == 1
        assert connection.execute("SELECT setting FROM noted").fetchall() == [("off",), ("on",)]


async def test_a_claim_that_did_not_begin_is_undone_by_its_owner_only(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    row = inbox_row()
    await inbox.insert([row])
    waiting = stored(database_url, row)
    lost = await claimed(inbox, row)
    await inbox.unclaim([lost])
    assert stored(database_url, row) == waiting
    ours = await claimed(inbox, row)
    before = stored(database_url, row)
    await inbox.unclaim([lost])
    assert stored(database_url, row) == before
    assert await inbox.mark_all_processed([ours])
    after = stored(database_url, row)
    await inbox.unclaim([ours])
    assert stored(database_url, row) == after


def test_the_table_of_writes_is_complete() -> None:
    claims = {"claim", "claim_command", "claim_alone", "claim_many", "unclaim"}
    without = {
        "insert",
        "overdue",
        "waiting",
        "missing",
        "finished",
        "due",
        "unfinished",
        "ping",
        "let_go",
        "note_expiry",
    }
    methods = {name for name in vars(PostgresInboxAdapter) if not name.startswith("_")}
    assert methods - claims - without == set(WRITES)
