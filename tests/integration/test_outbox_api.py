"""Outbox.add on every kind of target: what is written, when, and what becomes of it without a commit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from relay import Outbox, RequestContext
from relay import event as registered
from relay.domain.errors import InvalidEvent, NoTransaction, UnsupportedTarget
from tests.integration.publishing import Producer, engine_url, event, outbox_rows, query

pytestmark = pytest.mark.anyio

OUTBOX = Outbox("vibespro")
NOT_YET = {"published_at", "publish_error", "dead_at", "published_stream", "published_seq", "published_duplicate"}
NOT_YET |= {"originals", "attempt_log", "expires_at"}


@registered("vibe_created", version=2, aggregate_type="vibe", aggregate_id="vibe_id")
class VibeCreated(BaseModel):
    vibe_id: UUID | None
    title: str
    at: datetime


async def test_after_the_commit_the_row_is_there_with_every_column(producer: Producer, database_url: str) -> None:
    values: dict[str, Any] = {
        "event_type": "vibe_renamed",
        "event_version": 3,
        "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
        "correlation_id": uuid4(),
        "causation_id": uuid4(),
        "partition_key": "tenant/7",
        "topic": "vibespro.event.special",
        "headers": {"Actor-Id": "ann"},
        "available_at": datetime(2026, 1, 3, tzinfo=UTC),
        "stream": "VIBESPRO_EVENTS",
        "payload": {"title": 'Grüße "to" 100 %s of {you}', "n": [1, 2.5, None, True]},
    }
    [event_id] = await producer.add(event("v1", **values))
    await producer.call("commit")
    [row] = outbox_rows(database_url)
    expected = values | {"id": event_id, "aggregate_type": "vibe", "aggregate_id": "v1", "publish_attempts": 0}
    assert {name: row[name] for name in expected} == expected
    assert {name for name, value in row.items() if value is None} == NOT_YET
    assert row["generation"] == 0


async def test_after_a_rollback_nothing_is_left(producer: Producer, database_url: str) -> None:
    await producer.add(event(), event())
    await producer.call("rollback")
    await producer.execute("SELECT 1")
    await producer.call("commit")
    assert outbox_rows(database_url) == []


async def test_nothing_is_committed_before_the_caller_commits(producer: Producer, database_url: str) -> None:
    query(database_url, "CREATE TABLE vibes (id int)")
    await producer.execute("INSERT INTO vibes VALUES (1)")
    await producer.add(event())
    assert outbox_rows(database_url) == query(database_url, "SELECT * FROM vibes") == []
    await producer.call("commit")
    assert len(outbox_rows(database_url)) == len(query(database_url, "SELECT * FROM vibes")) == 1


async def test_a_target_serves_one_transaction_after_the_other(producer: Producer, database_url: str) -> None:
    kept = []
    for ending in ("commit", "rollback", "commit", "rollback", "commit"):
        ids = await producer.add(event(), event())
        await producer.call(ending)
        kept += ids if ending == "commit" else []
    assert [row["id"] for row in outbox_rows(database_url)] == kept


async def test_many_events_keep_their_order_and_their_ids_grow(producer: Producer, database_url: str) -> None:
    ids = await producer.add(*(event(f"v{number}") for number in range(500)))
    await producer.call("commit")
    assert [row["id"] for row in outbox_rows(database_url)] == ids == sorted(ids)
    assert {id.version for id in ids} == {7}
    assert await producer.add() == []


async def test_what_is_not_given_has_a_default(producer: Producer, database_url: str) -> None:
    before = datetime.now(UTC)
    await producer.add(event("v1"), event("v1", partition_key=None))
    await producer.call("commit")
    ordered, unordered = outbox_rows(database_url)
    assert before <= ordered["occurred_at"] <= datetime.now(UTC)
    assert (ordered["event_version"], ordered["headers"]) == (1, {})
    assert all(
        ordered[name] is None for name in ("correlation_id", "causation_id", "topic", "stream", "available_at")
    )
    assert (ordered["partition_key"], unordered["partition_key"]) == ("vibe:v1", "")


async def test_correlation_comes_from_the_request_unless_the_event_has_its_own(
    producer: Producer, database_url: str
) -> None:
    request = RequestContext(correlation_id=uuid4(), causation_id=uuid4())
    own = uuid4()
    with request.use():
        await producer.add(event(), event(correlation_id=own), event(causation_id=own))
    await producer.add(event())
    await producer.call("commit")
    found = [(row["correlation_id"], row["causation_id"]) for row in outbox_rows(database_url)]
    assert found == [
        (request.correlation_id, request.causation_id),
        (own, request.causation_id),
        (request.correlation_id, own),
        (None, None),
    ]


async def test_a_registered_pydantic_class_is_an_event(producer: Producer, database_url: str) -> None:
    vibe_id, at = uuid4(), datetime(2026, 1, 2, tzinfo=UTC)
    await producer.add(VibeCreated(vibe_id=vibe_id, title="x", at=at))
    await producer.call("commit")
    [row] = outbox_rows(database_url)
    assert (row["event_type"], row["event_version"]) == ("vibe_created", 2)
    assert (row["aggregate_type"], row["aggregate_id"]) == ("vibe", str(vibe_id))
    assert row["payload"] == {"vibe_id": str(vibe_id), "title": "x", "at": "2026-01-02T00:00:00Z"}


def test_a_pydantic_event_whose_aggregate_has_no_id_yet_is_refused(database_url: str) -> None:
    unsaved = VibeCreated(vibe_id=None, title="x", at=datetime.now(UTC))
    with psycopg.connect(database_url) as connection, pytest.raises(InvalidEvent) as caught:
        OUTBOX.add(connection, unsaved)
    assert (caught.value.code, caught.value.field) == ("INVALID_KEY", "aggregate_id")


def test_a_pydantic_class_that_was_never_registered_is_refused(database_url: str) -> None:
    class Unknown(BaseModel):
        title: str = "x"

    with psycopg.connect(database_url) as connection, pytest.raises(InvalidEvent) as caught:
        OUTBOX.add(connection, Unknown())
    assert (caught.value.code, caught.value.field) == ("INVALID_OUTBOX", "event")


def test_an_event_of_now_fits_into_a_transaction_that_began_minutes_ago(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(minutes=2)

    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT 1")
        monkeypatch.setattr("relay.outbox.datetime", Later)
        OUTBOX.add(connection, event())
        OUTBOX.add_many(connection, [event(f"v{number}") for number in range(300)])
    assert len(outbox_rows(database_url)) == 301


def test_the_cursor_class_of_a_psycopg_connection_does_not_matter(database_url: str) -> None:
    for cursor_class in (psycopg.RawCursor, psycopg.ClientCursor):
        with psycopg.connect(database_url, cursor_factory=cursor_class) as connection:
            OUTBOX.add(connection, event())
    assert len(outbox_rows(database_url)) == 2


# --- targets that cannot keep the promise ---


async def test_an_autocommit_connection_is_refused_unless_a_transaction_is_open(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        with pytest.raises(NoTransaction):
            OUTBOX.add(connection, event())
        with connection.transaction():
            OUTBOX.add(connection, event())
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as async_connection:
        with pytest.raises(NoTransaction):
            await OUTBOX.add(async_connection, event())
        async with async_connection.transaction():
            await OUTBOX.add(async_connection, event())
    assert len(outbox_rows(database_url)) == 2


async def test_an_autocommit_engine_is_refused(database_url: str) -> None:
    engine = create_engine(engine_url(database_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(NoTransaction):
        OUTBOX.add(connection, event())
    with Session(engine) as session:
        OUTBOX.add(session, event())
        with pytest.raises(NoTransaction):
            session.commit()
    engine.dispose()
    async_engine = create_async_engine(engine_url(database_url), isolation_level="AUTOCOMMIT")
    async with async_engine.connect() as async_connection:
        with pytest.raises(NoTransaction) as caught:
            await OUTBOX.add(async_connection, event())
    await async_engine.dispose()
    assert (caught.value.code, caught.value.field) == ("NO_TRANSACTION", "target")
    assert outbox_rows(database_url) == []


def test_other_objects_and_drivers_are_refused(database_url: str) -> None:
    sqlite = create_engine("sqlite://")
    pg8000 = create_engine("postgresql+pg8000://", module=psycopg)
    with psycopg.connect(database_url) as connection, sqlite.connect() as lite:
        refused = [connection.cursor(), sqlite, lite, Session(sqlite), Session(pg8000), Session(), None, "a text"]
        for target in refused:
            with pytest.raises(UnsupportedTarget) as caught:
                OUTBOX.add(target, event())  # type: ignore[call-overload]
            assert isinstance(caught.value, TypeError)
            assert (caught.value.code, caught.value.field) == ("UNSUPPORTED_TARGET", "target")
    assert outbox_rows(database_url) == []
