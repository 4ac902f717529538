"""A core-NATS client that answers on the subjects of events: its answers count for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy

from relay.adapters.jetstream.client import Listener
from relay.domain.errors import Outage
from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: Whatever another client may say: its body, or its headers and body.
Answer = bytes | tuple[bytes, bytes]
NO_RESPONDERS = (b"NATS/1.0 503\r\n\r\n", b"")


def error(code: int, text: str, status: int = 400) -> bytes:
    return b'{"error":{"code":%d,"err_code":%d,"description":"%s"}}' % (status, code, text.encode())


#: Answers that have not the form of a PubAck, errors, false PubAcks, and what only the server may say.
ANSWERS: list[Answer] = [
    b"5",
    b"null",
    b'"x"',
    b"{}",
    b"\xff\xfe",
    b"x" * 900_000,
    b"[" * 100_000,
    b'{"error":5}',
    NO_RESPONDERS,
    (b"NATS/1.0 503\r\n\r\n", b"5"),
    (b"NATS/1.0 408 Request Timeout\r\n\r\n", b""),
    error(10097, "message header size exceeds maximum allowed of 64k"),
    error(10054, "message size exceeds maximum allowed"),
    error(10060, "expected stream does not match"),
    error(10077, "maximum messages exceeded", 503),
    error(10039, "jetstream not enabled for account"),
    error(1, "anything"),
    b'{"stream":null,"seq":"abc"}',
    b'{"stream":"\\u0000","seq":5}',
    b'{"stream":"NOBODY","seq":5}',
    b'{"stream":"%(own)s","seq":-5}',
    b'{"stream":"%(own)s","seq":1}',
    b'{"stream":"%(own)s","seq":12}',
    b'{"stream":"%(own)s","seq":12,"duplicate":true}',
    b'{"stream":"%(own)s","seq":999999}',
    b'{"stream":"%(own)s","seq":9223372036854775807}',
    b'{"stream":"%(other)s","seq":1}',
]
ROUNDS = 3


@asynccontextmanager
async def answering(relay: Relay, subject: str, answer: Answer) -> AsyncIterator[None]:
    """Answer everything on a subject, before the server does."""
    client = await nats.connect(relay.nats_url)
    headers, body = answer if isinstance(answer, tuple) else (b"", answer)

    async def reply(message: Any) -> None:
        size = len(headers), len(headers) + len(body)
        command = f"HPUB {message.reply} {size[0]} {size[1]}" if headers else f"PUB {message.reply} {size[1]}"
        await client._send_command(command.encode() + b"\r\n" + headers + body + b"\r\n")
        await client._flush_pending()

    await client.subscribe(subject, cb=reply)
    await client.flush()
    try:
        yield
    finally:
        await client.close()


async def hearing(relay: Relay, *answers: Answer, after: bool = False, late: float = 0.0) -> list[Any]:
    """Let answers arrive before each of the server's, or after it. ``late``: the server's come so much later.

    Returns the list of answers, which may grow.
    """
    client = await relay.nats.client()
    listen, loop = client.listen, asyncio.get_running_loop()
    foreign = [answer if isinstance(answer, tuple) else (None, answer) for answer in answers]

    async def listening(subject: str, listener: Listener) -> Any:
        if not subject.endswith(".*"):
            return await listen(subject, listener)

        def all_of_them(to: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
            ours = to, reply, data, headers
            others = [(to, b"", body, head) for head, body in foreign]
            for answer in [ours, *others] if after else others:
                listener(*answer)
            if late:
                loop.call_later(late, listener, *ours)
            elif not after:
                listener(*ours)

        return await listen(subject, all_of_them)

    client.listen = listening  # type: ignore[method-assign]
    return foreign


def bare(answer: Answer, relay: Relay, other: str = "") -> Answer:
    if isinstance(answer, tuple):
        return answer
    return answer.replace(b"%(own)s", relay.stream.encode()).replace(b"%(other)s", other.encode())


async def settled_by_its_stream(relay: Relay, events: int) -> None:
    rows = outbox_rows(relay.url)
    assert {row["published_stream"] for row in rows} == {relay.stream}
    assert sorted(row["published_seq"] for row in rows) == list(range(1, events + 1))
    assert {(row["publish_attempts"], row["dead_at"]) for row in rows} == {(1, None)}
    assert sorted(await relay.ids()) == sorted(str(row["id"]) for row in rows)


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
async def test_events_are_stored_once_and_settled_by_the_answer_of_their_stream(
    relay: Relay, answer: Answer
) -> None:
    await relay.create_stream()
    other = f"{relay.stream}_OTHER"
    await relay.admin(lambda js: js.add_stream(name=other, subjects=[f"{relay.context}.other.>"]))
    await relay.admin(lambda js: js.publish(f"{relay.context}.other.x", b"{}"))
    foreign = bare(answer, relay, other)
    await hearing(relay, foreign)
    async with answering(relay, f"{relay.context}.event.>", foreign):
        for number in range(ROUNDS):
            relay.add(*[event(f"v{number % 5}") for number in range(1 if number == 1 else 10)])
            await relay.drained()
    await settled_by_its_stream(relay, 21)


@pytest.mark.parametrize("after", [False, True])
async def test_several_answers_to_one_message_do_no_more_than_one(relay: Relay, *, after: bool) -> None:
    await relay.create_stream()
    await hearing(relay, *(bare(answer, relay) for answer in ANSWERS), after=after)
    relay.add(*[event(f"v{number % 5}") for number in range(20)])
    await relay.drained()
    await settled_by_its_stream(relay, 20)


@pytest.mark.parametrize("false", [b'{"stream":"%(own)s","seq":%(n)d}', b'{"stream":"S%(n)d","seq":1}', b"%(n)d"])
async def test_a_flood_of_answers_asks_the_server_little_and_ends_no_event(relay: Relay, false: bytes) -> None:
    await relay.create_stream()
    asked: list[str] = []
    listener = await nats.connect(relay.nats_url)

    async def count(message: Any) -> None:
        asked.append(message.subject)

    await listener.subscribe("$JS.API.>", cb=count)
    await listener.flush()
    foreign = await hearing(
        relay, *[bare(false.replace(b"%(n)d", b"%d" % (1_000 + n)), relay) for n in range(2_000)]
    )
    relay.add(*[event(f"v{number}") for number in range(5)])
    with suppress(Outage):
        await relay.command().drain(ALL)
    await listener.flush()
    await listener.close()
    assert len(asked) < 1_000, "for 10,000 false answers"
    assert {(row["dead_at"], row["publish_attempts"] <= 1) for row in outbox_rows(relay.url)} == {(None, True)}
    foreign.clear()
    await relay.drained()
    rows = outbox_rows(relay.url)
    assert sorted(row["published_seq"] for row in rows) == [1, 2, 3, 4, 5]
    assert sorted(await relay.ids()) == sorted(str(row["id"]) for row in rows)


@pytest.mark.parametrize("answer", [it for it in ANSWERS if len(it) < 1_000][::3], ids=str)
async def test_a_slow_server_and_a_quick_foreigner_cost_an_event_one_repeat(relay: Relay, answer: Answer) -> None:
    """An old event would wait for a minute if the server said that no stream takes it."""
    await relay.create_stream()
    old = relay.insert(
        topic=f"{relay.context}.event.x", occurred_at=datetime.now(UTC) - timedelta(days=1), partition_key="k"
    )
    await hearing(relay, bare(answer, relay), late=0.6)
    with suppress(Outage):
        await relay.command().drain(ALL)
    row = relay.row(old)
    assert row["dead_at"] is None
    assert row["publish_attempts"] <= 1
    assert row["available_at"] is None or row["available_at"] < datetime.now(UTC) + timedelta(seconds=1)


@pytest.mark.parametrize("seq", [5, 6, 7, 1_000])
async def test_a_full_stream_has_stored_nothing_whatever_others_say(relay: Relay, seq: int) -> None:
    """Also if the false PubAck follows a true one in its stream."""
    await relay.create_stream(max_msgs=6, discard=DiscardPolicy.NEW)
    for _ in range(5):
        await relay.admin(lambda js: js.publish(f"{relay.context}.event.x", b"{}"))
    foreign = await hearing(relay)
    relay.add(event("stored"))
    await relay.drained()
    relay.add(event("more"))
    foreign.append((None, b'{"stream":"%s","seq":%d}' % (relay.stream.encode(), seq)))
    for _ in range(ROUNDS):
        query(relay.url, "UPDATE outbox_events SET available_at = now() WHERE published_at IS NULL")
        with suppress(Outage):
            await relay.command().drain(ALL)
    assert [row["dead_at"] for row in relay.unpublished()] == [None]


@pytest.mark.parametrize(
    "answer", [NO_RESPONDERS, error(10054, "too large"), b'{"stream":"%(own)s","seq":6}', b"5"], ids=str
)
async def test_where_no_stream_takes_a_subject_nobody_ends_its_events(relay: Relay, answer: Answer) -> None:
    await relay.create_stream()
    lost = f"{relay.context}.nowhere.x"
    relay.add(*[event(f"lost{number}", topic=lost) for number in range(3)])
    async with answering(relay, lost, bare(answer, relay)):
        for _ in range(4):
            query(relay.url, "UPDATE outbox_events SET available_at = now()")
            await relay.command().drain(ALL)
    assert {(row["publish_attempts"], row["dead_at"]) for row in relay.unpublished()} == {(1, None)}
    assert len(relay.unpublished()) == 3


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
