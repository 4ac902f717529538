"""The routines of a duty: each rests when it is done, and none holds up another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from consumer.routines import Routine, RoutineSlots, RunRoutines
from relay.adapters.dramatiq.gates import Gates, GateTimes
from relay.devstack import ValkeyServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.facts import Fact, OutageSeen
from relay.jobs import LOOK_AFTER
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

DUTY = LOOK_AFTER.of("sea")
HOUR = timedelta(hours=1)


class Upkeep:
    """A context with three routines, each of which may hang or fail."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates
        self.ran: list[str] = []
        self.facts: list[Fact] = []
        self.fails: dict[str, Exception] = {}
        self.hangs: dict[str, asyncio.Event] = {}
        self.stopping = False

    async def routine(self, name: str) -> None:
        self.ran.append(name)
        if name in self.hangs:
            await self.hangs[name].wait()
        if name in self.fails:
            raise self.fails[name]

    async def begun(self, patience: float = 3.0) -> RunRoutines:
        slots = RoutineSlots(8, asyncio.Semaphore(8))

        def routine(name: str) -> Routine:
            return Routine(name, HOUR, lambda: self.routine(name), slots)

        work = RunRoutines(
            DUTY,
            map(routine, "abc"),
            self.gates,
            self.facts.append,
            lambda: self.stopping,
            patience=patience,
        )
        await work.begin(timedelta(seconds=3))
        return work

    async def job(self) -> list[str]:
        """What a whole job does."""
        self.ran.clear()
        work = await self.begun()
        await work.patiently()
        await work.end()
        return sorted(self.ran)


@pytest.fixture
async def upkeep(valkey: ValkeyServer) -> AsyncIterator[Upkeep]:
    gates = Gates(valkey.url, f"test-{uuid4().hex}")
    yield Upkeep(gates)
    await gates.aclose()


async def test_what_is_due_runs_and_rests_until_it_is_asked_for(upkeep: Upkeep) -> None:
    assert await upkeep.job() == ["a", "b", "c"]
    assert await upkeep.job() == []
    await upkeep.gates.forget_rest(DUTY.key)
    assert await upkeep.job() == ["a", "b", "c"]


async def test_a_routine_that_hangs_holds_up_no_other_and_has_no_second_run(upkeep: Upkeep) -> None:
    go_on = upkeep.hangs["b"] = asyncio.Event()
    work = await upkeep.begun(patience=0.05)
    await work.patiently()
    await upkeep.gates.rest(DUTY.key, {"a": 0})
    assert await upkeep.job() == ["a"]
    go_on.set()
    await work.end()
    assert await upkeep.job() == []


class NotedGates(Gates):
    """Gates that ask, after each note that a routine goes on, whether another job could claim it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.due_after_a_note: list[list[str]] = []

    async def rest(self, duty: str, until: Mapping[str, int]) -> None:
        await super().rest(duty, until)
        self.due_after_a_note.append((await self.claim(duty, {"b": HOUR}))[1])


async def test_a_routine_stays_claimed_while_it_runs_and_is_due_when_its_job_died(valkey: ValkeyServer) -> None:
    gates = NotedGates(valkey.url, f"test-{uuid4().hex}", times=GateTimes(claim=timedelta(milliseconds=300)))
    upkeep = Upkeep(gates)
    upkeep.hangs["b"] = asyncio.Event()
    work = await upkeep.begun()
    await eventually("it has been said to go on", lambda: len(gates.due_after_a_note) > 4)
    assert gates.due_after_a_note == [[]] * len(gates.due_after_a_note)
    assert work._keeper is not None
    work._keeper.cancel()

    async def due() -> bool:
        return (await gates.claim(DUTY.key, {"b": HOUR}))[1] == ["b"]

    await eventually("it is due", due)
    upkeep.hangs["b"].set()
    await work.end()
    await gates.aclose()


async def test_an_outage_ends_one_routine_which_is_due_again_at_once(upkeep: Upkeep) -> None:
    upkeep.fails["b"] = BrokerUnreachable("gone")
    assert await upkeep.job() == ["a", "b", "c"]
    assert upkeep.facts == [OutageSeen(context="sea", server="nats", error="gone")]
    assert await upkeep.job() == ["b"]


async def test_another_error_is_raised_when_all_is_done_and_counts_as_a_run(upkeep: Upkeep) -> None:
    upkeep.fails["a"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await upkeep.job()
    assert sorted(upkeep.ran) == ["a", "b", "c"]
    assert await upkeep.job() == []
    await upkeep.gates.forget_rest(DUTY.key)
    upkeep.fails["b"] = ValueError()
    with pytest.raises(ExceptionGroup) as errors:
        await upkeep.job()
    assert {type(error) for error in errors.value.exceptions} == {ZeroDivisionError, ValueError}


async def test_a_context_has_its_share_of_the_slots_and_who_sleeps_has_none() -> None:
    shared = asyncio.Semaphore(3)
    one, other = RoutineSlots(2, shared), RoutineSlots(2, shared)
    async with one, one, other:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), other:
                pytest.fail("all three were taken")
        sleeping = asyncio.create_task(one.sleep(0.1))
        async with asyncio.timeout(20), other:
            pass
        await sleeping
        assert shared.locked()
    assert not shared.locked()
    async with asyncio.timeout(20), other, other:
        pass


async def test_what_was_not_begun_before_the_worker_stops_is_due_for_the_next(upkeep: Upkeep) -> None:
    upkeep.stopping = True
    assert await upkeep.job() == []
    upkeep.stopping = False
    assert await upkeep.job() == ["a", "b", "c"]


async def test_a_routine_never_rests_for_longer_than_it_should(upkeep: Upkeep) -> None:
    """The clock of Redis may have been set back, or the interval made shorter."""
    now, _ = await upkeep.gates.claim(DUTY.key, {"d": HOUR})
    await upkeep.gates.rest(DUTY.key, dict.fromkeys("abc", now + 7_200_000))
    assert await upkeep.job() == ["a", "b", "c"]
