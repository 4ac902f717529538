"""Rows that pages speak of, in two contexts: the incident 17, the key order:17, the aggregate vibe:42 …"""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import nats
import psycopg

from tests.integration.console_rows import event, failing_message, letter, number, task

CONFIG = """\
[contexts.vibespro]
[contexts.sea]
[contexts.sea.subscriptions.from_vibespro]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "http://127.0.0.1:9/handle"
order = "key"
failed_head = "park"
[contexts.sea.subscriptions.billing]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "http://127.0.0.1:9/handle"
[contexts.sea.subscriptions.newcomer]
stream = "VIBESPRO_EVENTS"
filter_subject = "vibespro.event.>"
handler = "http://127.0.0.1:9/handle"
[contexts.sea.archive]
after = "90d"
directory = "{archive}"
"""
#: The message of the incident 17, which the event became.
MESSAGE = UUID("019c0b7e-52c3-7a41-9d1c-5a0e3f1f2b77")
DEAD_EVENT = UUID("0198c0de-0000-7000-8000-000000000001")
FAILED_TASK = UUID("01932f7e-0000-7000-8000-000000000001")
ARCHIVED_OPERATION = UUID("018f0000-0000-7000-8000-000000000001")
#: What operators did before the reader comes: there is something to take back.
DONE_BEFORE = (
    ("outbox", "discard", str(number("given-up")), "--note", "a test", "--context", "vibespro"),
    ("inbox", "hold", str(number("kept-back")), "--note", "a test"),
    ("inbox", "discard", str(number("left-out")), "--note", "a test"),
    ("subscriptions", "pause", "from_vibespro", "--note", "charges twice"),
)
#: Ids of which pages show the beginning.
IDS = (DEAD_EVENT, FAILED_TASK, ARCHIVED_OPERATION)
#: How often something was published before that event.
PLACE = 42
TRACE = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
_JOB = "INSERT INTO scheduled_jobs (name, schedule) VALUES (%s, 'every 0.1 s')"
_LONG_AGO = "now() - interval '100 days'"
_REFUSED = "exhausted: 20 attempts, the last one: ConnectError: Connect call failed ('127.0.0.1', 9)"
_TIMEOUT = "exhausted: 20 attempts, the last one: time-out: no answer"


def fill(sea: str, vibespro: str) -> None:
    """Rows that are looked at, decided about and archived, in the databases of both contexts."""
    with psycopg.connect(vibespro) as connection:
        event(connection, "vibe", "published", id=MESSAGE, n=PLACE, chain=MESSAGE)
        connection.execute(
            "UPDATE outbox_events SET published_stream = 'VIBESPRO_EVENTS', aggregate_type = 'vibe',"
            f" aggregate_id = '42', partition_key = 'vibe:42', headers = '{TRACE}'".encode()
        )
        event(connection, "old", "published", about="43")
        connection.execute(
            "UPDATE outbox_events SET occurred_at = '2026-01-31T02:30Z', published_at = '2026-01-31T02:30Z',"
            " published_stream = NULL, published_seq = NULL WHERE aggregate_id = '43'"
        )
        event(connection, "dead", "dead", id=DEAD_EVENT, error="PAYLOAD_TOO_LARGE: 1.4 MB, the server takes 1 MB")
        event(connection, "failing", "failing", error="STREAM_MISSING: no stream takes vibespro.event.x.v1")
        event(connection, "wrong-price", payload='{"price": 0}')
        event(connection, "given-up")
        connection.execute(_JOB, ["publish:vibespro"])
    with psycopg.connect(sea) as connection:
        _incidents(connection)
        _waiting(connection)
        _tasks(connection)
        connection.execute(_JOB, ["publish:sea"])
        ended(connection)


def _incidents(connection: psycopg.Connection) -> None:
    where = {"subscription": "from_vibespro", "age": 600, "chain": MESSAGE}
    letter(connection, "refused", **where, reason=_REFUSED)
    letter(connection, "timeout", **where, id=MESSAGE, n=PLACE, reason=_TIMEOUT)
    connection.execute("UPDATE dead_letters SET id = 17 WHERE message_id = %s", [MESSAGE])
    connection.execute("UPDATE inbox_messages SET order_key = 'order:17' WHERE message_id = %s", [MESSAGE])
    connection.execute(
        "INSERT INTO parked_keys (subscription, order_key, message_id, reason)"
        " VALUES ('from_vibespro', 'order:17', %s, %s)",
        [MESSAGE, _TIMEOUT],
    )


def _waiting(connection: psycopg.Connection) -> None:
    """Messages that wait, and replays into the inbox: the third of them runs."""
    for name in ("wrong-price", "kept-back", "left-out"):
        failing_message(connection, name)
    connection.execute(
        "UPDATE inbox_messages SET partition_key = 'customer:47', body = %s WHERE message_id = %s",
        ['{"event_type": "order_placed", "payload": {"order": {"id": 47}}}', number("wrong-price")],
    )
    for state in ("finished", "stopped", "running"):
        connection.execute(
            "INSERT INTO inbox_replays (subscription, state, until, again, rate, actor)"
            " VALUES ('from_vibespro', %s, now(), false, 100, 'ann')",
            [state],
        )


def _tasks(connection: psycopg.Connection) -> None:
    named = {"type": "send_welcome_email"}
    task(connection, "failed", "failed", **named, id=FAILED_TASK, error="time-out: no answer within 5 s")
    task(connection, "runs", "delivered", **named)
    connection.execute(
        "UPDATE task_outbox SET claim_token = gen_random_uuid(), claimed_until = now() + interval '1 hour',"
        " started_at = now() WHERE status = 'delivered'"
    )
    task(connection, "waits", "pending", **named)


def ended(connection: psycopg.Connection) -> None:
    """What the archive takes: an event of sea, and a message."""
    event(connection, "seen", "published", id=uuid4(), about="42")
    connection.execute(
        "UPDATE outbox_events SET published_stream = NULL, published_seq = NULL, event_type = 'vibe_seen',"
        f" aggregate_type = 'vibe', partition_key = 'vibe:42', published_at = {_LONG_AGO}".encode()
    )
    connection.execute(
        "INSERT INTO inbox_messages (message_id, subject, stream, stream_seq, subscription, body, event_type,"
        f" received_at, processed_at, attempts, correlation_id) VALUES (%s, 'vibespro.event.e.v1',"
        f" 'VIBESPRO_EVENTS', 1, 'from_vibespro', '{{}}', 'e', {_LONG_AGO}, {_LONG_AGO}, 1, %s)".encode(),
        [uuid4(), ARCHIVED_OPERATION],
    )


def publish(nats_url: str) -> None:
    """Bring the event to its place in the stream, behind others."""

    async def run() -> None:
        client = await nats.connect(nats_url)
        js = client.jetstream()
        for place in range(1, PLACE + 1):
            id = str(MESSAGE if place == PLACE else uuid4())
            await js.publish("vibespro.event.vibe_created.v1", b"{}", headers={"Nats-Msg-Id": id})
        await client.close()

    asyncio.run(run())
