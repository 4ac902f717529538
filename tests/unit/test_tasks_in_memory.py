"""What an application's test sees of its tasks: what was committed, and what functions do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from pydantic import BaseModel
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from jetrelay_pytest.memory import Memory, in_memory
from relay import Event, Outbox, RequestContext
from tasks import TaskContext, schedule, task
from tasks.registry import TaskRegistry as Tasks

OUTBOX = Outbox("sea")
DONE = Event(event_type="done", aggregate_type="vibe", aggregate_id="1", payload={})


class Vibe(BaseModel):
    id: str


@pytest.fixture
def memory() -> Iterator[Memory]:
    with in_memory() as memory:
        yield memory


@pytest.fixture
def sessions() -> sessionmaker[Session]:
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (id TEXT)"))
    return sessionmaker(engine)


def seen(sessions: sessionmaker[Session]) -> list[str]:
    with sessions() as session:
        return list(session.scalars(text("SELECT id FROM seen")))


def test_tasks_run_with_their_transaction_and_those_that_wait_run_when_asked(
    memory: Memory, sessions: sessionmaker[Session]
) -> None:
    registry, contexts = Tasks(), []

    @task("note", into=registry)
    def note(vibe: Vibe, session: Session, context: TaskContext) -> None:
        contexts.append(context)
        session.execute(text("INSERT INTO seen VALUES (:id)"), {"id": vibe.id})
        if vibe.id == "1":
            schedule(session, "note", Vibe(id="2"), within=registry)

    with RequestContext.begin().use() as request, Session() as session, session.begin():
        schedule(session, note, Vibe(id="1"), within=registry)
        schedule(session, "note", Vibe(id="late"), delay=timedelta(hours=1), queue="slow", within=registry)
    memory.tasks.assert_scheduled("note", {"id": "late"}, delay=timedelta(hours=1), queue="slow")
    memory.outbox.assert_nothing_published()
    assert memory.tasks.drain(sessions=sessions, within=registry) == 2
    assert seen(sessions) == ["1", "2"]
    assert [it.correlation_id for it in contexts] == [request.correlation_id] * 2
    assert contexts[1].causation_id == contexts[0].task_id
    assert memory.tasks.drain(sessions=sessions, within=registry, delayed=True) == 1
    with pytest.raises(AssertionError, match=r"\b0\b.*note"):
        memory.tasks.assert_scheduled("note", Vibe(id="3"))


def test_a_task_that_fails_is_due_again(memory: Memory) -> None:
    registry, attempts = Tasks(), []

    @task("note", into=registry)
    async def note(vibe: Vibe, session: AsyncSession, context: TaskContext) -> None:
        attempts.append(context.attempt)
        await OUTBOX.add(session, DONE)
        if context.attempt == 1:
            raise LookupError("not yet")

    with Session() as session, session.begin():
        schedule(session, note, Vibe(id="1"), within=registry)
    with pytest.raises(LookupError):
        memory.tasks.drain(within=registry)
    memory.outbox.assert_nothing_published()
    assert asyncio.run(memory.tasks.drain_async(within=registry)) == 1
    assert attempts == [1, 2]
    memory.outbox.assert_published("done")
    memory.tasks.clear()
    memory.tasks.assert_nothing_scheduled()
