"""Gates keep jobs of one duty from piling up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, Protocol
from uuid import uuid4

import dramatiq
import pytest
import redis

from relay.adapters.dramatiq.broker import create_broker
from relay.adapters.dramatiq.gates import GATE_TIMES, LONGEST_BACKOFF, Gates, GateTimes, QueueEntry
from relay.devstack import ValkeyServer
from relay.domain.errors import QueueUnreachable
from tests.integration.queueing import working
from tests.jobs import job
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

NOWHERE = "redis://127.0.0.1:9/0"


class FollowedGates(Gates):
    """Gates whose steps a test follows: what it does before each of them, and what it counts."""

    before_trip: Callable[[Sequence[Any]], Awaitable[None]] | None = None
    before_renewal: Callable[[str], Awaitable[None]] | None = None
    questions = 0

    async def _piped(self, steps: Sequence[Sequence[Any]]) -> list[Any]:
        if self.before_trip is not None:
            await self.before_trip(steps)
        return await super()._piped(steps)

    async def _renew(self, duty: str, token: str, state: str = "") -> bool:
        if self.before_renewal is not None:
            await self.before_renewal(duty)
        return await super()._renew(duty, token, state)

    async def _lost(self, questions: Sequence[Sequence[str]]) -> list[list[str]]:
        self.questions += 1
        return await super()._lost(questions)


class Making(Protocol):
    def __call__(self, **times: timedelta) -> FollowedGates: ...


@pytest.fixture
async def making(valkey: ValkeyServer) -> AsyncIterator[Making]:
    """Makes gates of one namespace. Arguments: `GateTimes`."""
    async with AsyncExitStack() as made:
        namespace = f"test-{uuid4().hex}"

        def make(**times: timedelta) -> FollowedGates:
            gates = FollowedGates(valkey.url, namespace, times=GateTimes(**times))
            made.push_async_callback(gates.aclose)
            return gates

        yield make


@pytest.fixture
def gates(making: Making) -> FollowedGates:
    return making()


def life(valkey: ValkeyServer, gates: Gates, duty: str = "pull") -> int:
    """How long a gate stays shut, in milliseconds; negative when it is open."""
    return int(redis.Redis.from_url(valkey.url).pttl(gates._key(duty)))


async def opened(gates: Gates, duty: str = "pull", *, force: bool = False) -> str:
    token = await gates.open(duty, force=force)
    assert token is not None
    return token


async def test_a_renewal_that_is_under_way_does_not_shut_the_gate_again(
    making: Making, valkey: ValkeyServer
) -> None:
    gates = making(gate=timedelta(seconds=0.03))
    token, before = await opened(gates), asyncio.all_tasks()
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_steps: Sequence[Any]) -> None:
        under_way.set()
        await go_on.wait()

    async with gates.hold("pull", token):
        gates.before_trip = slow
        await under_way.wait()
    closed = asyncio.create_task(gates.close("pull", token))
    await asyncio.sleep(0)  # it waits for the renewal
    go_on.set()
    await closed
    assert life(valkey, gates) < 0
    assert asyncio.all_tasks() == before


async def test_a_job_that_ends_as_a_renewal_begins_is_not_renewed(making: Making, valkey: ValkeyServer) -> None:
    """One round renews all gates of a process. A job may end after the round has begun, before its own renewal."""
    gates, done = making(gate=timedelta(seconds=3)), asyncio.Event()
    first, second = gates.hold("first", await opened(gates, "first")), await opened(gates, "second")

    async def end_second(duty: str) -> None:
        if duty == "first" and not done.is_set():
            await ending.__aexit__(None, None, None)
            await gates.close("second", second)
            done.set()

    async with first:
        ending = gates.hold("second", second)
        await ending.__aenter__()
        gates.before_renewal = end_second
        await done.wait()
        await eventually("the round is over", lambda: life(valkey, gates, "first") > 2_500)
        assert life(valkey, gates, "second") < 0


async def test_one_round_trip_renews_all_gates_of_a_process(making: Making) -> None:
    gates, trips = making(gate=timedelta(seconds=0.3)), list[int]()

    async def noted(steps: Sequence[Any]) -> None:
        trips.append(len(steps))

    async with AsyncExitStack() as jobs:
        for number in range(20):
            duty = f"pull:{number}"
            await jobs.enter_async_context(gates.hold(duty, await opened(gates, duty)))
        gates.before_trip = noted
        await eventually("two rounds", lambda: len(trips) > 1)
        assert set(trips) == {20}


async def test_the_steps_of_a_thousand_duties_at_once_share_a_connection_and_wait_for_none(
    making: Making, valkey: ValkeyServer
) -> None:
    """redis-py's pool raises "No connection available" after a while, which looks like an outage."""
    gates, server = making(connection_wait=timedelta(milliseconds=1)), redis.Redis.from_url(valkey.url)
    before = {it["id"] for it in server.client_list()}
    tokens = await asyncio.gather(*(gates.open(f"publish:{number}") for number in range(1_000)))
    assert None not in tokens
    assert len({it["id"] for it in server.client_list()} - before) == 1


