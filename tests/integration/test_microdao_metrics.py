"""Section 15 of the MicroDAO outbox: what the metrics say is what has happened."""

from __future__ import annotations

import psycopg
import pytest
from prometheus_client import CollectorRegistry

from relay.adapters.postgres.sql import statement
from relay.domain.facts import OutboxEventsPublished
from relay.telemetry.metrics import MetricFacts
from tests.integration.publishing import ALL, Relay, event, open_backlog_reader
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LABELS: dict[str, list[str]] = {"subscription": [], "stream": [], "job": [], "type": []}


async def held(url: str) -> int:
    async with open_backlog_reader(url) as reader:
        return (await reader.backlogs()).held


async def test_section_15_the_total_count_is_estimated_without_reading_the_table(database_url: str) -> None:
    assert await held(database_url) == 0
    insert = (
        "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, published_at)"
        " SELECT gen_random_uuid(), 'vibe', n::text, 'e', '{}', now() FROM generate_series(1, 1000) AS n"
    )
    with psycopg.connect(database_url) as connection:
        # In one transaction: rows that ANALYZE has counted may else be reported after it, and count twice.
        connection.execute(insert)
        connection.execute("ANALYZE outbox_events")
        connection.commit()
        counted = [row[0] for row in connection.execute("EXPLAIN " + statement("outbox/held"))]

    async def known() -> bool:
        return await held(database_url) == 1_000

    await eventually("the statistics know the rows", known)
    assert not [line for line in counted if "outbox_events" in line and "Scan" in line]


async def test_section_15_latency_rate_and_errors_are_those_of_each_event(relay: Relay) -> None:
    """One event goes, one is refused: so many are counted, and the time of the one that went."""
    await relay.create_stream()
    relay.add(event("1"), event("2"))
    broken = relay.insert(topic="two words")
    await relay.command().drain(ALL)
    registry = CollectorRegistry()
    listener = MetricFacts({relay.context: LABELS}, registry)
    for fact in relay.facts:
        listener(fact)
    labels = {"context": relay.context}
    assert registry.get_sample_value("jetrelay_publish_seconds_count", labels) == 2
    [published] = [fact for fact in relay.facts if isinstance(fact, OutboxEventsPublished)]
    assert all(0 < seconds <= published.seconds for seconds in published.latencies)
    assert registry.get_sample_value("jetrelay_events_published_total", labels) == 2
    assert registry.get_sample_value("jetrelay_events_dead_total", labels) == 1
    assert relay.row(broken)["publish_error"].startswith("unrecoverable: ")
