"""What a failed event holds back where the ranges of a claim do not see it: the rule `relay_is_held_back`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.sql import statement
from relay.domain.ordering import LANES
from tests.integration.test_inbox_rules import weaken

Connection = psycopg.Connection[Any]

INSERT = """
INSERT INTO outbox_events
  (aggregate_type, aggregate_id, event_type, payload, partition_key, publish_attempts, available_at)
VALUES ('case', '1', 'opened', '{}', %s, %s, now() + %s::interval) RETURNING id::text
"""
#: More than the failed heads of a lane that a claim looks up beforehand.
IN_ONE_LANE = "SELECT 'k' || n FROM generate_series(1, 10000) AS n WHERE relay_lane('k' || n) = 7 LIMIT 12"
CLAIM = {
    "lanes": [*range(LANES)], "marks": [0] * (LANES + 1), "limit": 300, "dead_head_blocks": False, "apart": [],
}  # fmt: skip


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def add(conn: Connection, key: str, *, failed: bool = False, wait: str | None = None) -> str:
    [[id]] = conn.execute(INSERT, [key, int(failed), wait]).fetchall()
    return str(id)


def claimed(conn: Connection) -> set[str]:
    with conn.transaction(force_rollback=True):
        return {row[0] for row in conn.execute(statement("outbox/claim"), CLAIM).fetchall()}


def without_the_rule(conn: Connection) -> set[str]:
    weaken(conn, ("relay_is_held_back", "earlier.publish_attempts > 0", "false"))
    return claimed(conn)


def test_an_event_whose_delay_is_over_waits_behind_a_failed_one(conn: Connection) -> None:
    add(conn, "k", failed=True, wait="1 hour")
    late, other = add(conn, "k", wait="-1 second"), add(conn, "other", wait="-1 second")
    assert claimed(conn) == {other}
    assert without_the_rule(conn) == {other, late}


def test_of_many_failed_heads_in_a_lane_each_holds_its_key(conn: Connection) -> None:
    keys = [key for (key,) in conn.execute(IN_ONE_LANE).fetchall()]
    for key in keys:
        add(conn, key, failed=True, wait="1 hour")
    behind = {add(conn, key) for key in keys}
    assert claimed(conn) == set()
    assert without_the_rule(conn) & behind
