"""The short periodic jobs of a subscription, run once by hand in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import dramatiq
import pytest

from relay import jobs
from relay.adapters.dramatiq import broker as redis_clock
from relay.adapters.dramatiq.broker import RelayBroker, create_broker
from relay.adapters.jetstream.topology import ensure
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.topology import RELAY_ADVISORIES
from relay.jobs import HANDLE_QUEUE
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.giving_up import about, given_up

pytestmark = pytest.mark.anyio

CONFIG = """
redis_url = "{redis_url}"
redis_namespace = "{namespace}"
nats_url = "{nats_url}"
[contexts.{context}]
database_url = "{database_url}"
[contexts.{context}.subscriptions.{subscription}]
stream = "{stream}"
durable = "down"
filter_subject = "{name}.event.>"
handler = "http://127.0.0.1:9/handle"
chunk = {chunk}
"""
# What the worker does around an actor, in one event loop.
RUN = """
import asyncio, importlib, json, sys
from relay.worker import application, broker, runtime
importlib.import_module(sys.argv[1])
async def run():
    await application.start()
    arguments = [json.loads(it) if it.startswith("[") else it for it in sys.argv[3:]]
    on_loop = runtime.on_loop.get(sys.argv[2])
    if on_loop is None:
        await broker.get_actor(sys.argv[2]).fn.__wrapped__(*arguments)
    else:
        await on_loop.run(*arguments)
    await application.stop()
asyncio.run(run())
"""
# One routine of `look_after`, for one subscription.
ROUTINE = """
import asyncio, sys
from consumer import upkeep
from relay.worker import application
async def run():
    await application.start()
    await getattr(upkeep, sys.argv[1])(*sys.argv[2:])
    await application.stop()
asyncio.run(run())
"""
# Duties of an hour, by how their job ends, and for how long they then rest, in milliseconds.
ENDINGS = """
import asyncio, json
from datetime import timedelta
from relay.jobs import DutyKind
from relay.worker import application, periodic
from relay.domain.archive import ArchiveBusy
from relay.domain.errors import DatabaseUnreachable
async def rest(name, error=None):
    gates, duty = application.gates, DutyKind(name, "q", name).of("sea")
    token = await gates.open(duty.key, interval=timedelta(hours=1))
    try:
        async with periodic(duty, token) as ours:
            assert ours
            if error is not None:
                raise error
    except ZeroDivisionError:
        pass
    return await gates._client.pttl(gates._key(duty.key))
async def run():
    rests = {
        "done": await rest("done"),
        "outage": await rest("outage", DatabaseUnreachable("it is away")),
        "busy": await rest("busy", ArchiveBusy("somebody else is at it")),
        "error": await rest("error", ZeroDivisionError()),
    }
    application.quiesce()
    print(json.dumps({**rests, "stopped": await rest("stopped")}))
    await application.gates.aclose()