async def test_a_server_that_begins_anew_learns_the_steps_again(gates: Gates, valkey: ValkeyServer) -> None:
    await opened(gates, "first")
    redis.Redis.from_url(valkey.url).script_flush()
    tokens = await asyncio.gather(*(gates.open(duty) for duty in ("first", "second", "third")))
    assert [token is None for token in tokens] == [True, False, False]


async def test_a_step_that_redis_refuses_fails_no_other(gates: Gates) -> None:
    # Redis takes no question for no fields of a hash.
    took, token = await asyncio.gather(gates.claim("wrong", {}), gates.open("pull"), return_exceptions=True)
    assert isinstance(took, QueueUnreachable)
    assert isinstance(token, str)


async def test_no_renewal_outlives_its_job(making: Making) -> None:
    """However they meet: the client loses a cancellation that comes just as its command is sent."""
    gates, before = making(gate=timedelta(milliseconds=1)), asyncio.all_tasks()
    for number in range(100):
        async with gates.hold("pull", f"token{number}"):
            await asyncio.sleep(number % 7 * 0.0005)
    assert asyncio.all_tasks() == before


async def test_a_gate_lets_one_job_through(gates: Gates) -> None:
    tokens = await asyncio.gather(*(gates.open("pull") for _ in range(8)))
    assert len([token for token in tokens if token is not None]) == 1
    assert await gates.open("pull") is None
    assert await gates.open("publish") is not None  # each duty has a gate of its own


async def test_a_job_is_in_its_queue_when_its_gate_is_open_and_once_only(
    gates: Gates, valkey: ValkeyServer
) -> None:
    broker = create_broker(valkey.url, namespace=gates._namespace, middleware=[])

    def send(token: str) -> QueueEntry:
        return broker.entry(job("q", "note", token))

    tokens = [await gates.open("pull", send=send) for _ in range(3)]
    tokens.append(await gates.open("pull", send=send, force=True))
    assert [token is None for token in tokens] == [False, True, True, False]
    ran: list[str] = []
    dramatiq.actor(ran.append, broker=broker, actor_name="note", queue_name="q")
    with working(broker):
        await eventually("it has run", lambda: ran == [tokens[0], tokens[3]])


