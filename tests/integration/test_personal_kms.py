"""A master key that AWS KMS opens: for producers and readers; keys move there and back; it may be away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relay import Outbox
from relay.adapters import aes_gcm
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.subject_keys import PostgresSubjectKeys
from relay.commands.open_personal import OpenPersonal
from relay.domain.errors import KeyServiceUnreachable, MasterKeyMissing
from relay.domain.operators import Operator
from relay.domain.personal import Masters
from relay.settings.personal import PersonalSettings
from tests.integration.personal_support import VARIABLES, keys, order, payload, tables_hide
from tests.integration.publishing import outbox_rows
from tests.kms import CREDENTIALS, KeyServer, serving

pytestmark = pytest.mark.anyio

ANN = Operator("ann")


@pytest.fixture(scope="module")
def server() -> Iterator[KeyServer]:
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def use(monkeypatch: pytest.MonkeyPatch, present: str, **masters: dict[str, str]) -> Masters:
    """The master keys of the variables, beside those of the environment; returns them all."""
    found = {**VARIABLES, "RELAY_PERSONAL__MASTER": present}
    for name, table in masters.items():
        found |= {f"RELAY_PERSONAL__MASTERS__{name}__{key.upper()}": value for key, value in table.items()}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    local = {name: {"key": VARIABLES[f"RELAY_PERSONAL__MASTERS__{name}__KEY"]} for name in ("2026", "2025")}
    value = PersonalSettings.model_validate({"master": present, "masters": {**local, **masters}}).value()
    assert value is not None
    return value


def write(url: str, *subjects: str) -> None:
    with psycopg.connect(url) as connection:
        Outbox("vibespro").add_many(connection, [order(it, f"o-{it}") for it in subjects])


async def read(url: str, masters: Masters) -> list[Any]:
    """The payloads of the outbox in plain text."""
    async with connected(url, "keys") as source:
        opening = OpenPersonal(masters, lambda _: PostgresSubjectKeys(source), aes_gcm.unwrap, aes_gcm.decrypting)
        return [(await opening.open(it["payload"])).payload for it in outbox_rows(url)]


async def rotate(url: str, masters: Masters) -> int:
    def rewrap(id: UUID, former: str, wrapped: bytes) -> bytes:
        return aes_gcm.wrap(masters, id, aes_gcm.unwrap(masters, id, former, wrapped))

    async with connected(url, "keys") as source:
        return sum([it async for it in PostgresSubjectKeys(source).rotate(masters.present, rewrap, ANN)])


async def test_values_are_written_and_read_with_it(
    server: KeyServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters = use(monkeypatch, "aws", aws=server.settings("aws"))
    write(database_url, "c-1", "c-2")
    assert {it["master"] for it in keys(database_url)} == {"aws"}
    assert await read(database_url, masters) == [payload("c-1"), payload("c-2")]
    assert tables_hide(database_url)


async def test_keys_move_to_the_service_and_back(
    server: KeyServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "2026")
    write(database_url, "c-1", "c-2")
    table = server.settings("aws")
    there = use(monkeypatch, "aws", aws=table)
    assert await rotate(database_url, there) == 2
    assert {it["master"] for it in keys(database_url)} == {"aws"}
    assert await read(database_url, there) == [payload("c-1"), payload("c-2")]
    assert await read(database_url, Masters("aws", {"aws": there.keys["aws"]})) == [payload("c-1"), payload("c-2")]
    back = use(monkeypatch, "2026", aws=table)
    assert await rotate(database_url, back) == 2
    assert await read(database_url, Masters("2026", {"2026": back.keys["2026"]})) == [
        payload("c-1"),
        payload("c-2"),
    ]


async def test_a_service_that_is_away_is_an_outage_and_changes_nothing(
    server: KeyServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "2026")
    write(database_url, "c-1")
    away = use(monkeypatch, "aws", aws=server.settings("aws", url="http://127.0.0.1:1"))
    with pytest.raises(KeyServiceUnreachable):
        await rotate(database_url, away)
    with pytest.raises(KeyServiceUnreachable):
        write(database_url, "c-2")
    assert [(it["subject"], it["master"]) for it in keys(database_url)] == [("c-1", "2026")]
    assert len(outbox_rows(database_url)) == 1


@pytest.mark.parametrize("refuses", ["another name is sealed", "the key is unknown"])
async def test_what_the_service_refuses_is_told(
    server: KeyServer, database_url: str, monkeypatch: pytest.MonkeyPatch, refuses: str
) -> None:
    table = server.settings("aws" if refuses != "another name is sealed" else "other")
    if refuses == "the key is unknown":
        table["kms"] = "11111111-2222-3333-4444-555555555555"
    use(monkeypatch, "aws", aws=table)
    with pytest.raises(MasterKeyMissing, match="'aws'"):
        write(database_url, "c-1")
    assert outbox_rows(database_url) == []