asyncio.run(run())
"""


def run_actor(config: Path, module: str, actor: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_code(config, RUN, module, actor, *arguments)


def run_code(config: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": root, "RELAY_CONFIG": str(config)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done


@dataclass
class Upkeep:
    """One subscription, and the queue its jobs go to."""

    sub: Subscription
    config: Path
    broker: RelayBroker
    template: str

    def configure(self, chunk: int, more: str = "") -> None:
        self.config.write_text(self.template.replace("{chunk}", f"{chunk}\n{more}"))

    def run(self, routine: str) -> None:
        run_code(self.config, ROUTINE, routine, self.sub.context, SUBSCRIPTION)

    def jobs(self, queue: str = HANDLE_QUEUE) -> list[dramatiq.Message[Any]]:
        jobs: list[Any] = self.broker.client.hvals(f"{self.broker.namespace}:{queue}.msgs")
        return [dramatiq.Message.decode(text) for text in jobs]

    def enqueued(self) -> list[str]:
        return [str(job.args[2]) for job in self.jobs()]

    async def overdue(self) -> UUID:
        """A message that was enqueued a minute ago and never came."""
        message_id = await self.sub.received()
        await self.sub.query("UPDATE inbox_messages SET enqueued_at = enqueued_at - interval '1 minute'")
        return message_id


@contextmanager
def travelled(shift: timedelta) -> Iterator[None]:
    """Within the block the broker of this process lives at another time."""
    with pytest.MonkeyPatch.context() as patch:
        now = redis_clock.RedisClock.now
        patch.setattr(redis_clock.RedisClock, "now", lambda clock: now(clock) + shift // timedelta(milliseconds=1))
        yield


@pytest.fixture
async def upkeep(
    tmp_path: Path, database_url: str, nats_server: NatsServer, valkey: ValkeyServer
) -> AsyncIterator[Upkeep]:
    async with subscribed(database_url, nats_server.url) as sub:
        namespace = f"t{uuid4().hex}"
        config = tmp_path / "relay.toml"
        values = {"redis_url": valkey.url, "namespace": namespace, "nats_url": nats_server.url}
        values |= {"context": sub.context, "database_url": database_url, "subscription": SUBSCRIPTION}
        template = CONFIG.format(stream=sub.stream, name=sub.name, chunk="{chunk}", **values)
        broker = create_broker(valkey.url, namespace=namespace, middleware=[])
        upkeep = Upkeep(sub, config, broker, template)
        upkeep.configure(chunk=1)
        yield upkeep


async def test_the_sweep_enqueues_what_no_queue_brought(upkeep: Upkeep) -> None:
    message_id = await upkeep.overdue()
    upkeep.run("sweep_inbox")
    assert upkeep.enqueued() == [str(message_id)]
    upkeep.run("sweep_inbox")
    assert upkeep.enqueued() == [str(message_id)]


async def test_the_sweep_leaves_alone_what_waits_in_a_queue_that_nobody_keeps_up_with(upkeep: Upkeep) -> None:
    """With handlers that hang, sweeps would take all that waits for lost, and new messages stand behind it."""
    behind_head = await upkeep.overdue()
    with travelled(timedelta(minutes=-2)):
        upkeep.broker.enqueue_many([jobs.handle("", "", ["head"])])
    upkeep.run("sweep_inbox")
    assert upkeep.enqueued() == ["head"]
    upkeep.broker.client.lpop(f"{upkeep.broker.namespace}:{HANDLE_QUEUE}")
    upkeep.run("sweep_inbox")
    assert set(upkeep.enqueued()) == {"head", str(behind_head)}


async def test_the_sweep_enqueues_what_should_have_left_a_long_queue_before_its_head(upkeep: Upkeep) -> None:
    """However long the queue is: another subscription's messages must not keep this one's from being found."""
    lost = await upkeep.overdue()
    with travelled(timedelta(seconds=-20)):
        upkeep.broker.enqueue_many([jobs.handle("", "", ["other"]) for _ in range(2_000)])
    upkeep.run("sweep_inbox")
    assert set(upkeep.enqueued()) == {"other", str(lost)}


async def test_a_retry_at_the_head_tells_when_it_came_and_not_when_it_was_made(upkeep: Upkeep) -> None:
    lost = await upkeep.overdue()
    with travelled(timedelta(minutes=-2)):
        retry = jobs.handle("", "", ["retry"])
        upkeep.broker.declare_queue(HANDLE_QUEUE)
        upkeep.broker.enqueue(retry)
        [text] = upkeep.broker.client.hvals(f"{upkeep.broker.namespace}:{HANDLE_QUEUE}.msgs")
        upkeep.broker.flush(HANDLE_QUEUE)
    upkeep.broker.enqueue(dramatiq.Message.decode(text))
    upkeep.run("sweep_inbox")
    assert set(upkeep.enqueued()) == {"retry", str(lost)}


async def test_what_is_enqueued_travels_in_chunks_and_the_last_one_alone(upkeep: Upkeep) -> None:
    upkeep.configure(chunk=2)
    ids = {str(await upkeep.overdue()) for _ in range(5)}
    upkeep.run("sweep_inbox")
    jobs = upkeep.jobs()
    assert sorted(job.actor_name for job in jobs) == ["handle_chunk", "handle_chunk", "handle_message"]
    found = [job.args[2] if job.actor_name == "handle_chunk" else [job.args[2]] for job in jobs]
    assert sorted(len(part) for part in found) == [1, 2, 2]
    assert {id for part in found for id in part} == ids


async def test_what_a_chunk_leaves_is_enqueued_alone_in_its_own_time(upkeep: Upkeep) -> None:
    """Nothing listens where the handler should be, so both are to be tried again; one was tried before."""
    upkeep.configure(chunk=2, more="circuit = false")
    tried, new = [await upkeep.sub.received(), await upkeep.sub.received()]
    await upkeep.sub.process(Handler.answering(503)).process(tried)
    await upkeep.sub.query("UPDATE inbox_messages SET next_attempt_at = NULL")
    ids = json.dumps([str(tried), str(new)])
    run_actor(upkeep.config, "consumer.actors", "handle_chunk", upkeep.sub.context, SUBSCRIPTION, ids)
    [at_once], [later] = upkeep.jobs(), upkeep.jobs(f"{HANDLE_QUEUE}.DQ")
    assert (at_once.actor_name, at_once.args[2]) == ("handle_message", str(tried))
    assert (later.actor_name, later.args[2]) == ("handle_message", str(new))
    due = (await upkeep.sub.row(new))["next_attempt_at"].timestamp() * 1000
    assert abs(later.options["eta"] - due) < 5_000


async def test_a_duty_rests_when_it_is_done_and_no_longer_than_a_back_off_when_it_is_not(upkeep: Upkeep) -> None:
    """An error that is no outage counts as a run: a mistake in a duty of an hour is not made every few seconds."""
    rests = json.loads(run_code(upkeep.config, ENDINGS).stdout)
    soon = {name for name, rest in rests.items() if 0 < rest <= 4_000}
    late = {name for name, rest in rests.items() if 3_000_000 < rest <= 3_600_000}
    assert (soon, late) == ({"outage", "busy", "stopped"}, {"done", "error"})


async def test_jetstream_is_told_of_messages_in_progress(upkeep: Upkeep) -> None:
    await upkeep.sub.received()
    reply = (await upkeep.sub.row(upkeep.sub.enqueued[0]))["ack_subject"]
    client = upkeep.sub.js._nc
    told = await client.subscribe(reply)
    await client.flush()
    upkeep.run("keep_in_progress")
    assert (await told.next_msg(timeout=20)).data == b"+WPI"


async def test_one_job_does_all_that_the_subscriptions_need(upkeep: Upkeep) -> None:
    """Sent by the scheduler every few seconds."""
    swept = await upkeep.overdue()
    recovered = await upkeep.sub.send()
    await upkeep.sub.lose()
    run_actor(upkeep.config, "consumer.actors", "look_after", upkeep.sub.context, "token")
    assert set(upkeep.enqueued()) == {str(swept), str(recovered)}


async def test_a_subscription_that_has_nothing_unfinished_is_not_swept_but_recovered(upkeep: Upkeep) -> None:
    """Also one that this process does not know harms nothing."""
    await upkeep.overdue()
    recovered = await upkeep.sub.send()
    await upkeep.sub.lose()
    unfinished = json.dumps(["unknown"])
    run_actor(upkeep.config, "consumer.actors", "look_after", upkeep.sub.context, "token", unfinished)
    assert upkeep.enqueued() == [str(recovered)]


async def test_deliveries_that_went_down_with_a_worker_are_recovered(upkeep: Upkeep) -> None:
    message_id = await upkeep.sub.send()
    await upkeep.sub.lose()
    upkeep.run("recover_deliveries")
    assert upkeep.enqueued() == [str(message_id)]
    await upkeep.sub.process(Handler()).process(message_id)
    await upkeep.sub.acked()


async def test_messages_that_jetstream_gave_up_are_rescued(upkeep: Upkeep) -> None:
    await ensure(upkeep.sub.js, [RELAY_ADVISORIES], [about(upkeep.sub)])
    message_id = await upkeep.sub.send()
    await given_up(upkeep.sub)
    upkeep.run("recover_deliveries")
    assert upkeep.enqueued() == []
    upkeep.run("rescue_exhausted")
    assert upkeep.enqueued() == [str(message_id)]
