"""Heartbeats: the members of a fleet, seen by all, lost when they are silent, and forgotten in the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from relay.adapters.dramatiq.gates import Gates
from relay.adapters.dramatiq.runtime import WorkerRuntime
from relay.adapters.members import Heart, Members, process_runs, this_process
from relay.devstack import ValkeyServer
from relay.domain.errors import QueueUnreachable
from relay.domain.members import (
    FORGOTTEN_AFTER_S,
    LOST_AFTER_S,
    CrewReport,
    Member,
    State,
    Usage,
    busy_part,
    digest_of,
    handled_name,
)
from tests.integration.queueing import fresh_broker, working
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

WORKER = Member(
    id="one",
    kind="worker",
    host="b",
    pid=7,
    command=6,
    fleet="abc-5",
    version="1.2.3",
    state=State.WORKING,
    up_seconds=12.5,
    usage=Usage(threads=8, busy=3, waiting=2, doing={"sea/from_vibespro": 3}),
)
SUPERVISOR = Member(
    id="two",
    kind="fleet",
    host="a",
    pid=5,
    state=State.ENDING,
    crew=CrewReport(least=2, most=10, wanted=3, running=2, why="little is due", crashes=1),
)


class Found:
    """The members of a namespace of the test's own."""

    def __init__(self, url: str) -> None:
        self.namespace = f"test-{uuid4().hex}"
        self.gates = Gates(url, self.namespace)
        self.client = self.gates.client
        self.members = Members(self.client, self.namespace)

    async def age(self, id: str, seconds: float) -> None:
        """Have a member be silent for so long."""
        for key in ("beats", "publishing"):
            if await self.client.zscore(f"{self.namespace}:members:{key}", id) is not None:
                await self.client.zincrby(f"{self.namespace}:members:{key}", -1000 * seconds, id)

    def another(self) -> Members:
        """As another process sees them."""
        return Members(self.client, self.namespace)

    async def ids(self) -> list[str]:
        return [it.member.id for it in await self.members.all()]


@pytest.fixture
async def found(valkey: ValkeyServer) -> AsyncIterator[Found]:
    found = Found(valkey.url)
    yield found
    await found.gates.aclose()


async def test_every_member_is_seen_as_it_describes_itself(found: Found) -> None:
    await found.members.beat(WORKER)
    await found.members.beat(SUPERVISOR)
    assert [it.member for it in await found.members.all()] == [SUPERVISOR, WORKER]
    assert [it.state for it in await found.members.all()] == [State.ENDING, State.WORKING]


async def test_the_last_beat_holds_and_who_leaves_is_gone(found: Found) -> None:
    await found.members.beat(WORKER)
    busier = replace(WORKER, usage=Usage(threads=8, busy=8))
    await found.members.beat(busier)
    await found.members.beat(SUPERVISOR)
    assert busier in [it.member for it in await found.members.all()]
    await found.members.leave(WORKER)
    assert await found.ids() == ["two"]


async def test_who_is_silent_is_lost_until_it_beats_again(found: Found) -> None:
    await found.members.beat(WORKER)
    await found.age("one", LOST_AFTER_S + 1)
    [seen] = await found.members.all()
    assert seen.state is State.LOST
    assert seen.silent_seconds > LOST_AFTER_S
    assert seen.member == WORKER
    await found.members.beat(WORKER)
    assert [it.state for it in await found.members.all()] == [State.WORKING]


@pytest.mark.parametrize("by", ["a look", "a beat"])
async def test_who_is_silent_for_long_is_forgotten(found: Found, by: str) -> None:
    await found.members.beat(replace(WORKER, publishes=True))
    await found.age("one", FORGOTTEN_AFTER_S + 1)
    if by == "a beat":
        await found.members.beat(SUPERVISOR)
    else:
        await found.ids()
    assert not await found.client.hexists(f"{found.namespace}:members", "one")
    for key in ("beats", "publishing"):
        assert "one" not in await found.client.zrange(f"{found.namespace}:members:{key}", 0, -1)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"id": "x"}', '{"id":"x","kind":"w","host":"h","pid":1,"state":"?"}']
)
async def test_a_member_of_another_release_hides_no_other(found: Found, text: str) -> None:
    await found.members.beat(WORKER)
    await found.members.beat(replace(SUPERVISOR, id="x"))
    await found.client.hset(f"{found.namespace}:members", "x", text)
    assert await found.ids() == ["one"]
    newer = '{"id":"x","kind":"w","host":"h","pid":1,"state":"working","more":1,"usage":{"threads":1,"more":2}}'
    await found.client.hset(f"{found.namespace}:members", "x", newer)
    assert await found.ids() == ["one", "x"]


