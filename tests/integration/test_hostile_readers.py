"""Whatever a row holds that PostgreSQL takes, every reader shows it, and the rows beside it.

The values follow the types of the columns, so a new column is tried, too. The rows come from before the
constraints of today, which are off while they are written.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import psycopg
import pytest

from relay.adapters.coldstore import FolderStore
from relay.commands.coldrows import ColdRows
from relay.devstack import NatsServer, ValkeyServer
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.moments import LATEST
from relay.ops.kinds import KINDS
from tests.integration import archiving
from tests.integration.archiving import ANN, archived
from tests.integration.console_pages import basic
from tests.integration.console_rows import number
from tests.integration.ops_api import Api, serving
from tests.integration.ops_rows import Rows, real_rows
from tests.unit.ops_support import TOKENS

pytestmark = pytest.mark.anyio

BEARER = {"Authorization": f"Bearer {TOKENS['operator']}"}
DIGITS = "7" * 5_000
DEEP = f"{'[' * 3_000}{']' * 3_000}"
#: Values that PostgreSQL takes, by type. Each is tried in each column of its type, in a row of its own.
VALUES: dict[str, list[Any]] = {
    "timestamp with time zone": ["infinity", "-infinity", "4713-01-01 BC", "294276-12-31", "0001-01-01"],
    "jsonb": [
        *("5", "null", '"id"', '["id"]', '{"id": 5}', '{"id": {"id": []}, "": null}', '{"id": ""}'),
        *(f"[{DIGITS}, 1e400]", DEEP, f'{{"id": {DEEP}, "traceparent": {DIGITS}}}'),
    ],
    "text": ["", "\x01\x1b[31m\r\n\u202e", "x" * 100_000],
    "integer": [-(2**31), 2**31 - 1],
    "smallint": [-(2**15), 2**15 - 1],
    "bigint": [2**63 - 1],
    "uuid": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-7fff-bfff-ffffffffffff"],
    "bytea": [b"", b"\xff\x00", b"[" * 100_000, b'"\\ud800"', b"[NaN, " + DIGITS.encode() + b"]", DEEP.encode()],
    "boolean": [True, False],
}
#: Tables, and their ids.
TABLES = {"outbox_events": "id", "inbox_messages": "message_id", "task_outbox": "id", "dead_letters": "id"}
COLUMNS = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s ORDER BY 1"


def hostile(conn: psycopg.Connection, table: str, like: str) -> Iterator[str]:
    """Write a row like another for each value of each column; yields ids. What an index refuses is not there."""
    key = TABLES[table]
    columns = conn.execute(COLUMNS, [table]).fetchall()
    made = f"jsonb_populate_record(NULL::{table}, to_jsonb(old) || %s::jsonb)"
    found = f"FROM {table} AS old WHERE {key}::text = %s RETURNING {key}::text"
    copy = f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT ({made}).* {found}"
    numbers = iter(range(10**6, 2 * 10**6))
    for column, kind in columns:
        for value in VALUES.get(kind, ()):
            own = {key: next(numbers) if (key, "bigint") in columns else str(uuid4())}
            own |= {"seq": next(numbers)} if ("seq", "bigint") in columns else {}
            own |= {"message_id": str(uuid4())} if ("message_id", "uuid") in columns else {}
            with suppress(psycopg.Error), conn.transaction():
                [[id]] = conn.execute(copy, [json.dumps(own), like]).fetchall()
                change = f"UPDATE {table} SET {column} = %s WHERE {key}::text = %s RETURNING {key}::text"
                [[id]] = conn.execute(change, [value, id]).fetchall()
                yield id


@pytest.fixture
async def rows(
    database_url: str, nats_server: NatsServer, valkey: ValkeyServer, tmp_path: Path
) -> AsyncIterator[Rows]:
    namespace = f"test-{uuid4().hex}"
    async with real_rows(database_url, nats_server.url, valkey.url, namespace, tmp_path) as rows:
        yield rows


def write(url: str, **like: object) -> dict[str, list[str]]:
    """Write hostile rows into tables. ``like``: the id of an ordinary row of each."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica")
        for [table, name] in conn.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'c'"
        ).fetchall():
            if table in like:
                conn.execute(f'ALTER TABLE {table} DROP CONSTRAINT "{name}"')
        return {table: list(hostile(conn, table, str(id))) for table, id in like.items()}


async def test_every_reader_shows_every_row(rows: Rows, database_url: str) -> None:
    ids = write(
        database_url,
        outbox_events=number("first"),
        inbox_messages=number("failing-message"),
        task_outbox=number("task-failed"),
        dead_letters=min(rows.letters),
    )
    assert min(map(len, ids.values())) > 30
    async with serving(rows.settings) as api:
        wrong = [it async for it in misread(api, rows, ids)]
    assert not wrong, f"{len(wrong)}: {wrong[:5]}"


async def misread(api: Api, rows: Rows, ids: dict[str, list[str]]) -> AsyncIterator[str]:
    """Ask for all lists, and for each row in each way; yields what went wrong."""
    for page, route, query in questions(rows.context, ids):
        for path, headers in ((page, basic("operator")), (f"/api/v1{route}", BEARER)):
            try:
                answer = await api.client.get(httpx2.URL(path).copy_merge_params(query), headers=headers)
                if headers is BEARER:
                    json.loads(answer.content, parse_constant=pytest.fail)
            except Exception as error:
                yield f"{path} {query}: {type(error).__name__}: {error}"[:300]
            else:
                if answer.status_code != 200:
                    yield f"{path} {query}: {answer.status_code} {answer.text[:200]}"


def questions(context: str, ids: dict[str, list[str]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    yield "/", "/backlogs", {}
    yield "/doctor", "/doctor", {}
    # An id of columns of its own type: so its chain has rows of all kinds and times.
    yield "/explain", "/explain", {"id": VALUES["uuid"][-1], "archive": "true"}
    for place, found in zip(("events", "inbox", "tasks", "dead-letters"), ids.values(), strict=True):
        path = f"/contexts/{context}/{place}"
        yield path, path, {"status": KINDS[place].states, "limit": 500}
        for id in found:
            yield f"{path}/show?id={id}", f"{path}/{id}", {"payload": "true"}
        # Others of the same values.
        for id in found[::4] if place != "dead-letters" else ():
            yield "/explain", "/explain", {"id": id}


# --- the archive ---


async def test_the_archive_gives_back_every_row_as_it_was(
    database_url: str, nats_server: NatsServer, tmp_path: Path
) -> None:
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        [event], [message], [task] = await archive.events(1), archive.messages(1), archive.tasks(1)
        write(database_url, outbox_events=event, inbox_messages=message, task_outbox=task)
        before = {kind: contents(database_url, kind) for kind in ArchiveKind}
        await archive.command().run(ANN)
        assert all(len(contents(database_url, kind)) < len(before[kind]) / 2 for kind in ArchiveKind)
        assert [it for it in await archive.verified() if it.error or it.left_over] == []
        cold = ColdRows(archive.tables, FolderStore(archive.root), lambda row: row.get("subject"))
        for kind in ArchiveKind:
            await cold.restore(kind, RowFilter(until=LATEST), ANN, lambda *_: None)
        assert {kind: contents(database_url, kind) for kind in ArchiveKind} == before


def contents(url: str, kind: ArchiveKind) -> dict[str, str]:
    table, key = archiving.TABLES[kind]
    with psycopg.connect(url) as conn:
        return dict(conn.execute(f"SELECT {key}::text, to_jsonb(t)::text FROM {table} AS t".encode()).fetchall())
