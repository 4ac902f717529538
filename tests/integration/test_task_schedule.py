"""Scheduling a task: in the caller's transaction, through every kind of target, checked where it enters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import BaseModel

from relay import Outbox, RequestContext
from relay.domain.errors import InvalidPayload, NoTransaction, PayloadTooLarge, UnsupportedTarget
from relay.domain.tasks import InvalidTask, UnknownTask
from tasks import schedule
from tests.integration.publishing import Producer, event
from tests.integration.tasking import Mail, Tasks, tasking

pytestmark = pytest.mark.anyio


class Strict(BaseModel):
    account: UUID


def send(mail: Mail) -> None:
    """Do nothing."""


def strict(payload: Strict) -> None:
    """Do nothing."""


@pytest.fixture
async def tasks(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as tasks:
        tasks.register(send, queue="mail", priority=20, concurrency=1, concurrency_key="to")
        tasks.register(strict, "strict")
        yield tasks


async def scheduled(producer: Producer, *arguments: Any, **options: Any) -> UUID:
    if producer.begin is not None:
        await producer.begin()
    id = schedule(producer.target, *arguments, **options)
    return await id if isinstance(id, Awaitable) else id


async def test_every_kind_of_target_writes_the_task_when_it_commits(tasks: Tasks, producer: Producer) -> None:
    forgotten = await scheduled(producer, send, Mail(n=0), within=tasks.registry)
    await producer.call("rollback")
    id = await scheduled(producer, send, Mail(n=1), within=tasks.registry)
    assert await tasks.query("SELECT id FROM task_outbox") == []
    await producer.call("commit")
    assert forgotten != id
    [row] = await tasks.query("SELECT * FROM task_outbox")
    assert (row["id"], row["type"], row["payload"]) == (id, "mail", {"n": 1, "to": "ann"})
    assert (row["queue"], row["priority"], row["concurrency_key"]) == ("mail", 20, "mail:ann")
    assert (row["status"], row["available_at"], row["attempts"]) == ("pending", None, 0)
    assert id.version == 7


async def test_events_and_tasks_of_one_session_are_written_together(tasks: Tasks, producer: Producer) -> None:
    await producer.add(event("v1"))
    await scheduled(producer, send, Mail(n=1), within=tasks.registry)
    await producer.add(event("v2"))
    await producer.call("commit")
    assert len(await tasks.query("SELECT id FROM outbox_events")) == 2
    assert len(await tasks.query("SELECT id FROM task_outbox")) == 1


async def test_options_of_the_call_go_before_those_of_the_handler(tasks: Tasks) -> None:
    correlation, causation, own = uuid4(), uuid4(), uuid4()
    at = datetime.now(UTC) + timedelta(hours=1)
    tasks.schedule(
        {"n": 1}, queue="bulk", priority=99, available_at=at, id=own, correlation_id=correlation,
        causation_id=causation, metadata={"tenant": "a"},
    )  # fmt: skip
    row = await tasks.row(own)
    assert (row["queue"], row["priority"], row["available_at"]) == ("bulk", 99, at)
    assert (row["correlation_id"], row["causation_id"], row["metadata"]) == (
        correlation,
        causation,
        {"tenant": "a"},
    )


async def test_a_delay_counts_by_the_clock_of_the_database(tasks: Tasks) -> None:
    tasks.schedule({"n": 1}, delay=timedelta(hours=1))
    [row] = await tasks.query("SELECT available_at - created_at AS delay FROM task_outbox")
    assert timedelta(hours=1) <= row["delay"] < timedelta(hours=1, seconds=30)


async def test_the_correlation_comes_from_the_request_or_begins_with_the_task(tasks: Tasks) -> None:
    with RequestContext(correlation_id=uuid4(), causation_id=uuid4()).use() as request:
        [first] = tasks.schedule({"n": 1})
    [second] = tasks.schedule({"n": 2})
    row = await tasks.row(first)
    assert (row["correlation_id"], row["causation_id"]) == (request.correlation_id, request.causation_id)
    row = await tasks.row(second)
    assert (row["correlation_id"], row["causation_id"]) == (second, None)


@pytest.mark.parametrize(
    ("task", "payload", "options", "error", "says"),
    [
        ("nobody", {}, {}, UnknownTask, "UNKNOWN_TASK [task]: no task is called 'nobody' here"),
        (print, {}, {}, UnknownTask, "UNKNOWN_TASK [task]"),
        ("mail", {"n": "many"}, {}, InvalidPayload, "int_parsing at payload.n"),
        ("mail", {}, {}, InvalidPayload, "missing at payload.n"),
        ("strict", {"account": "7"}, {}, InvalidPayload, "uuid_parsing at payload.account"),
        ("mail", {"n": 1, "to": object()}, {}, InvalidPayload, "INVALID_PAYLOAD [payload]"),
        ("mail", {"n": 1, "to": "a\x00b"}, {}, InvalidPayload, "NUL"),
        ("mail", {"n": 1, "to": "x" * 201}, {}, ValueError, "concurrency_key"),
        ("strict", {"account": str(uuid4()), "x": "x" * 262_144}, {}, PayloadTooLarge, "the limit is 262144"),
        ("mail", {"n": 1}, {"priority": 101}, InvalidTask, "INVALID_TASK [priority]"),
        ("mail", {"n": 1}, {"queue": "no spaces"}, InvalidTask, "INVALID_TASK [queue]"),
        ("mail", {"n": 1}, {"delay": timedelta(seconds=-1)}, InvalidTask, "INVALID_TASK [delay]"),
        ("mail", {"n": 1}, {"available_at": datetime(2030, 1, 1)}, InvalidTask, "time zone"),  # noqa: DTZ001
        ("mail", {"n": 1}, {"metadata": {"a": object()}}, InvalidTask, "INVALID_TASK [metadata]"),
        ("mail", {"n": 1}, {"metadata": {"a": "x" * 9_000}}, PayloadTooLarge, "PAYLOAD_TOO_LARGE [metadata]"),
        ("mail", {"n": 1}, {"id": "7"}, InvalidTask, "INVALID_TASK [id]"),
        ("a b", {}, {"registered": False}, InvalidTask, "INVALID_TASK [type]"),
        (send, {}, {"registered": False}, InvalidTask, "INVALID_TASK [task]"),
    ],
)
async def test_bad_input_is_refused_in_the_callers_transaction_which_goes_on(
    tasks: Tasks, task: Any, payload: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with psycopg.connect(tasks.url) as connection:
        connection.execute("INSERT INTO effects (n) VALUES (1)")
        with pytest.raises(error) as caught:
            schedule(connection, task, payload, within=tasks.registry, **options)
        assert says in str(caught.value)
    assert await tasks.query("SELECT n FROM effects") == [{"n": 1}]
    assert await tasks.query("SELECT id FROM task_outbox") == []


async def test_targets_that_would_not_be_atomic_are_refused(tasks: Tasks) -> None:
    with psycopg.connect(tasks.url, autocommit=True) as connection, pytest.raises(NoTransaction):
        schedule(connection, send, Mail(n=1), within=tasks.registry)
    with pytest.raises(UnsupportedTarget):
        schedule(Outbox("sea"), send, Mail(n=1), within=tasks.registry)  # type: ignore[call-overload]


async def test_a_task_of_another_process_is_scheduled_by_name_if_the_caller_says_so(tasks: Tasks) -> None:
    [id] = tasks.schedule({"anything": [1]}, task_type="elsewhere", registered=False, queue="far")
    row = await tasks.row(id)
    assert (row["type"], row["queue"], row["payload"]) == ("elsewhere", "far", {"anything": [1]})
