"""A worker that hears the hints of producers publishes at once; what it does not do is left to the tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.wakeup import DuePollTimes, Wakeup
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable
from relay.hints import ListenLimits, PublishOnHint
from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.integration.test_poll_connection import CONNECTED, END, OURS
from tests.integration.test_publish_path import check_ledger, not_twice
from tests.pooler import MISSING, PROGRAM, pooled
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: Nothing but a hint leads to a look within the time of a test, and nothing rests.
LIMITS = ListenLimits(look=3600.0, rest=0.01)
QUICK = ListenLimits(look=0.01, rest=0.01)


class Worker:
    """One that listens to the context of a publisher while it is ``wanted``."""

    def __init__(
        self, relay: Relay, limits: ListenLimits = LIMITS, url: str | None = None, **options: Any
    ) -> None:
        self.relay, self.wanted = relay, True
        self.pool = Pool(url or relay.url, max_size=2, application_name="listener", pooler=url is not None)
        self.wakeup = Wakeup(self.pool, url or relay.url)
        self.command = relay.command(source=partial(self.wakeup.lend, at_once=True), **options)
        self.listener = PublishOnHint(self.wakeup, self.command, lambda: self.wanted, limits=limits)

    async def __aenter__(self) -> Worker:
        await self.wakeup.set_sleeping(True)
        await self.listener.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.listener.stop()
        await self.pool.close()

    async def listens(self) -> None:
        await eventually("it listens", lambda: self.listener.listening)

    def connections(self) -> int:
        return len(query(self.relay.url, CONNECTED))


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        yield relay


async def published(relay: Relay, count: int) -> None:
    """So many are, and each once."""
    await eventually("it is published", lambda: published_rows(relay) == count)
    check_ledger(relay, await relay.ids())
    not_twice(relay)


def published_rows(relay: Relay) -> int:
    return sum(row["published_at"] is not None for row in outbox_rows(relay.url))


async def test_it_publishes_what_it_hears_of_and_what_it_missed(relay: Relay) -> None:
    """Without a scheduler, a job or a look of its own: before it listened, between two hints, after a loss."""
    relay.add(event("before"))
    async with Worker(relay) as worker:
        await published(relay, 1)
        for number in range(2, 5):
            relay.add(event(f"v{number}"))
            await published(relay, number)
        query(relay.url, END)
        relay.add(event("missed"))
        await published(relay, 5)
        await worker.listens()
        relay.add(event("after"))
        await published(relay, 6)
        assert worker.connections() == 1


async def test_what_it_hears_of_it_claims_on_the_connection_that_hears(relay: Relay) -> None:
    """It is always there. One of the pool would be closed after ten seconds, and made again for the next event."""
    async with Worker(relay) as worker:
        await worker.listens()
        relay.add(event("v1"))
        await published(relay, 1)
        last = f"SELECT query FROM pg_stat_activity WHERE {OURS}"
        assert query(relay.url, last) == [{"query": "COMMIT"}]
        query(relay.url, END)
        relay.add(event("v2"))
        await published(relay, 2)


async def test_many_that_listen_by_mistake_publish_each_event_once(relay: Relay) -> None:
    """As while members come and go, or beside a job that an older scheduler sends."""
    third = Relay(relay.url, relay.nats_url, relay.context)
    async with third, Worker(relay) as one, Worker(relay) as other:
        await one.listens()
        await other.listens()
        for number in range(20):
            relay.add(event(f"v{number % 3}"))
            await third.command().drain(ALL)
        await published(relay, 20)


async def test_hints_for_others_cost_a_claim_now_and_then(relay: Relay) -> None:
    """Contexts may share a database, and a busy one sends many."""
    claims: list[int] = []
    others: list[int] = []

    async def note(_: Any) -> None:
        claims.append(1)

    async def note_other(_: Any) -> None:
        others.append(1)

    resting = Worker(relay, replace(LIMITS, vain=3600.0), claimed=note)
    async with resting as worker, Worker(relay, replace(LIMITS, vain=0.0), claimed=note_other) as other:
        await worker.listens()
        await other.listens()
        for number in range(1, 5):
            await eventually("it has looked", lambda number=number: len(claims) >= number)
            query(relay.url, "NOTIFY relay_outbox")
        for _ in range(5):
            before = len(others)
            query(relay.url, "NOTIFY relay_outbox")
            await eventually("the other has looked", lambda before=before: len(others) > before)
        assert len(claims) == 4


async def test_it_listens_while_it_is_wanted_and_keeps_no_connection_then(relay: Relay) -> None:
    async with Worker(relay, QUICK) as worker:
        await worker.listens()
        worker.wanted = False
        await eventually("it has no connection", lambda: worker.connections() == 0)
        assert not worker.listener.listening
        relay.add(event("v1"))
        worker.wanted = True
        await published(relay, 1)
        await worker.listens()
    assert worker.connections() == 0


async def test_what_is_a_load_is_left_to_jobs(relay: Relay) -> None:
    """They publish it side by side, and one that holds all lanes would keep them from it."""
    async with Worker(relay, batch_size=10) as worker:
        await worker.listens()
        relay.add(*[event("v1", payload={"n": n}) for n in range(100)])
        await eventually("it has published two batches", lambda: published_rows(relay) >= 20)
        await worker.listener.stop()
        assert published_rows(relay) <= 10 * LIMITS.batches
        await worker.command.drain(ALL)
        await published(relay, 100)


async def test_an_outage_and_any_other_error_leave_it_listening(relay: Relay) -> None:
    """The tick's job does the work meanwhile."""
    errors: list[Exception] = [BrokerUnreachable("as it says"), RuntimeError("a bug")]

    async def fail(_: Any) -> None:
        if errors:
            raise errors.pop()

    async with Worker(relay, claimed=fail):
        await eventually("it has looked once", lambda: len(errors) == 1)
        relay.add(event("v1"))
        await eventually("it has looked again", lambda: not errors)
        relay.add(event("v2"))
        await published(relay, 2)


@pytest.mark.skipif(PROGRAM is None, reason=MISSING)
async def test_through_a_pooler_nothing_is_heard_and_nobody_counts_on_it(relay: Relay, tmp_path: Path) -> None:
    """It lends a session for each transaction. Hints go to sessions that somebody else has."""
    with pooled(tmp_path, relay.url, size=2) as pooler:
        for url, heard in ((relay.url, True), (pooler.url(relay.url), False)):
            async with Pool(url, max_size=2, application_name="listener", pooler=True) as pool:
                wakeup = Wakeup(pool, url, DuePollTimes(give_up=60.0 if heard else 0.3))
                assert await wakeup.hear() is heard
                await wakeup.close()


async def test_a_batch_under_way_is_finished_when_the_process_ends(relay: Relay) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def wait(_: Any) -> None:
        begun.set()
        await go_on.wait()

    relay.add(event("v1"))
    async with Worker(relay, claimed=wait) as worker:
        await begun.wait()
        ending = asyncio.create_task(worker.listener.stop())
        await asyncio.sleep(0)
        go_on.set()
        await ending
        assert published_rows(relay) == 1