async def test_a_job_that_waits_for_longer_than_its_gate_lives_is_not_sent_again(
    gates: Gates, valkey: ValkeyServer
) -> None:
    """Otherwise jobs pile up while no worker is there. One that a worker took and lost is sent again."""
    broker, client = (
        create_broker(valkey.url, namespace=gates._namespace, middleware=[]),
        redis.Redis.from_url(valkey.url),
    )

    async def send(duty: str, *, force: bool = False) -> bool:
        client.delete(gates._key(duty))  # it has run out
        opened = await gates.open(duty, force=force, send=lambda token: broker.entry(job("q", duty, token)))
        return opened is not None

    assert await send("first")
    first = client.time()[1]
    await eventually("another millisecond", lambda: client.time()[1] // 1000 != first // 1000)
    assert await send("second")
    assert [await send(duty) for duty in ("first", "second")] == [False, False]
    assert await send("second", force=True)
    client.lpop(f"{gates._namespace}:q")
    assert [await send(duty) for duty in ("first", "second")] == [True, False]
    client.delete(f"{gates._namespace}:q")
    assert await send("second")


async def test_those_who_ask_at_the_same_time_which_gates_are_open_share_a_question(gates: FollowedGates) -> None:
    await opened(gates, "pull:a")
    await opened(gates, "pull:b")
    assert await asyncio.gather(gates.lost(["pull:a"]), gates.lost(["pull:b"]), gates.lost([])) == [[], [], []]
    assert gates.questions == 1
    found = await asyncio.gather(gates.lost(["pull:a", "pull:c"]), gates.lost(["pull:d", "pull:b"]))
    assert found == [["pull:c"], ["pull:d"]]


async def test_force_takes_a_gate_over_and_the_former_job_finds_out(gates: Gates) -> None:
    former = await opened(gates)
    latter = await opened(gates, force=True)
    async with gates.hold("pull", former) as ours:
        assert not ours
    async with gates.hold("pull", latter) as ours:
        assert ours


async def test_a_job_that_runs_finds_out_that_another_has_taken_over(making: Making) -> None:
    """The other one may wait for its thread."""
    gates = making(gate=timedelta(milliseconds=300))
    former = await opened(gates)
    async with gates.hold("pull", former) as ours:
        assert ours
        await opened(gates, force=True)
        await eventually("it knows", lambda: not ours)


async def test_a_gate_whose_job_died_opens_by_itself(making: Making) -> None:
    gates = making(gate=timedelta(milliseconds=100))
    await opened(gates)
    await eventually("it is open", lambda: gates.open("pull"))


async def test_a_job_closes_its_own_gate_only(gates: Gates, valkey: ValkeyServer) -> None:
    former = await opened(gates)
    latter = await opened(gates, force=True)
    await gates.close("pull", former)
    assert await gates.open("pull") is None
    await gates.close("pull", latter)
    assert await gates.open("pull") is not None


async def test_a_gate_stays_shut_as_long_as_its_job_runs(making: Making, valkey: ValkeyServer) -> None:
    gates = making(gate=timedelta(seconds=3))
    token = await opened(gates)
    shut: list[bool] = []

    async def noted(_duty: str) -> None:
        shut.append(life(valkey, gates) > 0)

    gates.before_renewal = noted
    async with gates.hold("pull", token) as ours:
        assert ours
        await eventually("it was renewed for longer than it lasts", lambda: len(shut) > 4)
        assert await gates.open("pull") is None
    assert all(shut)
    await eventually("it is open again", lambda: gates.open("pull"))


async def test_a_job_whose_gate_was_flushed_takes_it_again(gates: Gates, valkey: ValkeyServer) -> None:
    token = await opened(gates)
    redis.Redis.from_url(valkey.url).delete(gates._key("pull"))
    async with gates.hold("pull", token) as ours:
        assert ours
        assert await gates.open("pull") is None


async def test_a_job_in_back_off_keeps_its_gate_unless_it_lost_it(gates: Gates, valkey: ValkeyServer) -> None:
    former = await opened(gates)
    await gates.back_off("pull", former)
    assert await gates.open("pull") is None
    async with gates.hold("pull", former) as ours:
        assert ours  # it has come back
    latter = await opened(gates, force=True)
    await gates.back_off("pull", former)
    async with gates.hold("pull", former) as ours:
        assert not ours
    async with gates.hold("pull", latter) as ours:
        assert ours


async def test_whatever_its_job_is_at_a_gate_opens_within_seconds_of_its_death(
    gates: Gates, valkey: ValkeyServer
) -> None:
    """Queued, running or in back-off: who holds the job may be killed, and Redis may lose it."""
    most = GATE_TIMES.gate.total_seconds() * 1000
    assert most <= 6_000
    token = await opened(gates)
    assert 0 < life(valkey, gates) <= most
    async with gates.hold("pull", token):
        assert 0 < life(valkey, gates) <= most
    await gates.back_off("pull", token)
    assert 0 < life(valkey, gates) <= most
    # And in time for its job, which is delayed and then waits for a thread.
    assert timedelta(seconds=1.5) < GATE_TIMES.gate - LONGEST_BACKOFF


async def test_a_duty_that_is_done_rests_and_one_whose_job_died_is_lost(
    gates: Gates, making: Making, valkey: ValkeyServer
) -> None:
    hour = timedelta(hours=1)
    assert await gates.lost([]) == []
    assert await gates.lost(["prune", "archive"]) == ["prune", "archive"]
    token = await gates.open("prune", interval=hour)
    assert token is not None
    assert await gates.lost(["prune", "archive"]) == ["archive"]  # a job is outstanding
    async with gates.hold("prune", token) as ours:
        assert ours
    await gates.close("prune", token)
    assert await gates.lost(["prune", "archive"]) == ["archive"]  # it is done
    assert life(valkey, gates, "prune") > 3_500_000
    async with gates.hold("prune", token) as ours:
        assert not ours  # a copy that comes late
    short = making(gate=timedelta(milliseconds=100))
    assert await short.open("prune", interval=hour) is not None  # its next turn
    await eventually("the job that died is found out", lambda: gates.lost(["prune"]))


async def test_a_duty_that_did_not_end_well_is_done_again_soon(gates: Gates, valkey: ValkeyServer) -> None:
    most = LONGEST_BACKOFF.total_seconds() * 1000
    token = await gates.open("prune", interval=timedelta(hours=1))
    await gates.close("prune", str(token), well=False)
    assert 0 < life(valkey, gates, "prune") <= most
    token = await gates.open("sweep")
    await gates.close("sweep", str(token), well=False)
    assert life(valkey, gates, "sweep") < 0  # it has no interval: the next tick comes anyway


async def test_who_was_replaced_does_not_say_that_the_duty_is_done(gates: Gates, valkey: ValkeyServer) -> None:
    former = await gates.open("prune", interval=timedelta(hours=1))
    latter = await gates.open("prune", interval=timedelta(hours=1), force=True)
    await gates.close("prune", str(former))
    async with gates.hold("prune", str(latter)) as ours:
        assert ours


async def test_a_server_that_is_back_opens_the_gates_of_jobs_that_wait_and_of_no_others(
    gates: Gates, valkey: ValkeyServer
) -> None:
    waiting, running, other = [await opened(gates, name) for name in ("waiting", "running", "other")]
    for duty, token in (("waiting", waiting), ("returned", running), ("other", other)):
        await gates.back_off(duty, token)
    async with gates.hold("returned", running):
        await gates.wake(["waiting", "running", "returned", "nobody's"])
        shut = {duty for duty in ("waiting", "running", "returned", "other") if life(valkey, gates, duty) > 0}
        assert shut == {"running", "returned", "other"}
    replacement = await opened(gates, "waiting")
    async with gates.hold("waiting", waiting) as ours:
        assert not ours  # it comes back from its back-off, and another is at its work
    async with gates.hold("waiting", replacement) as ours:
        assert ours
    await gates.wake([])


async def test_without_redis_jobs_run_and_none_can_be_sent() -> None:
    gates = Gates(NOWHERE, "test")
    async with gates.hold("pull", "token") as ours:
        assert ours
    await gates.close("pull", "token")
    await gates.back_off("pull", "token")
    await gates.wake(["pull"])
    assert await gates.lost(["pull"]) == []
    with pytest.raises(QueueUnreachable) as caught:
        await gates.open("pull")
    assert caught.value.code == "QUEUE_UNREACHABLE"
    await gates.aclose()


async def test_redis_lost_while_a_job_runs_does_not_end_the_job(own_valkey: ValkeyServer) -> None:
    gates = Gates(own_valkey.url, "test", times=GateTimes(gate=timedelta(milliseconds=90)))
    token = await opened(gates)
    async with gates.hold("pull", token) as ours:
        await asyncio.to_thread(own_valkey.kill)
        await asyncio.to_thread(own_valkey.start)
        await eventually("its keeper has shut the gate again", lambda: life(own_valkey, gates) > 0)
        assert ours
    await gates.aclose()


# --- keys that nobody of ours has written so ---


async def test_a_gate_of_nobody_is_mended_and_that_of_a_job_stays(gates: Gates, valkey: ValkeyServer) -> None:
    client = redis.Redis.from_url(valkey.url)
    token = await opened(gates, "held")
    client.set(gates._key("foreign"), "x")
    client.set(gates._key("kept"), f"{'0' * 32}:0")
    client.hset(gates._key("typed"), "a", "b")
    client.set(gates._routines("held"), "x")
    mended = await gates.mend(["held", "foreign", "kept", "typed", "none"])
    expected = [gates._key(it) for it in ("foreign", "kept", "typed")] + [gates._routines("held")]
    assert sorted(mended) == sorted(expected)
    assert client.get(gates._key("held")) == token.encode()
    assert 0 < life(valkey, gates, "foreign") <= life_of(gates)
    assert 0 < life(valkey, gates, "kept") <= life_of(gates)
    assert await gates.mend(["held", "foreign", "kept", "typed", "none"]) == []
    assert await gates.open("typed") is not None


async def test_a_job_whose_gate_has_lost_its_expiry_keeps_it(making: Making, valkey: ValkeyServer) -> None:
    gates = making(gate=timedelta(seconds=0.5))
    token = await opened(gates)
    async with gates.hold("pull", token) as hold:
        redis.Redis.from_url(valkey.url).persist(gates._key("pull"))
        assert await gates.mend(["pull"]) == [gates._key("pull")]
        await eventually("it was renewed", lambda: life(valkey, gates) > 0)
        assert hold


def life_of(gates: Gates) -> int:
    return int(gates.times.gate.total_seconds() * 1000)
