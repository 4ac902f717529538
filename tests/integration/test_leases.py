"""A worker that cannot renew its claim stops calling before another can have it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest

from chaos.proxy import Link, Proxy
from relay.adapters.http import HttpEventHandler
from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.inbox_chunks import PostgresChunks
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.schedule import PostgresLease, PostgresSchedule
from relay.bus import Command, CommandBus
from relay.cron import Cron, CronRegistry
from relay.cron.expression import Expression
from relay.cron.run import CronRows
from relay.devstack import NatsServer
from relay.domain.errors import LeaseOver
from relay.domain.model import HandlerResult
from relay.domain.schedule import Due, RunState, WaitingRun
from relay.execution.chunk import ChunkRows, side_by_side
from relay.execution.runners import RunOnLoop
from relay.ports import HandlerRequest
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: A call ends an eighth of it before its end: long enough for a loop that has to wait for its processor.
LEASE = timedelta(seconds=8)
#: How the link to the database fails: it refuses everything, or swallows it.
FAULTS: dict[str, Callable[[Link], None]] = {"cut": Link.cut, "black hole": Link.black_hole}


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as sub:
        sub.lease = LEASE
        yield sub


@asynccontextmanager
async def far(url: str, proxy: Proxy) -> AsyncIterator[tuple[Any, Link]]:
    """The pool of a worker whose link to the database may fail."""
    port = urlsplit(url).port
    assert port is not None
    link = proxy.link("database", port)
    pool = Pool(url.replace(f":{port}/", f":{link.port}/"), max_size=4, application_name="far")
    await pool.open()
    try:
        yield pool, link
    finally:
        link.heal()
        await pool.close()


class Hanging:
    """A service that reads and never answers."""

    def __init__(self) -> None:
        self.asked, self.hung_up = asyncio.Event(), asyncio.Future[datetime]()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked.set()
        await reader.read()
        self.hung_up.set_result(datetime.now(UTC))
        writer.close()


@asynccontextmanager
async def hanging() -> AsyncIterator[Hanging]:
    service = Hanging()
    async with await asyncio.start_server(service.serve, "127.0.0.1", 0) as server:
        service.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/handle"
        yield service


async def is_another(sub: Subscription, message_id: UUID) -> bool:
    """Whether the lease is over by the database's clock."""
    [row] = await sub.query(
        "SELECT claimed_until < now() AS over FROM inbox_messages WHERE message_id = %s", message_id
    )
    return bool(row["over"])


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_service_is_hung_up_on_before_the_next_call(sub: Subscription, proxy: Proxy, fault: str) -> None:
    message_id = await sub.received()
    async with far(sub.url, proxy) as (pool, link), hanging() as service:
        handler = HttpEventHandler(service.url, timeout=timedelta(seconds=60))
        one = sub.process(handler, inbox=PostgresInboxAdapter(pool))
        attempt = asyncio.create_task(one.process(message_id))
        await asyncio.wait_for(service.asked.wait(), 60)
        FAULTS[fault](link)
        hung_up_at = await asyncio.wait_for(service.hung_up, 60)
        [row] = await sub.query("SELECT claimed_until FROM inbox_messages WHERE message_id = %s", message_id)
        assert hung_up_at < row["claimed_until"]
        with pytest.raises(LeaseOver):
            await attempt
        await handler.close()
        row = await sub.row(message_id)
        assert (row["attempts"], row["last_error"], row["processed_at"]) == (1, None, None)
        other = Handler()
        await eventually("another may have it", lambda: is_another(sub, message_id))
        await sub.process(other).process(message_id)
    assert len(other.requests) == 1
    assert (await sub.row(message_id))["processed_at"] is not None


async def test_the_next_of_a_key_never_begins_beside_a_call_that_lost_its_claim(
    sub: Subscription, proxy: Proxy
) -> None:
    sub.keep_order()
    first, second = [await sub.received(**{"Relay-Partition-Key": "a"}) for _ in range(2)]
    under_way: list[UUID] = []
    overlaps: list[UUID] = []

    async def work(request: HandlerRequest) -> HandlerResult:
        overlaps.extend(under_way)
        under_way.append(request.message_id)
        try:
            await asyncio.sleep(60 if len(finished) == 0 and request.attempt == 1 else 0)
        finally:
            under_way.remove(request.message_id)
        finished.append(request.message_id)
        return HandlerResult.from_status(200)

    finished: list[UUID] = []
    async with far(sub.url, proxy) as (pool, link):
        lost = sub.process(Handler(work), inbox=OrderedInboxAdapter(pool))
        attempt = asyncio.create_task(lost.process(first))
        await eventually("it is under way", lambda: under_way == [first])
        link.black_hole()
        here = sub.process(Handler(work))

        async def both() -> bool:
            for message_id in (second, first):
                await here.process(message_id)
            return len(finished) == 2

        await eventually("another has done both", both, seconds=30)
        with pytest.raises(LeaseOver):
            await attempt
    assert (overlaps, finished) == ([], [first, second])


