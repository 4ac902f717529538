"""`relay explain` on rows in tables, and on the same rows when they are archived."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from typer.testing import CliRunner, Result

from relay.cli import create_app
from relay.devstack import NatsServer
from relay.devstack.ports import free_port
from relay.domain.life import Life, Step
from relay.ops.queries import Explain, queries
from relay.settings import Settings
from tests.integration.archiving import ANN, Archive, archived
from tests.integration.publishing import event, query

pytestmark = pytest.mark.anyio
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SENT = f"00-{TRACE}-00f067aa0ba902b7-01"
KINDS = ["event", "publication", "message", "task", "incident", "action"]
CHAIN = """
    WITH message AS (
      INSERT INTO inbox_messages (message_id, subject, stream, stream_seq, subscription, event_type, received_at,
                                  processed_at, attempts, correlation_id, requeues, headers)
      VALUES (%(id)s, 's', %(stream)s, 1, 'from_up', 'e', now() - interval '100 days',
              now() - interval '100 days' + interval '2 seconds', 3, %(chain)s, 1,
              jsonb_build_object('Traceparent', %(sent)s::text))),
    incident AS (
      INSERT INTO dead_letters (message_id, subscription, subject, class, reason, attempts, recorded_at, status,
                                closed_at, closed_by, correlation_id, headers)
      VALUES (%(id)s, 'from_up', 's', 'exhausted', 'HTTP 503', 2, now() - interval '99 days', 'requeued',
              now() - interval '98 days', 'ann', %(chain)s, jsonb_build_object('traceparent', %(sent)s::text))
      RETURNING id),
    done AS (
      INSERT INTO audit_log (actor, action, ids, note)
      SELECT 'ann', 'dlq.requeue', ARRAY[id::text], 'mended' FROM incident),
    task AS (
      INSERT INTO task_outbox (id, type, payload, status, created_at, finished_at, causation_id, correlation_id,
                               metadata)
      VALUES (%(task)s, 'mail', '{"secret": "pears"}', 'completed', now() - interval '100 days',
              now() - interval '100 days' + interval '5 seconds', %(id)s, %(chain)s,
              jsonb_build_object('traceparent', %(sent)s::text)))
    SELECT id FROM incident
"""

DEEP = """
    INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, causation_id, correlation_id)
    VALUES (%s, 'made', 'case', 'v1', '{}', %s, %s)
"""
WIDE = """
    INSERT INTO inbox_messages (message_id, subject, stream, stream_seq, subscription, correlation_id, last_error)
    SELECT gen_random_uuid(), %(long)s, 'UP', i, 'from_up', %(id)s, %(long)s FROM generate_series(1, 600) AS i
    UNION ALL SELECT %(id)s, %(long)s, 'UP', 0, 'from_up', %(id)s, %(long)s
"""
MANY_ACTIONS = """
    WITH made AS (
      INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload)
      VALUES (%(id)s::uuid, 'made', 'case', 'v1', '{}'))
    INSERT INTO audit_log (actor, action, note, ids)
    SELECT 'ann', 'outbox.retry', repeat('n', 10000),
           (SELECT array_agg(gen_random_uuid()::text) FROM generate_series(1, 100)) || %(id)s::text
    FROM generate_series(1, 600)
