"""Events and tasks of the size that is promised about: 350 bytes of JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final, LiteralString

import psycopg
from uuid_utils.compat import uuid7

from relay import Event
from relay.domain.envelopes import Outgoing, encode

TEXT: Final = "x" * 320
BATCH: Final = 300
#: A batch of large messages has so many characters.
_BATCH_TEXT: Final = 4_000_000

#: The moments differ, so that the textbook loop has an order to go by.
_FILL: Final[LiteralString] = """
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, partition_key, occurred_at)
SELECT uuidv7(), 'thing', 't' || n %% %(keys)s::int, 'made', jsonb_build_object('n', n, 'text', %(text)s::text),
       'thing:t' || n %% %(keys)s::int, now() - (%(count)s::int - n) * interval '1 ms'
FROM generate_series(1, %(count)s::int) AS n
"""
_PUBLISHED: Final[LiteralString] = """
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, payload, partition_key, occurred_at,
    published_at, publish_attempts, published_stream, published_seq)
SELECT uuidv7(), 'thing', 't' || n %% 200, 'made', jsonb_build_object('n', n, 'text', %(text)s::text),
       'thing:t' || n %% 200, now() - interval '1 day', now(), 1, 'BENCH_EVENTS', n
FROM generate_series(1, %(count)s::int) AS n
"""
#: Texts that compress to about a third, as payloads of applications do.
_OLD: Final[LiteralString] = """
INSERT INTO outbox_events (
    id, aggregate_type, aggregate_id, event_type, payload, partition_key, occurred_at,
    published_at, publish_attempts, published_stream, published_seq, correlation_id)
SELECT uuidv7(), 'thing', 't' || n %% 200, 'made',
       jsonb_build_object('n', n, 'text', repeat(md5(n::text) || ' lorem ipsum dolor sit amet ', 5)),
       'thing:t' || n %% 200, at, at, 1, 'BENCH_EVENTS', -n, gen_random_uuid()
FROM generate_series(1, %(count)s::int) AS n,
     LATERAL (SELECT now() - interval '100 days' + n * interval '1 ms' AS at)
"""
_TASKS: Final[LiteralString] = """
INSERT INTO task_outbox (id, type, payload)
SELECT uuidv7(), 'nothing', jsonb_build_object('n', n, 'text', %(text)s::text)
FROM generate_series(1, %(count)s::int) AS n
"""


def text_of(size: int) -> str:
    """Text of this length that cannot be compressed, always the same."""
    return random.Random(size).randbytes(size // 2 + 1).hex()[:size]


def payload(number: int, text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"n": number, "text": text, **more}


def event(number: int, *, name: str = "made", keys: int = 200, **more: Any) -> Event:
    return Event(
        event_type=name, aggregate_type="thing", aggregate_id=f"t{number % keys}", payload=payload(number, **more)
    )


def fill(connection: psycopg.Connection[Any], count: int, keys: int, text: str = TEXT) -> None:
    """Write a backlog over ``keys`` keys in the open transaction: its commit is the start of a drain."""
    connection.execute(_FILL, {"count": count, "keys": keys, "text": text})


def fill_published(connection: psycopg.Connection[Any], count: int) -> None:
    """Write events that were published long ago."""
    connection.execute(_PUBLISHED, {"count": count, "text": TEXT})


def fill_old(connection: psycopg.Connection[Any], count: int) -> None:
    """Write events that may be archived. No stream has their numbers."""
    connection.execute(_OLD, {"count": count})


def fill_tasks(connection: psycopg.Connection[Any], count: int) -> None:
    """Write tasks that do nothing in the open transaction."""
    connection.execute(_TASKS, {"count": count, "text": TEXT})


def wire_messages(context: str, name: str, count: int, text: str = TEXT) -> Iterator[list[tuple[str, str, bytes]]]:
    """Batches of messages (subject, id, body) as a publisher of ``context`` sends them."""
    batch = min(BATCH, max(_BATCH_TEXT // len(text), 1))
    for start in range(0, count, batch):
        yield [_wire_message(context, name, number, text) for number in range(start, min(start + batch, count))]


def _wire_message(context: str, name: str, number: int, text: str) -> tuple[str, str, bytes]:
    id, subject = str(uuid7()), f"{context}.event.{name}.v1"
    outgoing = Outgoing(
        id=id,
        subject=subject,
        event_type=name,
        event_version=1,
        occurred_at="2026-01-01T00:00:00.000000Z",
        correlation_id=None,
        causation_id=None,
        payload=json.dumps(payload(number, text)),
        headers={},
        partition_key=f"thing:t{number % 200}",
    )
    body, _ = encode("handler", outgoing)
    return subject, id, body
