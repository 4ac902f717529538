"""What is kept how long: as PostgreSQL, JetStream and the archive have it, in each face."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relay.cli import main
from relay.devstack import NatsServer, ValkeyServer
from relay.settings import Settings
from tests.integration.archiving import ANN, Archive, archived
from tests.integration.console_pages import Browser
from tests.integration.ops_api import serving
from tests.integration.plans import explain
from tests.integration.publishing import query

pytestmark = pytest.mark.anyio
#: Rows in every table that shows its oldest. So a plan that reads one whole is seen.
CROWD = """
INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)
SELECT 'a', n::text, 'e', '{}' FROM generate_series(1, 3000) AS n;
UPDATE outbox_events SET published_at = now() - interval '100 days' + seq * interval '1 second';
INSERT INTO inbox_messages (message_id, subject, processed_at)
SELECT gen_random_uuid(), 's', now() + n * interval '1 second' FROM generate_series(1, 3000) AS n;
INSERT INTO task_outbox (id, type, payload, status, finished_at)
SELECT gen_random_uuid(), 't', '1', 'completed', now() - n * interval '1 s' FROM generate_series(1, 3000) AS n;
INSERT INTO processed_events (handler, message_id) SELECT 'h', gen_random_uuid() FROM generate_series(1, 3000);
INSERT INTO alerts (class, subject_type, subject, reason) SELECT 'c', 't', 's', 'r' FROM generate_series(1, 3000);
INSERT INTO scheduled_runs (job, scheduled_for, state, correlation_id)
SELECT 'j', now() - n * interval '1 second', 'finished', gen_random_uuid() FROM generate_series(1, 3000) AS n;
INSERT INTO history (step, kind, name, at)
SELECT 'hour', 'outbox', '', now() - n * interval '1 hour' FROM generate_series(1, 3000) AS n;
INSERT INTO selections (id, made_at, kind, action)
SELECT gen_random_uuid(), now(), 'k', 'a' FROM generate_series(1, 3000);
INSERT INTO dead_letters (message_id, subject, class, reason)
SELECT gen_random_uuid(), 's', 'poison', 'r' FROM generate_series(1, 3000);
INSERT INTO audit_log (actor, action, ids) SELECT 'ann', 'a', '{}' FROM generate_series(1, 3000);
INSERT INTO inbox_replays (subscription, until, again, rate, actor, state)
SELECT 's', now(), false, 1, 'ann', 'finished' FROM generate_series(1, 3000);
"""


@pytest.fixture
async def archive(database_url: str, nats_server: NatsServer, tmp_path: Path) -> AsyncIterator[Archive]:
    """Five events that are archived, and two that have 10 days left."""
    async with archived(database_url, nats_server.url, tmp_path / "cold") as archive:
        await archive.events(5)
        await archive.command(rows=3).run(ANN)
        await archive.events(2, days=80)
        yield archive


def configured(archive: Archive, nats: str, redis: str, *, cold: bool = True) -> Settings:
    context = {
        "database_url": archive.url,
        "stream": {"name": archive.relay.stream, "max_age": "7d"},
        "archive": {"after": "90d", "keep": "3y", "directory": str(archive.root)} if cold else {},
    }
    return Settings.model_validate(
        {"nats_url": nats, "redis_url": redis, "contexts": {archive.relay.context: context}}
    )


async def kept(settings: Settings, archive: Archive) -> dict[str, dict[str, Any]]:
    """By what it is, as the API answers it."""
    async with serving(settings) as api:
        found = await api.get(f"/contexts/{archive.relay.context}/retention")
    return {f"{it['place']} {it['name']}": it for it in found}


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_it_shows_what_there_is_and_what_goes_next(
    archive: Archive, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    query(archive.url, "ANALYZE outbox_events")
    found = await kept(configured(archive, nats_server.url, valkey.url), archive)
    events = found["table outbox_events"]
    assert (events["ends"], events["keeps"], events["setting"]) == ("time", 90 * 86_400, "archive.after")
    assert events["rows"] == 2
    [(oldest,)] = [(it["at"],) for it in query(archive.url, "SELECT min(published_at) AS at FROM outbox_events")]
    assert moment(events["oldest_at"]) == oldest
    assert moment(events["next_at"]) == oldest + timedelta(days=90)
    files = [*archive.root.rglob("*.gz")]
    cold = found["archive outbox"]
    assert (cold["rows"], cold["size"]) == (5, sum(it.stat().st_size for it in files))
    assert moment(cold["next_at"]) - moment(cold["oldest_at"]) == timedelta(days=3 * 365)
    stream = found[f"stream {archive.relay.stream}"]
    assert (stream["rows"], stream["keeps"], stream["setting"]) == (7, 7 * 86_400, "stream.max_age")
    assert abs(moment(stream["oldest_at"]) - datetime.now(UTC)) < timedelta(minutes=10)
    audit = found["table audit_log"]
    assert (audit["ends"], audit["keeps"], audit["next_at"]) == ("never", None, None)
    assert audit["oldest_at"] is not None
    assert found["table controls"]["ends"] == "act"
    assert found["redis dead jobs"]["keeps"] == 7 * 86_400


async def test_without_an_archive_rows_have_no_end(
    archive: Archive, nats_server: NatsServer, valkey: ValkeyServer
) -> None:
    query(archive.url, "TRUNCATE archive_batches")
    found = await kept(configured(archive, nats_server.url, valkey.url, cold=False), archive)
    assert {found[f"table {it}"]["ends"] for it in ("outbox_events", "inbox_messages", "task_outbox")} == {"never"}
    assert found["table alerts"]["ends"] == "time"
    assert not [it for it in found if it.startswith("archive")]


async def test_while_nats_is_away_the_rules_are_there(archive: Archive, valkey: ValkeyServer) -> None:
    found = await kept(configured(archive, "nats://127.0.0.1:1", valkey.url), archive)
    stream = found[f"stream {archive.relay.stream}"]
    assert (stream["keeps"], stream["rows"], stream["next_at"]) == (7 * 86_400, None, None)
    assert found["table outbox_events"]["size"] > 0


async def test_the_console_shows_it(archive: Archive, nats_server: NatsServer, valkey: ValkeyServer) -> None:
    async with serving(configured(archive, nats_server.url, valkey.url)) as api:
        page = await Browser(api.client).open(f"/contexts/{archive.relay.context}/retention")
    assert "Published, discarded and expired events go to the archive" in page.text
    assert "archive.after" in page.text
    assert "90 d" in page.text


async def test_the_command_says_it_in_words_and_for_programs(
    archive: Archive, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = archive.relay.context
    monkeypatch.chdir(archive.root)
    (archive.root / "relay.toml").write_text(
        f'nats_url = "{nats_server.url}"\n[contexts.{name}]\ndatabase_url = "{archive.url}"\n'
        f'stream.name = "{archive.relay.stream}"\n'
        f'[contexts.{name}.archive]\nafter = "90d"\ndirectory = "{archive.root}"\n'
        '[contexts.quiet]\ndatabase_url = "postgresql://127.0.0.1:1/quiet"\n'
    )

    def run(*arguments: str) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["relay", "retention", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        printed = capsys.readouterr()
        return caught.value.code, printed.out, printed.err

    status, output, errors = await asyncio.to_thread(run, "--json")
    assert status == 1
    assert "context quiet" in errors
    rows = [it for it in json.loads(output) if "place" in it]
    assert [it["context"] for it in rows if it["name"] == "RELAY_ADVISORIES"] == [None]
    assert {it["ends"] for it in rows} == {"time", "act", "replaced", "never"}
    status, output, _ = await asyncio.to_thread(run, "--context", name)
    assert status == 0
    [line] = [it for it in output.splitlines() if " outbox_events " in it]
    assert "90 d" in line
    assert "archive.after" in line


def test_the_oldest_of_each_table_is_the_first_of_an_index(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(CROWD)
        conn.execute("ANALYZE")
        for generic in (False, True):
            plan = explain(conn, "server/oldest", generic=generic)
            assert plan.read_whole() == set()
            assert plan.fetched == 1
            assert len(plan.indexes()) == 11
