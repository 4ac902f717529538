"""`relay outbox replay --wait`: the command ends when workers have published the events."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from relay import Outbox
from tests.integration.publishing import event
from tests.integration.test_cli_operating import Shell
from tests.waiting import eventually, wait_for

#: As a worker: the earliest event that is to be published again.
PUBLISH = (
    "UPDATE outbox_events SET published_at = now() WHERE id = (SELECT id FROM outbox_events"
    " WHERE published_at IS NULL ORDER BY seq LIMIT 1) RETURNING generation"
)
#: Whether another connection has asked how many are still waiting.
LOOKED = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND query LIKE '%originals%published_at IS NULL AND dead_at IS NULL%' AND state = 'idle'
"""


def test_a_replay_can_be_waited_for(tmp_path: Path, database_url: str) -> None:
    shell = Shell(tmp_path, database_url)
    with psycopg.connect(database_url) as conn:
        [uuid, _] = Outbox("sea").add_many(conn, [event("v1"), event("v2", id="order-7")])
        conn.execute("UPDATE outbox_events SET published_at = now()")
    published: list[int] = []

    def worker() -> None:
        with psycopg.connect(database_url, autocommit=True) as conn:

            def both() -> bool:
                published.extend(conn.execute(PUBLISH).fetchone() or ())
                return len(published) >= 2

            wait_for("both are published", both)

    with ThreadPoolExecutor(1) as aside:
        working = aside.submit(worker)
        told = shell.json("outbox", "replay", "--aggregate", "vibe", "--yes", "--wait", "--context", "sea")
        assert published == [1, 1]
        working.result()
    assert (told["action"], sorted(told["done"])) == ("published once more", sorted([str(uuid), "order-7"]))


@pytest.mark.anyio
async def test_who_stops_waiting_is_told_what_becomes_of_the_events(tmp_path: Path, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        with conn.transaction():
            Outbox("sea").add(conn, event("v1"))
        conn.execute("UPDATE outbox_events SET published_at = now()")
        replay = ("outbox", "replay", "--aggregate", "vibe", "--yes", "--wait", "--context", "sea")
        with Shell(tmp_path, database_url).start(*replay) as process:
            try:
                await eventually("waits", lambda: conn.execute(LOOKED).fetchone())
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=60)
            finally:
                process.kill()
        assert said == "workers still publish them as soon as they can\n"
        assert process.returncode == 130
        assert conn.execute("SELECT generation, published_at FROM outbox_events").fetchall() == [(1, None)]
