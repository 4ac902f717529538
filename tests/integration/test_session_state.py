"""Nothing that a function leaves behind in its session reaches the next one, and nothing that others have set.

A function that is called has the settings of the database, its role and its own; the relay's statements beside it
depend on none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg.types.numeric import FloatDumper
from psycopg.types.string import TextLoader

from relay.adapters.postgres import grants, microdao, migrations
from relay.adapters.postgres.transactions import HandlerTransactions, Settlement
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import ClaimLost
from tests.integration.consuming import subscribed
from tests.integration.odd_databases import make_odd
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
           ARRAY(SELECT name FROM pg_prepared_statements WHERE from_sql) AS prepared,
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
    "SET LOCAL ROLE pg_monitor",
    "CREATE TEMP TABLE mine (n INT)",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
]
#: The same, which functions of one chunk share: their transaction is the same.
OF_TRANSACTION = [
    "SELECT pg_advisory_lock(1), pg_advisory_lock_shared(2, 3)",
    "LISTEN mine",
    "PREPARE mine AS SELECT 1",
    "DEALLOCATE ALL",
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


@contextmanager
def undone(transactions: HandlerTransactions) -> Iterator[Any]:
    """A session that rolls back all that it has done: what it does then is in another transaction."""
    with transactions.for_row().settle(ENDED) as transaction:
        yield transaction.session.connection().connection.driver_connection
        transaction.session.rollback()


@pytest.mark.parametrize("call", [alone, in_a_chunk, undone])
def test_the_next_function_has_a_clean_session(transactions: HandlerTransactions, call: Call) -> None:
    before = look(transactions, call)
    for command in [*LEFT, *OF_TRANSACTION]:
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
    for command in [*LEFT, *OF_TRANSACTION]:
        async with coroutine(transactions) as connection:
            await connection.execute(command)
        assert await look_there() == before, command
        with suppress(ZeroDivisionError):
            async with coroutine(transactions) as connection:
                await connection.execute(command)
                raise ZeroDivisionError
        assert await look_there() == before, command
    assert transactions.idle == 1


def test_functions_of_one_chunk_see_nothing_of_each_other(transactions: HandlerTransactions) -> None:
    for command in [*LEFT, "SET LOCAL work_mem = '128kB'"]:
        with transactions.share() as shared:
            with shared.step() as transaction:
                before = transaction.connection.execute(STATE).fetchone()
            with shared.step() as transaction:
                transaction.connection.execute(command)
                transaction.connection.row_factory = dict_row
            with shared.step() as transaction:
                assert transaction.connection.execute(STATE).fetchone() == before, command


async def test_coroutines_of_one_chunk_see_nothing_of_each_other(transactions: HandlerTransactions) -> None:
    for command in LEFT:
        async with transactions.share_async() as shared:
            async with shared.step() as transaction:
                before = await (await transaction.connection.execute(STATE)).fetchone()
            async with shared.step() as transaction:
                await transaction.connection.execute(command)
            async with shared.step() as transaction:
                assert await (await transaction.connection.execute(STATE)).fetchone() == before, command


#: As functions do that serve many tenants.
MOVES = [
    *("SET LOCAL ROLE pg_monitor", "SET SESSION AUTHORIZATION pg_monitor", "SET LOCAL search_path = pg_catalog"),
    "SELECT set_config('search_path', 'pg_catalog', false)",
]
#: It finds its table, and may write it; but there is no such row.
LOST = Settlement("inbox/settle", {"message_id": uuid4(), "token": uuid4()})


def test_a_chunk_is_settled_as_the_relay_whatever_its_last_function_has_set(
    transactions: HandlerTransactions,
) -> None:
    for command in MOVES:
        with transactions.share() as shared:
            with shared.step() as transaction:
                transaction.connection.execute(command)
            with pytest.raises(ClaimLost):  # there is no such row
                shared.settle([uuid4()], uuid4())


def test_so_is_a_single_row(transactions: HandlerTransactions) -> None:
    for command in MOVES:
        with pytest.raises(ClaimLost), transactions.for_row().settle(LOST) as transaction:
            transaction.connection.execute(command)
        assert transactions.idle == 1


async def test_so_is_the_row_of_a_coroutine(transactions: HandlerTransactions) -> None:
    for command in MOVES:
        with pytest.raises(ClaimLost):
            async with transactions.settle_async(LOST) as transaction:
                await transaction.connection.execute(command)


def test_options_of_a_session_are_its_own(transactions: HandlerTransactions) -> None:
    """As those of an application with a schema for each tenant."""
    with transactions.share() as shared:
        with shared.step() as transaction:
            transaction.session.connection(execution_options={"schema_translate_map": {None: "tenant"}})
        with shared.step() as transaction:
            assert "schema_translate_map" not in transaction.session.connection().get_execution_options()


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
    heard: list[int] = []
    with alone(transactions) as connection:
        connection.row_factory = dict_row
        connection.prepare_threshold = 0
        connection.adapters.register_dumper(float, FloatDumper)
        connection.adapters.register_loader("int4", TextLoader)
        connection.prepared_max = 1
        connection.add_notice_handler(lambda _: heard.append(1))
    with alone(transactions) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        assert (connection.prepare_threshold, connection.prepared_max) == (5, 100)
        connection.execute("DO $$ BEGIN RAISE WARNING 'of this one'; END $$")
    assert not heard


def test_a_pipeline_that_is_left_open_stops_no_other(transactions: HandlerTransactions) -> None:
    with ExitStack() as left:
        left.enter_context(suppress(psycopg.Error))
        with pytest.raises(psycopg.ProgrammingError, match="pipeline"), alone(transactions) as connection:  # noqa: PT012
            left.enter_context(connection.pipeline())
            connection.execute("SELECT 1")
    with alone(transactions) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


# --- what the database says ---

AS_TEXT = ("uuid", "timestamptz", "timestamp", "numeric", "int8", "int4", "interval", "jsonb", "float8", "bool")


@contextmanager
def odd(url: str) -> Iterator[None]:
    """All of these at once, and loaders that an application registers for its whole process."""
    make_odd(url)
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
                connection.execute("SET array_nulls = on")
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


def test_tables_are_made_and_granted_whatever_others_set(postgres: PostgresServer) -> None:
    url = postgres.create_database("odd_tables")
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE ROLE odd_relay; CREATE ROLE odd_application")
    with odd(url):
        migrations.upgrade(url)
        grants.grant(url, ["odd_relay"], ["odd_application"])
        microdao.lay(url, "odd_microdao")
    with psycopg.connect(url) as connection:
        [[granted]] = connection.execute("SELECT has_table_privilege('odd_relay', 'outbox_events', 'UPDATE')")
        assert granted


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
