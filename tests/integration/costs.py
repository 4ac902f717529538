"""What publishing, consuming and tasks cost, compared with what they are known to cost in ``costs.json``.

``python -m tests.integration.costs`` shows it for each event; ``--accept`` makes it what is known.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import UUID

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from relay import Event, Outbox, jobs
from relay.adapters.dramatiq.gates import Gates, GateTimes
from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.domain.tasks import TaskRef
from relay.execution.prefetch import PrefetchLimits
from relay.jobs import HANDLE_QUEUE, PUBLISH_QUEUE
from relay.ports import Delivery
from tasks import TaskContext
from tasks.deliver import DeliverTasks
from tests.integration.consuming import SUBSCRIPTION, Subscription, subscribed
from tests.integration.http_service import answering, calling
from tests.integration.metering import Cost, Laboratory, Meter, Scenario, laboratory, measured
from tests.integration.publishing import ALL, Relay, event
from tests.integration.python_handling import handling, nothing, sync_psycopg, sync_session
from tests.integration.tasking import Mail, tasking
from tests.jobs import job

BASELINE = Path(__file__).with_name("costs.json")
#: How far from what is known a number may be. Where rows end up in pages, and so what is logged of a page and when
#: it is tidied, hangs on moments that no test chooses; all other numbers are exact.
TOLERANCE = {"wal_bytes": 0.02, "hot_updates": 0.01, "dead_tuples": 0.01}
#: A page of eight inbox rows, whose two updates stay in it or do not.
PAGE = {"hot_updates": 16, "dead_tuples": 16}
ACCEPT = "python -m tests.integration.costs --accept"
#: What a Dramatiq process with eight threads fetches ahead.
PREFETCH = 16
PAYLOAD = {"title": "x" * 250, "n": 12345}
KEYS = 50
#: How long things take is not counted, so claims hold for long, and all that waits is claimed ahead.
HOUR = timedelta(hours=1)
UNTIMED = PrefetchLimits(horizon=1e9, stale=3_600.0)


def events(count: int, first: int = 0) -> list[Event]:
    numbers = range(first, first + count)
    return [event(f"v{n % KEYS:03}", payload=PAYLOAD, id=UUID(int=n + 1)) for n in numbers]


async def one_after_the_other(*coroutines: Awaitable[int]) -> list[int]:
    """The halves of a shard: side by side they would share pages, and so what is logged, by chance."""
    return [await it for it in coroutines]


# --- scenarios ---


async def add(meter: Meter, _lab: Laboratory) -> None:
    """600 events recorded on a psycopg connection, 300 in each transaction."""

    def record() -> None:
        with psycopg.connect(meter.url) as connection:
            for first in (0, 300):
                Outbox("sea").add_many(connection, events(300, first))
                connection.commit()

    with meter.counting(600):
        record()


async def publish(meter: Meter, lab: Laboratory) -> None:
    """600 events in two batches and a look that finds no more: one job, from the tick to its end."""
    with psycopg.connect(meter.uncounted) as connection:
        Outbox("sea").add_many(connection, events(600))
    # Renewals of a gate count the seconds that the machine takes, not the work.
    gates = Gates(lab.valkey.url, "costs", times=GateTimes(gate=timedelta(minutes=10)))
    async with Relay(meter.url, lab.nats.url, context="publishcost") as relay:
        await relay.create_stream()
        relay.publisher = NatsJetStreamPublisher(relay.nats, ack_timeout=timedelta(seconds=30))
        command = relay.command()

        async def drain(token: str) -> None:
            async with gates.hold("publish:sea:0", token):
                await command.drain(ALL)
            await gates.close("publish:sea:0", token)

        with meter.counting(600), patch("relay.commands.publish._all_of", one_after_the_other):
            token = await gates.open("publish:sea:0")
            await asyncio.to_thread(meter.broker.enqueue_many, [job(PUBLISH_QUEUE, "publish_shard", str(token))])
            await work_off(meter, PUBLISH_QUEUE, 1, drain)
        assert relay.unpublished() == []
    await gates.aclose()


async def consume_python(meter: Meter, lab: Laboratory) -> None:
    """200 messages pulled by 50, each handled by a function that writes a row in the inbox transaction."""
    async with subscribed(meter.url, lab.nats.url) as sub, handling(sub) as functions:
        functions.limits = UNTIMED
        await consume(meter, sub, lambda: functions.process(functions.handler(sync_session(nothing))))


async def consume_http(meter: Meter, lab: Laboratory) -> None:
    """200 messages pulled by 50, each handled by an HTTP service."""
    async with subscribed(meter.url, lab.nats.url) as sub, calling(answering("200 OK")) as (handler, _):
        await consume(meter, sub, lambda: sub.process(handler))


async def consume_ordered(meter: Meter, lab: Laboratory) -> None:
    """The same in the order of their keys."""
    async with subscribed(meter.url, lab.nats.url) as sub, calling(answering("200 OK")) as (handler, _):
        await consume(meter, sub.keep_order(), lambda: sub.process(handler))


async def consume_chunks(meter: Meter, lab: Laboratory) -> None:
    """The same in chunks of 50, each of whose functions writes a row in the transaction they share."""
    async with subscribed(meter.url, lab.nats.url) as sub, handling(sub) as functions:
        functions.limits = UNTIMED
        deliveries = await sent(sub, 200)
        sub.lease = HOUR
        pull, process = sub.pull(), sub.chunk(functions.handler(sync_psycopg(nothing)))
        with meter.counting(200):
            await pull.accept(deliveries)
            for first in range(0, 200, 50):
                assert await process.run(sub.enqueued[first : first + 50]) == {}
        await sub.acked()


async def tasks(meter: Meter, lab: Laboratory) -> None:
    """200 tasks of a type without limits brought to Redis and run, each writing a row in its transaction."""

    async def capacity(queue: str) -> int:
        return 200 - await asyncio.to_thread(meter.broker.backlog, queue)

    async def put(refs: list[TaskRef]) -> None:
        messages = [job(ref.queue, "run_task", "sea", ref.type, str(ref.id)) for ref in refs]
        await asyncio.to_thread(meter.broker.enqueue_many, messages)

    async with tasking(meter.url) as parts:
        parts.limits, parts.rows.lease = UNTIMED, HOUR
        parts.threads = True
        parts.register(mail)
        deliver = DeliverTasks("sea", parts.tasks, capacity, put, parts.facts.append)
        parts.schedule(*(Mail(n=n) for n in range(200)))
        with meter.counting(200):
            await deliver.drain(lambda: True)
            await work_off(meter, "default", 200, lambda _, name, id: parts.run(UUID(id), name))
        assert len(await parts.effects()) == 200


async def tasks_ahead(meter: Meter, _lab: Laboratory) -> None:
    """The same 200 in a process that has fetched all of them: most are claimed together with others."""
    async with tasking(meter.url) as parts:
        parts.limits, parts.rows.lease = UNTIMED, HOUR
        parts.threads = True
        parts.register(mail)
        ids = parts.schedule(*(Mail(n=n) for n in range(200)))
        parts.waiting = [TaskRef(id, "mail", "default", 50) for id in ids]
        with meter.counting(200):
            while parts.waiting:
                await parts.run(parts.waiting.pop(0).id)
        assert len(await parts.effects()) == 200


def mail(payload: Mail, session: Session, context: TaskContext) -> None:
    """Write a row."""
    effect = text("INSERT INTO effects (task_id, n) VALUES (:id, :n)")
    session.execute(effect, {"id": context.task_id, "n": payload.n})


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__: scenario
    for scenario in (
        add,
        publish,
        consume_python,
        consume_http,
        consume_ordered,
        consume_chunks,
        tasks,
        tasks_ahead,
    )
}


async def consume(meter: Meter, sub: Subscription, processing: Callable[[], Any]) -> None:
    """Pull 200 messages of 50 keys, in batches of 50, and have a worker process them one after the other."""

    async def enqueue(ids: list[UUID]) -> None:
        messages = [jobs.handle(sub.context, SUBSCRIPTION, [str(id)]) for id in ids]
        await asyncio.to_thread(meter.broker.enqueue_many, messages)

    sub.enqueue = enqueue  # type: ignore[method-assign]
    deliveries = await sent(sub, 200)
    sub.lease = HOUR
    pull, process = sub.pull(), processing()
    with meter.counting(200):
        for first in range(0, 200, 50):
            await pull.accept(deliveries[first : first + 50])
        await work_off(meter, HANDLE_QUEUE, 200, lambda _, __, id: process.process(UUID(id)))
    await sub.acked()


async def sent(sub: Subscription, count: int) -> list[Delivery]:
    """That many messages, delivered."""
    for n in range(count):
        id = str(UUID(int=n + 1))
        content = {"message_id": id, "event_type": "vibe_created", "event_version": 1, "payload": PAYLOAD}
        headers = {"Nats_Msg_Id": id, "Relay_Partition_Key": f"v{n % KEYS:03}"}
        await sub.send(json.dumps(content).encode(), **headers)
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        deliveries += await sub.fetch()
    return deliveries


async def work_off(meter: Meter, queue: str, count: int, actor: Callable[..., Awaitable[Any]]) -> None:
    """Do as a Dramatiq worker does with one thread: fetch, run, acknowledge."""
    consumer = meter.broker.consume(queue, PREFETCH)
    for _ in range(count):
        message = await asyncio.to_thread(next, consumer)
        assert message is not None
        await actor(*message.args)
        await asyncio.to_thread(consumer.ack, message)


# --- what is known ---


def known() -> dict[str, Any]:
    return dict(json.loads(BASELINE.read_text("utf-8")))


def differences(now: Cost, before: dict[str, Any]) -> list[str]:
    """What has changed, a line each."""
    found = []
    for name, value in asdict(now).items():
        if not isinstance(value, dict):
            found += _difference(name, value, before.get(name, 0))
            continue
        for kind in sorted({*value, *before.get(name, {})}):
            found += _difference(f"{name}: {kind}", value.get(kind, 0), before.get(name, {}).get(kind, 0))
    return found


def _difference(name: str, now: int, before: int) -> list[str]:
    if abs(now - before) <= max(TOLERANCE.get(name, 0) * before, PAGE.get(name, 0)):
        return []
    return [f"{name}: {now}, was {before}" + (f" ({now / before - 1:+.0%})" if before else "")]


# --- on the command line ---


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="jetrelay-costs-") as name:
        Path(name).chmod(0o711)  # as root, PostgreSQL runs under another account
        with laboratory(Path(name)) as lab:
            costs = {name: measured(lab, scenario) for name, scenario in SCENARIOS.items()}
    for scenario, cost in costs.items():
        print(f"{scenario:16} {_each(cost)}")
    if "--accept" in sys.argv[1:]:
        content = {name: asdict(cost) for name, cost in costs.items()}
        BASELINE.write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _each(cost: Cost) -> str:
    numbers = {
        "statements": sum(cost.statements.values()),
        "round trips": cost.round_trips,
        "WAL bytes": cost.wal_bytes,
        "updates": cost.updates,
        "HOT": cost.hot_updates,
        "dead tuples": cost.dead_tuples,
        "Redis commands": sum(cost.redis_commands.values()),
    }
    return "  ".join(f"{name} {number / cost.events:.2f}" for name, number in numbers.items())


if __name__ == "__main__":
    main()
