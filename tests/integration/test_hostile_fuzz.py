"""Random valid values in every column that a producer may write: good events of other keys leave all the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from relay.adapters.postgres import grants
from tests.integration.publishing import ALL, Relay, event, query

pytestmark = pytest.mark.anyio

#: What PostgreSQL stores as text: everything but NUL and lone surrogates.
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
LONG = st.builds(lambda text, times: text * times, TEXT, st.sampled_from([1, 1, 1, 50, 2_000]))
NAMES = st.sampled_from(
    ["made", "a.b", "context.event.x.v1", "$JS.API.INFO", "_INBOX.x", "a.*", ">", "x.dlq.y", " ", ""]
)
TEXTS = st.one_of(NAMES, TEXT, LONG)
#: Literals as a client in any language may send them.
TIMES = st.sampled_from(
    [
        "-infinity",
        "infinity",
        "4713-01-01 BC",
        "0001-01-01",
        "1970-01-01",
        "2026-01-01",
        "9999-12-30",
        "294276-12-31",
    ]
)
INTS = st.one_of(st.sampled_from([-(2**31), -1, 0, 1, 2**31 - 1]), st.integers(-(2**31), 2**31 - 1))
NUMBERS = st.sampled_from(["1e131071", "-1e131071", "1e-16000", "9" * 5_000, "0.1", "-0", "18446744073709551616"])
JSON = st.one_of(
    NUMBERS,
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=8,
    ).map(json.dumps),
    st.integers(1, 1_500).map(lambda depth: "[" * depth + "]" * depth),
    st.dictionaries(
        st.sampled_from(
            ["Nats-Msg-Id", "Nats-Rollup", "id", "correlation_id", "traceparent", "Actor-Id", "A\r\nB"]
        ),
        st.one_of(TEXTS, INTS),
        max_size=3,
    ).map(json.dumps),
)
UUIDS = st.uuids().map(str)
#: By the columns of the grant, so that a new one is tried as well.
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(["aggregate_type", "aggregate_id", "event_type", "partition_key", "topic", "stream"], TEXTS),
    **dict.fromkeys(["occurred_at", "available_at", "published_at", "expires_at"], TIMES),
    **dict.fromkeys(["event_version", "publish_attempts"], INTS),
    **dict.fromkeys(["payload", "headers", "originals"], JSON),
    **dict.fromkeys(["id", "correlation_id", "causation_id"], UUIDS),
    "publish_error": TEXTS,
}
FIXED: dict[str, Any] = {"aggregate_type": "case", "aggregate_id": "1", "event_type": "made", "payload": "{}"}
ROW = st.fixed_dictionaries({}, optional=COLUMNS).map(lambda chosen: FIXED | chosen)


def test_every_column_that_a_producer_may_name_is_tried() -> None:
    given_rights = grants.TABLES["outbox_events"].application
    assert COLUMNS.keys() == set(given_rights.removeprefix("INSERT (").removesuffix(")").split(", "))


def insert_what_the_table_takes(url: str, rows: Sequence[dict[str, Any]]) -> int:
    """How many rows were taken. Each other is refused by a rule of the table, and by nothing else."""
    taken = 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET relay.restoring = off")
        for row in rows:
            names, marks = ", ".join(row), ", ".join(["%s"] * len(row))
            try:
                connection.execute(
                    f"INSERT INTO outbox_events ({names}) VALUES ({marks})".encode(), [*row.values()]
                )
            except (errors.IntegrityError, errors.DataError, errors.ProgramLimitExceeded):
                continue
            taken += 1
    return taken


async def test_whatever_a_producer_writes_good_events_of_other_keys_leave(relay: Relay) -> None:
    await relay.create_stream()
    rows: list[dict[str, Any]] = []

    @settings(max_examples=60, suppress_health_check=list(HealthCheck))
    @given(st.lists(ROW, min_size=8, max_size=8))
    def collect(some: list[dict[str, Any]]) -> None:
        rows.extend(some)

    collect()
    assert insert_what_the_table_takes(relay.url, rows) > 100
    good = [str(id) for id in relay.add(*[event(f"good{number}") for number in range(64)])]
    own = {relay.stream: [f"{relay.context}.event.>"]}
    command = relay.command(streams=own)
    for _ in range(3):
        await command.drain(ALL)
    left = "SELECT id FROM outbox_events WHERE id = ANY (%s) AND published_at IS NULL"
    assert query(relay.url, left, good) == []
    # Each other one is over, or waits: for its time, for a stream that it named, or behind one that does.
    waiting = query(
        relay.url,
        "SELECT event_type, publish_error FROM outbox_events AS e WHERE published_at IS NULL AND dead_at IS NULL"
        " AND (available_at IS NULL OR publish_attempts > 0)"
        " AND NOT EXISTS (SELECT FROM relay_is_held_back(e.partition_key, e.seq, e.generation, false))",
    )
    assert [row for row in waiting if not str(row["publish_error"]).startswith("STREAM_")] == []
