"""A list of dead letters reads no more than it counts, however many were closed long ago."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.incidents import PostgresIncidents
from relay.adapters.postgres.pool import connected
from relay.domain.incidents import IncidentFilter, IncidentStatus
from tests.integration.plans import explain

ANY: dict[str, Any] = dict.fromkeys(
    (
        "kinds",
        "subscription",
        "event_type",
        "partition_key",
        "reason",
        "unless",
        "since",
        "message_id",
        "message_name",
        "correlation_id",
        "before",
        "recorded_since",
        "recorded_until",
    )
)
LETTERS = """
    INSERT INTO dead_letters (message_id, subject, class, reason, letter_stream, letter_seq, status)
    SELECT gen_random_uuid(), 's', 'poison', 'r', 'D', n, CASE WHEN n % 50 = 0 THEN 'open' ELSE 'requeued' END
    FROM generate_series(1, 60000) AS n
"""


def test_a_list_of_dead_letters_is_read_through_its_indexes(database_url: str, subtests: pytest.Subtests) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("SELECT setseed(0.5)")
        conn.execute("ALTER TABLE dead_letters SET (autovacuum_enabled = off)")
        conn.execute(LETTERS.encode())
        conn.execute("VACUUM ANALYZE dead_letters")
        # Of the open ones all may be read, to put them in order: they are few.
        lists = ((["open"], 1_200), (["requeued"], 1_100), (None, 1_000))
        for (statuses, touched), confirmed in product(lists, (False, True)):
            with subtests.test(f"{statuses}, {confirmed=}"):
                asked = {**ANY, "statuses": statuses, "stored": statuses, "confirmed": confirmed}
                asked |= {"limit": 50, "counted": 1_000}
                plan = explain(conn, "incidents/incidents", **asked)
                assert plan.read_whole() == set()
                assert plan.touched <= touched


@pytest.mark.anyio
async def test_a_short_look_for_a_reason_reads_the_newest_letters_only(database_url: str) -> None:
    """A pattern takes long, and dead letters are many when a handler is away for a night."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(LETTERS.encode())
        conn.execute("UPDATE dead_letters SET recorded_at = now() + id * interval '1 ms', reason = 'x' || id")
        conn.execute("VACUUM ANALYZE dead_letters")
    async with connected(database_url, "test") as lend:
        store = PostgresIncidents(lend, window=100)
        for oldest, end in ((False, "since"), (True, "until")):
            wanted = IncidentFilter.usual(statuses=(IncidentStatus.OPEN,), reason="x")
            page = await store.find(wanted, 50, short=True, oldest=oldest)
            assert page.total in (100, 101)
            assert [name for name, at in asdict(page.reach["recorded"]).items() if at] == [end]
            whole = await store.find(wanted, 50, oldest=oldest)
            assert ([it["id"] for it in whole.items], whole.total) == ([it["id"] for it in page.items], 1_200)
