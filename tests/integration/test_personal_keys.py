"""The keys of persons in a database: destroyed with a record, wrapped anew batch by batch."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay import Outbox
from relay.adapters import aes_gcm
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.devstack import PostgresServer
from relay.domain.errors import MasterKeyMissing
from relay.domain.operators import Operator
from relay.domain.personal import Masters
from relay.ops.doctor.personal import remembered
from relay.settings import ContextSettings
from tests.integration.personal_support import MASTERS, VARIABLES, keys, opened, order, payload
from tests.integration.publishing import outbox_rows, query
from tests.servers import migrated

pytestmark = pytest.mark.anyio

ANN = Operator("ann", "she asked for it")
NEW = Masters("2027", {**MASTERS.keys, "2027": bytes(reversed(range(32)))})


@pytest.fixture
async def subject_keys(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PostgresSubjectKeys]:
    """The keys of seven persons, who have an event each."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    with psycopg.connect(database_url) as connection:
        Outbox("vibespro").add_many(connection, [order(f"c-{n}", f"o-{n}") for n in range(7)])
    async with connected(database_url, "keys") as source:
        yield PostgresSubjectKeys(source)


def rewrap(id: UUID, former: str, wrapped: bytes) -> bytes:
    return aes_gcm.wrap(NEW, id, aes_gcm.unwrap(NEW, id, former, wrapped))


def masters(url: str) -> list[str]:
    return [it["master"] for it in keys(url) if it["wrapped"] is not None]


def audit(url: str) -> list[dict[str, Any]]:
    return query(url, "SELECT actor, action, ids, note, about FROM audit_log ORDER BY id")


async def test_a_person_is_forgotten_once_and_the_record_stays(
    subject_keys: PostgresSubjectKeys, database_url: str
) -> None:
    [first] = await subject_keys.forget("c-3", ANN)
    assert (first.by, first.already) == ("ann", False)
    [again] = await subject_keys.forget("c-3", Operator("bob"))
    assert (again.id, again.forgotten_at, again.by, again.already) == (first.id, first.forgotten_at, "ann", True)
    assert await subject_keys.forget("nobody", ANN) == []
    rows = keys(database_url)
    assert [it["subject"] for it in rows if it["wrapped"] is None] == ["c-3"]
    assert len(rows) == 7
    assert audit(database_url) == [
        {
            "actor": "ann",
            "action": "personal.forget",
            "ids": [str(first.id)],
            "note": "she asked for it",
            "about": {"subject": "c-3"},
        }
    ]


async def test_rotation_goes_on_where_it_was_stopped(subject_keys: PostgresSubjectKeys, database_url: str) -> None:
    await subject_keys.forget("c-3", ANN)
    rotation = subject_keys.rotate("2027", rewrap, ANN, batch=2)
    assert await anext(rotation) == 2
    await rotation.aclose()
    assert sorted(masters(database_url)) == ["2026"] * 4 + ["2027"] * 2
    assert [done async for done in subject_keys.rotate("2027", rewrap, ANN, batch=3)] == [3, 1, 0]
    assert masters(database_url) == ["2027"] * 6
    assert [done async for done in subject_keys.rotate("2027", rewrap, ANN)] == []
    assert audit(database_url)[-1]["about"] == {"master": "2027", "keys": 4}


async def test_values_are_read_as_before_after_a_rotation(
    subject_keys: PostgresSubjectKeys, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [done async for done in subject_keys.rotate("2027", rewrap, ANN)]
    monkeypatch.setattr("tests.integration.personal_support.MASTERS", NEW)
    assert [opened(database_url, it["payload"]) for it in outbox_rows(database_url)] == [
        payload(f"c-{n}") for n in range(7)
    ]


async def test_without_the_former_master_key_nothing_is_changed(
    subject_keys: PostgresSubjectKeys, database_url: str
) -> None:
    query(database_url, "UPDATE subject_keys SET master = 'lost' WHERE subject = 'c-1'")
    with pytest.raises(MasterKeyMissing, match="lost"):
        assert [done async for done in subject_keys.rotate("2027", rewrap, ANN)]
    assert masters(database_url).count("lost") == 1


async def test_a_backup_that_brings_a_key_back_is_found(
    subject_keys: PostgresSubjectKeys, database_url: str, postgres: PostgresServer
) -> None:
    other = migrated(postgres, "sea_restored")
    contexts = {
        name: ContextSettings.model_validate({"name": name, "database_url": url})
        for name, url in (("vibespro", database_url), ("sea", other))
    }
    with psycopg.connect(other) as connection:
        Outbox("sea", undeclared=True).add_many(connection, [order(f"c-{n}", f"o-{n}") for n in range(3)])
    assert await remembered(contexts) == []
    await subject_keys.forget("c-1", ANN)
    [found] = await remembered(contexts)
    assert (found.code, found.subject, found.remedy) == ("SUBJECT_REMEMBERED", "context sea", "relay forget c-1")
    async with connected(other, "keys") as source:
        await PostgresSubjectKeys(source).forget("c-1", ANN)
    with psycopg.connect(other) as connection:
        Outbox("sea", undeclared=True).add(connection, order("c-1", "o-9"))
    assert await remembered(contexts) == []


def test_the_upgrade_lets_writers_of_events_make_keys_and_the_fleet_destroy_them(database_url: str) -> None:
    module = importlib.import_module("relay.adapters.postgres.migrations.versions.0127_subject_keys")
    app, fleet = (f"{name}_{uuid4().hex[:12]}" for name in ("app", "fleet"))
    with psycopg.connect(database_url) as connection:
        connection.execute(f'CREATE ROLE "{app}"')
        connection.execute(f'CREATE ROLE "{fleet}"')
        connection.execute(f'GRANT INSERT (id, payload) ON outbox_events TO "{app}"')
        connection.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON outbox_events TO "{fleet}"')
        connection.execute(module.GRANTS)
        asked = (
            "SELECT has_table_privilege(%s, 'subject_keys', %s), has_column_privilege(%s, 'subject_keys', %s, %s)"
        )
        may = {
            (role, right): any(connection.execute(asked, (role, right, role, "wrapped", right)).fetchone() or ())
            for role in (app, fleet)
            for right in ("SELECT", "INSERT", "UPDATE")
        }
        connection.rollback()
    assert [right for (role, right), it in may.items() if it and role == app] == ["SELECT", "INSERT"]
    assert [right for (role, right), it in may.items() if it and role == fleet] == ["SELECT", "INSERT", "UPDATE"]
