"""The statements of ordered subscriptions look at heads, however many messages wait behind them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from tests.integration.crowded import ID, repeatable
from tests.integration.plans import explain

ROWS, KEYS = 100_000, 10
FILL = f"""
    INSERT INTO inbox_messages (message_id, subject, subscription, stream, stream_seq, ack_subject, body,
                                event_type, event_version, order_key, order_seq, enqueued_at)
    SELECT {ID}, 's', 'sub', 'UP', n, '', '', 'e', 1, 'k' || n % {KEYS}, n, NULL
    FROM generate_series(1, {ROWS}) AS n
"""


@pytest.fixture
def conn(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        repeatable(connection)
        connection.execute(FILL)
        connection.execute("INSERT INTO inbox_watermarks VALUES ('sub', 'UP', 1, 1000000)")
        connection.execute("VACUUM ANALYZE inbox_messages")
        yield connection


def looked_at(conn: psycopg.Connection[Any], name: str, **parameters: Any) -> float:
    """Run a statement, roll it back; how many rows its busiest step has touched in all."""
    return explain(conn, name, **parameters).touched


def at(conn: psycopg.Connection[Any], seq: int) -> UUID:
    row = conn.execute("SELECT message_id FROM inbox_messages WHERE order_seq = %s", [seq]).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def test_nothing_looks_at_the_tail_of_a_key(conn: psycopg.Connection[Any]) -> None:
    head, last = at(conn, 5), at(conn, ROWS)
    rules = {"max_attempts": 20, "exhausted": "x", "expired": "x"}
    claim = {"token": uuid4(), "lease": timedelta(seconds=8), **rules}
    for id in (head, last):
        assert looked_at(conn, "inbox/claim+in_turn", message_id=id, **claim) <= 2
        assert looked_at(conn, "inbox/claim_many+in_turn", ids=[id], again=[], alone=True, **claim) <= 2
    assert looked_at(conn, "inbox/next_of_keys", subscription="sub", order_keys=["k5"]) <= 2
    sweep = {"subscription": "sub", "limit": 1000, "grace": timedelta(seconds=5), "failed": False}
    assert looked_at(conn, "inbox/overdue_ordered", **sweep) <= 2 * KEYS
    ids = [at(conn, seq) for seq in (1, 2, 50_000, 99_000)]
    assert looked_at(conn, "inbox/promote", ids=ids) <= 2 * len(ids)


def test_a_batch_is_compared_with_heads_only(conn: psycopg.Connection[Any]) -> None:
    count = 300
    same: dict[str, Any] = dict.fromkeys(
        (
            "occurred_at",
            "partition_key",
            "correlation_id",
            "causation_id",
            "originals",
            "reason",
            "kind",
            "source_id",
        ),
        [None] * count,
    )
    texts = {name: ["x"] * count for name in ("subject", "ack_subject", "event_type")}
    batch = {
        **same,
        **texts,
        "message_id": [uuid4() for _ in range(count)],
        "subscription": ["sub"] * count,
        "stream": ["UP"] * count,
        "stream_seq": [ROWS + n for n in range(count)],
        "order_seq": [ROWS + n for n in range(count)],
        "body": [b""] * count,
        "headers": ["{}"] * count,
        "event_version": [1] * count,
        "order_key": [f"k{n % KEYS}" for n in range(count)],
    }
    assert looked_at(conn, "inbox/insert_ordered", mark=10**9, **batch) <= count
