"""The way of a dead letter: the verdict first, then the letter, then the row, then the acknowledgement."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable
from relay.domain.facts import MessageDeadLettered
from relay.domain.letters import letter_id
from relay.domain.policies import PublishOutcome
from relay.ports import ClaimedMessage
from tests.integration.consuming import Handler, Subscription, subscribed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as subscription:
        yield subscription


async def due_now(sub: Subscription) -> None:
    """The pause is over, and so is the lease of a worker that died."""
    past = "now() - interval '1 second'"
    await sub.query(f"UPDATE inbox_messages SET next_attempt_at = {past}, claimed_until = {past}")


async def test_a_dead_letter_tells_all_that_an_operator_needs(sub: Subscription) -> None:
    """EVT-047-002: message_id, original_subject, reason, attempts, and what it takes to mend and requeue it."""
    correlation, causation = uuid4(), uuid4()
    content = {
        "event_type": "vibe_created",
        "event_version": 1,
        "correlation_id": str(correlation),
        "causation_id": str(causation),
        "payload": {"title": "Grüße"},
    }
    message_id = await sub.send(json.dumps(content, ensure_ascii=False).encode(), Actor_Id="ann")
    await sub.pull().accept(await sub.fetch())
    await sub.process(Handler.answering(422)).process(message_id)
    [letter] = await sub.dead_letters()
    headers, subject, original = letter.pop("_headers"), letter.pop("_subject"), letter.pop("original")
    assert letter.pop("original_encoding") == "utf-8"
    assert letter == {
        "message_id": str(message_id),
        "occurrence": 1,
        "original_subject": sub.subject,
        "reason": "HTTP 422: why",
        "class": "poison",
        "attempts": 1,
        "subscription": "from_upstream",
        "stream": sub.stream,
        "stream_seq": 1,
        "event_type": "vibe_created",
        "correlation_id": str(correlation),
        "causation_id": str(causation),
        "headers": {"Nats-Msg-Id": str(message_id), "Actor-Id": "ann"},
    }
    assert json.loads(original) == content
    assert subject == f"{sub.context}.dlq.{sub.subject}"
    assert headers == {
        "Nats-Msg-Id": str(letter_id(sub.context, "from_upstream", message_id, 1)),
        "Relay-Dead-Letter": sub.context,
        "Nats-Expected-Stream": sub.dlq,
    }
    [fact] = [fact for fact in sub.facts if isinstance(fact, MessageDeadLettered)]
    assert fact == MessageDeadLettered(
        context=sub.context,
        subscription="from_upstream",
        message_id=message_id,
        correlation_id=correlation,
        causation_id=causation,
        original_subject=sub.subject,
        kind="poison",
        reason="HTTP 422: why",
        attempts=1,
    )


async def test_an_original_that_does_not_fit_is_left_out(sub: Subscription) -> None:
    """Escaped in JSON it grows; a message over the limit would cost the whole connection."""
    big = json.dumps(
        {"event_type": "vibe_created", "event_version": 1, "payload": '"' * 350_000}, ensure_ascii=False
    ).encode()
    message_id = await sub.send(big)
    await sub.pull().accept(await sub.fetch())
    await sub.process(Handler.answering(422)).process(message_id)
    [letter] = await sub.dead_letters()
    assert (letter["original"], letter["message_id"]) == (None, str(message_id))
    await sub.acked()


async def test_a_subject_too_long_to_repeat_is_cut(sub: Subscription) -> None:
    subject = f"{sub.name}.event." + ".".join(["x" * 60] * 30)
    message_id = await sub.send(subject=subject)
    await sub.pull().accept(await sub.fetch())
    await sub.process(Handler.answering(422)).process(message_id)
    [letter] = await sub.dead_letters()
    assert letter["original_subject"] == subject
    assert letter["_subject"] == f"{sub.context}.dlq.{subject}"[: len(letter["_subject"])]


# --- faults on the way ---


class Failing(NatsJetStreamPublisher):
    """The publisher, away for the first call. ``stored``: the letter arrived and only its PubAck was lost."""

    stored = False
    calls = 0

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
        self.calls += 1
        if self.calls > 1:
            return await super().publish(subject, payload, headers)
        if self.stored:
            await super().publish(subject, payload, headers)
        raise BrokerUnreachable("away")


@pytest.mark.parametrize("stored", [False, True])
async def test_an_outage_between_verdict_and_dead_letter_asks_no_handler_again(
    sub: Subscription, stored: bool
) -> None:
    message_id = await sub.received()
    handler, publisher = Handler.answering(422), Failing(sub.nats)
    publisher.stored = stored
    command = sub.process(handler, publisher=publisher)
    delay = await command.process(message_id)
    assert delay is not None
    row = await sub.row(message_id)
    assert (row["dead_letter_reason"], row["dead_lettered_at"]) == ("HTTP 422: why", None)
    assert row["claim_token"] is None
    assert row["next_attempt_at"] is not None
    assert await sub.unacked() == 1
    assert await command.process(message_id) is None  # not yet
    await due_now(sub)
    await command.process(message_id)
    assert len(handler.requests) == 1
    [letter] = await sub.dead_letters()
    assert (letter["attempts"], letter["reason"], letter["class"]) == (1, "HTTP 422: why", "poison")
    assert (await sub.row(message_id))["dead_lettered_at"] is not None
    await sub.acked()


@pytest.mark.parametrize("dies", ["before", "after"])
async def test_a_worker_that_dies_around_the_dead_letter_leaves_exactly_one(sub: Subscription, dies: str) -> None:
    class Killed(BaseException):
        """The process is gone: nothing behind this point runs."""

    class Publisher(NatsJetStreamPublisher):
        async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> PublishOutcome:
            if dies == "after":
                await super().publish(subject, payload, headers)
            raise Killed

    message_id = await sub.received()
    handler = Handler.answering(422)
    with pytest.raises(Killed):
        await sub.process(handler, publisher=Publisher(sub.nats)).process(message_id)
    assert await sub.unacked() == 1
    await due_now(sub)
    await sub.process(handler).process(message_id)
    assert len(handler.requests) == 1
    assert len(await sub.dead_letters()) == 1
    assert (await sub.row(message_id))["attempts"] == 1
    await sub.acked()


async def test_an_exhausted_message_is_not_tried_again_after_an_outage(sub: Subscription) -> None:
    message_id = await sub.received()
    handler, publisher = Handler.answering(500, 200), Failing(sub.nats)
    command = sub.process(handler, max_attempts=1, publisher=publisher)
    await command.process(message_id)
    await due_now(sub)
    await command.process(message_id)
    assert len(handler.requests) == 1
    [letter] = await sub.dead_letters()
    assert (letter["class"], letter["attempts"]) == ("exhausted", 1)


async def test_without_a_stream_for_them_dead_letters_wait_until_there_is_one(sub: Subscription) -> None:
    await sub.js.delete_stream(f"{sub.context.upper()}_DLQ")
    message_id = await sub.received()
    handler = Handler.answering(422)
    command = sub.process(handler)
    for _ in range(2):
        assert await command.process(message_id) is not None
        row = await sub.row(message_id)
        assert (row["dead_letter_reason"], row["dead_lettered_at"], row["attempts"]) == ("HTTP 422: why", None, 1)
        assert not [fact for fact in sub.facts if isinstance(fact, MessageDeadLettered)]
        await due_now(sub)
    assert await sub.unacked() == 1
    assert [replies async for replies in sub.inbox.waiting("from_upstream", 10)] == [[row["ack_subject"]]]
    await sub.create_dlq()
    assert await command.process(message_id) is None
    assert len(await sub.dead_letters()) == len(handler.requests) == 1
    await sub.acked()


async def test_a_dead_letter_whose_row_could_not_be_finished_is_not_sent_twice(sub: Subscription) -> None:
    class Broken(PostgresInboxAdapter):
        async def mark_dead_lettered(self, claim: ClaimedMessage) -> bool:
            raise DatabaseUnreachable("away")

    message_id = await sub.received()
    handler = Handler.answering(422)
    with pytest.raises(DatabaseUnreachable):
        await sub.process(handler, inbox=Broken(sub.pool)).process(message_id)
    assert await sub.unacked() == 1
    await due_now(sub)
    await sub.process(handler).process(message_id)
    assert len(await sub.dead_letters()) == len(handler.requests) == 1
    await sub.acked()


async def test_dead_letters_of_several_messages_at_once_are_one_each(sub: Subscription) -> None:
    ids = [await sub.received() for _ in range(3)]
    command = sub.process(Handler.answering(422))
    await asyncio.gather(*map(command.process, ids))
    letters: list[Any] = await sub.dead_letters()
    assert {letter["message_id"] for letter in letters} == {str(id) for id in ids}


async def test_a_message_that_waited_for_another_envelope_is_dead_and_not_stuck(sub: Subscription) -> None:
    """The subscription's envelope was changed while the message waited in the inbox."""
    message_id = await sub.received()
    handler = Handler.answering(200)
    await sub.process(handler, envelope="message-envelope").process(message_id)
    assert handler.requests == []
    [letter] = await sub.dead_letters()
    assert letter["class"] == "poison"
    assert "schema_version" in letter["reason"]
    assert (await sub.row(message_id))["dead_lettered_at"] is not None
