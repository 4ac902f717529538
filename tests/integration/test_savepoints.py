"""Savepoints of a session that begin when they are used, and are released when the transaction goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext
from relay.adapters.postgres.lazy_transactions import LazyAsyncConnection
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.devstack import NatsServer
from tests.integration.consuming import subscribed
from tests.integration.python_handling import WRITE, Handling, Vibe, handling
from tests.integration.wire import Wire, wire

pytestmark = pytest.mark.anyio

WITH_VALUE = text("INSERT INTO effects (message_id, xid) VALUES (:id, pg_current_xact_id()::text)")


@pytest.fixture(params=["claimed alone", "claimed ahead"])
async def calls(
    request: pytest.FixtureRequest, database_url: str, nats_server: NatsServer
) -> AsyncIterator[Handling]:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        calls.ahead = request.param == "claimed ahead"
        yield calls


def write(session: Session, context: MessageContext) -> None:
    session.execute(text(WRITE.format(context.message_id)))


async def written(calls: Handling, function: Callable[[Session, MessageContext], None]) -> int:
    """Handle a message; how many effects it has in the end."""

    def handle(vibe: Vibe, session: Session, context: MessageContext) -> None:
        function(session, context)

    message_id = await calls.received()
    await calls.process(calls.handler(handle)).process(message_id)
    assert await calls.state(message_id) == "processed"
    return len(await calls.effects())


async def test_what_a_session_rolls_back_is_undone_and_what_it_committed_is_kept(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        session.rollback()
        write(session, context)
        session.commit()
        write(session, context)
        write(session, context)
        session.rollback()
        session.commit()
        write(session, context)

    assert await written(calls, some) == 2


async def test_nested_savepoints_are_undone_one_by_one(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        with session.begin_nested():
            write(session, context)
            with session.begin_nested():
                pass
            inner = session.begin_nested()
            write(session, context)
            inner.rollback()
            unused = session.begin_nested()
            unused.rollback()
        outer = session.begin_nested()
        with session.begin_nested():
            write(session, context)
        outer.rollback()
        write(session, context)

    assert await written(calls, some) == 2


async def test_an_error_in_a_savepoint_is_undone_with_it(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        write(session, context)
        session.commit()
        failing = session.begin_nested()
        write(session, context)
        with pytest.raises(ProgrammingError):
            session.execute(text("SELECT * FROM no_such_table"))
        failing.rollback()
        write(session, context)

    assert await written(calls, some) == 2


async def test_the_drivers_own_statements_come_after_what_waits(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        driver: Any = session.connection().connection.driver_connection
        with driver.transaction(force_rollback=True):
            driver.execute(WRITE.format(context.message_id))
        driver.execute(WRITE.format(context.message_id))
        session.rollback()
        write(session, context)
        with pytest.raises(psycopg.ProgrammingError):
            driver.commit()

    assert await written(calls, some) == 1


async def test_a_session_that_rolls_back_all_begins_again_with_what_it_writes_next(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        driver: Any = session.connection().connection.driver_connection
        for _ in range(2):
            session.execute(WITH_VALUE, {"id": context.message_id})
            driver.execute("SET LOCAL application_name = 'undone'")
            with pytest.raises(ProgrammingError):
                session.execute(text("SELECT :n FROM no_such_table"), {"n": 1})
            session.rollback()
        assert session.scalar(text("SHOW application_name")) != "undone"
        session.execute(WITH_VALUE, {"id": context.message_id})
        session.commit()
        session.execute(WITH_VALUE, {"id": context.message_id})
        session.rollback()

    assert await written(calls, some) == 1


async def test_a_session_that_rolls_back_all_it_did_has_its_message_processed(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        session.execute(WITH_VALUE, {"id": context.message_id})
        session.rollback()

    assert await written(calls, some) == 0


async def test_several_statements_in_one_text_are_run(calls: Handling) -> None:
    def some(session: Session, context: MessageContext) -> None:
        statement = WRITE.format(context.message_id)
        session.connection().exec_driver_sql(f"{statement}; {statement}")

    assert await written(calls, some) == 2


@pytest.mark.parametrize("value", [1, "no number"])
async def test_the_first_statement_may_fail_or_be_prepared(calls: Handling, value: object) -> None:
    def some(session: Session, context: MessageContext) -> None:
        for _ in range(8):  # from the sixth time on the driver prepares it
            with suppress(DBAPIError):
                session.execute(text("SELECT CAST(CAST(:value AS text) AS int)"), {"value": str(value)})
            session.rollback()
        session.execute(WITH_VALUE, {"id": context.message_id})

    assert await written(calls, some) == 1


# --- how little is sent ---


@pytest.fixture
def way(database_url: str) -> Iterator[Wire]:
    with wire(urlsplit(database_url).port or 0) as way:
        yield way


async def test_a_function_that_writes_once_takes_two_round_trips_and_one_that_does_not_none(
    database_url: str, nats_server: NatsServer, way: Wire
) -> None:
    """Begin and the statement; the end of the row and of the transaction, and the cleaning of the session."""
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        calls.ahead = True
        direct, sub.url = sub.url, way.through(sub.url)

        def handle(vibe: Vibe, session: Session, context: MessageContext) -> None:
            way.round_trips = 0
            if vibe.title == "writes":
                session.execute(WITH_VALUE, {"id": context.message_id})
            elif vibe.title == "writes text":
                write(session, context)

        handler = calls.handler(handle)
        trips = []
        # What is asked for the first time is prepared, and the connection is made.
        for title in ("writes", "writes", "writes", "writes text", "is silent"):
            await calls.process(handler).process(await calls.received({"title": title}))
            trips.append(way.round_trips)
        sub.url = direct
        assert trips[2:] == [2, 2, 0]
        assert len(await calls.effects()) == 4


async def test_the_server_has_nothing_to_warn_of(database_url: str) -> None:
    """Each warning is a line in its log, for every message that a coroutine handles."""
    said: list[str | None] = []
    transactions = HandlerTransactions(database_url, limit=timedelta(seconds=5), application_name="test")
    nothing = Settlement("session/limit", {"limit": "0", "local": True})
    connect = LazyAsyncConnection.connect

    async def listening(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        connection.add_notice_handler(lambda notice: said.append(notice.message_primary))
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LazyAsyncConnection, "connect", listening)
        for _ in range(2):
            async with transactions.settle_async(nothing) as transaction:
                await transaction.connection.execute("SELECT 1")
                await (await transaction.session.connection()).exec_driver_sql("SELECT 1")
    await transactions.close()
    assert said == []
