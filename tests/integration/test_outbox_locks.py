"""A transaction of any number of keys holds few locks, in every path, and the order of commits is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from relay import Outbox
from relay.adapters.postgres.conflicts import is_conflict
from relay.domain.errors import WriteConflict
from relay.handler.transaction import is_outage
from tests.integration.publishing import DEADLINE, event, outbox_rows, query
from tests.integration.test_commit_order import blocked
from tests.waiting import wait_for

OUTBOX = Outbox("vibespro")
#: Places in the lock table: a lock that is held in two modes has one.
OWN_LOCKS = (
    "SELECT count(DISTINCT (classid, objid)) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
)
INSERT = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)"
MOST = 128

Connection = psycopg.Connection[Any]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def raw_many(conn: Connection, kind: str, keys: str, order: str = "n") -> None:
    conn.execute(
        f"{INSERT} SELECT gen_random_uuid(), 'vibe', 'v' || n, '{kind}', '{{}}'"
        f" FROM (SELECT n FROM {keys} AS n ORDER BY {order}) AS sorted"
    )


def raw_one(conn: Connection, kind: str, key: int) -> None:
    conn.execute(f"{INSERT} VALUES (gen_random_uuid(), 'vibe', 'v{key}', '{kind}', '{{}}')")


def add_one(conn: Connection, kind: str, key: int) -> None:
    OUTBOX.add(conn, event(f"v{key}", event_type=kind))


def locks(conn: Connection) -> int:
    [count] = conn.execute(OWN_LOCKS).fetchone() or [0]
    return int(count)


def in_transaction(url: str, work: Callable[[Connection], object]) -> None:
    with psycopg.connect(url) as conn:
        work(conn)


def kinds_of(url: str, key: str) -> list[str]:
    return [row["event_type"] for row in outbox_rows(url) if row["aggregate_id"] == key]


# --- few locks ---


def test_a_raw_insert_of_forty_thousand_keys_holds_a_lock_for_each_lane(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        raw_many(conn, "raw", "generate_series(1, 40000)")
        assert locks(conn) == 64
    assert query(database_url, "SELECT count(*) AS n FROM outbox_events") == [{"n": 40_000}]


@pytest.mark.parametrize("write", [raw_one, add_one])
def test_keys_written_one_by_one_hold_few_locks(
    write: Callable[[Connection, str, int], None], database_url: str
) -> None:
    with psycopg.connect(database_url) as conn:
        for key in range(300):
            write(conn, "single", key)
        assert 64 < locks(conn) <= MOST


def test_all_ways_of_a_transaction_count_together(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        for start in range(0, 300, 30):
            raw_many(conn, "raw", f"generate_series({start}, {start + 9})")
            OUTBOX.add_many(conn, [event(f"v{key}") for key in range(start + 10, start + 20)])
            for key in range(start + 20, start + 30):
                add_one(conn, "single", key)
        assert 64 < locks(conn) <= MOST


def test_a_key_counts_once_however_many_events_it_has(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        for number in range(300):
            add_one(conn, "single", number % 3)
            raw_one(conn, "raw", number % 3)
        assert locks(conn) <= 6


def test_what_a_savepoint_takes_back_does_not_count(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        for start in (0, 100, 200):
            with conn.transaction(force_rollback=True):
                for key in range(start, start + 60):
                    add_one(conn, "undone", key)
        assert locks(conn) == 0
        add_one(conn, "kept", 1)
        assert locks(conn) == 2


def test_others_find_room_in_the_lock_table_beside_many_transactions_of_many_keys(
    database_url: str, pool: ThreadPoolExecutor
) -> None:
    connections = [psycopg.connect(database_url) for _ in range(40)]
    try:
        for number, conn in enumerate(connections):
            for key in range(60):
                add_one(conn, "single", 1_000 * number + key)
        counts = [locks(conn) for conn in connections]
        assert max(counts) <= MOST
    finally:
        for conn in connections:
            conn.close()


# --- order ---


@pytest.mark.parametrize("write", [raw_one, add_one])
def test_who_has_written_many_keys_one_by_one_is_waited_for(
    write: Callable[[Connection, str, int], None], database_url: str, pool: ThreadPoolExecutor
) -> None:
    with psycopg.connect(database_url) as many:
        for key in range(100):
            write(many, "first", key)
        tasks = [
            pool.submit(in_transaction, database_url, lambda conn: raw_one(conn, "second", 7)),
            pool.submit(in_transaction, database_url, lambda conn: add_one(conn, "second", 93)),
        ]
        wait_for("both wait", lambda: blocked(database_url) == 2 or any(task.done() for task in tasks))
        assert not any(task.done() for task in tasks)
        write(many, "third", 7)
    for task in tasks:
        task.result(DEADLINE)
    assert kinds_of(database_url, "v7") == ["first", "third", "second"]
    assert kinds_of(database_url, "v93") == ["first", "second"]


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_statement_that_waited_after_it_had_drawn_its_numbers_draws_new_ones(
    isolation: str, database_url: str, pool: ThreadPoolExecutor
) -> None:
    second_waits_for_first(isolation, database_url, pool)


def second_waits_for_first(isolation: str, database_url: str, pool: ThreadPoolExecutor) -> None:
    def second(conn: Connection) -> None:
        conn.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        raw_many(conn, "second", "generate_series(1, 9)")

    with psycopg.connect(database_url) as first:
        raw_one(first, "first", 5)
        # v1 is free, so that the statement writes its rows, and waits for v5 only then.
        task = pool.submit(in_transaction, database_url, second)
        wait_for("it waits", lambda: blocked(database_url) == 1)
        raw_one(first, "again", 5)
    task.result(DEADLINE)
    assert kinds_of(database_url, "v5") == ["first", "again", "second"]
    last = [row["aggregate_id"] for row in outbox_rows(database_url) if row["event_type"] == "second"]
    assert last == [f"v{number}" for number in range(1, 10)]


def test_new_numbers_of_rows_nobody_has_seen_are_no_events_that_come_back(
    database_url: str, pool: ThreadPoolExecutor
) -> None:
    before = query(database_url, "SELECT last_value, is_called FROM relay_reopened")
    second_waits_for_first("READ COMMITTED", database_url, pool)
    assert query(database_url, "SELECT last_value, is_called FROM relay_reopened") == before


def test_a_writer_of_the_release_before_is_waited_for(database_url: str, pool: ThreadPoolExecutor) -> None:
    with psycopg.connect(database_url) as old:
        old.execute("SELECT pg_advisory_xact_lock_shared(1785882989, hashtext('vibe:v7') & 63)")
        old.execute("SELECT pg_advisory_xact_lock(1785882988, hashtext('vibe:v7'))")
        tasks = [
            pool.submit(in_transaction, database_url, lambda conn: raw_one(conn, "new", 7)),
            pool.submit(in_transaction, database_url, lambda conn: add_one(conn, "new", 7)),
            pool.submit(
                in_transaction, database_url, lambda conn: raw_many(conn, "new", "generate_series(1, 500)")
            ),
        ]
        wait_for("all wait", lambda: blocked(database_url) == 3 or any(task.done() for task in tasks))
        assert not any(task.done() for task in tasks)
    for task in tasks:
        task.result(DEADLINE)


# --- nobody in nobody's way ---


@pytest.mark.parametrize("count", [40, 5_000])
def test_raw_inserts_of_the_same_keys_in_opposite_order_do_not_deadlock(
    count: int, database_url: str, pool: ThreadPoolExecutor
) -> None:
    keys = f"generate_series(1, {count})"

    def start(order: str) -> Future[None]:
        return pool.submit(in_transaction, database_url, lambda conn: raw_many(conn, order[:6], keys, order))

    with psycopg.connect(database_url) as gate:
        # Both come this far, each with one half of the keys, if they take them as they come.
        add_one(gate, "gate", count // 2)
        tasks = [start("n ASC"), start("n DESC")]
        wait_for("both wait", lambda: blocked(database_url) == 2 or any(task.done() for task in tasks))
    assert [task.exception(DEADLINE) for task in tasks] == [None, None]
    rows = outbox_rows(database_url)[1:]
    assert len(rows) == 2 * count
    # One after the other, as a whole.
    assert len({row["event_type"] for row in rows[:count]}) == 1


def test_a_transaction_of_many_keys_gives_way_to_one_that_writes_key_after_key(
    database_url: str, pool: ThreadPoolExecutor
) -> None:
    many = [event(f"v{key}", event_type="many") for key in range(300)]
    with psycopg.connect(database_url) as singly:
        add_one(singly, "single", 5)
        tasks = [
            pool.submit(in_transaction, database_url, lambda conn: OUTBOX.add_many(conn, many)),
            pool.submit(
                in_transaction, database_url, lambda conn: raw_many(conn, "raw", "generate_series(1, 300)")
            ),
            pool.submit(in_transaction, database_url, lambda conn: OUTBOX.add_many(conn, many[:20])),
        ]
        wait_for("they wait", lambda: blocked(database_url) == 3 or any(task.done() for task in tasks))
        for key in (200, 6, 4, 299):
            add_one(singly, "single", key)
    assert [task.exception(DEADLINE) for task in tasks] == [None] * 3
    assert kinds_of(database_url, "v5")[0] == "single"


def test_what_must_deadlock_is_an_error_that_says_to_try_again(
    database_url: str, pool: ThreadPoolExecutor
) -> None:
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        for conn in (one, other):
            conn.execute("SET LOCAL deadlock_timeout = '100ms'")
        add_one(one, "one", 1)
        add_one(other, "other", 2)
        waiting = pool.submit(add_one, one, "one", 2)
        wait_for("the one waits", lambda: blocked(database_url) == 1)
        errors = []
        for step in (lambda: add_one(other, "other", 1), lambda: waiting.result(DEADLINE)):
            try:
                step()
            except WriteConflict as error:
                errors.append(error)
                (other if errors and not waiting.done() else one).rollback()
        assert [error.code for error in errors] == ["WRITE_CONFLICT"]
        assert isinstance(errors[0].__cause__, psycopg.errors.DeadlockDetected)
        # Whoever tries again what PostgreSQL has ended goes by these.
        assert is_outage(errors[0])
        assert is_conflict(errors[0])


def test_a_lock_timeout_of_the_application_is_kept(database_url: str) -> None:
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        add_one(one, "one", 1)
        other.execute("SET lock_timeout = '50ms'")
        other.commit()
        with pytest.raises(WriteConflict):
            OUTBOX.add_many(other, [event("v1"), event("v2")])
        other.rollback()
        OUTBOX.add_many(other, [event("v2"), event("v3")])
        assert other.execute("SHOW lock_timeout").fetchone() == ("50ms",)


def test_the_patience_of_a_write_is_not_left_to_the_rest_of_the_transaction(
    database_url: str, pool: ThreadPoolExecutor
) -> None:
    seen: list[Any] = []

    def work(conn: Connection) -> None:
        OUTBOX.add_many(conn, [event("v1"), event("v2")])
        seen.append(conn.execute("SHOW lock_timeout").fetchone())

    with psycopg.connect(database_url) as one:
        add_one(one, "one", 1)
        waiting = pool.submit(in_transaction, database_url, work)
        wait_for("it waits", lambda: blocked(database_url) == 1)
    waiting.result(DEADLINE)
    assert seen == [("0",)]
