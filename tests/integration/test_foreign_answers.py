"""A core-NATS client that answers on the subjects of events: its answers count for nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest

from relay.adapters.jetstream.client import Listener
from tests.integration.publishing import ALL, Relay, event, outbox_rows
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: Answers that have not the form of a PubAck, and PubAcks of streams that do not hold the subject.
ANSWERS = [
    b"5",
    b"null",
    b'"x"',
    b"{}",
    b"[" * 100_000,
    b'{"error":5}',
    b'{"error":{"code":400,"err_code":10097,"description":"message header size exceeds maximum allowed of 64k"}}',
    b'{"stream":null,"seq":"abc"}',
    b'{"stream":"\\u0000","seq":5}',
    b'{"stream":"NOBODY","seq":5}',
    b'{"stream":"%(own)s","seq":-5}',
    b'{"stream":"%(other)s","seq":1}',
]
ROUNDS = 3


@asynccontextmanager
async def answering(relay: Relay, subject: str, answer: bytes) -> AsyncIterator[None]:
    """Answer everything on a subject, before the server does."""
    client = await nats.connect(relay.nats_url)

    async def reply(message: Any) -> None:
        await client.publish(message.reply, answer)

    await client.subscribe(subject, cb=reply)
    await client.flush()
    try:
        yield
    finally:
        await client.close()


async def first(relay: Relay, answer: bytes) -> None:
    """Let an answer arrive before each of the server's, as a client that is quicker than the stream would do."""
    client = await relay.nats.client()
    listen = client.listen

    async def listening(subject: str, listener: Listener) -> Any:
        def both(to: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
            listener(to, b"", answer, None)
            listener(to, reply, data, headers)

        return await listen(subject, both)

    client.listen = listening  # type: ignore[method-assign]


def bare(answer: bytes, relay: Relay, other: str) -> bytes:
    return answer.replace(b"%(own)s", relay.stream.encode()).replace(b"%(other)s", other.encode())


@pytest.mark.parametrize("answer", ANSWERS)
async def test_events_are_stored_once_and_settled_by_the_answer_of_their_stream(
    relay: Relay, answer: bytes
) -> None:
    await relay.create_stream()
    other = f"{relay.stream}_OTHER"
    await relay.admin(lambda js: js.add_stream(name=other, subjects=[f"{relay.context}.other.>"]))
    await relay.admin(lambda js: js.publish(f"{relay.context}.other.x", b"{}"))
    relay.add(*[event(f"v{number % 5}") for number in range(20)])
    await first(relay, bare(answer, relay, other))
    async with answering(relay, f"{relay.context}.event.>", bare(answer, relay, other)):
        for _ in range(ROUNDS):
            await relay.command().drain(ALL)
    rows = outbox_rows(relay.url)
    assert {row["published_stream"] for row in rows} == {relay.stream}
    assert sorted(row["published_seq"] for row in rows) == list(range(1, 21))
    assert {(row["publish_attempts"], row["dead_at"]) for row in rows} == {(1, None)}
    assert sorted(await relay.ids()) == sorted(str(row["id"]) for row in rows)


async def test_where_no_stream_answers_an_event_waits_alone(relay: Relay) -> None:
    """Its subject has only a foreign client: the others are published, and it is tried until there is one."""
    await relay.create_stream()
    lost = f"{relay.context}.nowhere.x"
    relay.add(*[event(f"lost{number}", topic=lost) for number in range(3)])
    relay.add(*[event(f"v{number}") for number in range(20)])
    async with answering(relay, lost, b'{"stream":"NOBODY","seq":5}'):
        await relay.command().drain(ALL)
        waiting = relay.unpublished()
        assert len(waiting) == 3
        assert {(row["publish_attempts"], row["dead_at"]) for row in waiting} == {(1, None)}
        assert all("is no stream answers on" in row["publish_error"] for row in waiting)
    await relay.admin(lambda js: js.add_stream(name=f"{relay.stream}_LOST", subjects=[lost]))

    async def published() -> bool:
        await relay.command().drain(ALL)
        return not relay.unpublished()

    await eventually("the events have left", published)


async def test_a_stream_that_stores_its_messages_under_another_subject_is_believed(relay: Relay) -> None:
    """A transform of the stream changes the stored subject, not the one that it takes."""
    await relay.create_stream()
    await relay.update_stream(
        subject_transform={"src": f"{relay.context}.event.>", "dest": f"{relay.context}.kept.>"}
    )
    relay.add(event("v1"))
    await relay.command().drain(ALL)
    assert relay.unpublished() == []
