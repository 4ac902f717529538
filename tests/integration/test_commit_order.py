"""Within a key, the order of seq is the order of commits, whatever transactions overlap and whoever writes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy import event as listen
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from relay import Event, Outbox
from tests.integration.publishing import DEADLINE, engine_url, event, outbox_rows, query
from tests.waiting import wait_for

OUTBOX = Outbox("vibespro")
RAW = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES {}"
RAW_ROW = "(gen_random_uuid(), 'vibe', 'v1', 'raw_event', '{}')"
OWN_LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"


class Base(DeclarativeBase):
    pass


class Vibe(Base):
    __tablename__ = "vibes"
    id: Mapped[int] = mapped_column(primary_key=True)
    names: Mapped[str]


class Pause:
    """Where a transaction stops between writing and committing."""

    def __init__(self) -> None:
        self.written = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, *_: object) -> None:
        self.written.set()
        assert self.go_on.wait(DEADLINE)


class Abort(Exception):
    """The transaction changes its mind."""


def write(kind: str, url: str, names: list[str], pause: Callable[[], None]) -> None:
    """Write events of one key by one kind of producer, pause after the first, commit after the last."""

    def write_all(add: Callable[[str], object]) -> None:
        add(names[0])
        go_on(add)

    def go_on(add: Callable[[str], object]) -> None:
        pause()
        for name in names[1:]:
            add(name)

    def by_outbox(target: Any) -> Callable[[str], object]:
        return lambda name: OUTBOX.add(target, event("v1", event_type=name))

    if kind == "psycopg":
        with psycopg.connect(url) as connection:
            write_all(by_outbox(connection))
    elif kind == "raw SQL":
        with psycopg.connect(url) as connection:
            write_all(lambda name: connection.execute(RAW.format(RAW_ROW.replace("raw_event", name))))
    elif kind == "Connection":
        with engine_of(url).begin() as sa_connection:
            write_all(by_outbox(sa_connection))
    else:
        with Session(engine_of(url)) as session, session.begin():
            OUTBOX.add(session, event("v1", event_type=names[0]))
            # This comes after our own listener, which writes; so the rest is written at once.
            listen.listen(session, "before_commit", lambda session: go_on(by_outbox(session)))


def engine_of(url: str) -> Engine:
    return create_engine(engine_url(url), poolclass=NullPool)


def blocked(url: str) -> int:
    sql = (
        "SELECT count(*) AS n FROM pg_locks JOIN pg_database ON pg_database.oid = database "
        "WHERE locktype = 'advisory' AND NOT granted AND datname = current_database()"
    )
    return int(query(url, sql)[0]["n"])


def event_types(url: str) -> list[str]:
    return [row["event_type"] for row in outbox_rows(url)]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


KINDS = ("psycopg", "Connection", "Session", "raw SQL")


@pytest.mark.parametrize(("first", "second"), [*itertools.product(KINDS, KINDS)])
def test_the_second_writer_of_a_key_waits_for_the_first_to_commit(
    first: str, second: str, database_url: str, pool: ThreadPoolExecutor
) -> None:
    pause, written = Pause(), threading.Event()
    tasks = [pool.submit(write, first, database_url, ["first", "again"], pause)]
    wait_for("the first is written", pause.written.is_set)
    tasks.append(pool.submit(write, second, database_url, ["second"], written.set))
    wait_for("the second waits", lambda: blocked(database_url) == 1 or written.is_set())
    assert not written.is_set()
    pause.go_on.set()
    for task in tasks:
        task.result(DEADLINE)
    # The second draws its number after the wait, for the first has gone on writing meanwhile.
    assert event_types(database_url) == ["first", "again", "second"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_that_rolls_back_lets_the_next_go_on(
    kind: str, database_url: str, pool: ThreadPoolExecutor
) -> None:
    pause = Pause()

    def abort() -> None:
        pause()
        raise Abort

    first = pool.submit(write, "psycopg", database_url, ["first"], abort)
    wait_for("the first is written", pause.written.is_set)
    second = pool.submit(write, kind, database_url, ["second"], lambda: None)
    wait_for("the second waits", lambda: blocked(database_url) == 1)
    pause.go_on.set()
    assert isinstance(first.exception(DEADLINE), Abort)
    second.result(DEADLINE)
    assert event_types(database_url) == ["second"]


def test_a_session_that_began_first_and_commits_last_comes_last(database_url: str) -> None:
    with Session(engine_of(database_url)) as early, Session(engine_of(database_url)) as late:
        OUTBOX.add(early, event("v1", event_type="commits_last"))
        OUTBOX.add(late, event("v1", event_type="commits_first"))
        late.commit()
        early.commit()
    assert event_types(database_url) == ["commits_first", "commits_last"]


def test_writers_of_different_keys_do_not_wait_for_each_other(database_url: str) -> None:
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        OUTBOX.add_many(one, [event(f"v{number}") for number in range(0, 120, 2)])
        other.execute("SET lock_timeout = '5s'")
        OUTBOX.add_many(other, [event(f"v{number}") for number in range(1, 120, 2)])


# --- no deadlocks ---


def add_at_once(session: Session, names: list[str]) -> None:
    for name in names:
        OUTBOX.add(session, event(name))


def add_in_savepoints(session: Session, names: list[str]) -> None:
    for name in names:
        with session.begin_nested():
            OUTBOX.add(session, event(name))


def add_in_the_flush(session: Session, names: list[str]) -> None:
    session.add(Vibe(names=" ".join(names)))


def harvest(session: Session, *_: object) -> None:
    for found in session.new:
        add_at_once(session, found.names.split())


@pytest.mark.parametrize("add", [add_at_once, add_in_savepoints, add_in_the_flush])
def test_transactions_over_the_same_keys_in_opposite_order_do_not_deadlock(
    add: Callable[[Session, list[str]], None], database_url: str, pool: ThreadPoolExecutor
) -> None:
    names = [f"v{number}" for number in range(21)]
    engine = create_engine(engine_url(database_url))
    Base.metadata.create_all(engine)
    factory = sessionmaker(engine)
    listen.listen(factory, "before_flush", harvest)

    def work(order: list[str]) -> None:
        with factory() as session, session.begin():
            add(session, order)

    with psycopg.connect(database_url) as connection:
        # Both come this far, one with the first half of the keys and one with the last, if they take them as
        # they were added.
        OUTBOX.add(connection, event(names[10]))
        tasks = [pool.submit(work, names), pool.submit(work, names[::-1])]
        wait_for("both wait", lambda: blocked(database_url) == 2 or any(task.done() for task in tasks))
    assert [task.exception(DEADLINE) for task in tasks] == [None, None]
    engine.dispose()
    assert len(outbox_rows(database_url)) == 2 * len(names) + 1


# --- transactions of very many keys ---


def many(count: int) -> list[Event]:
    return [event(f"v{number}") for number in range(count)]


def test_a_transaction_of_many_keys_fills_no_lock_table(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        OUTBOX.add_many(connection, many(500))
        [locks] = connection.execute(OWN_LOCKS).fetchone() or [None]
    assert locks == 64
    assert [row["aggregate_id"] for row in outbox_rows(database_url)] == [f"v{n}" for n in range(500)]


def test_many_events_of_few_keys_lock_the_keys_only(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        OUTBOX.add_many(connection, [event(f"v{number % 3}") for number in range(500)])
        [locks] = connection.execute(OWN_LOCKS).fetchone() or [None]
    assert locks <= 6


@pytest.mark.parametrize("many_first", [True, False])
def test_a_transaction_of_many_keys_and_one_of_a_single_key_exclude_each_other(
    many_first: bool, database_url: str, pool: ThreadPoolExecutor
) -> None:
    single, bulk = [event("v7", event_type="single")], many(500)
    first, second = (bulk, single) if many_first else (single, bulk)

    def add(events: list[Event]) -> None:
        with psycopg.connect(database_url) as connection:
            OUTBOX.add_many(connection, events)

    with psycopg.connect(database_url) as connection:
        OUTBOX.add_many(connection, first)
        waiting = pool.submit(add, second)
        wait_for("the second waits", lambda: blocked(database_url) == 1 or waiting.done())
        assert not waiting.done()
    waiting.result(DEADLINE)
    of_key = [row["event_type"] for row in outbox_rows(database_url) if row["aggregate_id"] == "v7"]
    assert of_key == (["vibe_created", "single"] if many_first else ["single", "vibe_created"])


def test_a_raw_insert_waits_for_a_transaction_of_many_keys(database_url: str, pool: ThreadPoolExecutor) -> None:
    with psycopg.connect(database_url) as connection:
        OUTBOX.add_many(connection, many(500))
        waiting = pool.submit(write, "raw SQL", database_url, ["raw"], lambda: None)
        wait_for("the raw one waits", lambda: blocked(database_url) == 1 or waiting.done())
        assert not waiting.done()
    waiting.result(DEADLINE)
    assert event_types(database_url)[-1] == "raw"


# --- events without order ---


def test_an_event_without_a_key_takes_no_lock(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        OUTBOX.add_many(connection, [event(f"v{number}", partition_key=None) for number in range(300)])
        assert connection.execute(OWN_LOCKS).fetchone() == (0,)


def test_an_event_without_a_key_waits_for_nobody(database_url: str) -> None:
    with psycopg.connect(database_url) as one, psycopg.connect(database_url) as other:
        OUTBOX.add_many(one, [*many(500), event(partition_key=None)])
        other.execute("SET lock_timeout = '5s'")
        OUTBOX.add(other, event("v1", partition_key=None))


# --- producers that know nothing of keys ---


def test_raw_sql_with_the_columns_of_the_spec_gets_key_and_number(database_url: str) -> None:
    query(database_url, RAW.format(", ".join([RAW_ROW, RAW_ROW.replace("v1", "v2"), RAW_ROW])))
    rows = outbox_rows(database_url)
    assert [row["partition_key"] for row in rows] == ["vibe:v1", "vibe:v2", "vibe:v1"]
    assert len({row["seq"] for row in rows}) == 3
