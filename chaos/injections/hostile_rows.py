"""Rows of a role that may only INSERT. The tables refuse most of them; the others must hold up nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg import sql

from chaos.deployment import CONSUMING, PRODUCING, STRANGER, as_role
from chaos.history import Source, Strange
from chaos.stage import Stage
from chaos.workload import HOT_KEYS

#: Key of the events that most others wait for.
_VICTIM: Final = "case:hot-{number}"
_BODY: Final = '{"key": "strange"}'
_BOMB: Final = "[" + "1e131071," * 60 + "1]"
_LONG: Final = "x" * 100_000


@dataclass(frozen=True, slots=True)
class Row:
    """Columns that differ from an ordinary row's. ``stays``: it may not be published, if the table takes it.

    ``context``: whose outbox it is for.
    """

    columns: Mapping[str, Any]
    stays: bool = True
    context: str = PRODUCING


#: What only the engine may say of a row. Each would hold back the events of a busy key for ever, or a whole batch.
ENGINE: Final = tuple(
    Row({"partition_key": _VICTIM, **columns})
    for columns in (
        {"publish_attempts": 2**31 - 1},
        {"publish_attempts": 1, "available_at": "infinity"},
        {"publish_attempts": 1, "available_at": "2999-01-01"},
        {"publish_attempts": -(2**31)},
        {"available_at": "infinity"},
        {"available_at": "-infinity"},
        {"occurred_at": "4713-01-01 BC"},
        {"published_at": "-infinity"},
        {"dead_at": "infinity"},
        {"generation": -(2**31)},
        {"published_stream": "SHOP_EVENTS", "published_seq": 1, "published_at": "2026-01-01"},
        {"publish_error": "x"},
    )
)
#: Where the events of a context may not go.
TOPICS: Final = tuple(
    Row({"topic": topic, "partition_key": _VICTIM}, context=context)
    for context, topics in {
        PRODUCING: (
            f"{CONSUMING}.event.{Source.PYTHON}.v1",
            f"{CONSUMING}.dlq.{PRODUCING}.event.http.v1",
            f"{PRODUCING}.dlq.x",
            "$JS.API.STREAM.PURGE.SHOP_EVENTS",
            "$SYS.REQ.SERVER.PING",
            "_INBOX.x.1",
            f"{PRODUCING}.event.*",
            f"{PRODUCING}.event..x",
            f"{PRODUCING}.event.x\r\nPUB {CONSUMING}.event.x 0",
            "\t",
        ),
        CONSUMING: (f"{PRODUCING}.event.{Source.PYTHON}.v1", f"{PRODUCING}.event.{Source.ORDERED}.v1"),
    }.items()
    for topic in topics
)
SHAPES: Final = (
    *(Row({name: value}) for name in ("headers", "originals") for value in ("5", '["id"]', "null", '"id"')),
    Row({"headers": '{"Nats-Expected-Stream": "SEA_EVENTS"}'}),
    Row({"headers": '{"": "x"}'}),
    Row({"headers": f'{{"A": {_BOMB}}}'}),
    Row({"payload": _BOMB}),
    Row({"payload": "[" * 1_000 + "]" * 1_000}),
    Row({"payload": f"[{'9' * 5_000}]"}),
    Row({"event_type": _LONG}),
    Row({"stream": "a b"}),
    Row({"stream": _LONG}),
    Row({"event_version": -(2**31)}),
    Row({"partition_key": _LONG}, stays=False),
    Row({"originals": '{"id": 5, "x": [{}]}'}, stays=False),
    Row({"occurred_at": "0001-01-02"}, stays=False),
    Row({"aggregate_type": "\u202e", "aggregate_id": "\u0001"}, stays=False),
)
ROWS: Final = (*ENGINE, *TOPICS, *SHAPES)


@contextmanager
def hostile_rows(stage: Stage, _target: str) -> Iterator[None]:
    """Columns of the engine, subjects of others, odd shapes; some under the keys of busy events."""
    told: Counter[str] = Counter()
    for context in (PRODUCING, CONSUMING):
        rows = [row for row in ROWS if row.context == context]
        stage.random.shuffle(rows)
        url = as_role(stage.rig.urls[context], STRANGER)
        try:
            with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
                told.update("taken" if _insert(stage, connection, row) else "refused" for row in rows)
        except psycopg.OperationalError as error:
            stage.note(f"{context}: {type(error).__name__}")
    stage.note(", ".join(f"{count} {what}" for what, count in sorted(told.items())))
    yield


def _insert(stage: Stage, connection: psycopg.Connection[Any], row: Row) -> bool:
    """Insert a row; returns whether the table took it. It is recorded first: the answer may be lost."""
    id = UUID(int=stage.random.getrandbits(128), version=4)
    values = {
        "id": id,
        "aggregate_type": "case",
        "aggregate_id": str(id),
        "event_type": "strange",
        "payload": _BODY,
        **row.columns,
    }
    if values.get("partition_key") == _VICTIM:
        values["partition_key"] = _VICTIM.format(number=stage.random.randrange(HOT_KEYS))
    statement = sql.SQL("INSERT INTO outbox_events ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, values)), sql.SQL(", ").join(map(sql.Placeholder, values))
    )
    stage.history.write(Strange(stage.number, [str(id)], row.stays))
    try:
        connection.execute(statement, values)
    except (psycopg.DataError, psycopg.IntegrityError, psycopg.ProgrammingError, psycopg.NotSupportedError):
        return False
    return True
