"""The circuit of a subscription on real servers: what may be claimed, what an outage costs, how all goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from consumer.circuit import KeepCircuit
from relay.adapters.postgres.circuits import PostgresCircuits
from relay.devstack import NatsServer
from relay.domain.circuit import CircuitPolicy
from relay.domain.facts import CircuitClosed, CircuitOpened
from relay.domain.model import Away, HandlerResult
from relay.domain.retry import Backoff
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.publishing import open_backlog_reader
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

AWAY = HandlerResult.from_status(503)
REFUSED = HandlerResult.failed("ConnectError: Connection refused", away=Away.SURELY)
#: Failed messages may run again at once.
QUICK = Backoff(initial=timedelta(milliseconds=1), maximum=timedelta(milliseconds=2))
PROBES = Backoff(initial=timedelta(milliseconds=1), maximum=timedelta(milliseconds=2), jitter=0)


@dataclass
class Circuits:
    """A subscription with a circuit, and a handler that answers as ``answers`` says, by message."""

    sub: Subscription
    otherwise: HandlerResult = AWAY
    answers: dict[UUID, HandlerResult] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.handler = Handler(lambda request: self.answers.get(request.message_id, self.otherwise))
        self.circuits = PostgresCircuits(self.sub.pool)

    def keep(self, **values: Any) -> KeepCircuit:
        values = {"policy": CircuitPolicy(probe=PROBES), **values}
        return KeepCircuit(
            context=self.sub.context,
            subscription=SUBSCRIPTION,
            circuits=self.circuits,
            inbox=self.sub.inbox,
            enqueue=self.sub.enqueue,
            facts=self.sub.facts.append,
            ordered=self.sub.order is not None,
            **values,
        )

    def worker(self, **values: Any) -> Any:
        """One process of several: it shares nothing but the database."""
        single = values.get("max_attempts") == 1
        return self.sub.process(self.handler, circuit=self.keep(single=single), backoff=QUICK, **values)

    async def call(self, ids: Sequence[UUID], times: int = 1, **values: Any) -> None:
        """Let a worker of its own try each message, so often."""
        for _ in range(times):
            for id in ids:
                await asyncio.sleep(0.005)
                await self.worker(**values).process(id)

    async def is_open(self) -> bool:
        return bool(await self.circuits.open_ones())

    async def until_open(self, ids: Sequence[UUID], **values: Any) -> None:
        async def opens() -> bool:
            await self.call(ids, **values)
            return await self.is_open()

        await eventually("the circuit opens", opens)

    async def tend(self) -> None:
        for found in await self.circuits.open_ones():
            await self.keep().tend(found)

    async def probe(self) -> UUID:
        """The next message that may be called."""
        before = len(self.sub.enqueued)

        async def sent() -> bool:
            await self.tend()
            return len(self.sub.enqueued) > before

        await eventually("a probe is sent", sent)
        [id] = self.sub.enqueued[before:]
        return id

    async def attempts(self, ids: Sequence[UUID]) -> list[int]:
        return [(await self.sub.row(id))["attempts"] for id in ids]

    def calls(self, id: UUID) -> int:
        return sum(request.message_id == id for request in self.handler.requests)


@pytest.fixture
async def there(database_url: str, nats_server: NatsServer) -> AsyncIterator[Circuits]:
    async with subscribed(database_url, nats_server.url) as sub:
        yield Circuits(sub)


async def received(sub: Subscription, count: int) -> list[UUID]:
    return [await sub.received() for _ in range(count)]


async def test_several_that_fail_open_it_and_get_their_attempts_back(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    assert await there.attempts(ids) == [0, 0, 0, 0]
    [fact] = [it for it in there.sub.facts if isinstance(it, CircuitOpened)]
    assert (fact.subscription, fact.error) == (SUBSCRIPTION, "HTTP 503")
    calls = len(there.handler.requests)
    await there.call(ids, times=3)
    assert len(there.handler.requests) == calls, "nothing is called"


async def test_while_it_is_open_no_way_of_claiming_takes_a_message(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    new = await there.sub.received()
    assert await there.sub.inbox.claim(new, timedelta(seconds=8)) is None
    assert await there.sub.chunk(there.handler).run([*ids, new]) in ({}, None)
    assert await there.sub.inbox.overdue(SUBSCRIPTION, 100, at_once=True) == []
    assert there.calls(new) == 0


async def test_probes_go_out_one_by_one_those_first_that_never_failed(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    new = await there.sub.received()
    assert await there.probe() == new
    await there.call([*ids, new])
    assert there.calls(new) == 1
    others = []
    for _ in range(12):
        others.append(await there.probe())
        await there.call([*ids, new])
    assert all(one != after for one, after in pairwise(others)), "never the same one twice"
    assert {*others} == {*ids, new}, "all get their turn"
    assert await there.attempts([*ids, new]) == [0] * 5, "no attempt is spent"


@pytest.mark.parametrize("before", [0, 20], ids=["first", "last"])
async def test_one_among_many_that_never_failed_is_tried_soon(there: Circuits, before: int) -> None:
    """The oldest and the newest have their turns before those between them."""
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    others = await received(there.sub, before)
    good = await there.sub.received()
    others += await received(there.sub, 20 - before)
    there.answers = {good: HandlerResult.from_status(200)}
    for _ in range(3):
        await there.call([await there.probe()])
        if not await there.is_open():
            break
    assert there.calls(good) == 1


async def test_if_it_is_open_for_too_long_bad_messages_alone_die(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)

    async def all_dead() -> bool:
        keep = there.keep(policy=CircuitPolicy(probe=PROBES, longest=timedelta(0)))
        for found in await there.circuits.open_ones():
            await keep.tend(found)
        for id in there.sub.enqueued[-1:]:
            await there.sub.process(there.handler, circuit=keep, backoff=QUICK, max_attempts=2).process(id)
        return all([(await there.sub.row(it))["dead_letter_class"] == "exhausted" for it in ids])

    await eventually("all are dead letters", all_dead)
    assert await there.attempts(ids) == [2] * 4
    assert await there.is_open(), "nobody has answered"


async def test_a_probe_whose_job_is_lost_is_sent_again(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    first = await there.probe()
    circuit = there.keep(patience=timedelta(0))
    await eventually("its time is over", lambda: _tended(there, circuit, 2))
    assert there.sub.enqueued[-1] == first


async def _tended(there: Circuits, circuit: KeepCircuit, jobs: int) -> bool:
    await there.sub.query("UPDATE handler_circuits SET probe_at = clock_timestamp()")
    for found in await there.circuits.open_ones():
        await circuit.tend(found)
    return len(there.sub.enqueued) >= jobs


@pytest.mark.parametrize("status", [200, 409, 422, 400])
async def test_any_answer_closes_it_and_all_go_on_at_once(there: Circuits, status: int) -> None:
    ids = await received(there.sub, 5)
    await there.until_open(ids)
    there.otherwise = HandlerResult.from_status(status)
    probe = await there.probe()
    await there.call([probe])
    assert not await there.is_open()
    [fact] = [it for it in there.sub.facts if isinstance(it, CircuitClosed)]
    assert fact.seconds > 0
    released = there.sub.enqueued[1:]
    assert {*ids} - {probe} <= {*released}
    there.otherwise = HandlerResult.from_status(200)
    await there.call([it for it in ids if it != probe])
    rows = [await there.sub.row(it) for it in ids if it != probe]
    assert all(row["processed_at"] for row in rows)


async def test_a_worker_that_dies_before_it_closes_it_delays_that_only_until_the_sweep(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    probe = await there.probe()
    there.otherwise = HandlerResult.from_status(200)
    await there.sub.process(there.handler, circuit=None).process(probe)
    assert await there.is_open()
    await there.tend()
    assert not await there.is_open()


async def test_one_that_always_fails_alone_is_judged_by_its_attempts(there: Circuits) -> None:
    [id] = await received(there.sub, 1)
    await there.call([id], times=12, max_attempts=5)
    assert (await there.sub.row(id))["dead_letter_class"] == "exhausted"
    assert there.calls(id) == 5
    assert not await there.is_open()


async def test_so_are_those_that_fail_while_others_succeed(there: Circuits) -> None:
    bad, good = await received(there.sub, 6), await received(there.sub, 40)
    there.answers = dict.fromkeys(good, HandlerResult.from_status(200))
    for number in range(6):
        await there.call(good[number * 6 : number * 6 + 6])
        await there.call(bad, max_attempts=5)
    rows = [await there.sub.row(it) for it in bad]
    assert {row["dead_letter_class"] for row in rows} == {"exhausted"}
    assert not await there.is_open()


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_a_handler_that_answers_4xx_is_not_away(there: Circuits, status: int) -> None:
    ids = await received(there.sub, 6)
    there.otherwise = HandlerResult.from_status(status)
    await there.call(ids, times=4, max_attempts=3)
    assert all([(await there.sub.row(it))["dead_lettered_at"] for it in ids])
    assert not await there.is_open()


@pytest.mark.parametrize("max_attempts", [1, 2, 20])
async def test_a_handler_that_is_not_reached_costs_not_even_one_message_an_attempt(
    there: Circuits, max_attempts: int
) -> None:
    [id] = await received(there.sub, 1)
    there.otherwise = REFUSED
    await there.call([id], max_attempts=max_attempts)
    assert await there.is_open()
    for _ in range(5):
        assert await there.probe() == id
        await there.call([id], max_attempts=max_attempts)
    row = await there.sub.row(id)
    assert (row["attempts"], row["dead_letter_reason"], there.calls(id)) == (0, None, 6)


@pytest.mark.parametrize("max_attempts", [2, 3])
async def test_the_first_that_would_die_opens_it(there: Circuits, max_attempts: int) -> None:
    ids = await received(there.sub, 3)
    await there.call(ids, times=max_attempts, max_attempts=max_attempts)
    assert await there.is_open()
    rows = [await there.sub.row(it) for it in ids]
    assert not any(row["dead_letter_reason"] for row in rows)


async def test_a_message_that_may_be_called_only_once_is_not_called_again(there: Circuits) -> None:
    ids = await received(there.sub, 3)
    await there.call(ids, times=2, max_attempts=1)
    assert [there.calls(it) for it in ids] == [1, 1, 1]
    assert all([(await there.sub.row(it))["dead_lettered_at"] for it in ids])


async def test_a_subscription_has_a_circuit_of_its_own(there: Circuits) -> None:
    ids = await received(there.sub, 4)
    await there.until_open(ids)
    await there.sub.query("UPDATE handler_circuits SET subscription = 'another'")
    there.otherwise = HandlerResult.from_status(200)
    await there.call(ids)
    assert all([(await there.sub.row(it))["processed_at"] for it in ids])


async def test_a_circuit_that_opens_again_at_once_gives_nothing_back(there: Circuits) -> None:
    ids = await received(there.sub, 5)
    await there.until_open(ids)
    probe = await there.probe()
    there.answers = {probe: HandlerResult.from_status(200)}
    await there.call([probe])
    rest = [it for it in ids if it != probe]
    await there.until_open(rest)
    assert sum(await there.attempts(rest)) >= 4, "those that always fail are judged in the end"


async def test_a_chunk_opens_it_only_after_its_successes_are_recorded(there: Circuits) -> None:
    ids = await received(there.sub, 12)
    there.answers = dict.fromkeys(ids[:6], HandlerResult.from_status(200))
    await there.sub.chunk(there.handler, circuit=there.keep(), backoff=QUICK).run(ids)
    assert not await there.is_open()
    assert all([(await there.sub.row(it))["processed_at"] for it in ids[:6]])
    assert await there.attempts(ids[6:]) == [1] * 6


async def test_a_chunk_of_failures_opens_it(there: Circuits) -> None:
    ids = await received(there.sub, 12)
    await there.sub.chunk(there.handler, circuit=there.keep(), backoff=QUICK, max_attempts=2).run(ids)
    await there.until_open(ids, max_attempts=2)
    assert not any([(await there.sub.row(it))["dead_letter_reason"] for it in ids])


async def test_in_an_ordered_subscription_a_head_is_tried(there: Circuits) -> None:
    there.sub.keep_order()
    ids = [await there.sub.received(Relay_Partition_Key=f"k{number % 3}") for number in range(9)]
    await there.until_open(ids)
    there.otherwise = HandlerResult.from_status(200)
    probe = await there.probe()
    assert probe in ids[:3]
    await there.call([probe])
    assert not await there.is_open()


async def test_operators_see_which_handlers_are_away(there: Circuits) -> None:
    async with open_backlog_reader(there.sub.url) as reader:
        assert (await reader.backlogs()).away == []
        await there.until_open(await received(there.sub, 4))
        [found] = (await reader.backlogs()).away
        assert [found.subscription] == [it.subscription for it in await reader.away()]
        assert (found.subscription, found.reason) == (SUBSCRIPTION, "HTTP 503")
        assert found.seconds >= 0
