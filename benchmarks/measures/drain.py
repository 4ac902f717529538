"""How fast a backlog reaches the stream: by real workers, by the reference loops, and without a database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from benchmarks import backlog
from benchmarks.figures import Reference, Row
from benchmarks.layouts import PUBLISHING
from benchmarks.reference import ceiling, textbook
from benchmarks.reference.wire import Wire
from benchmarks.stage import Stage
from benchmarks.turns import Case, take_turns
from benchmarks.workload import TEXT, wire_messages
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.search_indexes import arrange

_UNIT: Final = "events/s"


def run(stage: Stage) -> Iterator[Row]:
    """Measure all rows of throughput."""
    events = stage.sizes.events
    stage.fleet(PUBLISHING, workers=0)
    cases: dict[str, Case] = {
        "textbook": partial(_reference, stage, textbook.drain, max(events // 10, 100)),
        "ceiling": partial(_reference, stage, ceiling.drain, events),
        "raw JetStream": partial(raw, stage, events),
        "one worker, 200 keys": partial(fleet, stage, 1, events, 200),
        "two workers, 200 keys": partial(fleet, stage, 2, events, 200),
        "two workers, 10 hot keys": partial(fleet, stage, 2, events, 10),
        "two workers, a field is searched": partial(_searched, stage, events),
    }
    runs = take_turns(stage, "drain", _UNIT, cases)
    by_hand = Reference("(b) ceiling", runs["ceiling"])
    naive = Reference("(a) textbook", runs["textbook"])
    bare = Reference("(c) raw JetStream publish", runs["raw JetStream"])
    two = partial(
        Row, measure=f"drain {events:,} events, 2 workers", unit=_UNIT, runs=runs["two workers, 200 keys"]
    )
    yield two(reference=by_hand, at_least=0.6)
    yield two(reference=naive, at_least=12)
    yield two(reference=bare)
    one = partial(Row, measure="the same, 1 worker", unit=_UNIT, runs=runs["one worker, 200 keys"])
    yield one(reference=by_hand, at_least=0.45)
    hot = partial(Row, measure="the same, 2 workers, 10 hot keys", unit=_UNIT)
    yield hot(runs=runs["two workers, 10 hot keys"], reference=by_hand, at_least=0.3)
    searched = partial(Row, measure="the same, 2 workers, a field is found by an index", unit=_UNIT)
    without = Reference("without the index", runs["two workers, 200 keys"])
    yield searched(runs=runs["two workers, a field is searched"], reference=without, at_least=0.95)


def fleet(stage: Stage, workers: int, count: int, keys: int, text: str = TEXT) -> float:
    """Events per second of real workers, in an empty table."""
    url = stage.fleet(PUBLISHING, workers=workers).url("bench")
    asyncio.run(backlog.clear(url, stage.nats_url))
    # The scheduler leads, and the workers have done what they do when they start.
    asyncio.run(backlog.drain_by_fleet(url, stage.nats_url, 1, 1))
    asyncio.run(backlog.clear(url, stage.nats_url))
    return asyncio.run(backlog.drain_by_fleet(url, stage.nats_url, count, keys, text))


def _searched(stage: Stage, count: int) -> float:
    """Events per second of two workers, while an index has a field of each payload."""
    url = stage.fleet(PUBLISHING, workers=2).url("bench")
    asyncio.run(_index(url, {"made": ["n"]}))
    try:
        return fleet(stage, 2, count, 200)
    finally:
        asyncio.run(_index(url, {}))


async def _index(url: str, fields: dict[str, list[str]]) -> None:
    async with connected(url, "benchmarks") as source:
        await arrange(source, fields)


def _reference(stage: Stage, loop: backlog.Loop, count: int) -> float:
    stage.rest()
    url = stage.database("reference")
    asyncio.run(backlog.clear(url, stage.nats_url))
    return asyncio.run(backlog.drain_by_loop(url, stage.nats_url, count, 200, loop))


def raw(stage: Stage, count: int, text: str = TEXT) -> float:
    """Messages per second of a publisher that has everything in memory, two batches under way."""
    stage.rest()
    batches = list(wire_messages("bench", "made", count, text))

    async def publish() -> float:
        wire = await Wire.connect(stage.nats_url)
        waiting = iter(batches)

        async def one() -> None:
            for batch in waiting:
                await wire.publish(batch)

        start = time.perf_counter()
        await asyncio.gather(one(), one())
        seconds = time.perf_counter() - start
        await wire.close()
        return seconds

    return count / asyncio.run(publish())
