"""What the console has to show: two contexts with rows in every state, a chain across both, texts that bite."""

from __future__ import annotations

import json
from uuid import UUID, uuid5

import psycopg

#: Texts as an attacker would store them, for every field that a page shows.
BITE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><b>{{7*7}}"
URL = "javascript:alert(3)"

_SPACE = UUID("0192d1a0-0000-7000-8000-000000000000")
_NEW_EVENT = """
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at, correlation_id,
        causation_id, published_at, publish_attempts, publish_error, dead_at, published_stream, published_seq)
    VALUES (%(id)s, 'order', %(about)s, %(type)s, %(payload)s, now() - %(age)s * interval '1 s', %(chain)s,
        %(cause)s, CASE WHEN %(state)s = 'published' THEN now() - %(age)s * interval '1 s' + interval '42 ms' END,
        CASE WHEN %(state)s IN ('dead', 'failing') THEN 5 ELSE 0 END, %(error)s,
        CASE WHEN %(state)s = 'dead' THEN now() END,
        CASE WHEN %(state)s = 'published' THEN 'SEA_EVENTS' END,
        CASE WHEN %(state)s = 'published' THEN %(n)s END)
"""
_MESSAGE = """
    INSERT INTO inbox_messages (message_id, subject, stream, stream_seq, subscription, event_type, received_at,
        processed_at, attempts, correlation_id, last_error, body, dead_letter_reason, dead_letter_class,
        dead_lettered_at)
    VALUES (%(id)s, 'sea.event.order_placed.v1', 'SEA_EVENTS', %(n)s, %(subscription)s, %(type)s,
        now() - %(age)s * interval '1 s', CASE WHEN %(done)s THEN now() END, %(attempts)s, %(chain)s, %(reason)s,
        '{"event_type": "order_placed", "event_version": 1, "payload": {}}', %(reason)s, %(class)s,
        CASE WHEN %(class)s::text IS NOT NULL THEN now() END)
"""
_INCIDENT = """
    INSERT INTO dead_letters (message_id, subscription, subject, stream, stream_seq, event_type, class, reason,
        attempts, recorded_at, correlation_id, original)
    VALUES (%(id)s, %(subscription)s, 'sea.event.order_placed.v1', 'SEA_EVENTS', %(n)s, %(type)s, %(class)s,
        %(reason)s, %(attempts)s, now() - %(age)s * interval '1 s', %(chain)s, '{"payload": {"secret": "pears"}}')
"""
_TASK = """
    INSERT INTO task_outbox (id, type, payload, queue, status, created_at, finished_at, attempts, last_error,
        causation_id, correlation_id)
    VALUES (%(id)s, %(type)s, '{"user_id": 7}', %(queue)s, %(state)s, now() - %(age)s * interval '1 s',
        CASE WHEN %(state)s IN ('completed', 'failed', 'cancelled') THEN now() END, %(attempts)s, %(error)s,
        %(cause)s, %(chain)s)
"""
_REASONS = (
    ("exhausted: 20 attempts, the last one: time-out: no answer", "exhausted", 20, 9),
    ("HTTP 422: the order has no address", "deterministic", 1, 5),
    ("exhausted: 20 attempts, the last one: HTTP 503", "exhausted", 20, 3),
    ("MALFORMED_MESSAGE: is not a JSON object", "poison", 0, 1),
)

_WAITING = {
    "n": 9,
    "subscription": "billing",
    "type": "order_placed",
    "age": 12,
    "done": False,
    "chain": None,
    "class": None,
}


def number(text: str) -> UUID:
    """An id that is the same in every run."""
    return uuid5(_SPACE, text)


def event(connection: psycopg.Connection, name: str, state: str = "waiting", **more: object) -> UUID:
    values = {
        "about": f"o-{name}",
        "type": "order_placed",
        "payload": json.dumps({"order": name, "secret": "pears"}),
    }
    values |= {"age": 90, "chain": None, "cause": None, "error": None, "n": 1, "id": number(name), "state": state}
    connection.execute("SET relay.restoring = on")  # a row of any state
    connection.execute(_NEW_EVENT, {**values, **more})
    return number(name)


def letter(connection: psycopg.Connection, name: str, **more: object) -> UUID:
    """A message that died, and its incident."""
    values = {
        "id": number(name),
        "n": 1,
        "subscription": "billing",
        "type": "order_placed",
        "age": 400,
        "done": False,
    }
    values |= {"attempts": 20, "chain": None, "reason": "HTTP 503", "class": "exhausted", **more}
    connection.execute(_MESSAGE, values)
    connection.execute(_INCIDENT, values)
    return number(name)


def task(connection: psycopg.Connection, name: str, state: str = "pending", **more: object) -> UUID:
    values = {
        "id": number(name),
        "type": "send_invoice",
        "queue": "mail",
        "state": state,
        "age": 300,
        "attempts": 1,
    }
    values |= {"error": None, "cause": None, "chain": None, **more}
    connection.execute("SET relay.restoring = on")
    connection.execute(_TASK, values)
    return number(name)


