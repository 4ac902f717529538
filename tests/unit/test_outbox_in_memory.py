"""What an application's test sees of its outbox and tasks: what was committed, and what functions do with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import StaticPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

from consumer.handlers import AlreadyProcessed, HandlerRegistry, MessageContext, Poison
from jetrelay_pytest.memory import Memory, in_memory
from relay import Event, Outbox, PersonalFields, command
from relay.adapters.postgres.captured_rows import capture
from relay.adapters.postgres.targets import write
from relay.domain.errors import FutureEvent, InvalidHandler, UnsupportedTarget
from relay.domain.reasons import code_of

OUTBOX = Outbox("sea")


class Vibe(BaseModel):
    id: str


@command("vibe.play", to="sea", aggregate_id="id")
class PlayVibe(BaseModel):
    id: str


def created(id: str = "1", **changes: Any) -> Event:
    return Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id=id, payload={"id": id}, **changes)


@pytest.fixture
def memory() -> Iterator[Memory]:
    with in_memory() as memory:
        yield memory


@pytest.fixture
def handlers() -> HandlerRegistry:
    return HandlerRegistry("these")


@pytest.fixture
def sessions() -> sessionmaker[Session]:
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (id TEXT)"))
    return sessionmaker(engine)


def add(*events: Event | BaseModel) -> None:
    with Session() as session, session.begin():
        OUTBOX.add_many(session, events)


def seen(sessions: sessionmaker[Session]) -> list[str]:
    with sessions() as session:
        return list(session.scalars(text("SELECT id FROM seen")))


def published(memory: Memory) -> list[str]:
    return [event.payload["id"] for event in memory.outbox.events]


def test_an_event_is_there_after_the_commit_and_not_before(memory: Memory) -> None:
    with Session() as session, session.begin():
        OUTBOX.add(session, created())
        memory.outbox.assert_nothing_published()
    memory.outbox.assert_published("vibe_created", {"id": "1"}, aggregate_id="1")


def test_what_a_transaction_or_savepoint_rolled_back_is_nowhere(memory: Memory) -> None:
    with Session() as session:
        OUTBOX.add(session, created("1"))
        session.rollback()
        OUTBOX.add(session, created("2"))
        with session.begin_nested() as savepoint:
            OUTBOX.add(session, created("3"))
            savepoint.rollback()
        with session.begin_nested():
            OUTBOX.add(session, created("4"))
        session.commit()
    assert published(memory) == ["2", "4"]


def test_a_commit_that_failed_published_nothing(memory: Memory, sessions: sessionmaker[Session]) -> None:
    with sessions() as session:
        session.execute(text("PRAGMA foreign_keys = ON"))
        session.execute(text("CREATE TABLE a (id TEXT PRIMARY KEY)"))
        session.execute(text("CREATE TABLE b (a TEXT REFERENCES a DEFERRABLE INITIALLY DEFERRED)"))
        session.commit()
        session.execute(text("INSERT INTO b VALUES ('missing')"))
        OUTBOX.add(session, created())
        with pytest.raises(Exception, match="FOREIGN KEY"):
            session.commit()
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    memory.outbox.assert_nothing_published()


def test_an_async_session_hands_over_too(memory: Memory) -> None:
    async def change() -> None:
        async with AsyncSession() as session, session.begin():
            await OUTBOX.add(session, created())

    asyncio.run(change())
    assert published(memory) == ["1"]


def test_the_checks_of_an_event_stay(memory: Memory) -> None:
    with pytest.raises(FutureEvent):
        add(created(occurred_at=datetime.now(UTC) + timedelta(hours=1)))
    memory.outbox.assert_nothing_published()


def test_a_connection_is_refused_as_nobody_knows_whether_it_commits(
    memory: Memory, sessions: sessionmaker[Session]
) -> None:
    with sessions() as session, pytest.raises(UnsupportedTarget, match="Connection"):
        OUTBOX.add(session.connection(), created())
    connection = object.__new__(psycopg.Connection)
    with pytest.raises(UnsupportedTarget, match="psycopg's Connection"):
        write(connection, [], None)


def test_after_the_test_sessions_write_to_their_database_again() -> None:
    with in_memory():
        assert capture() is not None
    assert capture() is None
    with pytest.raises(UnsupportedTarget, match="no default engine"):
        add(created())


@pytest.mark.parametrize(
    ("event", "options"),
    [
        ("vibe_created", {"payload": {"id": "3"}}),
        ("vibe_created", {"partition_key": "vibe:3"}),
        ("vibe_created", {}),
        ("vibe_created", {"times": 3}),
        ("vibe_deleted", {"times": None}),
        (PlayVibe, {}),
    ],
)
def test_what_is_not_so_fails_and_is_told(memory: Memory, event: Any, options: dict[str, Any]) -> None:
    add(created("1"), created("2"))
    with pytest.raises(AssertionError, match=r'\n  vibe_created v1 \{"id": "1"\}'):
        memory.outbox.assert_published(event, **options)


def test_what_must_not_be_is_told_when_it_is(memory: Memory) -> None:
    add(created())
    with pytest.raises(AssertionError, match=r"\b0\b.*\b1\b.*vibe_created"):
        memory.outbox.assert_not_published("vibe_created")
    with pytest.raises(AssertionError):
        memory.outbox.assert_nothing_published()
    with pytest.raises(TypeError, match="'agregate_id'"):
        memory.outbox.assert_not_published("vibe_created", agregate_id="1")


def test_a_handler_writes_with_its_transaction_and_what_it_publishes_is_handled_too(
    memory: Memory, handlers: HandlerRegistry, sessions: sessionmaker[Session]
) -> None:
    @handlers.handles("vibe_created")
    def first(vibe: Vibe, session: Session) -> None:
        session.execute(text("INSERT INTO seen VALUES (:id)"), {"id": vibe.id})
        OUTBOX.add(session, PlayVibe(id=vibe.id))

    causes = []

    @handlers.handles(PlayVibe)
    async def second(play: PlayVibe, context: MessageContext) -> None:
        causes.append(context.causation_id)

    add(created())
    assert memory.outbox.drain(handlers, sessions=sessions) == 2
    assert seen(sessions) == ["1"]
    assert causes == [memory.outbox.events[0].row.id]
    assert memory.outbox.drain(handlers, sessions=sessions) == 0


def test_what_a_handler_raises_undoes_its_work_and_comes_through_and_the_next_drain_tries_again(
    memory: Memory, handlers: HandlerRegistry, sessions: sessionmaker[Session]
) -> None:
    attempts = []

    @handlers.handles("vibe_created")
    def fails_once(vibe: Vibe, session: Session, context: MessageContext) -> None:
        attempts.append(context.attempt)
        session.execute(text("INSERT INTO seen VALUES (:id)"), {"id": vibe.id})
        OUTBOX.add(session, PlayVibe(id=vibe.id))
        if context.attempt == 1:
            raise LookupError("not yet")

    add(created())
    with pytest.raises(LookupError):
        memory.outbox.drain(handlers, sessions=sessions)
    assert (seen(sessions), len(memory.outbox.events)) == ([], 1)
    assert memory.outbox.drain(handlers, sessions=sessions) == 1
    assert (seen(sessions), attempts) == (["1"], [1, 2])
    memory.outbox.assert_published(PlayVibe)


def test_already_processed_undoes_its_work_and_is_done(memory: Memory, handlers: HandlerRegistry) -> None:
    @handlers.handles("vibe_created")
    def again(vibe: Vibe, session: Session) -> None:
        OUTBOX.add(session, PlayVibe(id=vibe.id))
        raise AlreadyProcessed("before")

    add(created())
    assert [memory.outbox.drain(handlers) for _ in range(2)] == [1, 0]
    assert len(memory.outbox.events) == 1


def test_a_coroutine_has_an_async_session_and_a_test_may_be_one(memory: Memory, handlers: HandlerRegistry) -> None:
    @handlers.handles("vibe_created")
    async def play(vibe: Vibe, session: AsyncSession) -> None:
        await OUTBOX.add(session, PlayVibe(id=vibe.id))

    @handlers.handles(PlayVibe)
    def done(play: PlayVibe, session: Session) -> None:
        OUTBOX.add(session, Event(event_type="done", aggregate_type="v", aggregate_id="1", payload={"id": "done"}))

    async def test() -> None:
        add(created())
        assert await memory.outbox.drain_async(handlers) == 2
        await memory.outbox.deliver_async(handlers, PlayVibe(id="9"))

    asyncio.run(test())
    assert published(memory) == ["1", "1", "done", "done"]


def test_each_module_gets_an_event_and_what_is_delayed_waits(memory: Memory, handlers: HandlerRegistry) -> None:
    other, called = HandlerRegistry("others"), []
    for registry in (handlers, other):

        @registry.handles("vibe_created")
        def note(vibe: Vibe, name: str = registry.name) -> None:
            called.append((name, vibe.id))

    add(created("1"), created("2", available_at=datetime.now(UTC) + timedelta(hours=1)))
    assert [memory.outbox.drain(it) for it in (handlers, other)] == [1, 1]
    assert memory.outbox.drain(other, delayed=True) == 1
    assert called == [("these", "1"), ("others", "1"), ("others", "2")]


def test_each_subscription_of_a_module_gets_an_event(memory: Memory, handlers: HandlerRegistry) -> None:
    called = []

    @handlers.handles("vibe_created", subscription="stock")
    def reserve(vibe: Vibe) -> None:
        called.append("stock")

    @handlers.handles("vibe_created", subscription="audit")
    def note(vibe: Vibe) -> None:
        called.append("audit")

    add(created())
    with pytest.raises(InvalidHandler, match="one subscription"):
        memory.outbox.drain(handlers)
    assert [memory.outbox.drain(handlers, subscription=it) for it in ("stock", "audit", "audit")] == [1, 1, 0]
    memory.outbox.deliver(handlers, created("2"), subscription="stock")
    assert called == ["stock", "audit", "stock"]


def test_events_that_cause_each_other_without_end_are_found(memory: Memory, handlers: HandlerRegistry) -> None:
    memory.outbox.max_calls = 20

    @handlers.handles("vibe_created")
    def again(vibe: Vibe, session: Session) -> None:
        OUTBOX.add(session, created())

    add(created())
    with pytest.raises(AssertionError, match="vibe_created"):
        memory.outbox.drain(handlers)


def test_upcasters_and_the_check_of_payloads_are_those_of_a_worker(
    memory: Memory, handlers: HandlerRegistry
) -> None:
    got = []

    @handlers.handles("vibe_created", version=2)
    def handle(vibe: Vibe) -> None:
        got.append(vibe.id)

    @handlers.upcasts("vibe_created", from_version=1)
    def renamed(payload: dict[str, Any]) -> dict[str, Any]:
        return {"id": payload["name"]}

    event = Event(event_type="vibe_created", aggregate_type="vibe", aggregate_id="1", payload={"name": "blue"})
    memory.outbox.deliver(handlers, event)
    assert got == ["blue"]
    with pytest.raises(KeyError):
        memory.outbox.deliver(handlers, created())
    with pytest.raises(Poison) as caught:
        memory.outbox.deliver(handlers, replace(event, event_type="other"))
    assert code_of(caught.value.message) == "no_handler"
    memory.outbox.assert_nothing_published()


def test_a_function_with_a_connection_is_told_what_to_do(memory: Memory, handlers: HandlerRegistry) -> None:
    @handlers.handles("vibe_created")
    def plain(vibe: Vibe, connection: psycopg.Connection) -> None: ...

    with pytest.raises(UnsupportedTarget, match="psycopg"):
        memory.outbox.deliver(handlers, created())


def test_a_test_reads_personal_values_and_needs_no_key(memory: Memory) -> None:
    values = {"id": "1", "email": "ann@example.org"}
    add(replace(created(), payload=values, personal=PersonalFields("id", ("email",))))
    memory.outbox.assert_published("vibe_created", values, aggregate_id="1")
