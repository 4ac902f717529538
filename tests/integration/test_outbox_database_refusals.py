"""What only the database can refuse has a code of ours as well, and its clock is the one that counts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from relay import Outbox, RelayError
from relay.adapters.postgres.wakeup import Wakeup
from relay.domain.errors import DuplicateMessage, FutureEvent, InvalidTimestamp
from relay.domain.model import OutboxEvent
from tests.integration.publishing import Producer, Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

OUTBOX = Outbox("vibespro")
DISTANT = datetime.now(UTC) + timedelta(days=1)


async def refused(producer: Producer, *events: Any) -> RelayError:
    """What becomes of these events; a session tells when it commits."""
    with pytest.raises(RelayError) as caught:  # noqa: PT012
        await producer.add(*events)
        await producer.call("commit")
    await producer.call("rollback")
    return caught.value


async def test_an_id_that_is_taken_is_a_duplicate(producer: Producer, database_url: str) -> None:
    taken = uuid4()
    await producer.add(event("first", id=taken))
    await producer.call("commit")
    error = await refused(producer, event("again", id=taken, payload={"secret": "hunter2"}))
    assert isinstance(error, DuplicateMessage)
    assert (error.code, error.field) == ("DUPLICATE_MESSAGE", "id")
    assert getattr(error.__cause__, "sqlstate", None) == "23505"
    assert "hunter2" not in f"{error} {error.__cause__}"
    # The target is as usable as after any error of the driver.
    await producer.add(event("next"))
    await producer.call("commit")
    assert [row["aggregate_id"] for row in outbox_rows(database_url)] == ["first", "next"]


async def test_an_error_that_is_none_of_ours_shows_no_payload(producer: Producer, database_url: str) -> None:
    """Such as one of a trigger of the application. SQLAlchemy would show the parameters of the statement."""
    with psycopg.connect(database_url) as owner:
        owner.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not today'; END $$;"
            "CREATE TRIGGER refuse BEFORE INSERT ON outbox_events EXECUTE FUNCTION refuse()"
        )
    with pytest.raises(Exception, match="not today") as caught:  # noqa: PT012
        await producer.add(event("next", payload={"secret": "hunter2"}))
        await producer.call("commit")
    told = [caught.value, caught.value.__cause__, caught.value.__context__]
    assert "hunter2" not in " ".join(map(str, told))
    await producer.call("rollback")


async def test_a_time_ahead_of_the_databases_clock_is_refused_and_not_changed(
    producer: Producer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of this host runs a day ahead.
    monkeypatch.setattr(OutboxEvent, "check_not_future", lambda *_: None)
    error = await refused(producer, event("good"), event("bad", occurred_at=DISTANT))
    assert isinstance(error, FutureEvent)
    assert (error.code, error.field) == ("FUTURE_EVENT", "occurred_at")
    assert outbox_rows(database_url) == []


async def test_a_time_that_was_not_given_is_that_of_the_transaction(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        begun = conn.execute("SELECT now()").fetchone()
        OUTBOX.add(conn, event("v1"))
        assert conn.execute("SELECT occurred_at FROM outbox_events").fetchone() == begun


async def test_a_long_transaction_may_tell_of_what_happened_after_it_began(database_url: str) -> None:
    with psycopg.connect(database_url) as conn:
        conn.execute("SELECT now()")
        [later] = conn.execute("SELECT clock_timestamp()").fetchone() or [None]
        OUTBOX.add(conn, event("v1", occurred_at=later))
        assert conn.execute("SELECT occurred_at FROM outbox_events").fetchone() == (later,)


@pytest.mark.parametrize("name", ["occurred_at", "available_at"])
@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 2),  # noqa: DTZ001
        "2026-01-02T00:00:00Z",
        float("inf"),
        datetime.fromisoformat("0001-01-01T00:00:00+14:00"),
        datetime.fromisoformat("9999-12-31T23:59:59-12:00"),
    ],
)
async def test_a_time_that_cannot_be_kept_is_refused_before_it_reaches_the_database(
    name: str, value: Any, database_url: str
) -> None:
    with psycopg.connect(database_url) as conn:
        with pytest.raises(InvalidTimestamp) as caught:
            OUTBOX.add(conn, event("v1", **{name: value}))
        assert (caught.value.code, caught.value.field) == ("INVALID_TIMESTAMP", name)
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_a_database_that_is_not_migrated_says_so(producer: Producer, database_url: str) -> None:
    query(database_url, "DROP TABLE outbox_events CASCADE")
    assert (await refused(producer, event())).code == "SCHEMA_MISSING"


# --- a clock that steps back ---


async def test_an_event_that_has_come_to_lie_in_the_future_is_published_and_holds_up_nobody(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(event("v1"), event("v2"), event("v3"))
    # As if the clock had stepped back since.
    query(relay.url, "UPDATE outbox_events SET occurred_at = now() + interval '1 hour' WHERE aggregate_id = 'v2'")
    await relay.drained()
    assert all(row["published_at"] and row["publish_attempts"] == 1 for row in outbox_rows(relay.url))


async def test_the_rule_of_the_specification_keeps_its_name(database_url: str) -> None:
    found = query(
        database_url,
        "SELECT conrelid::regclass::text AS t FROM pg_constraint WHERE conname = %s",
        "chk_occurred_not_future",
    )
    assert found == [{"t": "outbox_events"}]
    with psycopg.connect(database_url) as conn, pytest.raises(psycopg.errors.CheckViolation) as caught:
        conn.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)"
            " VALUES (gen_random_uuid(), 'a', '1', 't', '{}', 'infinity')"
        )
    assert caught.value.diag.constraint_name == "chk_occurred_not_future"


# --- settings ---


async def test_telling_producers_leaves_no_setting_behind_when_it_is_cancelled(relay: Relay) -> None:
    waker = Wakeup(relay.pool, relay.url)
    with psycopg.connect(relay.url) as other:
        other.execute("SELECT FROM relay_wakeup FOR UPDATE")
        telling = asyncio.create_task(waker.set_sleeping(True))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        await eventually("it waits", lambda: query(relay.url, waiting))
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
    async with AsyncExitStack() as stack:
        conns = [await stack.enter_async_context(relay.pool.connection()) for _ in range(relay.pool.max_size)]
        found = [await (await conn.execute("SHOW synchronous_commit")).fetchone() for conn in conns]
    await waker.close()
    assert set(found) == {("on",)}
