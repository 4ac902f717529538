"""A run of a cron job is a span of its own, and what it creates belongs to its trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from relay import Outbox, RequestContext
from relay.domain.errors import DomainError
from relay.domain.facts import Fact
from relay.domain.traceparent import Trace
from relay.tracing import instrument, uninstrument
from tasks import schedule
from tests.integration.cron_bench import Bench, Work, benched
from tests.integration.publishing import event, query
from tests.integration.tasking import Mail
from tests.tracing_support import Recorded, id_of, parent_of, recording, trace_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    async with benched(database_url) as bench:
        yield bench


async def later() -> Work:
    return Work()


def work() -> Work:
    return Work()


def create(bench: Bench) -> None:
    with psycopg.connect(bench.url) as connection:
        Outbox("sea").add(connection, event())
        schedule(connection, "mail", Mail(n=1), registered=False)


@pytest.mark.parametrize("function", [work, later])
async def test_what_a_run_creates_belongs_to_the_trace_of_its_span(
    recorded: Recorded, bench: Bench, function: Any
) -> None:
    told: list[str | None] = []

    def hear(_fact: Fact) -> None:
        told.append(RequestContext.current().trace_id)

    bench.handle = lambda _: create(bench)
    bench.declare(function=function)
    run = await bench.open()
    worker = bench.worker(facts=hear)
    with recorded.tracer.start_as_current_span("of the worker"):
        await worker.run(run)
        await worker.run(run)  # done already: no span
    around, attempt = recorded.one("of the worker"), recorded.one("run job")
    created = [recorded.one("create vibe_created"), recorded.one("create mail")]
    assert (attempt.parent, attempt.kind, attempt.status.status_code) == (
        None,
        SpanKind.INTERNAL,
        StatusCode.UNSET,
    )
    assert trace_of(attempt) != trace_of(around)
    assert [(trace_of(it), parent_of(it)) for it in created] == [(trace_of(attempt), id_of(attempt))] * 2
    assert dict(attempt.attributes or {}) == {
        "jetrelay.context": "sea",
        "jetrelay.job": "job",
        "jetrelay.attempt": 1,
        "jetrelay.verdict": "processed",
        "messaging.message.conversation_id": str(bench.row()["correlation_id"]),
    }
    [event_row] = query(bench.url, "SELECT headers ->> 'traceparent' AS sent FROM outbox_events")
    [task_row] = query(bench.url, "SELECT metadata ->> 'traceparent' AS sent FROM task_outbox")
    carried = [Trace.parse(row["sent"]) for row in (event_row, task_row)]
    assert [it and int(it.span_id, 16) for it in carried] == [id_of(it) for it in created]
    # The log names the trace of the run.
    assert told == [f"{trace_of(attempt):032x}"]
    assert RequestContext.current().traceparent is None


async def test_each_attempt_is_a_span_and_a_failed_one_says_how(recorded: Recorded, bench: Bench) -> None:
    answers = [OSError("disk full"), DomainError("the books are closed")]

    def fail(_: Work) -> None:
        raise answers.pop(0)

    bench.handle = fail
    run = await bench.open()
    for _ in range(2):
        await eventually("it is due", lambda: _due(bench, run))
        await bench.worker().run(run)
    broken, refused = recorded.spans("run job")
    assert trace_of(broken) != trace_of(refused)
    assert [it.status.status_code for it in (broken, refused)] == [StatusCode.ERROR] * 2
    told = [dict(it.attributes or {}) for it in (broken, refused)]
    assert [(it["jetrelay.attempt"], it["error.type"]) for it in told] == [(1, "transient"), (2, "refused")]
    assert "disk full" not in str(told)


async def test_what_the_sampler_leaves_out_is_left_out_below_the_run_too(bench: Bench) -> None:
    seen: list[str | None] = []
    bench.handle = lambda _: (seen.append(RequestContext.current().trace_id), create(bench))
    instrument(TracerProvider(sampler=ALWAYS_OFF))
    try:
        await bench.worker().run(await bench.open())
    finally:
        uninstrument()
    [row] = query(bench.url, "SELECT headers ->> 'traceparent' AS sent FROM outbox_events")
    carried = Trace.parse(row["sent"])
    assert carried is not None
    assert (seen, carried.sampled) == ([carried.trace_id], False)


async def _due(bench: Bench, run: Any) -> bool:
    return run in await bench.schedule.waiting()


async def test_a_run_that_takes_too_long_ends_its_span(recorded: Recorded, bench: Bench) -> None:
    async def hang() -> Work:
        await asyncio.Event().wait()
        return Work()

    bench.declare(function=hang, time_limit=timedelta(milliseconds=50), max_attempts=1)
    await bench.worker().run(await bench.open())
    assert (recorded.one("run job").attributes or {})["error.type"] == "transient"
