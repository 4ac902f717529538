"""Asynchronous targets whose caller forgets to await, and connections of asyncpg."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from relay import Outbox
from relay.domain.errors import DuplicateMessage, NoTransaction, RelayError, UnsupportedTarget
from tests.integration.publishing import (
    Producer,
    engine_url,
    event,
    outbox_rows,
    producing,
    query,
)

pytestmark = pytest.mark.anyio

OUTBOX = Outbox("vibespro")
AWAITED = ["AsyncConnection", "AsyncConnection on asyncpg", "psycopg async", "asyncpg", "asyncpg pool"]


@pytest.fixture(params=AWAITED)
async def awaited(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Producer]:
    """A producer that has begun a transaction and has written something."""
    query(database_url, "CREATE TABLE vibes (id int)")
    async with producing(request.param, database_url) as producer:
        await producer.execute("INSERT INTO vibes VALUES (1)")
        yield producer


def names(url: str) -> list[str]:
    return [row["aggregate_id"] for row in outbox_rows(url)]


def changed(url: str) -> int:
    return len(query(url, "SELECT id FROM vibes"))


def forget(target: Any, added: Any) -> None:
    """Add an event without an await. Python warns of it, which is not enough."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        OUTBOX.add(target, added)


@asynccontextmanager
async def savepoint(target: Any) -> AsyncIterator[None]:
    """A block of the library that is undone if it raises."""
    block = getattr(target, "begin_nested", None) or target.transaction
    async with block():
        yield


# --- the forgotten await ---


@pytest.mark.parametrize("kept", [True, False])
async def test_an_event_whose_await_was_forgotten_is_committed_with_the_change(
    awaited: Producer, database_url: str, kept: bool
) -> None:
    forgotten: Any = OUTBOX.add(awaited.target, event("first")) if kept else None
    if not kept:
        forget(awaited.target, event("first"))
    await OUTBOX.add(awaited.target, event("second"))
    forget(awaited.target, event("third"))
    await awaited.call("commit")
    if kept:
        await forgotten
    assert (names(database_url), changed(database_url)) == (["first", "second", "third"], 1)


@pytest.mark.parametrize("kind", AWAITED)
async def test_an_event_that_is_all_of_a_transaction_is_committed_without_its_await(
    kind: str, database_url: str
) -> None:
    async with producing(kind, database_url) as producer:
        if producer.begin is not None:
            await producer.begin()
        forget(producer.target, event("only"))
        await producer.call("commit")
        await producer.add(event("not"))
        await producer.call("rollback")
    assert names(database_url) == ["only"]


async def test_when_the_event_is_refused_nothing_is_committed(awaited: Producer, database_url: str) -> None:
    taken = await OUTBOX.add(awaited.target, event("first"))
    forget(awaited.target, event("again", id=taken))
    with pytest.raises(DuplicateMessage):
        await awaited.call("commit")
    assert (names(database_url), changed(database_url)) == ([], 0)


async def test_what_was_forgotten_in_a_savepoint_goes_with_it(awaited: Producer, database_url: str) -> None:
    forget(awaited.target, event("before"))
    with pytest.raises(LookupError):  # noqa: PT012
        async with savepoint(awaited.target):
            forget(awaited.target, event("undone"))
            raise LookupError
    async with savepoint(awaited.target):
        forget(awaited.target, event("kept"))
    await awaited.call("commit")
    assert names(database_url) == ["before", "kept"]


async def test_after_a_failed_statement_the_savepoint_can_be_undone_as_ever(
    awaited: Producer, database_url: str
) -> None:
    with pytest.raises(Exception, match="division"):  # noqa: PT012
        async with savepoint(awaited.target):
            try:
                await awaited.execute("SELECT 1/0")
            finally:
                forget(awaited.target, event("undone"))
    await OUTBOX.add(awaited.target, event("kept"))
    await awaited.call("commit")
    assert names(database_url) == ["kept"]


async def test_after_a_rollback_nothing_waits_any_more(awaited: Producer, database_url: str) -> None:
    forget(awaited.target, event("undone"))
    await awaited.call("rollback")
    await awaited.execute("SELECT 1")
    await awaited.call("commit")
    assert names(database_url) == []


