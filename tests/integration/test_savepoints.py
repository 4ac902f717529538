"""Savepoints of a session that begin when they are used, and are released when the transaction goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from consumer.handlers import MessageContext
from relay.adapters.postgres.lazy_transactions import LazyAsyncConnection
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.devstack import NatsServer
from tests.integration.consuming import subscribed
from tests.integration.python_handling import WRITE, Handling, Vibe, handling
from tests.integration.wire import Wire, wire

pytestmark = pytest.mark.anyio


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


# --- how little is sent ---


@pytest.fixture
def way(database_url: str) -> Iterator[Wire]:
    with wire(urlsplit(database_url).port or 0) as way:
        yield way


async def test_a_function_that_writes_once_takes_three_round_trips_and_one_that_does_not_none(
    database_url: str, nats_server: NatsServer, way: Wire
) -> None:
    """Begin and savepoint, the statement, the end of the row and of the transaction."""
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        calls.ahead = True
        direct, sub.url = sub.url, way.through(sub.url)

        def handle(vibe: Vibe, session: Session, context: MessageContext) -> None:
            way.round_trips = 0
            if vibe.title == "writes":
                write(session, context)

        handler = calls.handler(handle)
        trips = []
        # What is asked for the first time is prepared, and the connection is made.
        for title in ("writes", "writes", "writes", "is silent"):
            await calls.process(handler).process(await calls.received({"title": title}))
            trips.append(way.round_trips)
        sub.url = direct
        assert trips[2:] == [3, 0]
        assert len(await calls.effects()) == 3


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