def failing_message(connection: psycopg.Connection, name: str, **more: object) -> UUID:
    """A message that waits for its next attempt."""
    values = {**_WAITING, "id": number(name), "reason": None, "attempts": 3, **more}
    connection.execute(_MESSAGE, values)
    failing = "last_error = 'HTTP 503', next_attempt_at = now() + interval '9 s'"
    connection.execute(f"UPDATE inbox_messages SET {failing} WHERE message_id = %s".encode(), [number(name)])
    return number(name)


def fill(sea: str, land: str) -> None:
    """Rows in every state in two databases."""
    with psycopg.connect(sea) as connection:
        for n in range(1, 31):
            event(connection, f"published-{n}", "published", n=n, age=30 * n)
        for n in range(1, 8):
            event(connection, f"waiting-{n}", age=4 * n, type="order_paid" if n % 2 else "order_placed")
        event(connection, "failing", "failing", error="STREAM_MISSING: no stream takes sea.event.order_placed.v1")
        event(connection, "dead", "dead", error="PAYLOAD_TOO_LARGE: 1.4 MB, and the server takes 1 MB")
        chain = event(connection, "first", "published", n=31, age=700, chain=number("chain"))
        task(connection, "invoice", "completed", cause=chain, chain=number("chain"), age=699)
        for n, state in enumerate(("pending", "delivered", "completed", "cancelled")):
            task(connection, f"task-{n}", state)
        task(
            connection,
            "task-failed",
            "failed",
            attempts=5,
            error="SMTPServerDisconnected at mail.py:31: no greeting",
        )
    with psycopg.connect(land) as connection:
        for reason, kind, attempts, many in _REASONS:
            for n in range(many):
                more = {"reason": reason, "class": kind, "attempts": attempts, "n": n + 1, "age": 600 + 60 * n}
                letter(connection, f"{kind}-{attempts}-{reason[-3:]}-{n}", **more)
        letter(
            connection,
            "first",
            chain=number("chain"),
            age=699,
            reason="HTTP 422: no address",
            **{"class": "deterministic"},
        )
        second = event(connection, "second", "published", cause=chain, chain=number("chain"), n=1, age=650)
        task(
            connection,
            "ledger",
            "failed",
            cause=second,
            chain=number("chain"),
            age=640,
            error="KeyError at ledger.py:9",
        )


def fill_more(url: str) -> None:
    """Rows of the pages that are no lists of events, messages, dead letters or tasks."""
    with psycopg.connect(url) as connection:
        jobs = (
            "INSERT INTO scheduled_jobs (name, schedule, next_run_at) VALUES (%s, %s, now() + interval '1 hour')"
        )
        connection.execute(jobs, ["publish", "every 1 s"])
        connection.execute(jobs, ["nightly_report", "0 3 * * * (UTC)"])
        parked = (
            "INSERT INTO parked_keys (subscription, order_key, message_id, reason) VALUES ('billing', %s, %s, %s)"
        )
        for name in ("order:7", "order:9"):
            connection.execute(parked, [name, number(name), "HTTP 422: no address"])
        connection.execute(_MESSAGE, {**_WAITING, "id": number("waiting-message"), "reason": None, "attempts": 0})
        failing_message(connection, "failing-message")
        batch = """
            INSERT INTO archive_batches (kind, number, rows, size, sha256, first_id, first_at, last_id, last_at)
            VALUES ('outbox', 1, 5000, 412345, repeat('ab', 32), %(id)s, now() - interval '9 days', %(id)s, now())
        """
        connection.execute(batch, {"id": number("batch")})
        log = "INSERT INTO audit_log (actor, action, ids, note) VALUES ('ann', 'dlq.requeue', '{1,2}', 'mended')"
        connection.execute(log)
        recorded = """
            INSERT INTO history
                (step, kind, name, at, done, failed, waiting, oldest_seconds, dead, handling, waited)
            SELECT 'minute', kind, name, date_trunc('minute', now()) - n * interval '1 minute',
                   60 + n, n % 3, n, n, 2, '{"20": 40, "30": 20, "41": 1}', '{"33": 60}'
            FROM generate_series(0, 59) AS n,
                 (VALUES ('outbox', ''), ('subscription', 'billing'), ('task', 'send_a_rather_long_mail'))
                    AS it (kind, name)
            WHERE n NOT BETWEEN 20 AND 25
        """
        connection.execute(recorded)


def bite(url: str) -> dict[str, UUID]:
    """Rows whose every text bites; their ids."""
    with psycopg.connect(url) as connection:
        more = {"type": BITE, "error": BITE}
        found = {"events": event(connection, "bite", "dead", about=BITE, payload=json.dumps({BITE: BITE}), **more)}
        found["tasks"] = task(connection, "bite", "failed", queue=BITE, **more)
        found["message"] = letter(connection, "bite", subscription=BITE, type=BITE, reason=BITE)
        row = connection.execute("SELECT id FROM dead_letters").fetchone()
        note = "INSERT INTO audit_log (actor, action, ids, note) VALUES (%s, %s, %s, %s)"
        connection.execute(note, [BITE, "dlq.requeue", [str(row[0] if row else 0)], BITE])
        original = "UPDATE outbox_events SET originals = %s WHERE id = %s"
        connection.execute(original, [json.dumps({"id": URL}), found["events"]])
        connection.execute("UPDATE dead_letters SET headers = %s", [json.dumps({BITE: BITE})])
    return found
