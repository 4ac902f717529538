"""What the brake on producers adds to a transaction of one event, in processor time of the server."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import psycopg

from benchmarks.figures import Reference, Row
from benchmarks.stage import Stage
from benchmarks.workload import TEXT
from relay.adapters.postgres.sql import statement

Connection: TypeAlias = psycopg.Connection[Any]

#: How often each case has its turn in a round.
_PAIRS: Final = 20
#: Transactions of one event without round trips, which would hide what a per cent is.
_LOOP: Final = f"""
DO $$ BEGIN
  FOR n IN 1..%d LOOP
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, partition_key)
    VALUES (uuidv7(), 'thing', 't' || n, 'made', '{{"text": "{TEXT}"}}', 'thing:t' || n);
    COMMIT;
  END LOOP;
END $$
"""
_FUNCTION: Final = "SELECT pg_get_functiondef('relay_wake_publisher'::regproc)"
#: The same function without the brake.
_WITHOUT: Final = """
CREATE OR REPLACE FUNCTION relay_wake_publisher() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path TO public, pg_temp AS $$
BEGIN
  IF (SELECT sleeping FROM relay_wakeup) THEN
    PERFORM pg_notify('relay_outbox', '');
  END IF;
  RETURN NULL;
END $$
"""
_TOLD: Final = {"action": "warn", "delay": "0 s", "reason": "the outbox is full", "hold": "1 h"}


def run(stage: Stage) -> Iterator[Row]:
    """Measure an INSERT without the brake, with it while it is off, and while it warns.

    They take turns, in one table and one session, because the difference is about a per cent.
    """
    stage.rest()
    url = stage.database("brake")
    runs: dict[str, list[float]] = {"without": [], "off": [], "on": []}
    with (
        psycopg.connect(url, autocommit=True) as admin,
        psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as conn,
    ):
        admin.execute("ALTER TABLE outbox_events SET (autovacuum_enabled = off)")
        [[function]] = admin.execute(_FUNCTION).fetchall()
        names = deque(runs)
        for _ in range(_PAIRS * stage.rounds):
            names.rotate()  # none is always the first
            for name in names:
                admin.execute((_WITHOUT if name == "without" else function).encode())
                runs[name].append(_transaction(stage, admin, conn, name))
    stage.say("brake: " + ", ".join(f"{name}: {statistics.median(it):.2f} µs" for name, it in runs.items()))
    row = partial(Row, unit="µs", reference=Reference("without the brake", runs["without"]))
    yield row(measure="INSERT while the brake is off, processor time", runs=runs["off"], at_most=1.01)
    yield row(measure="INSERT while it warns", runs=runs["on"])


def _transaction(stage: Stage, admin: Connection, conn: Connection, name: str) -> float:
    """Microseconds of a processor for a transaction of one event."""
    admin.execute(statement("schedule/set_brake" if name == "on" else "schedule/release_brake"), _TOLD)
    admin.execute("TRUNCATE outbox_events")
    conn.execute((_LOOP % 20).encode())  # the plans
    begun = _processor_time(conn)
    conn.execute((_LOOP % stage.sizes.inserts).encode())
    return (_processor_time(conn) - begun) / stage.sizes.inserts


def _processor_time(conn: Connection) -> float:
    """What the server's process of a connection has used, in microseconds."""
    return int(Path(f"/proc/{conn.info.backend_pid}/schedstat").read_text().split()[0]) / 1e3
