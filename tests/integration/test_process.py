"""ProcessInboxMessage: what each answer of a handler leads to, and that one claim settles a message once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.devstack import NatsServer
from relay.domain.errors import DatabaseUnreachable
from relay.domain.facts import MessageDeadLettered, MessageProcessed, MessageRetried
from relay.domain.model import HandlerResult
from relay.domain.policies import DeadLetter, Retry
from relay.domain.reasons import code_of
from relay.ports import ClaimedMessage, HandlerRequest
from tests.integration.consuming import LEASE, Handler, Subscription, subscribed
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


# --- the answers (SDS-047 §3.3) ---


@pytest.mark.parametrize("status", [200, 204, 409])
async def test_processed_or_processed_before_is_recorded_and_acknowledged(sub: Subscription, status: int) -> None:
    message_id = await sub.received()
    assert await sub.process(Handler.answering(status)).process(message_id) is None
    row = await sub.row(message_id)
    assert row["processed_at"] is not None
    assert (row["attempts"], row["last_error"], row["dead_lettered_at"]) == (1, None, None)
    await sub.acked()
    [fact] = [fact for fact in sub.facts if isinstance(fact, MessageProcessed)]
    assert (fact.message_id, fact.attempts) == (message_id, 1)


async def test_poison_is_dead_lettered_and_acknowledged(sub: Subscription) -> None:
    message_id = await sub.received()
    assert await sub.process(Handler.answering(422)).process(message_id) is None
    row = await sub.row(message_id)
    assert row["dead_lettered_at"] is not None
    assert (row["processed_at"], row["attempts"], row["last_error"]) == (None, 1, "HTTP 422: why")
    [letter] = await sub.dead_letters()
    assert (letter["reason"], letter["class"]) == ("HTTP 422: why", "poison")
    await sub.acked()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (HandlerResult.from_status(500), "HTTP 500"),
        (HandlerResult.from_status(503, "busy"), "HTTP 503: busy"),
        (HandlerResult.from_status(404), "HTTP 404"),
        (HandlerResult.failed("time-out: no answer within 30 s"), "time-out: no answer within 30 s"),
    ],
)
async def test_a_transient_failure_is_noted_put_off_and_not_acknowledged(
    sub: Subscription, answer: HandlerResult, error: str
) -> None:
    message_id = await sub.received()
    before = datetime.now(UTC)
    delay = await sub.process(Handler(lambda _request: answer)).process(message_id)
    after = datetime.now(UTC)
    assert delay is not None
    assert timedelta(seconds=8) <= delay <= timedelta(seconds=10)
    row = await sub.row(message_id)
    assert (row["last_error"], row["attempts"], row["processed_at"]) == (error, 1, None)
    # What is returned to the queue and what the row says are one delay.
    assert before <= row["next_attempt_at"] - delay <= after
    assert await sub.unacked() == 1
    [fact] = [fact for fact in sub.facts if isinstance(fact, MessageRetried)]
    assert (fact.attempts, fact.error, fact.delay_seconds) == (1, error, delay.total_seconds())


async def test_a_foreign_message_reaches_its_handler_whole_and_is_told_with_both_ids(sub: Subscription) -> None:
    correlation, causation, before = uuid4(), uuid4(), datetime.now(UTC)
    body = json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": {"n": 1}}).encode()
    message_id = await sub.send(body, Relay_Correlation_Id=str(correlation), Relay_Causation_Id=str(causation))
    await sub.pull().accept(await sub.fetch())
    handler = Handler.answering(503, 200)
    command = sub.process(handler)
    await command.process(message_id)
    await due_now(sub)
    await command.process(message_id)
    requests = [json.loads(request.body) for request in handler.requests]
    stored = requests[0].pop("occurred_at")
    assert requests[1].pop("occurred_at") == stored
    assert (
        before - timedelta(minutes=1) < datetime.fromisoformat(stored) < datetime.now(UTC) + timedelta(minutes=1)
    )
    assert requests == [
        {
            "message_id": str(message_id),
            "subject": sub.subject,
            "event_type": "vibe_created",
            "event_version": 1,
            "correlation_id": str(correlation),
            "causation_id": str(causation),
            "payload": {"n": 1},
        }
    ] * 2  # fmt: skip
    assert handler.requests[0].correlation_id == correlation
    told = [fact for fact in sub.facts if isinstance(fact, MessageRetried | MessageProcessed)]
    assert [type(fact) for fact in told] == [MessageRetried, MessageProcessed]
    assert {(fact.correlation_id, fact.causation_id) for fact in told} == {(correlation, causation)}


async def test_a_message_whose_body_contradicts_its_subject_asks_no_handler(sub: Subscription) -> None:
    content = {"event_type": "vibe_created", "event_version": 1, "payload": {}, "subject": "sea.event.other.v1"}
    await sub.send(json.dumps(content).encode())
    await sub.pull().accept(await sub.fetch())
    handler = Handler.answering(200)
    await sub.process(handler).process(sub.enqueued[-1])
    [letter] = await sub.dead_letters()
    assert (handler.requests, letter["class"]) == ([], "poison")
    assert letter["reason"].startswith("MALFORMED_MESSAGE [subject]: contradicts what is known")
    await sub.acked()


async def due_now(sub: Subscription) -> None:
    await sub.query("UPDATE inbox_messages SET next_attempt_at = now()")


async def test_attempts_are_counted_and_the_last_one_ends_in_a_dead_letter(sub: Subscription) -> None:
    message_id = await sub.received()
    handler = Handler.answering(500, 502, 503)
    command = sub.process(handler, max_attempts=3)
    first = await command.process(message_id)
    await due_now(sub)
    second = await command.process(message_id)
    assert first is not None
    assert second is not None
    assert second > first
    await due_now(sub)
    assert await command.process(message_id) is None
    assert [request.attempt for request in handler.requests] == [1, 2, 3]
    [letter] = await sub.dead_letters()
    assert (letter["class"], letter["attempts"]) == ("exhausted", 3)
    assert code_of(letter["reason"]) == "status_503"
    assert letter["reason"].endswith(": why")
    await sub.acked()


async def test_a_message_succeeds_at_its_last_attempt(sub: Subscription) -> None:
    message_id = await sub.received()
    command = sub.process(Handler.answering(500, 200), max_attempts=2)
    await command.process(message_id)
    await due_now(sub)
    await command.process(message_id)
    assert (await sub.row(message_id))["processed_at"] is not None
    assert await sub.dead_letters() == []


async def test_a_message_that_is_finished_waiting_or_unknown_asks_no_handler(sub: Subscription) -> None:
    message_id = await sub.received()
    handler = Handler.answering(500)
    command = sub.process(handler)
    await command.process(message_id)
    assert await command.process(message_id) is None
    await due_now(sub)
    await sub.process(Handler()).process(message_id)
    assert await command.process(message_id) is None
    assert len(handler.requests) == 1


async def test_many_workers_with_one_message_make_one_call(sub: Subscription) -> None:
    message_id = await sub.received()
    handler = Handler()
    await asyncio.gather(*(sub.process(handler).process(message_id) for _ in range(8)))
    assert len(handler.requests) == 1


# --- the acknowledgement comes last ---


class Broken(PostgresInboxAdapter):
    """The inbox of a database that goes away when the row is to be settled."""

    async def mark_all_processed(self, claims: Sequence[ClaimedMessage]) -> Sequence[ClaimedMessage]:
        raise DatabaseUnreachable("away")

    async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
        raise DatabaseUnreachable("away")

    async def reject(self, claim: ClaimedMessage, disposition: DeadLetter) -> bool:
        raise DatabaseUnreachable("away")

    async def record_error(self, claim: ClaimedMessage, disposition: Retry) -> bool:
        raise DatabaseUnreachable("away")


@pytest.mark.parametrize("status", [200, 422, 503])
async def test_what_could_not_be_recorded_is_not_acknowledged_and_not_dead_lettered(
    sub: Subscription, status: int
) -> None:
    message_id = await sub.received()
    # A success is recorded a moment later, with others. Nobody waits for that.
    raised = nullcontext() if status == 200 else pytest.raises(DatabaseUnreachable)
    with raised:
        await sub.process(Handler.answering(status), inbox=Broken(sub.pool)).process(message_id)
    assert await sub.unacked() == 1
    assert await sub.dead_letters() == []
    assert [fact for fact in sub.facts if isinstance(fact, MessageProcessed | MessageRetried)] == []
    # The claim runs out, the sweep brings it back, and it is handled after all.
    await sub.query("UPDATE inbox_messages SET claimed_until = now() - interval '1 second'")
    await sub.process(Handler()).process(message_id)
    assert (await sub.row(message_id))["attempts"] == 2
    await sub.acked()


async def test_the_row_is_committed_when_the_acknowledgement_leaves(sub: Subscription) -> None:
    seen: list[Any] = []

    class Consumer:
        async def ack(self, replies: list[str]) -> None:
            seen.append((replies, (await sub.row(message_id))["processed_at"]))

    message_id = await sub.received()
    await sub.process(Handler(), consumer=Consumer()).process(message_id)
    [(replies, processed_at)] = seen
    assert replies == [(await sub.row(message_id))["ack_subject"]]
    assert processed_at is not None


# --- claims ---


@pytest.mark.parametrize("status", [200, 422, 503])
async def test_a_claim_lost_while_the_handler_ran_settles_nothing(sub: Subscription, status: int) -> None:
    taken: list[dict[str, Any]] = []

    async def lose(request: HandlerRequest) -> HandlerResult:
        await sub.query("UPDATE inbox_messages SET claimed_until = now() - interval '1 second'")
        assert await sub.inbox.claim(request.message_id, LEASE) is not None
        taken.append(await sub.row(request.message_id))
        return HandlerResult.from_status(status)

    message_id = await sub.received()
    assert await sub.process(Handler(lose)).process(message_id) is None
    assert [await sub.row(message_id)] == taken
    assert await sub.unacked() == 1
    assert await sub.dead_letters() == []
    settled = (MessageProcessed, MessageRetried, MessageDeadLettered)
    assert not [fact for fact in sub.facts if isinstance(fact, settled)]


async def test_the_claim_is_renewed_while_a_slow_handler_works(sub: Subscription) -> None:
    lease = sub.lease = timedelta(seconds=4)
    message_id = await sub.received()

    async def slow(request: HandlerRequest) -> HandlerResult:
        first = (await sub.row(message_id))["claimed_until"]

        async def renewed_often_enough() -> bool:
            await asyncio.sleep(0.2)
            # Had it lapsed in between, the call would have been cancelled.
            return bool((await sub.row(message_id))["claimed_until"] > first + lease)

        await eventually("the lease outlives its first length", renewed_often_enough)
        assert await sub.inbox.claim(message_id, LEASE) is None
        return HandlerResult.from_status(200)

    await sub.process(Handler(slow)).process(message_id)
    row = await sub.row(message_id)
    assert (row["processed_at"] is not None, row["attempts"], row["claimed_until"]) == (True, 1, None)


async def test_a_renewal_that_the_database_did_not_take_is_tried_again(sub: Subscription) -> None:
    sub.lease = timedelta(seconds=3)
    renewals: list[str] = []
    enough = asyncio.Event()

    class Stumbling(PostgresInboxAdapter):
        async def renew(self, claim: ClaimedMessage, lease: timedelta) -> bool:
            renewals.append("try")
            if len(renewals) == 1:
                raise DatabaseUnreachable("away")
            enough.set()
            return await super().renew(claim, LEASE)

    async def slow(_request: HandlerRequest) -> HandlerResult:
        await asyncio.wait_for(enough.wait(), 60)
        return HandlerResult.from_status(200)

    message_id = await sub.received()
    await sub.process(Handler(slow), inbox=Stumbling(sub.pool)).process(message_id)
    assert (await sub.row(message_id))["processed_at"] is not None


async def test_the_request_is_the_one_of_the_contract(sub: Subscription) -> None:
    message_id = await sub.received()
    handler = Handler()
    await sub.process(handler).process(message_id)
    [request] = handler.requests
    assert (request.message_id, request.subject, request.attempt) == (message_id, sub.subject, 1)
    body = json.loads(request.body)
    assert (body["message_id"], body["subject"]) == (str(message_id), sub.subject)
