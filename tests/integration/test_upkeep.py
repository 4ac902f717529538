"""The short periodic jobs of a subscription, run once by hand in a process of their own."""

from __future__ import annotations

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

from relay.adapters import redis
from relay.adapters.redis import RelayBroker, create_broker
from relay.bootstrap import HANDLE_QUEUE, job
from relay.devstack import NatsServer, ValkeyServer
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed

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
"""
# What the worker does around an actor, in one event loop.
RUN = """
import asyncio, importlib, sys
actors = importlib.import_module(sys.argv[1])
async def run():
    await actors.application.start()
    await getattr(actors, sys.argv[2]).fn.__wrapped__(*sys.argv[3:])
    await actors.application.stop()
asyncio.run(run())
"""


def run_actor(config: Path, module: str, actor: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parents[2])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": root, "RELAY_CONFIG": str(config)}
    command = [sys.executable, "-c", RUN, module, actor, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done


@dataclass
class Upkeep:
    """One subscription, and the queue its jobs go to."""

    sub: Subscription
    config: Path
    broker: RelayBroker

    def run(self, actor: str) -> None:
        run_actor(self.config, "consumer.actors", actor, self.sub.context, SUBSCRIPTION, "token")

    def enqueued(self) -> list[str]:
        key = f"{self.broker.namespace}:{HANDLE_QUEUE}.msgs"
        jobs: list[Any] = self.broker.client.hvals(key)
        return [str(dramatiq.Message.decode(text).args[2]) for text in jobs]

    async def overdue(self) -> UUID:
        """A message that was enqueued a minute ago and never came."""
        message_id = await self.sub.received()
        await self.sub.query("UPDATE inbox_messages SET enqueued_at = enqueued_at - interval '1 minute'")
        return message_id


@contextmanager
def travelled(shift: timedelta) -> Iterator[None]:
    """Within the block the broker of this process lives at another time."""
    with pytest.MonkeyPatch.context() as patch:
        now = redis._now
        patch.setattr(redis, "_now", lambda: now() + shift // timedelta(milliseconds=1))
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
        config.write_text(CONFIG.format(stream=sub.stream, name=sub.name, **values))
        yield Upkeep(sub, config, create_broker(valkey.url, namespace=namespace, middleware=[]))


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
        upkeep.broker.enqueue_many([job(HANDLE_QUEUE, "handle_message", "", "", "head")])
    upkeep.run("sweep_inbox")
    assert upkeep.enqueued() == ["head"]
    upkeep.broker.client.lpop(f"{upkeep.broker.namespace}:{HANDLE_QUEUE}")
    upkeep.run("sweep_inbox")
    assert set(upkeep.enqueued()) == {"head", str(behind_head)}


async def test_the_sweep_enqueues_what_should_have_left_a_long_queue_before_its_head(upkeep: Upkeep) -> None:
    """However long the queue is: another subscription's messages must not keep this one's from being found."""
    lost = await upkeep.overdue()
    with travelled(timedelta(seconds=-20)):
        upkeep.broker.enqueue_many([job(HANDLE_QUEUE, "handle_message", "", "", "other") for _ in range(2_000)])
    upkeep.run("sweep_inbox")
    assert set(upkeep.enqueued()) == {"other", str(lost)}


async def test_a_retry_at_the_head_tells_when_it_came_and_not_when_it_was_made(upkeep: Upkeep) -> None:
    lost = await upkeep.overdue()
    with travelled(timedelta(minutes=-2)):
        retry = job(HANDLE_QUEUE, "handle_message", "", "", "retry")
        upkeep.broker.declare_queue(HANDLE_QUEUE)
        upkeep.broker.enqueue(retry)
        [text] = upkeep.broker.client.hvals(f"{upkeep.broker.namespace}:{HANDLE_QUEUE}.msgs")
        upkeep.broker.flush(HANDLE_QUEUE)
    upkeep.broker.enqueue(dramatiq.Message.decode(text))
    upkeep.run("sweep_inbox")
    assert set(upkeep.enqueued()) == {"retry", str(lost)}


async def test_jetstream_is_told_of_messages_in_progress(upkeep: Upkeep) -> None:
    await upkeep.sub.received()
    reply = (await upkeep.sub.row(upkeep.sub.enqueued[0]))["ack_subject"]
    client = upkeep.sub.js._nc
    told = await client.subscribe(reply)
    await client.flush()
    upkeep.run("keep_in_progress")
    assert (await told.next_msg(timeout=20)).data == b"+WPI"


async def test_deliveries_that_went_down_with_a_worker_are_recovered(upkeep: Upkeep) -> None:
    message_id = await upkeep.sub.send()
    await upkeep.sub.lose()
    upkeep.run("recover_deliveries")
    assert upkeep.enqueued() == [str(message_id)]
    await upkeep.sub.process(Handler()).process(message_id)
    await upkeep.sub.acked()
