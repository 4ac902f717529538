"""In whatever state a target is: an event commits with its change, or it is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from relay import Outbox
from relay.domain.errors import RelayError
from tests.integration.publishing import Producer, engine_url, event, producing, query

pytestmark = pytest.mark.anyio

OUTBOX = Outbox("vibespro")
CHANGE = "INSERT INTO changes VALUES (1)"
COUNTS = "SELECT (SELECT count(*) FROM changes) AS changes, (SELECT count(*) FROM outbox_events) AS events"
AUTOCOMMIT = "AUTOCOMMIT"


@pytest.fixture
def url(database_url: str) -> str:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE changes (n INT)")
    return database_url


@contextmanager
def refused(url: str, code: str) -> Iterator[None]:
    """Nothing is written, neither the event nor a change after it."""
    with pytest.raises(RelayError) as error:
        yield
    assert error.value.code == code
    assert query(url, COUNTS) == [{"changes": 0, "events": 0}]


# --- sessions and connections that commit each statement by itself ---


def by_engine(url: str) -> Engine:
    return create_engine(engine_url(url), isolation_level=AUTOCOMMIT)


def by_option(url: str) -> Engine:
    return create_engine(engine_url(url)).execution_options(isolation_level=AUTOCOMMIT)


@pytest.mark.parametrize("make", [by_engine, by_option])
@pytest.mark.parametrize("bound_to", ["engine", "connection"])
def test_a_session_in_autocommit_mode_is_refused_before_its_change(
    url: str, make: Callable[[str], Engine], bound_to: str
) -> None:
    engine = make(url)
    bind: Any = engine if bound_to == "engine" else engine.connect()
    with refused(url, "NO_TRANSACTION"), Session(bind) as session:
        OUTBOX.add(session, event())
        session.execute(text(CHANGE))
        session.commit()
    if bind is not engine:
        bind.close()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_so_is_an_asynchronous_one(url: str, driver: str) -> None:
    engine: AsyncEngine = create_async_engine(engine_url(url, driver), isolation_level=AUTOCOMMIT)
    with refused(url, "NO_TRANSACTION"):
        async with AsyncSession(engine) as session:
            OUTBOX.add(session, event())
            await session.execute(text(CHANGE))
            await session.commit()
    await engine.dispose()


def test_a_session_that_went_into_autocommit_mode_is_refused_at_once(url: str) -> None:
    with refused(url, "NO_TRANSACTION"), Session(create_engine(engine_url(url))) as session:
        session.connection(execution_options={"isolation_level": AUTOCOMMIT})
        OUTBOX.add(session, event())


def test_another_engine_of_a_session_may_be_in_autocommit_mode(url: str) -> None:
    with Session(create_engine(engine_url(url))) as session:
        OUTBOX.add(session, event())
        session.execute(text("SELECT 1"), bind_arguments={"bind": by_engine(url)})
        session.execute(text(CHANGE))
        session.commit()
    assert query(url, COUNTS) == [{"changes": 1, "events": 1}]


# --- psycopg ---


def committed_in_a_pipeline(connection: psycopg.Connection[Any]) -> None:
    """libpq still believes in the transaction."""
    with connection.pipeline() as pipeline:
        connection.execute("BEGIN")
        pipeline.sync()
        connection.execute("COMMIT")
        connection.execute("SELECT 1").fetchone()
        OUTBOX.add(connection, event())


def committed_in_a_block(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        connection.execute("COMMIT")
        OUTBOX.add(connection, event())


@pytest.mark.parametrize("act", [committed_in_a_pipeline, committed_in_a_block])
def test_a_transaction_that_the_application_has_ended_is_over(
    url: str, act: Callable[[psycopg.Connection[Any]], None]
) -> None:
    with refused(url, "NO_TRANSACTION"), psycopg.connect(url, autocommit=True) as connection:
        act(connection)


# --- all of them ---

KINDS = ["psycopg", "psycopg async", "Session", "Connection", "AsyncConnection", "asyncpg"]


async def close(producer: Producer) -> None:
    await producer.call("close")


async def fail(producer: Producer) -> None:
    with suppress(Exception):
        await producer.execute("SELECT 1/0")


async def only_read(producer: Producer) -> None:
    await producer.execute("SET TRANSACTION READ ONLY")


#: A closed session begins again, and asyncpg itself refuses to begin on a closed connection.
CASES = [(kind, close, "NO_TRANSACTION") for kind in KINDS if kind not in ("Session", "asyncpg")]
CASES += [(kind, fail, "NO_TRANSACTION") for kind in KINDS]
CASES += [(kind, only_read, "UNSUPPORTED_TARGET") for kind in KINDS]


@pytest.mark.parametrize(("kind", "spoil", "code"), CASES)
async def test_a_target_that_cannot_write_is_refused(url: str, kind: str, spoil: Any, code: str) -> None:
    with refused(url, code):
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(producing(kind, url))
            await spoil(producer)
            try:
                await producer.add(event())
                await producer.call("commit")
            finally:
                with suppress(psycopg.Error, SQLAlchemyError):
                    await producer.call("rollback")


def test_a_session_on_a_closed_connection_is_refused(url: str) -> None:
    with create_engine(engine_url(url)).connect() as connection:
        session = Session(connection)
    with refused(url, "NO_TRANSACTION"):
        OUTBOX.add(session, event())
