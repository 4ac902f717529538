"""A database with much of everything: what waits, what is finished, what failed, died or is delayed."""

from __future__ import annotations

from tests.integration.plans import Connection

BACKLOG, FINISHED, KEYS = 100_000, 200_000, 5_000
#: Ids that are scattered as random ones are, and the same in each run.
ID = "md5(random()::text)::uuid"


def repeatable(conn: Connection) -> None:
    """Have the same rows get the same plans in each run: the same ids, statistics of all rows, and no other's.

    Of a large table ANALYZE reads a random sample, and autovacuum may do so at any moment: two plans that cost
    about the same would change places from run to run.
    """
    conn.execute("SELECT setseed(0.5)")
    conn.execute("SET default_statistics_target = 1500")  # samples 300 rows for each: more than any table here has
    for table in ("outbox_events", "inbox_messages", "task_outbox"):
        conn.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)".encode())


def events(conn: Connection, count: int, key: str, **columns: str) -> None:
    """Insert into the outbox; ``key`` and ``columns`` are expressions of ``n``, the number of the row."""
    of_event = {
        "aggregate_type": "'vibe'",
        "aggregate_id": "'1'",
        "event_type": "'vibe_created'",
        "payload": "'{}'",
    }
    _insert(conn, "outbox_events", 1, count, {"id": ID, **of_event, "partition_key": key, **columns})


def messages(conn: Connection, first: int, count: int, subscription: str, **columns: str) -> None:
    """Insert into the inbox, a hundred for each tenth of a second, the first of all ten minutes ago."""
    came = "now() - interval '10 min' + n / 100 * interval '100 ms'"
    texts = dict.fromkeys(("subject", "stream", "ack_subject", "body", "event_type"), "'x'")
    own = {"message_id": ID, "subscription": f"'{subscription}'", "stream_seq": "n"}
    _insert(
        conn, "inbox_messages", first, count, texts | own | {"enqueued_at": came, "received_at": came} | columns
    )


def tasks(conn: Connection, count: int, **columns: str) -> None:
    """Insert tasks of five queues."""
    own = {"id": ID, "type": "'mail'", "payload": "'{}'", "queue": "'q' || n % 5"}
    _insert(conn, "task_outbox", 1, count, own | columns)


def _insert(conn: Connection, table: str, first: int, count: int, columns: dict[str, str]) -> None:
    values = f"SELECT {', '.join(columns.values())} FROM generate_series({first}, {first + count - 1}) AS n"
    conn.execute(f"INSERT INTO {table} ({', '.join(columns)}) {values}".encode())


def crowd(conn: Connection) -> None:
    """Fill all tables."""
    repeatable(conn)
    conn.execute("SET synchronous_commit = off")
    with conn.transaction():  # of one time: what comes when does not depend on how quick the machine is
        _crowd_outbox(conn)
        _crowd_inbox(conn)
        _crowd_tasks(conn)
        _crowd_incidents(conn)
    conn.execute("VACUUM ANALYZE")


def _crowd_outbox(conn: Connection) -> None:
    failed, later, past = {"publish_attempts": "1"}, "now() + interval '1 hour'", "now() - interval '1 second'"
    ledger = {"published_stream": "'S'", "published_seq": "n"}
    events(conn, FINISHED, f"'key' || n % {KEYS}", published_at="now()", publish_attempts="1", **ledger)
    events(conn, BACKLOG, f"CASE WHEN n % 10 = 0 THEN '' ELSE 'key' || n % {KEYS} END")
    # Heads that failed a while ago, and one behind each.
    events(conn, 1_000, "'failed' || n", available_at=later, **failed)
    events(conn, 1_000, "'failed' || n")
    events(conn, 1_000, "'again' || n", available_at=past, **failed)
    events(conn, 1_000, "'dead' || n", dead_at="now()", **failed)
    events(conn, 10_000, "'later' || n", available_at=later)
    over = {"published_at": "now()", "dead_at": "now()"}
    events(conn, 1_000, "'discarded' || n", **over)
    events(conn, 1_000, "'expired' || n", expires_at=past, **over)


def _crowd_inbox(conn: Connection) -> None:
    messages(conn, 1, FINISHED, "busy", processed_at="clock_timestamp()")
    messages(conn, FINISHED, BACKLOG, "busy")
    messages(conn, FINISHED, 10, "quiet")
    # In the middle, so that a page of what waits is of nothing else.
    messages(conn, FINISHED + BACKLOG // 2, 1_000, "busy", dead_lettered_at="now() - n * interval '1 ms'")


def _crowd_incidents(conn: Connection) -> None:
    """An incident for each dead message and many old ones; all have alerted, but for a few."""
    letter = {"subject": "'s'", "class": "'poison'", "reason": "'x'", "alerted_at": "now()"}
    _insert(conn, "dead_letters", 1, FINISHED // 4, {"message_id": ID, "status": "'resolved'", **letter})
    conn.execute(
        "INSERT INTO dead_letters (message_id, subject, class, reason, alerted_at)"
        " SELECT message_id, 's', 'poison', 'x', now() FROM inbox_messages WHERE dead_lettered_at IS NOT NULL"
    )
    cause = {"class": "'failed_task'", "subject_type": "'task'", "subject": "'mail'", "reason": "'x'"}
    _insert(conn, "alerts", 1, FINISHED // 4, {**cause, "sent_at": "now() - n * interval '1 s'"})
    _insert(conn, "alerts", 1, 5, cause)


def _crowd_tasks(conn: Connection) -> None:
    later, delivered = "now() + interval '1 hour'", {"status": "'delivered'"}
    tasks(conn, FINISHED, status="'completed'", finished_at="now()")
    tasks(conn, BACKLOG)
    tasks(conn, 10_000, available_at=later)
    tasks(conn, BACKLOG, enqueued_at="now() - n * interval '1 ms'", **delivered)
    waiting = {"waits_for": "'room'", "next_attempt_at": later, **delivered}
    tasks(conn, 10_000, concurrency_key="'key' || n % 2", **waiting)
