"""How fast messages of a stream are handled: inbox row, handler, verdict and acknowledgement of each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import psycopg

from benchmarks.figures import Reference, Row
from benchmarks.handlers import EFFECTS
from benchmarks.http import Handler
from benchmarks.layouts import consuming
from benchmarks.reference import by_hand
from benchmarks.reference.wire import Wire
from benchmarks.stage import Stage
from benchmarks.stream import jetstream, until_acknowledged, until_delivering
from benchmarks.turns import Case, take_turns
from benchmarks.workload import wire_messages

#: Where nobody listens: for a fleet of which no HTTP handler is called.
UNUSED_SERVICE: Final = "http://127.0.0.1:9/handle"
_STREAM: Final = "SOURCE_EVENTS"
_UNIT: Final = "messages/s"


def run(stage: Stage) -> Iterator[Row]:
    """Measure each kind of handler beside bare Dramatiq, threads by hand, and the handler service alone."""
    count = stage.sizes.messages
    with Handler(stage.directory) as service:
        cases: dict[str, Case] = {
            "bare Dramatiq": lambda: stage.bare().rate(count),
            "Python handler": partial(_consume, stage, service.url, "each"),
            "Python handler that writes": partial(_consume, stage, service.url, "writing"),
            "by hand": partial(_by_hand, stage),
            "HTTP handler alone": partial(_alone, stage, service),
            "HTTP handler": partial(_consume, stage, service.url, "http"),
            "Python handler, chunk = 50": partial(_consume, stage, service.url, "chunked"),
        }
        runs = take_turns(stage, "consume", _UNIT, cases)
        stage.rest()
    bare = Reference("(d) bare Dramatiq, 2 × 8", runs["bare Dramatiq"])
    row = partial(Row, unit=_UNIT)
    yield row(measure="consume, Python handler", runs=runs["Python handler"], reference=bare, at_least=0.5)
    writing = runs["Python handler that writes"]
    hand = Reference("(e) threads by hand, 2 × 8", runs["by hand"])
    yield row(measure="the same, a handler that writes a row", runs=writing, reference=hand, at_least=0.7)
    chunked = runs["Python handler, chunk = 50"]
    yield row(measure="the same, chunk = 50", runs=chunked, reference=bare, at_least=1.3)
    yield row(measure="consume, HTTP handler", runs=runs["HTTP handler"], reference=bare, at_least=0.3)
    alone = Reference("the handler service alone", runs["HTTP handler alone"])
    yield row(measure="the same", runs=runs["HTTP handler"], reference=alone)


def _consume(stage: Stage, service: str, name: str) -> float:
    """Messages per second from the first delivery until the consumer has every acknowledgement."""
    url, count = stage.fleet(consuming(service)).url("sink"), stage.sizes.messages
    # Stream first: otherwise reconciliation would restore messages that the inbox lacks.
    asyncio.run(_purge(stage.nats_url))
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(EFFECTS)
        connection.execute("TRUNCATE inbox_messages, benchmark_effects CASCADE")
        seconds = asyncio.run(_timed(stage.nats_url, name, count))
        processed = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"
        if (row := connection.execute(processed).fetchone()) != (count,):
            raise SystemExit(f"{row} of {count} messages were processed")
    return count / seconds


async def _purge(nats_url: str) -> None:
    async with jetstream(nats_url) as js:
        await js.purge_stream(_STREAM)


async def _timed(nats_url: str, name: str, count: int) -> float:
    durable = f"sink__{name}"
    async with jetstream(nats_url) as js:
        await js.pause_consumer(_STREAM, durable, (datetime.now(UTC) + timedelta(hours=1)).isoformat())
        wire = await Wire.connect(nats_url)
        for batch in wire_messages("source", name, count):
            await wire.publish(batch)
        await wire.close()
        await js.resume_consumer(_STREAM, durable)
        # A waiting pull request does not notice the end of the pause; only the next one gets messages.
        await until_delivering(js, _STREAM, durable)
        start = time.perf_counter()
        await until_acknowledged(js, _STREAM, durable)
        return time.perf_counter() - start


def _by_hand(stage: Stage) -> float:
    stage.rest()
    return by_hand.rate(stage.database("by_hand"), stage.sizes.messages)


def _alone(stage: Stage, service: Handler) -> float:
    stage.rest()
    return service.rate(stage.sizes.messages)
