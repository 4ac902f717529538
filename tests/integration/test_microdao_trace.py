"""Section 14 of the MicroDAO outbox: the trace of a request reaches the stream, each handler, and what follows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from relay import Outbox, RequestContext
from relay.devstack import NatsServer
from relay.domain.facts import MessageRetried
from relay.domain.limits import MAX_HEADERS
from relay.domain.traceparent import Trace
from tasks import TaskContext, schedule
from tests.integration.consuming import Subscription, subscribed
from tests.integration.handler_support import call, metadata, serving
from tests.integration.http_service import answering, calling
from tests.integration.microdao_support import Dao, connect
from tests.integration.publishing import Relay, engine_url, event
from tests.integration.python_handling import Vibe, handling
from tests.integration.tasking import Mail, tasking

pytestmark = pytest.mark.anyio

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
INVALID = ["", "00-0-0-00", TRACEPARENT.upper(), f"ff{TRACEPARENT[2:]}", "x" * 4_000]


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as sub:
        yield sub


def next_span(value: str | None) -> str:
    """The span of a header that belongs to the trace and is not the sender's own span."""
    trace = Trace.parse(value)
    assert trace is not None
    assert (trace.trace_id, trace.flags) == (TRACE, 1)
    assert trace.span_id != SPAN
    return trace.span_id


async def test_section_14_an_event_carries_the_trace_of_its_request_to_the_stream(relay: Relay) -> None:
    await relay.create_stream()
    with RequestContext(traceparent=TRACEPARENT).use():
        relay.add(event("1"), event("2", headers={"Traceparent": "its own"}))
    with RequestContext(traceparent="no trace").use():
        relay.add(event("3"))
    relay.add(event("4"))
    await relay.drained()
    sent = [message.headers for message in await relay.messages()]
    assert [headers.get("traceparent") for headers in sent] == [TRACEPARENT, None, None, None]
    assert sent[1]["Traceparent"] == "its own"


async def test_section_14_an_insert_by_sql_carries_the_trace_to_the_stream_too(relay: Relay) -> None:
    await relay.create_stream()
    dao = Dao(relay)
    given = [TRACEPARENT, None, *INVALID]
    with connect(relay.url) as connection:
        for number, value in enumerate(given):
            connection.execute(
                b"INSERT INTO microdao.outbox_events (id, stream, topic, payload, traceparent)"
                b" VALUES (%s, %s, %s, '{}', %s)",
                (f"evt_{number}", dao.stream, dao.topic(), value),
            )
    await relay.drained(relay.command(envelope="raw"))
    sent = [message.headers.get("traceparent") for message in await relay.messages()]
    assert sent == [row["traceparent"] for row in dao.rows()] == [TRACEPARENT, *[None] * (len(given) - 1)]


async def test_section_14_a_trace_never_makes_an_event_fail(relay: Relay) -> None:
    full = {f"Note-{number}": "x" for number in range(MAX_HEADERS)}
    with RequestContext(traceparent=TRACEPARENT).use():
        relay.add(event(headers=full))
    [row] = relay.unpublished()
    await relay.create_stream()
    await relay.drained()
    [message] = await relay.messages()
    assert full.items() <= message.headers.items()
    assert "traceparent" not in message.headers
    assert relay.row(row["id"])["publish_error"] is None


async def test_section_14_a_service_gets_the_trace_each_call_as_a_span_of_its_own(sub: Subscription) -> None:
    async with calling(answering("503 Service Unavailable")) as (handler, service):
        process = sub.process(handler)
        id = await sub.received(traceparent=TRACEPARENT)
        await process.process(id)
        await sub.query("UPDATE inbox_messages SET next_attempt_at = now()")
        await process.process(id)
    assert len({next_span(seen.headers["traceparent"]) for seen in service.seen}) == 2
    retried = [fact.trace_id for fact in sub.facts if isinstance(fact, MessageRetried)]
    assert retried == [TRACE, TRACE]


@pytest.mark.parametrize("header", ["traceparent", "Traceparent"])
async def test_section_14_python_handlers_work_in_the_trace_and_so_does_what_follows(
    sub: Subscription, header: str
) -> None:
    seen: list[str | None] = []

    def handle(vibe: Vibe, connection: psycopg.Connection[Any]) -> None:
        seen.append(RequestContext.current().traceparent)
        Outbox("down").add(connection, event())
        schedule(connection, "mail", {"n": 1}, registered=False)

    async with handling(sub) as calls:
        body = {"event_type": "vibe_created", "event_version": 1, "payload": {"title": "x"}}
        id = await sub.send(json.dumps(body).encode(), **{header: TRACEPARENT})
        await sub.pull().accept(await sub.fetch())
        await calls.process(calls.handler(handle)).process(id)
    next_span(seen[0])
    [follow_up] = await sub.query("SELECT headers FROM outbox_events")
    [task] = await sub.query("SELECT metadata FROM task_outbox")
    assert follow_up["headers"] == task["metadata"] == {"traceparent": seen[0]}


async def test_section_14_a_task_works_in_the_trace_of_whoever_scheduled_it(database_url: str) -> None:
    seen: list[RequestContext] = []

    def look(mail: Mail, context: TaskContext) -> None:
        seen.append(RequestContext.current())

    async with tasking(database_url) as tasks:
        tasks.register(look)
        with RequestContext(traceparent=TRACEPARENT).use():
            ids = tasks.schedule(Mail(n=1))
        with RequestContext(traceparent="no trace").use():
            ids += tasks.schedule(Mail(n=2), Mail(n=3), metadata={"traceparent": 7})
        for id in ids:
            await tasks.run(id)
    next_span(seen[0].traceparent)
    assert seen[0].trace_id == TRACE
    assert [context.traceparent for context in seen[1:]] == [None, None]


@pytest.mark.parametrize("value", INVALID)
async def test_section_14_an_invalid_trace_is_ignored_and_breaks_nothing(sub: Subscription, value: str) -> None:
    async with calling(answering("200 OK")) as (handler, service):
        id = await sub.received(traceparent=value)
        await sub.process(handler).process(id)
    [seen] = service.seen
    assert "traceparent" not in seen.headers
    assert (await sub.row(id))["processed_at"] is not None


@pytest.mark.parametrize("kind", ["async", "sync", "starlette"])
async def test_section_14_a_service_of_ours_works_in_the_trace_of_its_call(database_url: str, kind: str) -> None:
    seen: list[str | None] = []

    def look(_received: object) -> None:
        seen.append(RequestContext.current().traceparent)

    metadata.create_all(create_engine(engine_url(database_url)))
    async with serving(kind, database_url) as service:
        service.body = look
        for headers in ({"traceparent": TRACEPARENT}, {"traceparent": "no trace"}, {}):
            assert (await service.post(call(), headers=headers)).status_code == 200
    next_span(seen[0])
    assert seen[1:] == [None, None]
