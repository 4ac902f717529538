"""What a message without a correlation has caused is found by its cause, however much else is there."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relay.adapters.postgres.sql import statement
from tests.integration.crowded import events, repeatable, tasks
from tests.integration.plans import explain

CAUSE = uuid4()
ASKED: dict[str, Any] = {
    "ids": [],
    "correlations": [],
    "texts": [],
    "causes": [CAUSE],
    "stream": None,
    "seq": None,
    "limit": 500,
}


@pytest.mark.parametrize("kind", ["events", "tasks"])
@pytest.mark.parametrize("found", [0, 100])
def test_what_a_message_has_caused_is_read_and_nothing_else(database_url: str, kind: str, found: int) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        for cause, count in (("md5(n::text)::uuid", 20_000), ("NULL", 20_000), (f"'{CAUSE}'", found)):
            events(conn, count, "'key' || n", published_at="now()", causation_id=cause)
            tasks(conn, count, status="'completed'", finished_at="now()", causation_id=cause)
        conn.execute("VACUUM ANALYZE")
        assert len(conn.execute(statement(f"life/{kind}"), ASKED).fetchall()) == found
        plan = explain(conn, f"life/{kind}", **ASKED)
    assert plan.read_whole() == set()
    assert plan.touched <= 4 * found + 10
