"""`Outbox.add` encrypts personal fields before a row is written, and makes keys in the caller's transaction."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from relay import Event, Outbox, PersonalFields
from relay.domain.errors import ConfigurationError, InvalidPayload, PayloadTooLarge
from relay.events import registration_of
from tests.integration.personal_support import (
    EMAIL,
    VARIABLES,
    is_hidden,
    keys,
    opened,
    order,
    payload,
    tables_hide,
)
from tests.integration.publishing import Producer, engine_url, outbox_rows, query
from tests.pages import code

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def master(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


async def test_every_kind_of_target_encrypts(producer: Producer, database_url: str) -> None:
    plain = Event(event_type="seen", aggregate_type="order", aggregate_id="o-0", payload={"item": "x"})
    await producer.add(order(), plain, order("c-8"), order("c-7", "o-2"))
    await producer.call("commit")
    await producer.add(order("c-8", "o-3"))
    await producer.call("commit")
    rows = outbox_rows(database_url)
    assert [row["aggregate_id"] for row in rows] == ["o-1", "o-0", "o-1", "o-2", "o-3"]
    assert [opened(database_url, row["payload"]) for row in rows] == [
        payload(),
        {"item": "x"},
        payload("c-8"),
        payload(),
        payload("c-8"),
    ]
    assert sorted(row["subject"] for row in keys(database_url)) == ["c-7", "c-8"]
    assert tables_hide(database_url)


async def test_a_new_key_is_rolled_back_with_its_event(producer: Producer, database_url: str) -> None:
    await producer.add(order())
    await producer.call("rollback")
    assert (outbox_rows(database_url), keys(database_url)) == ([], [])


def test_many_transactions_that_make_the_key_of_one_person_share_it(database_url: str) -> None:
    count = 8
    together = Barrier(count)

    def write(number: int) -> None:
        with psycopg.connect(database_url) as connection:
            together.wait(30)
            Outbox("vibespro").add(connection, order(aggregate=f"o-{number}"))

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(write, range(count)))
    assert len(keys(database_url)) == 1
    assert [opened(database_url, row["payload"]) for row in outbox_rows(database_url)] == [payload()] * count


def test_an_event_of_a_forgotten_person_makes_a_new_key(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        Outbox("vibespro").add(connection, order())
    query(database_url, "UPDATE subject_keys SET wrapped = NULL, forgotten_at = now()")
    with psycopg.connect(database_url) as connection:
        Outbox("vibespro").add(connection, order(aggregate="o-2"))
    first, second = outbox_rows(database_url)
    assert len(keys(database_url)) == 2
    assert opened(database_url, second["payload"]) == payload()
    assert is_hidden(first["payload"])


def test_tables_of_a_schema_have_their_own_keys(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE SCHEMA own")
        for table in ("outbox_events", "subject_keys"):
            connection.execute(f"CREATE TABLE own.{table} (LIKE public.{table} INCLUDING ALL)")
        connection.execute(
            "CREATE FUNCTION own.relay_lock_outbox(integer[]) RETURNS integer LANGUAGE sql AS 'SELECT 1'"
        )
        Outbox("vibespro", schema="own").add(connection, order())
    assert keys(database_url) == []
    assert [row["subject"] for row in query(database_url, "SELECT subject FROM own.subject_keys")] == ["c-7"]


def test_the_settings_name_fields_of_events_without_a_class(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(
        '[contexts.shop]\n[contexts.shop.personal]\norder_placed = {subject = "customer_id", fields = ["email"]}\n'
    )
    monkeypatch.setenv("RELAY_CONFIG", str(file))
    event = Event(event_type="order_placed", aggregate_type="o", aggregate_id="1", payload=payload())
    with psycopg.connect(database_url) as connection:
        Outbox("shop").add(connection, event)
    [row] = outbox_rows(database_url)
    assert EMAIL not in str(row["payload"])
    assert row["payload"]["address"] == payload()["address"]
    assert opened(database_url, row["payload"]) == payload()


def test_an_event_without_personal_values_needs_no_key(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    with psycopg.connect(database_url) as connection:
        Outbox("vibespro").add(connection, order(payload={"item": "x", "email": None}))
    assert keys(database_url) == []


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"email": EMAIL}, InvalidPayload),
        (payload(bulk="x" * 786_000) | {"email": "y" * 240_000}, PayloadTooLarge),
    ],
    ids=["no subject", "too large once encrypted"],
)
def test_what_cannot_be_encrypted_is_refused_before_anything_is_written(
    database_url: str, content: Any, error: type[Exception]
) -> None:
    with psycopg.connect(database_url) as connection:
        with pytest.raises(error):
            Outbox("vibespro").add(connection, order(payload=content))
        connection.commit()
    assert (outbox_rows(database_url), keys(database_url)) == ([], [])


def test_without_a_master_key_nothing_is_written_plain(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name)
    with psycopg.connect(database_url) as connection:
        with pytest.raises(ConfigurationError, match="master"):
            Outbox("vibespro").add(connection, order())
        connection.commit()
    assert outbox_rows(database_url) == []


def test_no_log_shows_a_value(database_url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    engine = create_engine(engine_url(database_url), echo=True)
    with Session(engine) as session, session.begin():
        Outbox("vibespro").add(session, order())
    engine.dispose()
    assert "INSERT INTO outbox_events" in caplog.text
    assert is_hidden(caplog.text)


def test_the_fields_of_an_event_may_be_declared_one_by_one() -> None:
    assert Event(
        event_type="a", aggregate_type="b", aggregate_id="c", payload={}, personal=PersonalFields("id", ("email",))
    )


def test_the_class_of_the_page_declares_its_fields() -> None:
    names: dict[str, Any] = {}
    exec(code("docs/how-to/personal-data.md", "python", 1), names)
    found = registration_of(names["OrderPlaced"])
    assert found is not None
    assert found.personal == PersonalFields("customer_id", ("email", "address.*"))
