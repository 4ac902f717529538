"""Nothing that a function leaves behind in its session reaches the next one, and nothing that others have set.

A function that is called has the settings of the database, its role and its own; the relay's statements beside it
depend on none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg.types.numeric import FloatDumper
from psycopg.types.string import TextLoader

from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.devstack import NatsServer
from tests.integration.consuming import subscribed
from tests.integration.publishing import ALL, Relay, event
from tests.integration.python_handling import KINDS, handling, nothing

pytestmark = pytest.mark.anyio

#: All that a session remembers, and what it holds.
STATE = """
    SELECT (SELECT jsonb_object_agg(name, setting) FROM pg_settings
            WHERE name NOT IN ('transaction_isolation', 'application_name')) AS settings,
           current_user::text, session_user::text, ARRAY(SELECT pg_listening_channels()) AS channels,
           ARRAY(SELECT name FROM pg_cursors WHERE is_holdable) AS cursors,
           ARRAY(SELECT relname::text FROM pg_class WHERE relnamespace = pg_my_temp_schema()) AS tables,
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory') AS locks,
           current_setting('app.user', true) IS NOT DISTINCT FROM 'ann' AS custom
"""
LEFT = [
    "SET statement_timeout = '1s'",
    "SET work_mem = '128kB'",
    "SET DateStyle = 'SQL, DMY'",
    "SET search_path = pg_catalog",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SELECT set_config('app.user', 'ann', false)",
    "SET ROLE pg_monitor",
    "SET SESSION AUTHORIZATION pg_monitor",
    "SELECT pg_advisory_lock(1), pg_advisory_lock_shared(2, 3)",
    "CREATE TEMP TABLE mine (n INT)",
    "LISTEN mine",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
]
ENDED = Settlement("session/process", {})
LIMIT = timedelta(seconds=20)


@pytest.fixture
def transactions(database_url: str) -> Iterator[HandlerTransactions]:
    made = HandlerTransactions(database_url, limit=LIMIT, application_name="tests")
    yield made
    asyncio.run(made.close())


@contextmanager
def alone(transactions: HandlerTransactions) -> Iterator[psycopg.Connection[Any]]:
    with transactions.for_row().settle(ENDED) as transaction:
        yield transaction.connection


@contextmanager
def in_a_chunk(transactions: HandlerTransactions) -> Iterator[psycopg.Connection[Any]]:
    with transactions.share() as shared, shared.step() as transaction:
        yield transaction.connection


@asynccontextmanager
async def coroutine(transactions: HandlerTransactions) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with transactions.settle_async(ENDED) as transaction:
        yield transaction.connection


Call = Callable[[HandlerTransactions], Any]


def look(transactions: HandlerTransactions, call: Call = alone) -> tuple[Any, ...]:
    with call(transactions) as connection:
        return tuple(connection.execute(STATE).fetchone())


@pytest.mark.parametrize("call", [alone, in_a_chunk])
def test_the_next_function_has_a_clean_session(transactions: HandlerTransactions, call: Call) -> None:
    before = look(transactions, call)
    for command in LEFT:
        with call(transactions) as connection:
            connection.execute(command)
        assert look(transactions, call) == before, command
        # Also what outlives a rollback.
        with suppress(ZeroDivisionError), call(transactions) as connection:
            connection.execute(command)
            raise ZeroDivisionError
        assert look(transactions, call) == before, command
    assert transactions.idle == 1


async def test_the_next_coroutine_has_a_clean_session(transactions: HandlerTransactions) -> None:
    async def look_there() -> tuple[Any, ...]:
        async with coroutine(transactions) as connection:
            return tuple(await (await connection.execute(STATE)).fetchone())

    before = await look_there()
    for command in LEFT:
        async with coroutine(transactions) as connection:
            await connection.execute(command)
        assert await look_there() == before, command
        with suppress(ZeroDivisionError):
            async with coroutine(transactions) as connection:
                await connection.execute(command)
                raise ZeroDivisionError
        assert await look_there() == before, command
    assert transactions.idle == 1


def test_functions_of_one_chunk_share_no_settings(transactions: HandlerTransactions) -> None:
    with transactions.share() as shared:
        with shared.step() as transaction:
            before = transaction.connection.execute("SHOW work_mem").fetchone()
        with shared.step() as transaction:
            transaction.connection.execute("SET LOCAL work_mem = '128kB'")
        with shared.step() as transaction:
            assert transaction.connection.execute("SHOW work_mem").fetchone() == before


def test_a_lock_of_the_session_ends_after_the_commit(transactions: HandlerTransactions, database_url: str) -> None:
    """Who waited for it sees what the function has written."""
    with psycopg.connect(database_url, autocommit=True) as other:
        other.execute("CREATE TABLE effects (n INT)")
        with alone(transactions) as connection:
            connection.execute("SELECT pg_advisory_lock(7)")
            connection.execute("INSERT INTO effects VALUES (1)")
            assert other.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (False,)
        assert other.execute("SELECT pg_try_advisory_lock(7), count(*) FROM effects").fetchone() == (True, 1)


def test_the_connection_object_is_as_before(transactions: HandlerTransactions) -> None:
    with alone(transactions) as connection:
        connection.row_factory = dict_row
        connection.prepare_threshold = 0
        connection.adapters.register_dumper(float, FloatDumper)
        connection.adapters.register_loader("int4", TextLoader)
    with alone(transactions) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert connection.prepare_threshold == 5


# --- what the database says ---

AS_TEXT = ("uuid", "timestamptz", "timestamp", "numeric", "int8", "int4", "interval", "jsonb", "float8", "bool")
ODD = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Pacific/Chatham",
    "extra_float_digits": "-10",
    "bytea_output": "escape",
    "default_transaction_read_only": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
}


@contextmanager
def odd(url: str) -> Iterator[None]:
    """All of these at once, and loaders that an application registers for its whole process."""
    with psycopg.connect(url, autocommit=True) as owner:
        [[name]] = owner.execute("SELECT current_database()").fetchall()
        for setting, value in ODD.items():
            owner.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'".encode())
    usual = {it: psycopg.adapters.get_loader(psycopg.postgres.types[it].oid, Format.TEXT) for it in AS_TEXT}
    for it in AS_TEXT:
        psycopg.adapters.register_loader(it, TextLoader)
    try:
        yield
    finally:
        for it, loader in usual.items():
            assert loader is not None
            psycopg.adapters.register_loader(it, loader)


async def test_events_are_published_whatever_others_set(database_url: str, nats_server: NatsServer) -> None:
    with odd(database_url):
        async with Relay(database_url, nats_server.url) as relay:
            await relay.create_stream()
            with psycopg.connect(database_url) as connection:
                connection.execute("SET TRANSACTION READ WRITE")
                for number in range(20):
                    relay.outbox.add(connection, event(f"v{number}"))
            assert await relay.command().drain(ALL) == 20


async def test_messages_are_handled_whatever_others_set(database_url: str, nats_server: NatsServer) -> None:
    async with subscribed(database_url, nats_server.url) as sub, handling(sub) as calls:
        with odd(database_url):
            ids = [await calls.received() for _ in KINDS]
            for kind, id in zip(KINDS.values(), ids, strict=True):
                assert await calls.process(calls.handler(kind(nothing))).process(id) is None
        assert {it["message_id"] for it in await calls.effects()} == {*ids}


def test_a_function_has_the_isolation_of_its_database_and_may_write(database_url: str) -> None:
    with odd(database_url):
        made = HandlerTransactions(database_url, limit=LIMIT, application_name="tests")
        for _ in range(2):
            with alone(made) as connection:
                assert connection.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
                connection.execute("CREATE TABLE IF NOT EXISTS effects (n INT)")
                # Days come before months in this database.
                month = "SELECT extract(month FROM '02.01.2026'::date)::int"
                assert connection.execute(month).fetchone() == ("1",)
        asyncio.run(made.close())
