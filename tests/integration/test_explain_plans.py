"""What a message without a correlation has caused is looked for among what ended since it was there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.adapters.postgres.life import Row
from relay.domain.life import Wanted
from relay.ops.explain.gathering import Found, _grown
from tests.integration.crowded import events, repeatable, tasks
from tests.integration.plans import explain

NOW = datetime.now(UTC)
CAUSE = uuid4()
ASKED: dict[str, Any] = {
    "ids": [],
    "correlations": [],
    "texts": [],
    "causes": [CAUSE],
    "caused_since": NOW - timedelta(hours=1),
    "stream": None,
    "seq": None,
    "limit": 500,
}


@pytest.mark.parametrize("kind", ["events", "tasks"])
def test_what_ended_before_the_cause_is_not_read(database_url: str, kind: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        long_ago, lately = "now() - interval '10 days'", "now() - interval '1 minute'"
        for at, count in ((long_ago, 20_000), (lately, 500)):
            events(conn, count, "'key' || n", occurred_at=at, published_at=at)
            tasks(conn, count, status="'completed'", created_at=at, finished_at=at)
        events(conn, 500, "'late' || n")
        tasks(conn, 500)
        tasks(conn, 500, status="'delivered'", enqueued_at="now()")
        conn.execute("VACUUM ANALYZE")
        plan = explain(conn, f"life/{kind}", **ASKED)
    assert plan.read_whole() == set()
    assert plan.touched <= 600


def found(**rows: list[Row]) -> Found:
    every = {"correlation_id": None, "causation_id": None, "originals": None}
    answer = Found()
    answer.add("sea", {kind: [{**every, **row} for row in some] for kind, some in rows.items()})
    return answer


def test_a_cause_whose_time_nobody_knows_is_looked_for_in_all() -> None:
    """Its row may be archived, and the time of a dead letter says nothing about when the handler ran first."""
    known: dict[str, list[Row]] = {
        "events": [{"id": CAUSE, "occurred_at": NOW}],
        "messages": [{"message_id": CAUSE, "received_at": NOW + timedelta(seconds=1)}],
    }
    letter: Row = {"id": 1, "message_id": UUID(int=1), "recorded_at": NOW}
    assert _grown(Wanted(), found(**known)).caused_since == NOW
    assert _grown(Wanted(), found(**known, incidents=[letter])).caused_since is None
    assert _grown(Wanted(), found()).caused_since is None
