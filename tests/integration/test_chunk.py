"""A chunk is claimed and settled at once, and every message in it keeps a verdict of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from relay.adapters.postgres.inbox_chunks import PostgresChunks
from relay.devstack import NatsServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import HandlerAnswered, MessageProcessed, MessageRetried
from relay.domain.model import HandlerResult
from relay.execution import chunk
from relay.ports import HandlerRequest
from tests.integration.consuming import LEASE, SUBSCRIPTION, Handler, Subscription, subscribed
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
AT_ONCE = timedelta(0)


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


async def received(sub: Subscription, count: int, **headers: str) -> list[UUID]:
    sent = [await sub.send(**headers) for _ in range(count)]
    await sub.pull().accept(await sub.fetch())
    return sent


def by_message(answers: dict[UUID, int]) -> Handler:
    return Handler(lambda request: HandlerResult.from_status(answers[request.message_id], "why"))


async def states(sub: Subscription, ids: list[UUID]) -> list[str]:
    rows = {row["message_id"]: row for row in await sub.rows()}
    return [
        "processed" if rows[id]["processed_at"] else "dead" if rows[id]["dead_lettered_at"] else "open"
        for id in ids
    ]


async def test_each_message_of_a_chunk_has_the_end_of_its_own_answer(sub: Subscription) -> None:
    ok, poison, busy, again, gone = ids = await received(sub, 5)
    answers = dict(zip(ids, (200, 422, 503, 409, 404), strict=True))
    before = datetime.now(UTC)
    later = await sub.chunk(by_message(answers)).run(ids)
    after = datetime.now(UTC)
    assert set(later) == {busy, gone}
    assert timedelta(seconds=8) <= later[busy] <= timedelta(seconds=10)
    assert await states(sub, ids) == ["processed", "dead", "open", "processed", "open"]
    rows = {row["message_id"]: row for row in await sub.rows()}
    assert {row["attempts"] for row in rows.values()} == {1}
    assert {row["claim_token"] for row in rows.values()} == {None}
    errors = [None, "HTTP 422: why", "HTTP 503: why", None, "HTTP 404: why"]
    assert [rows[id]["last_error"] for id in ids] == errors
    due = rows[busy]["next_attempt_at"]
    assert before <= due - later[busy] <= after
    assert abs(rows[busy]["enqueued_at"] - due) < timedelta(seconds=1)
    [letter] = await sub.dead_letters()
    assert (letter["message_id"], letter["class"]) == (str(poison), "poison")
    assert {fact.message_id for fact in sub.facts if isinstance(fact, MessageProcessed)} == {ok, again}
    assert {fact.message_id for fact in sub.facts if isinstance(fact, MessageRetried)} == {busy, gone}
    assert len([fact for fact in sub.facts if isinstance(fact, HandlerAnswered)]) == 5

    async def two_are_open() -> bool:
        return await sub.unacked() == 2

    await eventually("all but those to be tried again are acknowledged", two_are_open)


async def test_an_unreadable_message_is_dead_lettered_and_its_chunk_goes_on(sub: Subscription) -> None:
    good = await sub.send()
    await sub.send(b"no json")
    await sub.pull().accept(await sub.fetch())
    handler = Handler()
    assert await sub.chunk(handler).run([row["message_id"] for row in await sub.rows()]) == {}
    assert [request.message_id for request in handler.requests] == [good]
    assert [letter["class"] for letter in await sub.dead_letters()] == ["poison"]
    await sub.acked()


@pytest.mark.parametrize("status", [200, 422, 503])
async def test_a_claim_lost_in_a_chunk_settles_that_message_for_nobody(sub: Subscription, status: int) -> None:
    lost, *others = ids = await received(sub, 4)
    taken: list[dict[str, Any]] = []

    async def answer(request: HandlerRequest) -> HandlerResult:
        if request.message_id == lost:
            expired = "UPDATE inbox_messages SET claimed_until = now() - interval '1 second' WHERE message_id = %s"
            await sub.query(expired, lost)
            assert await sub.inbox.claim(lost, LEASE) is not None
            taken.append(await sub.row(lost))
        return HandlerResult.from_status(status)

    later = await sub.chunk(Handler(answer)).run(ids)
    assert [await sub.row(lost)] == taken
    assert lost not in later
    assert lost not in {getattr(fact, "message_id", None) for fact in sub.facts}
    assert await states(sub, others) == [{200: "processed", 422: "dead", 503: "open"}[status]] * 3


async def test_what_was_tried_before_is_left_to_be_handled_alone(sub: Subscription) -> None:
    new, tried, finished, held = ids = await received(sub, 4)
    await sub.process(Handler.answering(503)).process(tried)
    await sub.query("UPDATE inbox_messages SET next_attempt_at = now() WHERE message_id = %s", tried)
    await sub.process(Handler()).process(finished)
    assert await sub.inbox.claim(held, LEASE) is not None
    handler = Handler()
    assert await sub.chunk(handler).run(ids) == {tried: AT_ONCE}
    assert [request.message_id for request in handler.requests] == [new]
    assert await sub.chunk(handler).run([new]) == {}


async def test_chunks_with_the_same_messages_handle_each_once(sub: Subscription) -> None:
    ids = await received(sub, 10)
    handler = Handler()
    chunks = [ids, ids[::-1], ids[3:], ids[:7]]
    await asyncio.gather(*(sub.chunk(handler).run(chunk) for chunk in chunks))
    assert sorted(request.message_id for request in handler.requests) == sorted(ids)


async def test_a_service_is_called_a_few_at_a_time(sub: Subscription) -> None:
    ids = await received(sub, 20)
    running = most = 0

    async def answer(_request: HandlerRequest) -> HandlerResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return HandlerResult.from_status(200)

    await sub.chunk(Handler(answer)).run(ids)
    assert most == chunk._MAX_CALLS
    assert await states(sub, ids) == ["processed"] * 20


async def test_the_claims_of_a_chunk_are_renewed_while_one_handler_works(sub: Subscription) -> None:
    lease = sub.lease = timedelta(seconds=1)
    slow, *others = ids = await received(sub, 3)

    async def answer(request: HandlerRequest) -> HandlerResult:
        if request.message_id == slow:
            first = (await sub.row(others[0]))["claimed_until"]

            async def renewed() -> bool:
                return all(row["claimed_until"] > first + lease for row in await sub.rows())

            await eventually("the leases of all outlive their first length", renewed)
        return HandlerResult.from_status(200)

    await sub.chunk(Handler(answer)).run(ids)
    assert await states(sub, ids) == ["processed"] * 3


async def test_what_could_not_be_recorded_is_not_acknowledged_and_comes_back(sub: Subscription) -> None:
    class Broken(PostgresChunks):
        async def settle(self, *_arguments: Any) -> set[UUID]:
            raise DatabaseUnreachable("away")

    ids = await received(sub, 3)
    with pytest.raises(DatabaseUnreachable):
        await sub.chunk(Handler(), claims=Broken(sub.pool)).run(ids)
    assert await sub.unacked() == 3
    assert not [fact for fact in sub.facts if isinstance(fact, MessageProcessed)]
    # The claims run out, the sweep brings the messages back, and they are handled after all: one by one.
    await sub.query("UPDATE inbox_messages SET claimed_until = now() - interval '1 second'")
    assert await sub.chunk(Handler()).run(ids) == dict.fromkeys(ids, AT_ONCE)
    for message_id in ids:
        await sub.process(Handler()).process(message_id)
    await sub.acked()


async def test_a_dead_letter_that_cannot_be_stored_holds_up_nobody_else(sub: Subscription) -> None:
    bad, good = ids = await received(sub, 2)
    await sub.js.delete_stream(sub.dlq)
    later = await sub.chunk(by_message({bad: 422, good: 200})).run(ids)
    assert set(later) == {bad}
    assert await states(sub, ids) == ["open", "processed"]
    await sub.create_dlq()
    await sub.query("UPDATE inbox_messages SET next_attempt_at = now()")
    handler = Handler()
    await sub.process(handler).process(bad)
    assert (await states(sub, [bad]), handler.requests) == (["dead"], [])


# --- order ---


async def test_a_chunk_takes_the_heads_of_its_keys_and_brings_the_next_ones(sub: Subscription) -> None:
    sub.keep_order()
    a1, a2, b1, c1, b2 = ids = [await sub.send(Relay_Partition_Key=key) for key in "aabcb"]
    await sub.pull().accept(await sub.fetch())
    assert sub.enqueued == [a1, b1, c1]
    handler = Handler()
    assert await sub.chunk(handler).run(ids) == {}
    assert {request.message_id for request in handler.requests} == {a1, b1, c1}
    assert sorted(sub.enqueued[3:]) == sorted([a2, b2])
    await sub.chunk(handler).run([a2, b2])
    assert await states(sub, ids) == ["processed"] * 5
    await sub.acked()


async def test_a_key_waits_for_its_head_to_be_tried_again_and_others_go_on(sub: Subscription) -> None:
    sub.keep_order()
    a1, a2, b1, b2 = ids = [await sub.send(Relay_Partition_Key=key) for key in "aabb"]
    await sub.pull().accept(await sub.fetch())
    later = await sub.chunk(by_message({a1: 503, b1: 200})).run([a1, b1])
    assert (set(later), sub.enqueued[2:]) == ({a1}, [b2])
    assert await sub.chunk(Handler()).run(ids) == {}
    assert await states(sub, ids) == ["open", "open", "processed", "processed"]
    assert a2 not in await sub.inbox.overdue(SUBSCRIPTION, 100)


async def test_what_an_operator_put_back_waits_for_the_one_that_runs_in_its_place(sub: Subscription) -> None:
    sub.keep_order()
    put_back, running, other = [await sub.send(Relay_Partition_Key=key) for key in "aab"]
    await sub.pull().accept(await sub.fetch())
    await sub.query("UPDATE inbox_messages SET requeues = 1 WHERE message_id = %s", put_back)
    claimed_until = "UPDATE inbox_messages SET claimed_until = now() + %s WHERE message_id = %s"
    await sub.query(claimed_until, timedelta(hours=1), running)
    handler = Handler()
    assert await sub.chunk(handler).run([put_back, other]) == {}
    assert [request.message_id for request in handler.requests] == [other]
    await sub.query(claimed_until, timedelta(0), running)
    assert await sub.chunk(handler).run([put_back]) == {}
    assert [request.message_id for request in handler.requests] == [other, put_back]


async def test_of_many_chunks_at_once_none_runs_two_messages_of_a_key(sub: Subscription) -> None:
    sub.keep_order()
    ids = [await sub.send(Relay_Partition_Key=key) for key in "abcd" * 6]
    await sub.pull().accept(await sub.fetch())
    order: dict[str, list[UUID]] = {key: [] for key in "abcd"}
    running: set[str] = set()

    async def answer(request: HandlerRequest) -> HandlerResult:
        key = request.headers["Relay-Partition-Key"]
        assert key not in running
        running.add(key)
        await asyncio.sleep(0.002)
        order[key].append(request.message_id)
        running.remove(key)
        return HandlerResult.from_status(200)

    async def work() -> None:
        while await sub.unacked():
            await sub.chunk(Handler(answer)).run(ids)

    await asyncio.gather(*(work() for _ in range(3)))
    assert order == {key: ids[place::4] for place, key in enumerate("abcd")}