async def test_a_chunk_is_cancelled_and_nothing_of_it_recorded(sub: Subscription, proxy: Proxy) -> None:
    ids = [await sub.received() for _ in range(3)]
    handler = Handler(lambda _request: forever())
    async with far(sub.url, proxy) as (pool, link):
        rows = sub.messages(handler, inbox=PostgresInboxAdapter(pool))
        chunks = ChunkRows(rows, PostgresChunks(pool), side_by_side(handler))
        attempt = asyncio.create_task(RunOnLoop(chunks, chunks.settle).run(ids))
        await eventually("all are asked about", lambda: len(handler.requests) == 3)
        link.cut()
        with pytest.raises(LeaseOver):
            await attempt
        assert not await is_another(sub, ids[0])
    assert [(row["attempts"], row["last_error"]) for row in await sub.rows()] == [(1, None)] * 3


async def forever() -> HandlerResult:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_claim_that_another_has_taken_ends_the_call(sub: Subscription) -> None:
    """As behind a pause of the whole process: by the time it goes on, the lease is over."""
    message_id = await sub.received()
    handler = Handler(lambda _request: forever())
    attempt = asyncio.create_task(sub.process(handler).process(message_id))
    await eventually("it is under way", lambda: len(handler.requests) == 1)
    await sub.query("UPDATE inbox_messages SET claimed_until = now() - interval '1 s'")
    assert await sub.inbox.claim(message_id, timedelta(seconds=60)) is not None
    with pytest.raises(LeaseOver):
        await attempt


async def test_a_call_does_not_begin_once_the_loop_has_stood_still_for_a_lease(sub: Subscription) -> None:
    message_id, handler = await sub.received(), Handler()
    claim = await sub.inbox.claim(message_id, LEASE)
    assert claim is not None
    with pytest.raises(LeaseOver):
        await sub.process(handler).on_loop.handle(claim._replace(since=time.monotonic() - LEASE.total_seconds()))
    assert handler.requests == []


# --- cron jobs ---


class Work(Command[None]):
    """What the cron job asks for."""


async def work() -> Work:
    return Work()


async def test_a_cron_job_that_lost_its_claim_never_runs_beside_the_next_run(
    database_url: str, proxy: Proxy
) -> None:
    under_way, most, ended = 0, 0, 0
    bus, registry = CommandBus(), CronRegistry()

    @bus.handles(Work)
    async def handle(_: Work) -> None:
        nonlocal under_way, most, ended
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0 if ended else 60)
        finally:
            under_way, ended = under_way - 1, ended + 1

    registry.add(
        Cron(
            name="job",
            expression=Expression("* * * * *"),
            function=work,
            bus=bus,
            context=None,
            misfire_grace=timedelta(days=1),
            time_limit=timedelta(seconds=60),
            max_attempts=5,
        )
    )
    async with far(database_url, proxy) as (pool, link):
        near = Pool(database_url, max_size=4, application_name="near")
        await near.open()
        lead = PostgresLease(near.connection, uuid4(), "test")
        await lead.take(timedelta(minutes=5))
        run = WaitingRun("job", datetime(2026, 1, 1, 12, tzinfo=UTC))
        assert await lead.open("job", Due(run.scheduled_for), uuid4()) is RunState.WAITING
        facts: list[Any] = []
        there = CronRows("sea", registry, PostgresSchedule(pool.connection, lease=LEASE), facts.append)
        here = CronRows("sea", registry, PostgresSchedule(near.connection, lease=LEASE), facts.append)
        attempt = asyncio.create_task(RunOnLoop(there, there.settle).run(run))
        await eventually("it is under way", lambda: under_way == 1)
        link.black_hole()

        async def done() -> bool:
            await RunOnLoop(here, here.settle).run(run)
            return ended == 2

        await eventually("another has done it", done, seconds=30)
        with pytest.raises(LeaseOver):
            await attempt
        await near.close()
    assert most == 1