async def test_a_pool_of_psycopg_takes_a_connection_back_with_nothing_waiting(database_url: str) -> None:
    async with psycopg_pool.AsyncConnectionPool(database_url, min_size=1, max_size=1, open=False) as pool:
        for ending in (None, LookupError):
            with suppress(LookupError):
                async with pool.connection() as connection:
                    await connection.execute("SELECT 1")
                    forget(connection, event(str(ending)))
                    if ending:
                        raise ending
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
    assert names(database_url) == ["None"]


async def test_a_commit_that_is_cancelled_and_repeated_has_the_event(database_url: str) -> None:
    query(database_url, "CREATE TABLE vibes (id int)")
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        await connection.execute("INSERT INTO vibes VALUES (1)")
        lock = connection.lock
        await lock.acquire()  # so that the cancelled commit has sent nothing
        forget(connection, event("kept"))
        committing = asyncio.create_task(connection.commit())
        await asyncio.sleep(0)
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        lock.release()
        assert committing.cancelled()
        await connection.commit()
    assert (names(database_url), changed(database_url)) == (["kept"], 1)


async def test_adds_that_are_gathered_keep_their_order(database_url: str) -> None:
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        ids = await asyncio.gather(*(OUTBOX.add(connection, event(str(number))) for number in range(20)))
    assert names(database_url) == [str(number) for number in range(20)]
    assert [row["id"] for row in outbox_rows(database_url)] == ids


async def test_a_connection_that_is_lost_loses_the_change_too(awaited: Producer, database_url: str) -> None:
    forget(awaited.target, event("lost"))
    query(
        database_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        " AND state = 'idle in transaction'",
    )
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of the driver
        await awaited.call("commit")
    assert not isinstance(caught.value, RelayError)
    assert (names(database_url), changed(database_url)) == ([], 0)


# --- asyncpg ---


async def test_asyncpg_without_a_transaction_is_refused(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    with pytest.raises(NoTransaction):
        OUTBOX.add(connection, event("1"))
    assert await OUTBOX.add_many(connection, []) == []
    await connection.close()
    with pytest.raises(NoTransaction):
        OUTBOX.add(connection, event("1"))
    pool = asyncpg.create_pool(database_url)
    with pytest.raises(UnsupportedTarget, match="Pool"):
        OUTBOX.add(pool, event("1"))  # type: ignore[call-overload]


async def test_an_engine_on_asyncpg_with_autocommit_is_refused(database_url: str) -> None:
    engine = create_async_engine(engine_url(database_url, "asyncpg"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        with pytest.raises(NoTransaction):
            await OUTBOX.add(connection, event())
    await engine.dispose()
    assert names(database_url) == []


async def test_an_own_class_and_codecs_of_an_asyncpg_connection_do_not_matter(database_url: str) -> None:
    class Own(asyncpg.Connection):
        pass

    connection = await asyncpg.connect(database_url, connection_class=Own, statement_cache_size=0)
    for kind in ("json", "jsonb"):
        await connection.set_type_codec(kind, encoder=repr, decoder=repr, schema="pg_catalog")
    async with connection.transaction():
        await OUTBOX.add(connection, event("1", payload={"text": 'Grüße "{}" \\ $1 %s'}))
        forget(connection, event("2"))
    assert type(connection) is Own
    await connection.close()
    assert [row["payload"] for row in outbox_rows(database_url)] == [{"text": 'Grüße "{}" \\ $1 %s'}, {}]


# --- nobody needs them ---


def test_a_service_that_has_neither_library_imports_neither(database_url: str) -> None:
    program = (
        "import sys, psycopg, relay\n"
        "sys.modules.update(asyncpg=None, django=None)\n"
        "event = relay.Event(event_type='t', aggregate_type='a', aggregate_id='1', payload={})\n"
        f"with psycopg.connect({database_url!r}) as connection: relay.Outbox('vibespro').add(connection, event)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    assert names(database_url) == ["1"]


async def test_what_is_awaited_much_later_was_written_in_its_transaction(database_url: str) -> None:
    engine = create_async_engine(engine_url(database_url))
    async with engine.connect() as connection:
        later = OUTBOX.add(connection, event("1"))
        await connection.execute(text("SELECT 1"))
        await connection.commit()
        assert names(database_url) == ["1"]
        assert str(await later) == str(outbox_rows(database_url)[0]["id"])
        await connection.rollback()
    await engine.dispose()
