"""One trace through two services: from a request to an event, to handlers by HTTP and in Python, to tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from opentelemetry.trace import StatusCode

from relay import Outbox
from relay.devstack import NatsServer
from relay.domain.facts import Fact
from relay.domain.traceparent import Trace
from tasks import TaskContext, schedule
from tests.integration.consuming import Subscription, subscribed
from tests.integration.http_service import answering, calling
from tests.integration.publishing import Relay, event
from tests.integration.python_handling import Vibe, handling
from tests.integration.tasking import Mail, tasking
from tests.pages import code
from tests.tracing_support import Recorded, id_of, linked, parent_of, recording, trace_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as sub:
        yield sub


async def published(recorded: Recorded, sub: Subscription) -> None:
    """Publish all events of the database to the stream of a subscription."""
    async with Relay(sub.url, sub.nats_url, context=sub.name) as relay:
        await relay.drained()
        recorded.tell(relay.facts)


async def received(recorded: Recorded, sub: Subscription) -> Any:
    """Take what is in the stream into the inbox; returns the id of the one message that has come."""
    await sub.pull().accept(await sub.fetch())
    recorded.tell(sub.facts)
    return sub.enqueued.pop()


@pytest.mark.parametrize("ahead", [False, True])
async def test_what_a_request_causes_in_two_services_is_one_trace(
    recorded: Recorded, sub: Subscription, nats_server: NatsServer, ahead: bool
) -> None:
    def handle(vibe: Vibe, connection: psycopg.Connection[Any]) -> None:
        with recorded.tracer.start_as_current_span("own work"):
            Outbox("down").add(connection, event("2", payload={"title": "y"}))

    with psycopg.connect(sub.url) as connection, recorded.tracer.start_as_current_span("request"):
        Outbox(sub.name).add(connection, event("1", payload={"title": "x"}))
    await published(recorded, sub)
    async with handling(sub) as calls:
        calls.ahead = ahead
        await calls.process(calls.handler(handle)).process(await received(recorded, sub))
        recorded.tell(sub.facts)
    async with subscribed(sub.url, nats_server.url) as second, calling(answering("200 OK")) as (handler, service):
        await published(recorded, second)
        await second.process(handler).process(await received(recorded, second))
        recorded.tell(second.facts)

    request, own = recorded.one("request"), recorded.one("own work")
    made, followed = recorded.spans("create vibe_created")
    handled, called = recorded.spans("process from_upstream")
    path = [request, made, handled, own, followed, called]
    assert {trace_of(span) for span in path} == {trace_of(request)}
    assert [parent_of(span) for span in path] == [None, *(id_of(span) for span in path[:-1])]
    # Batches are apart from any trace, and lead to the events that were in them.
    batches = [*recorded.spans("send"), *recorded.spans("receive")]
    assert [linked(span) for span in batches] == [[id_of(made)], [id_of(followed)]] * 2
    assert trace_of(request) not in {trace_of(span) for span in batches}
    # The service got the span of its call, to be the parent of its own.
    trace = Trace.parse(service.seen[0].headers["traceparent"])
    assert trace is not None
    assert (int(trace.span_id, 16), trace.sampled) == (id_of(called), True)


async def test_each_attempt_is_a_span_and_a_failed_one_says_so(recorded: Recorded, sub: Subscription) -> None:
    id = await sub.received(traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    for status in ("503 Service Unavailable", "422 Unprocessable Content"):
        async with calling(answering(status)) as (handler, _service):
            await sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
            await sub.process(handler).process(id)
    recorded.tell(sub.facts)
    first, second = recorded.spans("process")
    assert id_of(first) != id_of(second)
    assert parent_of(first) == parent_of(second) == 0xBBBBBBBBBBBBBBBB
    assert [dict(it.attributes or {})["error.type"] for it in (first, second)] == ["transient", "poison"]
    assert first.status.status_code is StatusCode.ERROR


async def test_the_messages_of_a_chunk_have_spans_of_their_own(recorded: Recorded, sub: Subscription) -> None:
    body = json.dumps({"event_type": "vibe_created", "event_version": 1, "payload": {"title": "x"}}).encode()
    parents = [0xB0, 0xB1]
    for parent in parents:
        await sub.send(body, traceparent=f"00-{'a' * 32}-{parent:016x}-01")
    await sub.pull().accept(await sub.fetch())
    seen: list[int] = []

    def handle(vibe: Vibe, connection: psycopg.Connection[Any]) -> None:
        Outbox("down").add(connection, event())

    async with handling(sub) as calls:
        await sub.chunk(calls.handler(handle)).run(sub.enqueued)
    recorded.tell(sub.facts)
    spans = recorded.spans("process")
    seen = sorted(parent_of(span) or 0 for span in spans)
    assert seen == parents
    assert {parent_of(span) for span in recorded.spans("create")} == {id_of(span) for span in spans}


@pytest.mark.parametrize("threads", [False, True])
async def test_a_task_continues_the_trace_and_so_does_what_it_creates(
    recorded: Recorded, database_url: str, threads: bool
) -> None:
    def work(mail: Mail, connection: psycopg.Connection[Any], context: TaskContext) -> None:
        Outbox("down").add(connection, event())

    async with tasking(database_url) as tasks:
        tasks.threads = threads
        tasks.register(work)
        with psycopg.connect(database_url) as connection, recorded.tracer.start_as_current_span("request"):
            id = schedule(connection, "mail", Mail(n=1), within=tasks.registry)
        await tasks.run(id)
        facts: list[Fact] = tasks.facts
        recorded.tell(facts)
    path = [recorded.one(name) for name in ("request", "create mail", "process mail", "create vibe_created")]
    assert {trace_of(span) for span in path} == {trace_of(path[0])}
    assert [parent_of(span) for span in path] == [None, *(id_of(span) for span in path[:-1])]


#: A service that traces. When it starts, it does what the page prints.
_SERVICE = """
import os, sys
import psycopg
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from relay import Event, Outbox

provider, spans = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)
exec(sys.argv[1])
event = Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id="1", payload={})
with trace.get_tracer("shop").start_as_current_span("request"):
    with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
        Outbox("sea", undeclared=True).add(connection, event)
for span in spans.get_finished_spans():
    print(f"{span.name}: {span.context.trace_id:032x}")
"""


def test_the_line_of_the_page_records_the_creation_of_an_event(database_url: str) -> None:
    command = [sys.executable, "-c", _SERVICE, code("docs/how-to/tracing.md", "python", 1)]
    done = subprocess.run(command, env={"DATABASE_URL": database_url}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    created, request = (line.split(": ") for line in done.stdout.splitlines())
    assert (created[0], request[0]) == ("create vibe_created", "request")
    with psycopg.connect(database_url) as connection:
        [(sent,)] = connection.execute("SELECT headers ->> 'traceparent' FROM outbox_events").fetchall()
    assert created[1] == request[1] == sent.split("-")[1]
