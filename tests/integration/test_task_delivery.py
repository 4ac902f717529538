"""Bringing tasks to a queue: in order, no more than it has room for, again when they are lost; and operators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.row_operations import PostgresTaskOperations, TaskFilter
from relay.domain.errors import QueueUnreachable
from relay.domain.facts import TasksDelivered
from relay.domain.operators import Operator
from relay.domain.tasks import TaskRef
from tasks.deliver import DeliverTasks
from tests.integration.tasking import Mail, Tasks, tasking
from tests.waiting import eventually

pytestmark = pytest.mark.anyio
BOB = Operator("bob", "mended")


def send(mail: Mail) -> None:
    """Do nothing."""


@pytest.fixture
async def tasks(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.register(send)
        yield tasks


async def test_tasks_leave_by_priority_then_in_the_order_they_were_scheduled(tasks: Tasks) -> None:
    late = tasks.schedule({"n": 1}, {"n": 2}, priority=90)
    early = tasks.schedule({"n": 3}, {"n": 4}, priority=10)
    tasks.capacity = 3
    assert await tasks.deliver() == 3
    assert [ref.id for ref in tasks.sent] == [*early, late[0]]
    assert await tasks.deliver() == 1
    assert {(await tasks.row(id))["status"] for id in (*early, *late)} == {"delivered"}
    assert await tasks.deliver() == 0
    assert [fact.count for fact in tasks.reported(TasksDelivered)] == [3, 1]


async def test_a_full_queue_gets_nothing_and_holds_up_no_other(tasks: Tasks) -> None:
    tasks.schedule({"n": 1}, queue="full")
    [free] = tasks.schedule({"n": 2}, queue="open")
    sent: list[TaskRef] = []

    async def capacity(queue: str) -> int:
        return 0 if queue == "full" else 5

    async def put(refs: Sequence[TaskRef]) -> None:
        sent.extend(refs)

    deliver = DeliverTasks("sea", tasks.tasks, capacity, put, tasks.facts.append)
    assert await tasks.tasks.pending_queues() == ["full", "open"]
    assert await deliver.once(["full", "open"]) == 1
    assert [ref.id for ref in sent] == [free]


async def test_queues_that_no_function_names_take_turns_behind_those_that_some_name(tasks: Tasks) -> None:
    """Whoever writes tasks may invent thousands of names; a full one gets its turn and nothing."""
    for number in range(100):
        tasks.schedule({"n": number}, queue=f"a{number:03}")
    [ours] = tasks.schedule({"n": 0}, queue="mail")
    asked, sent = list[list[str]](), list[TaskRef]()

    async def capacity(queue: str) -> int:
        asked[-1].append(queue)
        return 0 if queue < "a050" else 5

    async def put(refs: Sequence[TaskRef]) -> None:
        sent.extend(refs)

    deliver = DeliverTasks("sea", tasks.tasks, capacity, put, tasks.facts.append, lambda: {"mail"})
    for _ in range(6):
        asked.append([])
        await deliver.once(await tasks.tasks.pending_queues())
    assert sent[0].id == ours
    assert asked[0][0] == "mail"
    assert max(map(len, asked)) <= 21
    assert len(sent) == 51, "each had its turn"


async def test_a_delayed_task_is_due_in_its_time_and_by_its_priority(tasks: Tasks) -> None:
    [delayed] = tasks.schedule({"n": 1}, delay=timedelta(hours=1), priority=0)
    assert await tasks.tasks.pending_queues() == []
    assert await tasks.run(delayed) is None, "not even when it is asked for"
    [other] = tasks.schedule({"n": 2})
    await tasks.query("UPDATE task_outbox SET available_at = now() WHERE id = %s", delayed)
    await tasks.deliver()
    assert [ref.id for ref in tasks.sent] == [delayed, other]


async def test_two_relays_never_deliver_one_task(tasks: Tasks) -> None:
    ids = tasks.schedule(*({"n": n} for n in range(40)))
    tasks.capacity = 10
    while await tasks.tasks.pending_queues():
        await asyncio.gather(*(tasks.deliver() for _ in range(4)))
    assert sorted(ref.id for ref in tasks.sent) == sorted(ids)


async def test_tasks_are_delivered_only_once_the_queue_has_confirmed(tasks: Tasks) -> None:
    [id] = tasks.schedule({"n": 1})

    async def refuse(_refs: Sequence[TaskRef]) -> None:
        raise QueueUnreachable("away")

    async def capacity(_queue: str) -> int:
        return 9

    with pytest.raises(QueueUnreachable):
        await DeliverTasks("sea", tasks.tasks, capacity, refuse, tasks.facts.append).once(["default"])
    assert (await tasks.row(id))["status"] == "pending"


async def test_a_task_that_comes_before_its_relay_has_committed_runs_at_once_after_it(tasks: Tasks) -> None:
    [id] = tasks.schedule({"n": 1})
    async with tasks.tasks.deliver("default", 5):
        running = asyncio.create_task(tasks.run(id))
        await eventually("it waits for the row", lambda: _waiting(tasks))
    assert await running is None
    assert (await tasks.row(id))["status"] == "completed"


async def _waiting(tasks: Tasks) -> list[dict[str, Any]]:
    return await tasks.query(
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )


async def test_what_was_delivered_and_never_began_is_delivered_again_once(tasks: Tasks) -> None:
    lost, fresh = tasks.schedule({"n": 1}, {"n": 2})
    await tasks.deliver()
    assert await tasks.deliverer.sweep() == 0
    await tasks.query("UPDATE task_outbox SET enqueued_at = now() - interval '1 minute' WHERE id = %s", lost)
    tasks.sent.clear()
    assert await tasks.deliverer.sweep() == 1
    assert await tasks.deliverer.sweep() == 0
    assert [ref.id for ref in tasks.sent] == [lost]
    assert [fact.again for fact in tasks.reported(TasksDelivered)] == [False, True]
    assert fresh != lost


async def test_the_sweep_leaves_alone_what_runs_what_waits_its_turn_and_full_queues(tasks: Tasks) -> None:
    claimed, waiting, _ = tasks.schedule({"n": 1}, {"n": 2}, {"n": 3})
    await tasks.deliver()
    await tasks.lose()
    await tasks.query("UPDATE task_outbox SET claimed_until = now() + interval '1 hour' WHERE id = %s", claimed)
    await tasks.query("UPDATE task_outbox SET next_attempt_at = now() + interval '1 hour' WHERE id = %s", waiting)
    tasks.capacity = 0
    assert await tasks.deliverer.sweep() == 0
    tasks.capacity = 9
    assert await tasks.deliverer.sweep() == 1


# --- operators ---


@pytest.fixture
async def operations(tasks: Tasks) -> AsyncIterator[PostgresTaskOperations]:
    async with Pool(tasks.url, max_size=2, application_name="operator") as pool:
        yield PostgresTaskOperations(pool.connection)


async def test_a_cancelled_task_never_runs_though_a_queue_holds_it(
    tasks: Tasks, operations: PostgresTaskOperations
) -> None:
    delivered = tasks.schedule({"n": 1})
    await tasks.deliver()
    pending = tasks.schedule({"n": 2})
    outcome = await operations.cancel([*delivered, *pending], BOB)
    assert list(outcome.done) == [str(id) for id in (*delivered, *pending)]
    await tasks.run(delivered[0])
    assert await tasks.tasks.pending_queues() == []
    assert {(await tasks.row(id))["status"] for id in (*delivered, *pending)} == {"cancelled"}
    [entry] = await tasks.query("SELECT actor, action, note FROM audit_log")
    assert entry == {"actor": "bob", "action": "tasks.cancel", "note": "mended"}


async def test_what_runs_or_has_ended_is_not_cancelled_and_what_goes_well_is_not_retried(
    tasks: Tasks, operations: PostgresTaskOperations
) -> None:
    done, runs = tasks.schedule({"n": 1}, {"n": 2})
    await tasks.run(done)
    await tasks.query(
        "UPDATE task_outbox SET status = 'delivered', claim_token = gen_random_uuid(),"
        " claimed_until = now() + interval '1 hour' WHERE id = %s",
        runs,
    )
    operate, unknown = operations, uuid4()
    refused = dict((await operate.cancel([done, runs, unknown], BOB)).refused)
    assert {id: error.code for id, error in refused.items()} == {
        str(done): "NOT_CANCELLABLE",
        str(runs): "NOT_CANCELLABLE",
        str(unknown): "UNKNOWN_TASK",
    }
    refused = dict((await operate.retry([done, runs], BOB)).refused)
    assert {error.code for error in refused.values()} == {"NOT_RETRYABLE"}
    assert await tasks.query("SELECT id FROM audit_log") == []
    page = await operations.find(TaskFilter(statuses=["running"]), 10)
    assert [found["id"] for found in page.items] == [runs]


async def test_a_failed_task_runs_again_with_new_attempts(
    tasks: Tasks, operations: PostgresTaskOperations
) -> None:
    [id] = tasks.schedule({"n": 1})
    await tasks.query("UPDATE task_outbox SET payload = '{}'")
    await tasks.run(id)
    assert (await tasks.row(id))["status"] == "failed"
    await tasks.query("""UPDATE task_outbox SET payload = '{"n": 1}'""")
    await operations.retry([id], BOB)
    assert await tasks.deliver() == 1
    await tasks.run(id)
    row = await tasks.row(id)
    assert (row["status"], row["attempts"]) == ("completed", 1)
    detail = await operations.get(id)
    assert detail is not None
    assert [entry["action"] for entry in detail["history"]] == ["tasks.retry"]


async def test_tasks_are_found_by_what_is_known_of_them(tasks: Tasks, operations: PostgresTaskOperations) -> None:
    correlation = uuid4()
    first, second = tasks.schedule({"n": 1}, {"n": 2}, correlation_id=correlation)
    [third] = tasks.schedule({"n": 3}, queue="bulk")
    await tasks.query("UPDATE task_outbox SET last_error = 'Time-out' WHERE id = %s", second)
    hour = datetime.now(UTC) - timedelta(hours=1)

    async def found(limit: int = 10, **values: Any) -> list[str]:
        page = await operations.find(TaskFilter(statuses=["pending"], **values), limit)
        return [str(view["id"]) for view in page.items]

    assert await found() == [str(third), str(second), str(first)]
    assert await found(limit=1) == [str(third)]
    assert await found(queue="bulk") == [str(third)]
    assert await found(correlation_id=correlation) == [str(second), str(first)]
    assert await found(error="time") == [str(second)]
    assert await found(type="other") == []
    assert len(await found(since=hour)) == 3
    assert await found(since=datetime.now(UTC) + timedelta(hours=1)) == []
