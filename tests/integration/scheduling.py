"""What tests of the scheduler share: a configuration, and a table of ticks that are run by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import dramatiq
import psycopg
import redis

from relay import Outbox
from relay.adapters.dramatiq.broker import create_broker
from relay.adapters.dramatiq.gates import GATE_TIMES, GateTimes
from relay.adapters.postgres.wakeup import DueEvents
from relay.bootstrap import Application
from relay.domain.facts import Fact
from relay.settings import load_settings
from scheduler.brake import BRAKE_TIMES, BrakeTimes
from scheduler.polls import POLL_LIMITS, PollLimits
from scheduler.ticks import Tick, ticks
from tests.integration.publishing import event, query

CONFIG = """
redis_url = "{redis_url}"
redis_namespace = "{namespace}"
nats_url = "{nats_url}"
[contexts.sea]
database_url = "{database_url}"
[contexts.sea.publish]
shards = 2
poll_interval = "{poll}"
[contexts.sea.subscriptions.from_up]
stream = "UP_EVENTS"
filter_subject = "up.event.>"
ack_wait = "100s"
handler = "http://127.0.0.1:9/handle"
"""


def configuration(directory: Path, **values: str) -> Path:
    defaults = {"poll": "1h", "nats_url": "nats://127.0.0.1:9", "redis_url": "redis://127.0.0.1:9/0"}
    path = directory / "relay.toml"
    path.write_text(CONFIG.format(**{**defaults, **values}))
    return path


@dataclass
class Scheduler:
    """The table of a scheduler, its ticks run by hand."""

    application: Application
    table: dict[str, Tick]
    facts: list[Fact]
    database_url: str
    polls: int = 0
    task_polls: int = 0

    async def tick(self, name: str = "publish:sea") -> None:
        await asyncio.wait_for(self.table[name].tick(), 60)

    def sent(self, queue: str = "relay-publish") -> list[tuple[Any, ...]]:
        """The arguments of the jobs of a queue, without their tokens, in order."""
        return [job.args[:-1] for job in self.messages(queue)]

    def messages(self, queue: str = "relay-publish") -> list[dramatiq.Message[Any]]:
        settings = self.application.settings
        client = redis.Redis.from_url(settings.redis_url.get_secret_value())
        key = f"{settings.redis_namespace}:{queue}"
        ids: list[Any] = list(client.lrange(key, 0, -1))  # type: ignore[arg-type]
        return [dramatiq.Message.decode(client.hget(f"{key}.msgs", id)) for id in ids]  # type: ignore[arg-type]

    def produce(self, count: int = 20) -> None:
        with psycopg.connect(self.database_url) as connection:
            Outbox("sea").add_many(connection, [event(f"v{n}") for n in range(count)])

    def add(self, key: str | None) -> None:
        with psycopg.connect(self.database_url) as connection:
            Outbox("sea").add(connection, event("v0", partition_key=key))

    def schedule(self) -> None:
        """A task that is due."""
        query(
            self.database_url, "INSERT INTO task_outbox (id, type, payload) VALUES (gen_random_uuid(), 't', '1')"
        )

    def lose_a_task(self) -> None:
        """A task that was delivered and has not begun for a minute."""
        query(
            self.database_url,
            "INSERT INTO task_outbox (id, type, payload, status, enqueued_at)"
            " VALUES (gen_random_uuid(), 't', '1', 'delivered', now() - interval '1 min')",
        )

    def receive(self, subscription: str = "from_up", *, processed: bool = False) -> None:
        """A message in the inbox."""
        query(
            self.database_url,
            "INSERT INTO inbox_messages (message_id, subject, subscription, processed_at)"
            f" VALUES (gen_random_uuid(), 'up.event.a.v1', '{subscription}', {'now()' if processed else 'NULL'})",
        )

    def sleeping(self) -> bool:
        return bool(query(self.database_url, "SELECT sleeping FROM relay_wakeup")[0]["sleeping"])


@asynccontextmanager
async def scheduling(
    directory: Path,
    database_url: str,
    redis_url: str,
    *,
    limits: PollLimits = POLL_LIMITS,
    gate_times: GateTimes = GATE_TIMES,
    brake_times: BrakeTimes = BRAKE_TIMES,
    **environ: str,
) -> AsyncIterator[Scheduler]:
    path = configuration(directory, database_url=database_url, redis_url=redis_url, namespace=f"t{uuid4().hex}")
    application = Application(load_settings(path, environ), role="scheduler", gate_times=gate_times)
    facts: list[Fact] = []
    application.facts.listen(facts.append)
    parts = application.context("sea")
    parts.pool.timeout = 0.5
    await parts.pool.open()
    broker = create_broker(redis_url, namespace=application.settings.redis_namespace, middleware=[])
    due, tasks_due = parts.wakeup.due, parts.wakeup.tasks_due

    async def counted(limit: int) -> DueEvents:
        found = await due(limit)
        scheduler.polls += 1
        return found

    async def tasks_counted() -> bool:
        found = await tasks_due()
        scheduler.task_polls += 1
        return found

    parts.wakeup.due = counted  # type: ignore[method-assign]
    parts.wakeup.tasks_due = tasks_counted  # type: ignore[method-assign]
    table = {job.name: job for job in ticks(application, broker, "sea", limits, brake_times)}
    scheduler = Scheduler(application, table, facts, database_url)
    try:
        yield scheduler
    finally:
        await application.stop()
