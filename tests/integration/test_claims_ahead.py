"""Messages that a worker claims before their turn: which, how they end, and how they are given back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext
from consumer.message_rows import ahead_on_loop
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.devstack import NatsServer
from relay.domain.reasons import code_of
from tests.integration.consuming import Handler, OneByOne, subscribed
from tests.integration.publishing import query
from tests.integration.python_handling import KINDS, WRITE, Handling, InThread, Vibe, handling, nothing

pytestmark = pytest.mark.anyio


@pytest.fixture
async def calls(database_url: str, nats_server: NatsServer) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        yield calls


def worker(calls: Handling, *functions: Callable[..., Any], **parts: Any) -> InThread:
    found = calls.process(calls.handler(*functions or (KINDS["sync_session"](nothing),)), **parts)
    assert isinstance(found, InThread)
    return found


async def rows(calls: Handling, ids: list[UUID]) -> list[dict[str, Any]]:
    return [await calls.sub.row(id) for id in ids]


async def test_only_what_was_never_tried_is_claimed_ahead_and_nobody_is_waited_for(calls: Handling) -> None:
    new, tried, locked, taken, later = ids = [await calls.received() for _ in range(5)]
    for id, change in (
        (tried, "attempts = 1"),
        (taken, "claim_token = gen_random_uuid(), claimed_until = now() + interval '1 hour'"),
        (later, "next_attempt_at = now() + interval '1 hour'"),
    ):
        query(calls.sub.url, f"UPDATE inbox_messages SET {change} WHERE message_id = %s", id)
    one = worker(calls)
    with psycopg.connect(calls.sub.url) as other:
        other.execute("SELECT 1 FROM inbox_messages WHERE message_id = %s FOR UPDATE", [locked])
        await asyncio.wait_for(asyncio.to_thread(one.claim_ahead, ids), 60)
    assert list(one.ahead._held) == [new]
    # What it did not get is claimed when its turn comes.
    assert [await one.process(id) for id in (new, tried, locked)] == [None] * 3
    assert [effect["message_id"] for effect in await calls.effects()] == [new, tried, locked]


async def test_one_that_was_tried_is_claimed_when_it_is_asked_for(calls: Handling) -> None:
    tried, new = [await calls.received() for _ in range(2)]
    query(calls.sub.url, "UPDATE inbox_messages SET attempts = 1 WHERE message_id = %s", tried)
    one = worker(calls)
    await asyncio.to_thread(one.claim_ahead, [])
    one.waiting = [new]
    assert one.ahead._capacity() == 1
    claim = await asyncio.to_thread(one.ahead.claim, tried)
    assert claim is not None
    assert (claim.row.message_id, claim.attempts, list(one.ahead._held)) == (tried, 2, [new])


async def test_what_is_given_back_is_as_if_nobody_had_taken_it(calls: Handling) -> None:
    ids = [await calls.received() for _ in range(4)]
    before = await rows(calls, ids)
    one = worker(calls)
    await asyncio.to_thread(one.claim_ahead, ids)
    assert [row["attempts"] for row in await rows(calls, ids)] == [1] * 4
    await asyncio.to_thread(one.ahead.close)
    assert await rows(calls, ids) == before
    assert [await one.process(id) for id in ids] == [None] * 4
    assert {row["attempts"] for row in await rows(calls, ids)} == {1}


async def test_the_loop_claims_what_waits_for_a_slot_and_gives_back_what_has_not_begun(calls: Handling) -> None:
    one, two, three, tried, four = ids = [await calls.received() for _ in range(5)]
    query(calls.sub.url, "UPDATE inbox_messages SET attempts = 1 WHERE message_id = %s", tried)
    before = await rows(calls, ids)
    waiting: list[UUID] = []
    messages = calls.sub.messages(handler := Handler())
    messages.ahead = ahead = ahead_on_loop(messages, calls.sub.inbox, lambda limit: waiting[:limit])
    assert ahead is not None
    # Twice, as nobody knows yet how quick they are.
    assert await ahead.claim(uuid4()) is None
    waiting = [two, tried, three, four]
    worker = OneByOne(messages)
    assert await worker.process(one) is None
    assert [row["attempts"] for row in await rows(calls, ids)] == [1, 1, 0, 1, 0]
    assert await worker.process(two) is None
    assert await worker.process(three) is None
    assert [request.message_id for request in handler.requests] == [one, two, three]
    await ahead.close()
    assert (await rows(calls, ids))[3:] == before[3:]
    assert [await calls.state(id) for id in ids] == ["processed"] * 3 + ["open"] * 2


async def test_the_loop_claims_in_their_turn_messages_with_one_attempt_or_an_order(calls: Handling) -> None:
    once = calls.sub.messages(Handler(), max_attempts=1)
    assert ahead_on_loop(once, calls.sub.inbox, lambda _: []) is None


async def test_a_claim_that_somebody_else_has_by_now_is_not_given_back(calls: Handling) -> None:
    stolen, ours = ids = [await calls.received() for _ in range(2)]
    before = await calls.sub.row(ours)
    one = worker(calls)
    await asyncio.to_thread(one.claim_ahead, ids)
    theirs = await calls.steal(stolen)
    await asyncio.to_thread(one.ahead.close)
    assert await rows(calls, ids) == [theirs, before]


async def test_a_message_that_may_be_tried_once_is_claimed_in_its_turn(calls: Handling) -> None:
    ids = [await calls.received() for _ in range(3)]
    one = worker(calls, max_attempts=1)
    while one.ahead._size <= len(ids):
        one.ahead._capacity()
    one.waiting = ids[1:]
    assert await one.process(ids[0]) is None
    assert [row["attempts"] for row in await rows(calls, ids)] == [1, 0, 0]


async def test_what_writes_nothing_is_marked_together_and_acknowledged(
    calls: Handling, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[int] = []
    mark_many = PostgresInboxAdapter.mark_all_processed

    async def count(self: Any, claims: Any) -> Any:
        marked.append(len(claims))
        return await mark_many(self, claims)

    monkeypatch.setattr(PostgresInboxAdapter, "mark_all_processed", count)

    def idle(vibe: Vibe, session: Session) -> None:
        """Ask for a session, and nothing of it."""

    ids = [await calls.received() for _ in range(6)]
    one = worker(calls, idle)
    one._completions.done._pause = 0.5
    await asyncio.to_thread(one.claim_ahead, ids)
    assert await asyncio.gather(*(one.process(id) for id in ids)) == [None] * 6
    assert sum(marked) == 6
    assert len(marked) <= 2
    assert [await calls.state(id) for id in ids] == ["processed"] * 6
    await calls.sub.acked()


async def test_a_transaction_of_the_function_cannot_commit_half(calls: Handling) -> None:
    """It is the first thing that it sends: a transaction of the driver's own would begin here."""

    def half(vibe: Vibe, connection: psycopg.Connection[Any], context: MessageContext) -> None:
        with connection.transaction():
            connection.execute(WRITE.format(context.message_id))
        raise RuntimeError("after all")

    def own(vibe: Vibe, connection: psycopg.Connection[Any]) -> None:
        connection.autocommit = True

    for function, error in ((half, "RuntimeError"), (own, "ProgrammingError")):
        id = await calls.received()
        one = worker(calls, function)
        await asyncio.to_thread(one.claim_ahead, [id])
        assert await one.process(id) is not None
        assert (await calls.sub.row(id))["last_error"].startswith(error)
    assert await calls.effects() == []


