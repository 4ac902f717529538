"""A few bytes of a row that unpack to megabytes: a page stays small, and the whole is a download."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from relay.adapters.postgres.bounded import CELL, PAYLOAD
from relay.devstack import NatsServer
from tests.integration.console_pages import Browser
from tests.integration.ops_api import Api, configured, serving
from tests.integration.test_cli_operating import Shell
from tests.unit.ops_support import USERS

pytestmark = pytest.mark.anyio

USER = {**USERS["operator"], "payloads": True}
BOMB = f"[{', '.join(['1e131071'] * 60)}]"
LONG = "x" * 3_000_000
INSERT = """
    INSERT INTO outbox_events (id, event_type, aggregate_type, aggregate_id, payload, headers, topic, originals)
    VALUES (%s, %s, %s, 'v1', %s, %s, %s, %s)
"""
MANY = """
    INSERT INTO outbox_events
        (id, event_type, aggregate_type, aggregate_id, payload, topic, publish_attempts, publish_error, dead_at)
    SELECT gen_random_uuid(), 'made', long, long || i, '{}', long, 3, 'time-out: ' || long, now()
    FROM generate_series(1, 600) AS i, (SELECT repeat('"', 50000)) AS quotes (long)
"""
NEW_TASK = "INSERT INTO task_outbox (id, type, payload) VALUES (%s, 'mail', %s)"
NEW_LETTER = """
    INSERT INTO dead_letters
        (message_id, subscription, subject, stream, stream_seq, class, reason, attempts, original)
    VALUES (gen_random_uuid(), 'from_upstream', 's', 'UP', 1, 'poison', 'x', 0, %s) RETURNING id
"""


@pytest.fixture
async def api(database_url: str, nats_server: NatsServer, valkey: object) -> AsyncIterator[Api]:
    settings = configured(database_url, nats_server.url, valkey.url, ops={"users": {"all": USER}})
    async with serving(settings) as api:
        yield api


def write(url: str, *values: object) -> str:
    id = str(uuid4())
    with psycopg.connect(url) as connection:
        connection.execute(INSERT, [id, *values])
    return id


async def size_of(api: Api, path: str) -> int:
    answer = await api.client.get(path, headers={"Authorization": f"Bearer {USER['token']}"})
    assert answer.status_code == 200, (path, answer.text[:300])
    return len(answer.content)


async def test_a_page_is_small_whatever_its_row_unpacks_to(api: Api, database_url: str) -> None:
    ids = [
        write(database_url, "made", "case", BOMB, "{}", None, None),
        write(database_url, "made", "case", json.dumps(LONG), "{}", None, None),
        write(database_url, "made", "case", "{}", f'{{"A": {BOMB}}}', None, None),
        write(database_url, "made", "case", "{}", json.dumps({"A": LONG}), None, None),
        write(database_url, "made", "case", "{}", "{}", None, f'{{"x": {BOMB}}}'),
        write(database_url, "made", LONG, "{}", "{}", LONG, None),
    ]
    base = "/contexts/sea/events"
    for start in (base, f"/api/v1{base}"):
        assert await size_of(api, f"{start}?limit=500") < 20 * 8 * CELL.prose + 50_000
    for id in ids:
        for path in (f"{base}/show?id={id}&payload=true", f"/api/v1{base}/{id}?payload=true"):
            assert await size_of(api, path) < 4 * PAYLOAD


async def test_a_page_of_many_rows_is_small_whatever_each_holds(api: Api, database_url: str) -> None:
    """Of characters that HTML writes with five others, and JSON with two."""
    with psycopg.connect(database_url) as connection:
        connection.execute(MANY)
    assert await size_of(api, "/contexts/sea/events?status=dead&limit=500") < 500 * 15_000
    assert await size_of(api, "/api/v1/contexts/sea/events?status=dead&limit=500") < 500 * 12_000
    assert await size_of(api, "/contexts/sea/events/groups?status=dead") < 10_000


async def test_lines_of_json_are_mostly_no_space(api: Api, database_url: str) -> None:
    """Each number in a hundred lists would have a line of its own, that begins with two hundred spaces."""
    id = write(database_url, "made", "case", f"{'[' * 99}{'1,' * 80_000}1{']' * 99}", "{}", None, None)
    assert await size_of(api, f"/contexts/sea/events/show?id={id}&payload=true") < 4 * PAYLOAD


async def test_of_long_headers_the_beginning_is_shown(api: Api, database_url: str) -> None:
    id = write(
        database_url, "made", "case", "{}", json.dumps({f"A{it}": "x" * 20 for it in range(10_000)}), None, None
    )
    page = await Browser(api.client, "operator").open(f"/contexts/sea/events/show?id={id}")
    assert "A17" in page.text


async def test_the_whole_payload_is_a_download(api: Api, database_url: str, tmp_path: Path) -> None:
    """As it is stored: JSON as PostgreSQL writes it, and a body byte by byte."""
    text = json.dumps({"a": "é" * 1_500_000}, ensure_ascii=False)
    event, task, body = (
        write(database_url, "made", "case", text, "{}", None, None),
        str(uuid4()),
        b"\xff\x00" * 900_000,
    )
    bomb = write(database_url, "made", "case", BOMB, "{}", None, None)
    with psycopg.connect(database_url) as connection:
        connection.execute(NEW_TASK, [task, text])
        [[letter]] = connection.execute(NEW_LETTER, [body]).fetchall()
        [[digits]] = connection.execute("SELECT payload::text FROM outbox_events WHERE id = %s", [bomb]).fetchall()
    whole = {
        f"events/{event}": text.encode(),
        f"tasks/{task}": text.encode(),
        f"dead-letters/{letter}": body,
        f"events/{bomb}": digits.encode(),
    }
    headers = {"Authorization": f"Bearer {USER['token']}"}
    for path, expected in whole.items():
        answer = await api.client.get(f"/api/v1/contexts/sea/{path}/payload", headers=headers)
        assert answer.content == expected, path
        kind, _, id = path.partition("/")
        page = await Browser(api.client, "operator").open(f"/contexts/sea/{kind}/show?id={id}&payload=true")
        [link] = [it for it in page.links if "/payload?" in it]
        assert (await api.client.get(link, headers=headers)).content == expected, link
    missing = await api.client.get(f"/api/v1/contexts/sea/events/{uuid4()}/payload", headers=headers)
    assert missing.status_code == 404
    shell, file = Shell(tmp_path, database_url), tmp_path / "payload"
    shown = json.loads(
        shell("outbox", "show", event, "--context", "sea", "--payload", "--payload-to", str(file), "--json")
    )
    assert file.read_bytes() == text.encode()
    assert len(shown["payload"]) == PAYLOAD
    assert shown["payload_bytes"] == len(text.encode())
