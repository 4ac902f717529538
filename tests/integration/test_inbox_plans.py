"""A list of messages reads no more than it counts, however many of them fail."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.paging import ends
from tests.integration.crowded import messages, repeatable
from tests.integration.plans import explain, held_to

ANY: dict[str, Any] = {
    **dict.fromkeys(
        [
            *(it.name for it in fields(MessageFilter)),
            "before_at",
            "before_id",
            "unless",
            "keys",
            "payload_path",
            "payload_value",
        ]
    ),
    **ends(PostgresMessageOperations.orders, {}),
}
UNFINISHED = ["waiting", "failing", "running", "parked"]
ALL = [*UNFINISHED, "dead", "processed"]
LISTS = [ALL, UNFINISHED, ["waiting", "failing"], ["failing"], ["processed"], ["dead"], ["dead", "processed"]]


def failing(conn: psycopg.Connection[Any]) -> None:
    repeatable(conn)
    messages(conn, 1, 3_000, "quiet")
    messages(conn, 3_001, 20_000, "busy", last_error="'refused'", attempts="1")
    conn.execute("VACUUM ANALYZE inbox_messages")


@pytest.mark.parametrize("statuses", LISTS, ids="-".join)
def test_those_that_fail_are_not_read_in_vain(database_url: str, statuses: list[str]) -> None:
    """They are newer than all that waits, so a search for what waits would read each of them."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        failing(conn)
        asked = {
            "statuses": statuses,
            "mixed": MessageFilter(statuses=statuses).mixed,
            "limit": 50,
            "counted": 1_000,
        }
        plan = explain(conn, "inbox/messages", **{**ANY, **asked})
    held_to(plan, 1_000, 1_000)
    # A page of the index and one of the table for each row that is counted, at most, and those of the page itself.
    assert plan.root["Shared Hit Blocks"] + plan.root["Shared Read Blocks"] < 1_500


def test_to_count_groups_each_row_is_read_by_its_place(database_url: str) -> None:
    """Ten thousand are: an index would be gone through for each of them once more."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        failing(conn)
        # As for a large table: this one is read whole more quickly.
        conn.execute("SET enable_hashjoin = off")
        conn.execute("SET enable_mergejoin = off")
        asked = {"statuses": ["failing"], "mixed": False, "limit": 10_000, "counted": 10_001}
        plan = explain(conn, "inbox/messages", **{**ANY, **asked})
    assert plan.indexes() == {"idx_inbox_failing"}
    assert not plan.read_whole()
    assert plan.root["Shared Hit Blocks"] + plan.root["Shared Read Blocks"] < 12_000
