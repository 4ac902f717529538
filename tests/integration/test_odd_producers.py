"""What an application registers with its driver, or sets in its session, changes no row that it records."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.adapt import Dumper
from psycopg.rows import dict_row
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from relay import Outbox
from relay.domain.errors import InvalidTimestamp, UnsupportedTarget
from tasks import schedule
from tests.integration.publishing import Producer, event, producing, query

pytestmark = pytest.mark.anyio

KINDS = [
    *("psycopg", "psycopg async", "asyncpg", "Session", "Connection"),
    *("AsyncSession", "AsyncConnection", "AsyncConnection on asyncpg"),
]
OUTBOX = Outbox("sea", undeclared=True)
AT = datetime(2031, 2, 1, 12, 30, tzinfo=UTC)
CAUSE = UUID("00000000-0000-4000-8000-000000000001")
SETTINGS = {
    "DateStyle": "SQL, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Pacific/Chatham",
    "transform_null_equals": "on",
    "standard_conforming_strings": "off",
}
EVENTS = """
    SELECT payload->>'x' AS payload, available_at = '2031-02-01T12:30Z' AS at,
           causation_id::text AS cause, correlation_id IS NULL AS alone
    FROM outbox_events
"""
TASKS = """
    SELECT payload->>'to' AS payload, priority, concurrency_key AS key, causation_id IS NULL AS alone,
           available_at - created_at BETWEEN '47:59:50' AND '48:00:10' AS later
    FROM task_outbox
"""
TEXT = "NULL, {\"\\\\\", 'é日'}"


class Junk(Dumper):
    def dump(self, _: object) -> bytes:
        return b"junk"


def driver_of(target: Any) -> Any:
    """The driver's connection below SQLAlchemy, or the target itself."""
    plain = getattr(target, "sync_session", None) or getattr(target, "sync_connection", None) or target
    if isinstance(plain, Session):
        plain = plain.connection()
    return plain.connection.driver_connection if isinstance(plain, Connection) else plain


async def made_odd(producer: Producer) -> None:
    """Adapters, rows and settings as few programs have them."""
    for name, value in SETTINGS.items():
        await producer.execute(f"SET {name} = '{value}'")
    driver = driver_of(producer.target)
    if isinstance(driver, psycopg.BaseConnection):
        for it in (UUID, datetime, timedelta, int, str, bytes, bool, type(None), dict, list):
            driver.adapters.register_dumper(it, Junk)
        driver.row_factory, driver.prepare_threshold = dict_row, 0  # type: ignore[attr-defined]
    else:
        for name in ("uuid", "timestamptz", "interval", "int4", "jsonb"):
            await driver.set_type_codec(name, schema="pg_catalog", encoder=lambda _: "junk", decoder=str)


async def awaited(added: Any) -> None:
    if inspect.isawaitable(added):
        await added


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_are_as_the_application_meant_them(database_url: str, kind: str) -> None:
    async with producing(kind, database_url) as producer:
        await made_odd(producer)
        target: Any = producer.target
        await awaited(OUTBOX.add(target, event(payload={"x": TEXT}, available_at=AT, causation_id=CAUSE)))
        await awaited(
            schedule(target, "mail", {"to": TEXT}, delay=timedelta(days=2), priority=3, registered=False)
        )
        await producer.call("commit")
    assert query(database_url, EVENTS) == [{"payload": TEXT, "at": True, "cause": str(CAUSE), "alone": True}]
    assert query(database_url, TASKS) == [
        {"payload": TEXT, "priority": 3, "key": None, "alone": True, "later": True}
    ]


async def test_a_delay_that_is_too_long_has_an_error_of_its_own(database_url: str) -> None:
    with psycopg.connect(database_url) as connection, pytest.raises(InvalidTimestamp):
        schedule(connection, "mail", {}, delay=timedelta.max, registered=False)


def test_an_encoding_that_lacks_a_character_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url, client_encoding="LATIN1") as connection:
        OUTBOX.add(connection, event(payload={"x": "é"}))
        with pytest.raises(UnsupportedTarget):
            OUTBOX.add(connection, event("日"))
    assert query(database_url, "SELECT payload->>'x' AS x FROM outbox_events") == [{"x": "é"}]