"""


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        yield archive


def configuration(archive: Archive) -> dict[str, Any]:
    cold = {"after": "90d", "directory": str(archive.root)}
    return {"contexts": {archive.relay.context: {"database_url": archive.url, "archive": cold}}}


async def explain(archive: Archive, id: object, *, cold: bool = True) -> Life | None:
    bus = queries(Settings.model_validate(configuration(archive)))
    answer = await bus.ask_async(Explain(id=str(id), archive=cold))
    return getattr(answer, "value", None)


def kinds(life: Life | None) -> list[str]:
    def of(step: Step) -> list[str]:
        return [step.kind, *(kind for child in step.children for kind in of(child))]

    return [] if life is None else [kind for step in life.steps for kind in of(step)]


def traces(life: Life | None) -> list[tuple[str, str | None]]:
    def of(step: Step) -> list[tuple[str, str | None]]:
        return [(step.kind, step.trace_id), *(it for child in step.children for it in of(child))]

    return [] if life is None else [it for step in life.steps for it in of(step)]


async def chain(archive: Archive) -> tuple[UUID, UUID, UUID, int]:
    """An event that was handled at the third attempt, after an operator put it back, and the task it led to."""
    id, correlation, task = uuid4(), uuid4(), uuid4()
    archive.relay.add(event("v1", id=id, correlation_id=correlation, headers={"traceparent": SENT}))
    await archive.relay.drained()
    published = "now() - interval '100 days' + interval '1 second'"
    query(archive.url, f"UPDATE outbox_events SET published_at = {published} WHERE id = %s", id)
    which = {"id": id, "chain": correlation, "task": task, "stream": archive.relay.stream, "sent": SENT}
    with psycopg.connect(archive.url, autocommit=True) as connection:
        [(incident,)] = connection.execute(CHAIN, which).fetchall()
    return id, correlation, task, incident


async def test_any_id_of_a_chain_leads_to_all_of_it(archive: Archive) -> None:
    id, correlation, task, incident = await chain(archive)
    [row] = query(archive.url, "SELECT published_stream || ':' || published_seq AS place FROM outbox_events")
    for asked in (id, correlation, task, incident, row["place"]):
        assert kinds(await explain(archive, asked)) == KINDS, asked
    assert await explain(archive, uuid4()) is None


#: A place in a stream and an action carry no trace.
TRACED = [(kind, None if kind in ("publication", "action") else TRACE) for kind in KINDS]


async def test_each_step_names_its_trace_and_foreign_headers_harm_nothing(archive: Archive) -> None:
    id, *_ = await chain(archive)
    assert traces(await explain(archive, id)) == TRACED
    for headers in ('[1, "x"]', '"text"', "null", '{"traceparent": {"a": 1}}', f'{{"traceparent": "{TRACE}"}}'):
        for table in ("outbox_events", "inbox_messages", "dead_letters"):
            query(archive.url, f"UPDATE {table} SET headers = %s", headers)
        query(archive.url, "UPDATE task_outbox SET metadata = %s", headers)
        assert traces(await explain(archive, id, cold=False)) == [(kind, None) for kind in KINDS], headers


async def test_what_is_archived_is_found_as_before(archive: Archive) -> None:
    id, correlation, _, incident = await chain(archive)
    await archive.command().run(ANN)
    assert archive.in_table() == archive.in_table("inbox") == archive.in_table("tasks") == []
    for asked in (id, correlation, incident):
        life = await explain(archive, asked)
        assert kinds(life) == KINDS, asked
        assert life is not None
        assert life.steps[0].archived
        assert traces(life) == TRACED
    assert kinds(await explain(archive, id, cold=False)) == ["incident", "action"]


async def test_what_a_message_without_a_correlation_led_to_is_found_by_its_cause(archive: Archive) -> None:
    first, second = uuid4(), uuid4()
    archive.relay.add(event("v1", id=first), event("v2", id=second, causation_id=first, correlation_id=uuid4()))
    assert kinds(await explain(archive, first)) == ["event", "event"]


async def test_a_text_that_is_an_id_is_found(archive: Archive) -> None:
    archive.relay.add(event("v1", id="evt_of_another_system"))
    life = await explain(archive, "evt_of_another_system")
    assert life is not None
    assert [step.id for step in life.steps] == ["evt_of_another_system"]


# --- the command ---


def run(archive: Archive, tmp_path: Path, *arguments: str, url: str | None = None) -> Result:
    name = archive.relay.context
    (tmp_path / "relay.toml").write_text(f"[contexts.{name}]\n")
    environment = {"RELAY_CONFIG": str(tmp_path / "relay.toml"), "DATABASE_URL": url or archive.url}
    return CliRunner().invoke(create_app(("explain",)), ["explain", *arguments], env=environment)


async def test_the_command_draws_the_tree_without_payloads(archive: Archive, tmp_path: Path) -> None:
    id, *_ = await chain(archive)
    result = await asyncio.to_thread(run, archive, tmp_path, str(id))
    assert result.exit_code == 0, result.output
    assert "message from_up  processed, 3 attempts, took 2 s" in result.stdout
    assert "incident from_up  requeued, 2 attempts" in result.stdout
    assert "error: HTTP 503" in result.stdout
    assert "action dlq.requeue  by ann: mended" in result.stdout
    assert result.stdout.count(f"trace {TRACE}") == 4
    assert "pears" not in result.stdout
    as_json = json.loads((await asyncio.to_thread(run, archive, tmp_path, str(id), "--json")).stdout)
    assert (as_json["steps"][0]["id"], as_json["steps"][0]["trace_id"]) == (str(id), TRACE)


async def test_a_context_that_cannot_be_asked_is_named_and_the_status_is_1(
    archive: Archive, tmp_path: Path
) -> None:
    away = f"postgresql://u:s3cret@127.0.0.1:{free_port()}/x"
    result = await asyncio.to_thread(run, archive, tmp_path, "42", url=away)
    assert result.exit_code == 1
    assert "could not read" in result.stderr
    assert "s3cret" not in result.output


def deep(step: Step) -> int:
    return 1 + max(map(deep, step.children), default=0)


def all_of(life: Life) -> list[Step]:
    def of(step: Step) -> list[Step]:
        return [step, *(it for child in step.children for it in of(child))]

    return [it for step in life.steps for it in of(step)]


async def test_a_deep_chain_is_shown_in_pieces(archive: Archive) -> None:
    """Each event caused the next. No step is lost, and no reader of the tree needs a deep stack."""
    ids = [uuid4() for _ in range(450)]
    with psycopg.connect(archive.url) as connection:
        connection.cursor().executemany(
            DEEP, [(id, above, ids[0]) for id, above in zip(ids, [None, *ids[:-1]], strict=True)]
        )
    life = await explain(archive, ids[200])
    assert life is not None
    assert sorted(it.id for it in all_of(life)) == sorted(map(str, ids))
    assert max(map(deep, life.steps)) <= 60
    assert life.steps[1].details["cause"] in {it.id for it in all_of(life)}
    for how in ((), ("--json",)):
        result = await asyncio.to_thread(run, archive, archive.root.parent, str(ids[7]), *how)
        assert result.exit_code == 0, result.output[-300:]


async def test_a_life_is_small_whatever_its_rows_hold(archive: Archive) -> None:
    """Long names, chains of many rows, and actions on many ids: what is left out is said."""
    id = uuid4()
    with psycopg.connect(archive.url) as connection:
        connection.execute(WIDE, {"id": id, "long": "x" * 100_000})
        connection.execute(MANY_ACTIONS, {"id": str(id)})
    life = await explain(archive, id)
    assert life is not None
    assert life.cut
    found = json.dumps([asdict(it) for it in life.steps], default=str)
    assert len(found) < 3_000_000
    assert sum(it.kind == "action" for it in all_of(life)) == 500