async def test_redis_may_lose_all_and_the_next_beat_brings_it_back(found: Found) -> None:
    await found.members.beat(WORKER)
    await found.client.delete(f"{found.namespace}:members", f"{found.namespace}:members:beats")
    assert await found.ids() == []
    await found.members.beat(WORKER)
    assert await found.ids() == ["one"]


async def test_a_redis_that_is_away_is_an_error() -> None:
    found = Found("redis://127.0.0.1:1/0")
    for asked in (found.members.all(), found.members.beat(WORKER), found.members.leave(WORKER)):
        with pytest.raises(QueueUnreachable):
            await asked
    await found.gates.aclose()


@pytest.fixture
def processes() -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Two that end at once. Of one the system still knows that it has."""
    found = {name: subprocess.Popen([sys.executable, "--version"]) for name in ("ended", "unasked")}
    found["ended"].wait()
    yield found
    found["unasked"].wait()


async def test_those_are_gone_whose_processes_were_here_and_have_ended(
    found: Found, processes: dict[str, subprocess.Popen[bytes]]
) -> None:
    here = this_process("worker", "this")
    for id in ("ended", "unasked"):
        pid = processes[id].pid
        await eventually("it has ended", lambda pid=pid: not process_runs(pid))  # type: ignore[misc]
        await found.members.beat(replace(here, id=id, pid=pid))
        await found.members.beat(replace(here, id=f"{id} elsewhere", pid=pid, place="elsewhere"))
        await found.members.beat(replace(here, id=f"{id} without a place", pid=pid, place=""))
    await found.members.beat(here)
    assert sorted(it.id for it in await found.members.gone()) == ["ended", "unasked"]


async def test_where_processes_cannot_be_told_apart_none_is_gone(found: Found) -> None:
    members = Members(found.client, found.namespace, place="")
    await members.beat(replace(this_process("worker", "this"), pid=2**22 + 1, place=""))
    assert await members.gone() == []


# --- who publishes ---


async def test_the_workers_that_publish_are_counted_while_they_are_alive(found: Found) -> None:
    """By one that beats with each beat, and by one that only asks."""
    publisher = replace(WORKER, publishes=True)
    for number in range(3):
        await found.members.beat(replace(publisher, id=f"p{number}"))
    await found.members.beat(SUPERVISOR)
    await found.members.beat(WORKER)
    assert await found.members.publishing() == await found.another().publishing() == 3
    await found.age("p0", LOST_AFTER_S + 1)
    assert await found.another().publishing() == 2
    await found.members.leave(replace(publisher, id="p1"))
    assert await found.another().publishing() == 1
    await found.members.beat(replace(publisher, id="p0"))
    await found.members.beat(replace(publisher, id="p2", publishes=False, state=State.ENDING))
    assert await found.members.publishing() == 1


async def test_one_worker_listens_to_a_context_and_the_scheduler_knows_it(found: Found) -> None:
    """Whoever publishes may be the one. What it says of itself decides what the scheduler leaves to it."""
    workers = {id: replace(WORKER, id=id, publishes=True) for id in ("p0", "p1", "p2")}
    seen = {id: found.another() for id in workers}
    for _ in range(2):  # the first beat of the first one knows of no other
        for id, worker in workers.items():
            await seen[id].beat(worker)
    assert not any(members.listens("p9", "sea") for members in seen.values())
    [chosen] = [id for id, members in seen.items() if members.listens(id, "sea")]
    assert not await found.another().listening("sea"), "an older release says nothing"
    await seen[chosen].beat(replace(workers[chosen], listens=["sea"]))
    assert await found.another().listening("sea")
    assert not await found.another().listening("land")
    await found.age(chosen, LOST_AFTER_S + 1)
    assert not await found.another().listening("sea")
    for id in workers.keys() - {chosen}:
        await seen[id].beat(workers[id])
    [follower] = [id for id in workers.keys() - {chosen} if seen[id].listens(id, "sea")]
    assert follower != chosen


async def test_all_see_what_a_worker_handles_until_it_leaves_or_is_forgotten(found: Found) -> None:
    name, other = (handled_name("sea", "from_vibespro", "made", it) for it in (1, 2))
    new = replace(WORKER, id="new", handles=digest_of([name]))
    await found.members.beat(replace(WORKER, id="old"))
    assert not await found.another().handle([name])
    await found.members.beat(new)
    assert await found.another().handle([other, name])
    assert not await found.another().handle([other])
    await found.age("new", FORGOTTEN_AFTER_S - 60)
    assert await found.another().handle([name]), "it may be restarting"
    await found.members.leave(new)
    assert not await found.another().handle([name])


async def test_a_count_holds_while_redis_is_away_and_is_never_none(own_valkey: ValkeyServer) -> None:
    found = Found(own_valkey.url)
    assert await found.members.publishing() == 1
    for number in range(2):
        await found.members.beat(replace(WORKER, publishes=True, id=f"p{number}"))
    own_valkey.kill()
    found.members._counted_at = None
    assert await found.members.publishing() == 2
    await found.gates.aclose()
    own_valkey.start()


@pytest.mark.parametrize(("queues", "takes"), [(None, True), ({"publish", "other"}, True), ({"other"}, False)])
def test_a_worker_takes_jobs_of_its_queues_from_its_start_to_its_end(
    valkey: ValkeyServer, queues: set[str] | None, takes: bool
) -> None:
    runtime = WorkerRuntime(start=nothing, quiesce=lambda: None, stop=nothing, budgets={})
    broker = fresh_broker(valkey.url, [runtime])
    assert not runtime.takes("publish")
    with working(broker, queues=queues):
        assert runtime.takes("publish") is takes
    assert not runtime.takes("publish")


async def nothing() -> None:
    return


# --- a heart ---


async def test_a_heart_beats_by_itself_tells_what_changes_and_leaves(found: Found) -> None:
    now: list[Member] = [WORKER]
    heart = Heart(found.members, lambda: now[0], interval=1_000.0)
    await heart.start()

    async def is_(state: State) -> bool:
        return [it.state for it in await found.members.all()] == [state]

    await eventually("it is there", lambda: is_(State.WORKING))
    now[0] = replace(WORKER, state=State.ENDING)
    await asyncio.to_thread(heart.tell)
    await eventually("it is about to end", lambda: is_(State.ENDING))
    await heart.stop()
    assert await found.ids() == []


async def test_a_heart_goes_on_after_an_outage(own_valkey: ValkeyServer) -> None:
    found = Found(own_valkey.url)
    heart = Heart(found.members, lambda: WORKER, interval=0.1)
    own_valkey.kill()
    await heart.start()
    await asyncio.sleep(0)
    own_valkey.start()
    await eventually("it is there", found.ids)
    own_valkey.kill()
    await heart.stop()
    await found.gates.aclose()
    own_valkey.start()


def test_this_process_is_described() -> None:
    member = this_process("worker", "x", "abc-5")
    assert (member.kind, member.id, member.fleet, member.state) == ("worker", "x", "abc-5", State.STARTING)
    assert member.pid
    assert member.host
    assert member.version


@pytest.mark.parametrize(
    ("usages", "part"),
    [([], None), ([Usage()], None), ([Usage(threads=8, busy=2), Usage(threads=8, busy=8)], 10 / 16)],
)
def test_the_busy_part_is_that_of_all_threads(usages: list[Any], part: float | None) -> None:
    assert busy_part(usages) == part


async def test_the_releases_of_workers_that_are_there_are_counted(found: Found) -> None:
    workers = [replace(WORKER, id=id, version=version) for id, version in (("a", "1"), ("b", "2"), ("c", "2"))]
    for member in [*workers, replace(WORKER, id="lost", version="0"), replace(SUPERVISOR, version="3")]:
        await found.members.beat(member)
    await found.age("lost", LOST_AFTER_S + 1)
    assert await found.members.releases() == {"1": 1, "2": 2}


async def test_without_redis_no_release_is_known() -> None:
    gates = Gates("redis://127.0.0.1:1/0", "nowhere")
    assert await Members(gates.client, "nowhere").releases() == {}
    await gates.aclose()
