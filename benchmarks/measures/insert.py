"""What recording an event costs the application's own transaction."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import psycopg
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from uuid_utils.compat import uuid7

from benchmarks.figures import Reference, Row
from benchmarks.stage import Stage
from benchmarks.turns import Case, take_turns
from benchmarks.workload import event, payload
from relay import Outbox

_OUTBOX: Final = Outbox("bench", undeclared=True)
_MANY: Final = 1_000
_COLUMNS: Final = "id, aggregate_type, aggregate_id, event_type, payload, partition_key"
_BARE: Final = text(
    f"INSERT INTO outbox_events ({_COLUMNS})"
    " VALUES (:id, :aggregate_type, :aggregate_id, :event_type, CAST(:payload AS jsonb), :partition_key)"
)
_EACH: Final = f"INSERT INTO outbox_events ({_COLUMNS}) VALUES (%s, %s, %s, %s, %s::jsonb, %s)"
_UNNEST: Final = (
    f"INSERT INTO outbox_events ({_COLUMNS})"
    " SELECT * FROM unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::jsonb[], %s::text[])"
)


def run(stage: Stage) -> Iterator[Row]:
    """Measure one event a transaction, and a thousand."""
    url = stage.database("inserts")
    engines = {
        "durable": create_engine(_driver(url)),
        # Without the wait for the disk, which hides what else there is.
        "unwaited": create_engine(_driver(url), connect_args={"options": "-c synchronous_commit=off"}),
    }
    cases: dict[str, Case] = {}
    for name, engine in engines.items():
        cases[f"Outbox.add, {name}"] = partial(_singly, stage, engine, _add)
        cases[f"INSERT, {name}"] = partial(_singly, stage, engine, _insert)
    runs = take_turns(stage, "insert", "µs", cases)
    yield _one(runs, "durable", "Outbox.add in a SQLAlchemy session, commit included", at_most=1.3)
    yield _one(runs, "unwaited", "the same with synchronous_commit = off")
    yield from _thousands(stage, url)
    for engine in engines.values():
        engine.dispose()


def _thousands(stage: Stage, url: str) -> Iterator[Row]:
    cases: dict[str, Case] = {
        "add_many": partial(_by_thousand, stage, url, _add_many),
        "executemany": partial(_by_thousand, stage, url, _executemany),
        "unnest": partial(_by_thousand, stage, url, _unnest),
    }
    runs = take_turns(stage, "insert by the thousand", "events/s", cases)
    row = partial(Row, measure=f"add_many({_MANY}), commit included", unit="events/s", runs=runs["add_many"])
    yield row(reference=Reference("executemany", runs["executemany"]), at_least=0.7)
    yield row(reference=Reference("INSERT … unnest", runs["unnest"]), at_least=0.7)


def _one(runs: dict[str, list[float]], engine: str, measure: str, at_most: float | None = None) -> Row:
    reference = Reference("bare INSERT of the same row", runs[f"INSERT, {engine}"])
    return Row(
        measure=measure, unit="µs", runs=runs[f"Outbox.add, {engine}"], reference=reference, at_most=at_most
    )


# --- one event a transaction ---


def _singly(stage: Stage, engine: Engine, write: Callable[[Session, int], None]) -> float:
    """Microseconds for a transaction of one event."""
    with Session(engine) as session:
        session.execute(text("TRUNCATE outbox_events"))
        session.commit()
        for number in range(20):  # the connection, the statements' plans
            write(session, number)
            session.commit()
        start = time.perf_counter()
        for number in range(stage.sizes.inserts):
            write(session, number)
            session.commit()
        return (time.perf_counter() - start) / stage.sizes.inserts * 1e6


def _add(session: Session, number: int) -> None:
    _OUTBOX.add(session, event(number))


def _insert(session: Session, number: int) -> None:
    names = _COLUMNS.split(", ")
    session.execute(_BARE, dict(zip(names, _row(number), strict=True)))


def _row(number: int) -> tuple[Any, ...]:
    key = f"t{number % 200}"
    return uuid7(), "thing", key, "made", json.dumps(payload(number)), f"thing:{key}"


# --- a thousand ---


def _by_thousand(stage: Stage, url: str, write: Callable[[psycopg.Connection[Any]], None]) -> float:
    """Events per second, in transactions of a thousand."""
    times = max(2, stage.sizes.inserts // 50)
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE outbox_events")
        write(connection)
        connection.commit()
        start = time.perf_counter()
        for _ in range(times):
            write(connection)
            connection.commit()
        return times * _MANY / (time.perf_counter() - start)


def _add_many(connection: psycopg.Connection[Any]) -> None:
    _OUTBOX.add_many(connection, [event(number) for number in range(_MANY)])


def _executemany(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor() as cursor:
        cursor.executemany(_EACH, [_row(number) for number in range(_MANY)])


def _unnest(connection: psycopg.Connection[Any]) -> None:
    columns = zip(*(_row(number) for number in range(_MANY)), strict=True)
    connection.execute(_UNNEST, [list(column) for column in columns])


def _driver(url: str) -> str:
    return url.replace("postgresql://", "postgresql+psycopg://")
