"""A function of a chunk has a savepoint from the moment that it asks the server something, in whatever way."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext
from relay import Outbox
from relay.devstack import NatsServer
from tests.integration.consuming import subscribed
from tests.integration.publishing import event, outbox_rows
from tests.integration.python_handling import WRITE, Handling, Vibe, handling

pytestmark = pytest.mark.anyio
LAST = "SELECT query FROM pg_stat_activity WHERE application_name = 'handling' AND state <> 'idle'"


@pytest.fixture
async def calls(database_url: str, nats_server: NatsServer) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        yield calls


async def failing_in_the_middle(calls: Handling, function: Callable[..., Any]) -> None:
    """A chunk of three whose second function fails; its effect is undone, and theirs are kept."""
    ids = [await calls.received({"title": title}) for title in ("kept", "undone", "kept")]
    later = await calls.sub.chunk(calls.handler(function)).run(ids)
    assert [*later] == [ids[1]]
    assert [await calls.state(id) for id in ids] == ["processed", "open", "processed"]
    effects = await calls.effects()
    assert {effect["message_id"] for effect in effects} == {ids[0], ids[2]}
    assert len({effect["xid"] for effect in effects}) == 1


# --- plain functions ---


def by_session(session: Session, sql: str) -> None:
    session.execute(text(sql))


def by_bind(session: Session, sql: str) -> None:
    session.get_bind().exec_driver_sql(sql)  # type: ignore[union-attr]


def by_driver(session: Session, sql: str) -> None:
    driver: Any = session.get_bind().connection.driver_connection  # type: ignore[union-attr]
    driver.execute(sql)


def after_commit(session: Session, sql: str) -> None:
    session.commit()
    session.execute(text(sql))
    session.commit()


def executed(connection: psycopg.Connection[Any], sql: str) -> None:
    connection.execute(sql.encode())


def many(connection: psycopg.Connection[Any], sql: str) -> None:
    connection.cursor().executemany(sql.encode(), [()])


def piped(connection: psycopg.Connection[Any], sql: str) -> None:
    with connection.pipeline():
        connection.execute(sql.encode())


def nested(connection: psycopg.Connection[Any], sql: str) -> None:
    with connection.transaction():
        connection.execute(sql.encode())


def copied(connection: psycopg.Connection[Any], sql: str) -> None:
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS came (line text)")
    with connection.cursor().copy("COPY came FROM STDIN") as copy:
        copy.write_row(["x"])
    connection.execute(sql.encode())


def streamed(connection: psycopg.Connection[Any], sql: str) -> None:
    list(connection.cursor().stream(f"{sql} RETURNING 1".encode()))


def fetched(connection: psycopg.Connection[Any], sql: str) -> None:
    with connection.cursor(name="found") as cursor:
        cursor.execute("SELECT 1")
    connection.execute(sql.encode())


def of_session(write: Callable[[Session, str], None]) -> Callable[..., Any]:
    def handle(vibe: Vibe, session: Session, context: MessageContext) -> None:
        write(session, WRITE.format(context.message_id))
        if vibe.title == "undone":
            raise RuntimeError("not now")

    return handle


def of_connection(write: Callable[[psycopg.Connection[Any], str], None]) -> Callable[..., Any]:
    def handle(vibe: Vibe, connection: psycopg.Connection[Any], context: MessageContext) -> None:
        write(connection, WRITE.format(context.message_id))
        if vibe.title == "undone":
            raise RuntimeError("not now")

    return handle


@pytest.mark.parametrize("write", [by_session, by_bind, by_driver, after_commit])
async def test_a_session_in_whatever_way_it_is_used(calls: Handling, write: Any) -> None:
    await failing_in_the_middle(calls, of_session(write))


@pytest.mark.parametrize("write", [executed, many, piped, nested, copied, streamed, fetched])
async def test_a_connection_in_whatever_way_it_is_used(calls: Handling, write: Any) -> None:
    await failing_in_the_middle(calls, of_connection(write))


# --- coroutines ---


async def test_a_session_of_a_coroutine(calls: Handling) -> None:
    async def handle(vibe: Vibe, session: AsyncSession, context: MessageContext) -> None:
        await session.execute(text(WRITE.format(context.message_id)))
        if vibe.title == "undone":
            raise RuntimeError("not now")

    await failing_in_the_middle(calls, handle)


async def test_a_connection_of_a_coroutine_in_a_pipeline(calls: Handling) -> None:
    async def handle(vibe: Vibe, connection: psycopg.AsyncConnection[Any], context: MessageContext) -> None:
        async with connection.pipeline():
            await connection.execute(WRITE.format(context.message_id).encode())
        if vibe.title == "undone":
            raise RuntimeError("not now")

    await failing_in_the_middle(calls, handle)


async def test_an_event_whose_await_was_forgotten_goes_the_way_of_its_function(calls: Handling) -> None:
    async def handle(vibe: Vibe, connection: psycopg.AsyncConnection[Any], context: MessageContext) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            Outbox("sea").add(connection, event(str(context.message_id)))
        if vibe.title == "undone":
            raise RuntimeError("not now")

    ids = [await calls.received({"title": title}) for title in ("kept", "undone", "kept")]
    assert [*await calls.sub.chunk(calls.handler(handle)).run(ids)] == [ids[1]]
    assert [row["aggregate_id"] for row in outbox_rows(calls.sub.url)] == [str(ids[0]), str(ids[2])]


# --- those who ask nothing ---


async def test_nothing_is_sent_for_functions_that_ask_the_server_nothing(calls: Handling) -> None:
    """Whether they return or fail; what the server was last asked is what began the transaction of all."""
    seen: list[str] = []

    def handle(vibe: Vibe, session: Session, connection: psycopg.Connection[Any]) -> None:
        with psycopg.connect(calls.sub.url) as other:
            seen.extend(query for (query,) in other.execute(LAST))
        if vibe.title == "undone":
            raise RuntimeError("not now")

    ids = [await calls.received({"title": title}) for title in ("kept", "undone", "kept")]
    assert [*await calls.sub.chunk(calls.handler(handle)).run(ids)] == [ids[1]]
    assert len(seen) == 3
    assert not any("SAVEPOINT" in query for query in seen)
    assert [await calls.state(id) for id in ids] == ["processed", "open", "processed"]


async def test_those_behind_one_that_asked_have_nothing_sent_for_them_either(calls: Handling) -> None:
    seen: list[str] = []

    def handle(vibe: Vibe, session: Session, context: MessageContext) -> None:
        if vibe.title == "asks":
            session.execute(text(WRITE.format(context.message_id)))
        with psycopg.connect(calls.sub.url) as other:
            seen.extend(query for (query,) in other.execute(LAST))

    ids = [await calls.received({"title": title}) for title in ("asks", "is silent", "asks")]
    await calls.sub.chunk(calls.handler(handle)).run(ids)
    assert [await calls.state(id) for id in ids] == ["processed"] * 3
    assert len(await calls.effects()) == 2
    assert seen[1].startswith("INSERT INTO effects"), "what the session of the one before has sent last"
