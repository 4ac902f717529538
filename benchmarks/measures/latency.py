"""How long a lone event takes on an idle fleet: to the stream, and to its handler."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import psycopg
from nats.js.api import DeliverPolicy

from benchmarks.figures import Curve, Row
from benchmarks.layouts import PUBLISHING, consuming
from benchmarks.measures.consume import UNUSED_SERVICE
from benchmarks.stage import Stage
from benchmarks.stream import jetstream
from benchmarks.turns import percentile
from benchmarks.workload import event
from relay import Outbox

_POLL_MS: Final = 100.0
#: Pauses between two events: the fleet is idle, and the events meet its polls at any point.
_PAUSES: Final = (0.05, 0.25)
_LIMIT: Final = 30.0

Write = Callable[[psycopg.AsyncConnection[Any], int], Any]


class Arrivals:
    """When each event arrived, by its id."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._new = asyncio.Event()

    def note(self, id: str) -> None:
        self._at.setdefault(id, time.perf_counter())
        self._new.set()

    async def of(self, id: str) -> float:
        """Wait for an event. Raises TimeoutError."""
        async with asyncio.timeout(_LIMIT):
            while id not in self._at:
                self._new.clear()
                await self._new.wait()
        return self._at[id]


def run(stage: Stage) -> Iterator[Row | Curve]:
    """Measure with the hint, without it, and on to the handler."""
    cases = {
        "stream, hint": partial(_to_stream, stage, hint=True),
        "stream, poll": partial(_to_stream, stage, hint=False),
        "handler, hint": partial(_to_handler, stage),
    }
    rounds: dict[str, list[list[float]]] = {name: [] for name in cases}
    for number in range(1, stage.rounds + 1):
        for name, case in cases.items():
            rounds[name].append(found := case())
            p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
            stage.say(f"latency: {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms ({number} of {stage.rounds})")
    polled = _POLL_MS + 20
    yield from _rows("commit → stream, idle, with the wake hint", rounds["stream, hint"], 8, 25)
    yield from _rows("commit → stream, idle, without the hint", rounds["stream, poll"], polled, polled)
    yield from _rows("commit → handler called, idle", rounds["handler, hint"], 30, 90)
    yield Curve(
        title="Latency of a lone event on an idle fleet",
        x="milliseconds",
        y="% of the events that took no longer",
        lines={name: _distribution(found) for name, found in rounds.items()},
    )


def _rows(measure: str, rounds: list[list[float]], p50: float, p99: float) -> Iterator[Row]:
    for name, share, limit in (("p50", 0.5, p50), ("p99", 0.99, p99)):
        runs = [percentile(found, share) for found in rounds]
        yield Row(measure=f"{measure}, {name}", unit="ms", runs=runs, at_most=limit)


def _distribution(rounds: list[list[float]]) -> list[tuple[float, float]]:
    every = sorted(value for found in rounds for value in found)
    return [(max(value, 0.1), 100 * (number + 1) / len(every)) for number, value in enumerate(every)]


# --- to the stream ---


def _to_stream(stage: Stage, *, hint: bool) -> list[float]:
    url = stage.fleet(PUBLISHING).url("bench")
    switch = "ENABLE" if hint else "DISABLE"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE outbox_events {switch} TRIGGER relay_wake_publisher")
    try:
        return asyncio.run(_watch_stream(stage, url))
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER TABLE outbox_events ENABLE TRIGGER relay_wake_publisher")


async def _watch_stream(stage: Stage, url: str) -> list[float]:
    arrivals, outbox = Arrivals(), Outbox("bench", undeclared=True)

    async def note(message: Any) -> None:
        arrivals.note(message.headers["Nats-Msg-Id"])

    async with jetstream(stage.nats_url) as js:
        # A consumer gets what is stored, and not what is merely sent.
        await js.subscribe("bench.event.>", ordered_consumer=True, cb=note, deliver_policy=DeliverPolicy.NEW)
        return await _sample(stage, url, arrivals, lambda conn, n: outbox.add(conn, event(n)))


async def _sample(stage: Stage, url: str, arrivals: Arrivals, write: Write) -> list[float]:
    """Commit one event after the other; milliseconds from the end of each commit to the arrival."""
    found = []
    async with await psycopg.AsyncConnection.connect(url) as connection:
        for number in range(-3, stage.sizes.samples):  # the first ones find cold caches
            await asyncio.sleep(random.uniform(*_PAUSES))
            id = await write(connection, number)
            await connection.commit()
            committed = time.perf_counter()
            arrived = await arrivals.of(str(id))
            if number >= 0:
                found.append(1e3 * (arrived - committed))
    return found


# --- to the handler ---


def _to_handler(stage: Stage) -> list[float]:
    url = stage.fleet(consuming(UNUSED_SERVICE)).url("source")
    return asyncio.run(_watch_handler(stage, url))


async def _watch_handler(stage: Stage, url: str) -> list[float]:
    arrivals, outbox = Arrivals(), Outbox("source", undeclared=True)
    async with _port(arrivals) as port:
        return await _sample(
            stage, url, arrivals, lambda conn, n: outbox.add(conn, event(n, name="each", port=port))
        )


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._arrivals.note(data.decode())


@asynccontextmanager
async def _port(arrivals: Arrivals) -> AsyncIterator[int]:
    """A UDP port on which the handlers tell of their calls."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(arrivals), local_addr=("127.0.0.1", 0))
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