async def test_limits_and_the_end_of_the_row_hold_in_a_transaction_that_begins_late(calls: Handling) -> None:
    seen: list[Any] = []

    def look(vibe: Vibe, session: Session, context: MessageContext) -> None:
        seen.append(session.execute(text("SELECT current_setting('statement_timeout')")).scalar())
        session.execute(text(WRITE.format(context.message_id)))

    id = await calls.received()
    handler = calls.handler(look, timeout=7)
    one = calls.process(handler)
    assert isinstance(one, InThread)
    await asyncio.to_thread(one.claim_ahead, [id])
    assert await one.process(id) is None
    assert seen == ["6s"], "a statement ends a second before the limit"
    [effect] = await calls.sub.query("SELECT xmin::text AS xid FROM effects")
    [row] = await calls.sub.query("SELECT xmin::text AS xid FROM inbox_messages WHERE processed_at IS NOT NULL")
    assert effect == row


async def test_a_claim_ahead_that_was_lost_has_no_effect(calls: Handling) -> None:
    id = await calls.received()
    one = worker(calls)
    await asyncio.to_thread(one.claim_ahead, [id])
    theirs = await calls.steal(id)
    assert await one.process(id) is None
    assert (await calls.effects(), await calls.sub.row(id)) == ([], theirs)


async def test_a_function_whose_time_is_up_is_tried_again(calls: Handling) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(vibe: Vibe, session: Session) -> None:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(30)

    id = await calls.received()
    handler = calls.handler(hang, timeout=0.3, limit=timedelta(seconds=60))
    one = calls.process(handler)
    assert isinstance(one, InThread)
    await asyncio.to_thread(one.claim_ahead, [id])
    assert await one.process(id) is not None
    release.set()
    assert code_of((await calls.sub.row(id))["last_error"]) == "timeout"
    assert await calls.state(id) == "open"
