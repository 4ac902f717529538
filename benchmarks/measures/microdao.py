"""What the view of MicroDAO costs a producer that writes SQL, against the table of a database without a view."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import psycopg
from uuid_utils.compat import uuid7

from benchmarks.figures import Reference, Row
from benchmarks.stage import Stage
from benchmarks.turns import Case, take_turns
from benchmarks.workload import payload
from relay.adapters.postgres import microdao

_MANY: Final = 1_000
_STREAMS: Final = 8
_SHAPE: Final = ("id, stream, partition_key, topic, payload", "microdao.outbox_events")
#: A producer of the table names no partition key, so the same trigger works for both.
_PLAIN: Final = ("id, aggregate_type, aggregate_id, event_type, payload", "outbox_events")


def run(stage: Stage) -> Iterator[Row]:
    """Measure one event a transaction, prepared, and a thousand in one statement."""
    plain, viewed = stage.database("plain"), stage.database("viewed")
    microdao.lay(viewed, "microdao")
    cases: dict[str, Case] = {}
    for name, url, shape in (("table", plain, _PLAIN), ("view", viewed, _SHAPE)):
        cases[f"{name}, one"] = partial(_singly, stage, url, *shape)
        cases[f"{name}, many"] = partial(_together, stage, url, *shape)
    cases["view, other ids"] = partial(_together, stage, viewed, *_SHAPE, prefix="evt_")
    runs = take_turns(stage, "microdao", "events/s", cases)
    row = partial(Row, unit="events/s", at_least=0.7)
    one, many = (Reference("the same into the table", runs[f"table, {kind}"]) for kind in ("one", "many"))
    yield row(
        measure="INSERT into the view, prepared, no wait for the disk", runs=runs["view, one"], reference=one
    )
    yield row(measure=f"INSERT of {_MANY} rows into the view", runs=runs["view, many"], reference=many)
    yield row(measure="the same, ids that are no UUIDs", runs=runs["view, other ids"], reference=many)


def _values(number: int, prefix: str) -> tuple[Any, ...]:
    """An event for either: a stream is an aggregate's type, a key its id, a topic a type."""
    made = f"{prefix}{uuid7()}"
    return made, f"S{number % _STREAMS}", f"t{number % 200}", "thing.made", json.dumps(payload(number))


def _singly(stage: Stage, url: str, columns: str, table: str) -> float:
    """Events per second, one in a transaction, without the wait for the disk, which hides what else there is."""
    with _empty(url) as connection:
        connection.execute("SET synchronous_commit = off")
        sql = f"INSERT INTO {table} ({columns}) VALUES (%s, %s, %s, %s, %s)".encode()
        rows = [_values(number, "") for number in range(stage.sizes.inserts + 20)]
        for values in rows[:20]:
            connection.execute(sql, values, prepare=True)
        start = time.perf_counter()
        for values in rows[20:]:
            connection.execute(sql, values, prepare=True)
        return stage.sizes.inserts / (time.perf_counter() - start)


def _together(stage: Stage, url: str, columns: str, table: str, prefix: str = "") -> float:
    """Events per second, a thousand in a statement."""
    times = max(2, stage.sizes.inserts // 50)
    marks = ", ".join(["(%s, %s, %s, %s, %s)"] * _MANY)
    sql = f"INSERT INTO {table} ({columns}) VALUES {marks}".encode()
    batches: Sequence[list[Any]] = [
        [value for number in range(_MANY) for value in _values(number, prefix)] for _ in range(times + 1)
    ]
    with _empty(url) as connection:
        connection.execute(sql, batches[0])
        start = time.perf_counter()
        for batch in batches[1:]:
            connection.execute(sql, batch)
        return times * _MANY / (time.perf_counter() - start)


def _empty(url: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute("TRUNCATE outbox_events")
    return connection
