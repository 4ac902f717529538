"""How long an event of a quiet context waits while others have long backlogs, and what that costs them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final

import psycopg
from nats.js import JetStreamContext
from nats.js.api import DeliverPolicy

from benchmarks.figures import Reference, Row
from benchmarks.fleet import Fleet
from benchmarks.layouts import QUIET, busy
from benchmarks.stage import Stage
from benchmarks.stream import jetstream, until_stored
from benchmarks.turns import percentile
from benchmarks.workload import event, fill
from relay import Outbox

_EVERY_S: Final = 0.25
_UNIT: Final = "events/s"


def run(stage: Stage) -> Iterator[Row]:
    """Measure with one busy context and with many, of as many events together."""
    many, count = stage.sizes.busy, stage.sizes.backlog
    alone: list[float] = []
    rates: list[float] = []
    waits: list[list[float]] = []
    for number in range(1, stage.rounds + 1):
        rate, _ = _drain(stage, 1, many * count)
        alone.append(rate)
        rate, found = _drain(stage, many, count)
        rates.append(rate)
        waits.append(found)
        p50, p95, most = (percentile(found, share) for share in (0.5, 0.95, 1))
        figures = f"p50 {p50:,.0f} ms, p95 {p95:,.0f} ms, at most {most:,.0f} ms of {len(found)}"
        stage.say(
            f"fairness: {figures}; {rate:,.0f} {_UNIT}, of one {alone[-1]:,.0f} ({number} of {stage.rounds})"
        )
    name = f"a quiet context beside {many} with {count:,} events each"
    yield Row(measure=f"{name}, p50", unit="ms", runs=[percentile(it, 0.5) for it in waits])
    yield Row(measure=f"{name}, p95", unit="ms", runs=[percentile(it, 0.95) for it in waits], at_most=250)
    one = Reference("as many events of one context", alone)
    yield Row(measure="the busy ones together", unit=_UNIT, runs=rates, reference=one, at_least=0.8)


def _drain(stage: Stage, many: int, count: int) -> tuple[float, list[float]]:
    """Have many contexts publish ``count`` events each; returns their rate, and the waits of a quiet one in ms."""
    fleet = stage.fleet(busy(many), workers=stage.sizes.publishers)
    names = [name for name in fleet.settings.contexts if name != QUIET]
    return asyncio.run(_watch(stage, fleet, names, count))


async def _watch(stage: Stage, fleet: Fleet, names: list[str], count: int) -> tuple[float, list[float]]:
    arrived: dict[str, float] = {}

    async def note(message: Any) -> None:
        arrived.setdefault(message.headers["Nats-Msg-Id"], time.perf_counter())

    async with jetstream(stage.nats_url) as js:
        await js.subscribe(f"{QUIET}.event.>", ordered_consumer=True, cb=note, deliver_policy=DeliverPolicy.NEW)
        before = {name: await _stored(js, name) for name in names}
        with ExitStack() as open_ones:
            backlogs = [open_ones.enter_context(psycopg.connect(fleet.url(name))) for name in names]
            for backlog in backlogs:
                fill(backlog, count, 200)
            await asyncio.sleep(0.5)
            for backlog in backlogs:
                backlog.commit()
        start = time.perf_counter()
        stored = asyncio.create_task(_all_stored(js, {name: before[name] + count for name in names}))
        committed = await _commit(fleet.url(QUIET), stored)
        await stored
        rate = len(names) * count / (time.perf_counter() - start)
        async with asyncio.timeout(60):
            while committed.keys() - arrived.keys():  # noqa: ASYNC110 - notes come by a callback
                await asyncio.sleep(0.01)
    return rate, [1e3 * (arrived[id] - at) for id, at in committed.items()]


async def _all_stored(js: JetStreamContext, counts: Mapping[str, int]) -> None:
    """Wait until the stream of each context holds so many. One after the other, as each question costs."""
    for name, count in counts.items():
        await until_stored(js, f"{name.upper()}_EVENTS", count, every=0.1)


async def _stored(js: JetStreamContext, name: str) -> int:
    return (await js.stream_info(f"{name.upper()}_EVENTS")).state.messages


async def _commit(url: str, until: asyncio.Future[Any]) -> dict[str, float]:
    """Commit an event of the quiet context four times a second; returns when each was committed."""
    committed: dict[str, float] = {}
    outbox = Outbox(QUIET, undeclared=True)
    async with await psycopg.AsyncConnection.connect(url) as connection:
        while not until.done():
            id = await outbox.add(connection, event(len(committed)))
            await connection.commit()
            committed[str(id)] = time.perf_counter()
            await asyncio.sleep(_EVERY_S)
    return committed
