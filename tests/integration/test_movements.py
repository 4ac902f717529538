"""That a backlog stands still is measured: each kind of backlog, and a part behind others that move."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from relay.adapters.postgres.movements import LookLimits, PostgresMovements
from relay.adapters.postgres.pool import connected
from relay.devstack import PostgresServer
from relay.domain.standstill import Movement
from tests.servers import copy_template

pytestmark = pytest.mark.anyio

BOUND = timedelta(seconds=60)
AT_ONCE = LookLimits(pause=0.0)
OLD = "now() - interval '{age}'"
ROWS = "FROM generate_series(1, {n})"
EVENT = (
    "INSERT INTO outbox_events"
    " (id, aggregate_type, aggregate_id, event_type, payload, partition_key, occurred_at{more})"
    f" SELECT gen_random_uuid(), 'a', '1', 'x', '{{{{}}}}', {{key}}, {OLD}{{values}} {ROWS}"
)
MESSAGE = (
    "INSERT INTO inbox_messages (message_id, subject, subscription, received_at, enqueued_at{more})"
    f" SELECT gen_random_uuid(), 's', '{{sub}}', {OLD}, {OLD}{{values}} {ROWS}"
)
TASK = (
    "INSERT INTO task_outbox (id, type, payload, queue, created_at{more})"
    f" SELECT gen_random_uuid(), 't', '{{{{}}}}', '{{queue}}', {OLD}{{values}} {ROWS}"
)

ALERT = (
    "INSERT INTO alerts (class, subject_type, subject, reason, raised_at{more})"
    f" SELECT 'failed_task', 'task', 'mail', 'x', {OLD}{{values}}"
)


def event(age: str, n: int = 1, key: str = "'k'", **columns: str) -> str:
    return _with(EVENT, columns, age=age, n=n, key=key)


def message(age: str, sub: str = "one", n: int = 1, **columns: str) -> str:
    return _with(MESSAGE, columns, age=age, n=n, sub=sub)


def task(age: str, queue: str = "default", n: int = 1, **columns: str) -> str:
    return _with(TASK, columns, age=age, n=n, queue=queue)


def alert(ago: str, **columns: str) -> str:
    return _with(ALERT, columns, age=ago)


def _with(sql: str, columns: dict[str, str], **values: Any) -> str:
    more = "".join(f", {name}" for name in columns)
    return sql.format(more=more, values="".join(f", {value}" for value in columns.values()), **values)


def published(ago: str, **columns: str) -> str:
    return event(
        "2 hours", published_at=f"now() - interval '{ago}'", published_stream="'S'", published_seq="1", **columns
    )


@pytest.fixture(scope="module")
def shared_url(postgres: PostgresServer, administrator: psycopg.Connection) -> Iterator[str]:
    """A database for all cases, which each of them empties."""
    copy_template(administrator, "test_movements")
    yield postgres.url_of("test_movements")
    administrator.execute("DROP DATABASE IF EXISTS test_movements WITH (FORCE)")


def fill(url: str, rows: Iterable[str]) -> None:
    with psycopg.connect(url) as conn:
        conn.execute(
            "TRUNCATE outbox_events, inbox_messages, task_outbox, scheduled_jobs, scheduled_runs, dead_letters,"
            " alerts, archive_batches, audit_log"
        )
        for row in rows:
            conn.execute(row.encode())


async def found(url: str, *rows: str, block: bool = False, looked: int = 2_000) -> list[Movement]:
    fill(url, rows)
    async with connected(url, "test") as source:
        limits = replace(AT_ONCE, looked=looked)
        look = PostgresMovements(source, bound=BOUND, dead_head_blocks=block, limits=limits)
        return [*await look.standing()]


LATER = "now() + interval '20 seconds'"
#: Rows that wait, and what stands still.
STANDING = {
    "events, and none was ever published": ([event("5 min", 3)], [("events", "", 1)]),
    "events, and none was published lately": ([published("10 min"), event("5 min")], [("events", "", 1)]),
    "an event whose requested delay is over": (
        [event("1 hour", available_at="now() - interval '5 min'")],
        [("events", "", 1)],
    ),
    "an event without a key": ([event("5 min", key="''")], [("events", "", 1)]),
    "a lane behind others that move": (
        [*(published("1 s", key="'other'") for _ in range(2)), event("5 min")],
        [("events", "lane", 1)],
    ),
    "an event that later ones of its lane went past": (
        [event("5 min"), published("1 s", seq="1000")],
        [("events", "lane", 1)],
    ),
    "messages that nobody handles": ([message("5 min", n=3)], [("messages", "one", 3)]),
    "a subscription behind another that moves": (
        [message("5 min"), message("5 min", "two", processed_at="now()")],
        [("messages", "one", 1)],
    ),
    "a message that later ones went past": (
        [message("5 min"), message("5 s", processed_at="now()")],
        [("messages", "one", 1)],
    ),
    "a message whose claim is over": (
        [message("5 min", claimed_until="now() - interval '4 min'", attempts="1")],
        [("messages", "one", 1)],
    ),
    "a message whose retry is due": (
        [message("1 hour", next_attempt_at="now() - interval '5 min'", attempts="1")],
        [("messages", "one", 1)],
    ),
    "tasks that are not delivered": ([task("5 min", n=2)], [("tasks", "default", 2)]),
    "tasks that are delivered and not run": (
        [task("5 min", status="'delivered'", enqueued_at="now()")],
        [("tasks", "default", 1)],
    ),
    "a queue behind another that moves": (
        [task("5 min", "slow"), task("5 min", "quick", status="'completed'", finished_at="now()")],
        [("tasks", "slow", 1)],
    ),
    "a task that no worker knows, behind others that move": (
        [
            task("5 min", status="'delivered'", enqueued_at=LATER, next_attempt_at=LATER, waits_for="'handler'"),
            task("5 min", status="'completed'", finished_at="now()"),
        ],
        [("tasks", "default", 1)],
    ),
    "a run of a cron job": (
        [
            "INSERT INTO scheduled_jobs (name, schedule) VALUES ('nightly', '0 0 * * *')",
            (
                "INSERT INTO scheduled_runs (job, scheduled_for, correlation_id, opened_at)"
                " VALUES ('nightly', now() - interval '5 min', gen_random_uuid(), now() - interval '5 min')"
            ),
        ],
        [("runs", "nightly", 1)],
    ),
    "a cron job whose time has passed": (
        [
            (
                "INSERT INTO scheduled_jobs (name, schedule, next_run_at)"
                " VALUES ('nightly', '0 0 * * *', now() - interval '5 min')"
            )
        ],
        [("runs", "nightly", 1)],
    ),
    "a dead letter that is no incident": (
        [message("5 min", dead_lettered_at="now() - interval '4 min'", dead_letter_reason="'x'")],
        [("letters", "", 1)],
    ),
    "an alert that no webhook takes": (
        [alert("5 min"), alert("9 min", sent_at="now() - interval '8 min'")],
        [("alerts", "", 1)],
    ),
    "an alert, and the last one went to no webhook": (
        [alert("5 min"), alert("5 min", sent_at="'-infinity'")],
        [("alerts", "", 1)],
    ),
    "an incident of which nobody makes an alert": (
        [
            (
                "INSERT INTO dead_letters (message_id, subject, class, reason, recorded_at)"
                " VALUES (gen_random_uuid(), 's', 'poison', 'x', now() - interval '5 min')"
            )
        ],
        [("alerts", "", 1)],
    ),
}
#: Rows that wait although nothing is wrong.
MOVING = {
    "nothing": [],
    "events and messages that came just now": [event("5 s", 3), message("5 s", n=3), task("5 s", n=3)],
    "a delayed event": [event("1 hour", available_at="now() + interval '1 hour'")],
    "a delayed task": [task("1 hour", available_at="now() + interval '1 hour'")],
    "a backlog that is being published": [
        *(published("1 s", key=f"'k{n}'") for n in range(97)),
        event("1 hour", 500, key="'k' || i % 97").replace("(1, 500)", "(1, 500) AS i"),
    ],
    "events behind a failed one that waits for its next attempt": [
        event("5 min", publish_attempts="1", available_at=LATER, publish_error="'x'"),
        event("5 min"),
    ],
    "a message that is handled for long": [message("1 hour", claimed_until=LATER, attempts="1")],
    "messages behind others that are handled for long": [
        message("1 hour", claimed_until=LATER, attempts="1"),
        message("1 hour", n=20),
    ],
    "a message that waits for its next attempt": [
        message("1 hour", next_attempt_at=LATER, attempts="3"),
        f"UPDATE inbox_messages SET enqueued_at = {LATER}",
    ],
    "a parked message": [
        (
            "INSERT INTO inbox_messages (message_id, subject, subscription, received_at, enqueued_at)"
            " VALUES (gen_random_uuid(), 's', 'one', now() - interval '1 hour', 'infinity')"
        )
    ],
    "a message that waits for its turn": [
        (
            "INSERT INTO inbox_messages (message_id, subject, subscription, received_at, order_key, order_seq)"
            " VALUES (gen_random_uuid(), 's', 'one', now() - interval '1 hour', 'k', 5)"
        )
    ],
    "a backlog that is being handled": [
        message("10 min", n=50),
        message("11 min", n=50, processed_at="now()"),
    ],
    "a task that waits for room": [
        task("1 hour", status="'delivered'", next_attempt_at=LATER, enqueued_at=LATER, waits_for="'room'")
    ],
    "tasks behind one that runs for long": [
        task(
            "1 hour",
            status="'delivered'",
            claim_token="gen_random_uuid()",
            claimed_until=LATER,
            enqueued_at="now()",
        ),
        task("1 hour", n=20),
    ],
    "a run that waits for the one before": [
        "INSERT INTO scheduled_jobs (name, schedule) VALUES ('nightly', '0 0 * * *')",
        "INSERT INTO scheduled_runs (job, scheduled_for, correlation_id, opened_at, state, claimed_until) VALUES"
        " ('nightly', now() - interval '9 min', gen_random_uuid(), now() - interval '9 min', 'started', "
        + LATER
        + "),"
        " ('nightly', now() - interval '5 min', gen_random_uuid(), now() - interval '5 min', 'waiting', NULL)",
    ],
    "a cron job that an operator has paused": [
        (
            "INSERT INTO scheduled_jobs (name, schedule, next_run_at, paused_at)"
            " VALUES ('nightly', '0 0 * * *', now() - interval '5 min', now())"
        )
    ],
    "a tick": [
        (
            "INSERT INTO scheduled_jobs (name, schedule, next_run_at)"
            " VALUES ('publish:sea', 'every 0.1 s', now() - interval '5 min')"
        )
    ],
    "a dead letter that is an incident": [
        message("5 min", dead_lettered_at="now() - interval '4 min'", dead_letter_reason="'x'"),
        (
            "INSERT INTO dead_letters (message_id, subject, class, reason)"
            " SELECT message_id, 's', 'poison', 'x' FROM inbox_messages"
        ),
    ],
    "an alert that shares the next one of its subject": [
        alert("110 s"),
        alert("115 s", sent_at="now() - interval '50 s'"),
    ],
    "alerts of many subjects that are sent one by one": [
        alert("10 min"),
        alert("11 min", sent_at="now() - interval '11 s'"),
    ],
    "an incident whose snooze has just ended": [
        (
            "INSERT INTO dead_letters (message_id, subject, class, reason, recorded_at, snoozed_until)"
            " VALUES (gen_random_uuid(), 's', 'poison', 'x', now() - interval '2 days', now() - interval '5 s')"
        )
    ],
}


#: A part that moves, beside others in which much more was finished since.
BUSY = {
    "a lane": [
        published("5 s"),
        *(published("1 s", key="'other'") for _ in range(50)),
        event("1 hour", 3),
    ],
    "a subscription": [
        message("2 hours", processed_at="now() - interval '5 s'"),
        message("1 min", "two", 50, processed_at="now()"),
        message("1 hour", n=3),
    ],
    "a queue": [
        task("2 hours", "slow", status="'completed'", finished_at="now() - interval '5 s'"),
        task("1 min", "quick", 50, status="'completed'", finished_at="now()"),
        task("1 hour", "slow", 3),
    ],
}
#: As in BUSY, but nothing was finished lately.
STUCK = {
    name: [row.replace("now() - interval '5 s'", "now() - interval '9 min'") for row in rows]
    for name, rows in BUSY.items()
}
JOBS = "INSERT INTO scheduled_jobs (name, schedule) VALUES ('nightly', '0 0 * * *'), ('report', '0 0 * * *')"
RUN = (
    "INSERT INTO scheduled_runs (job, scheduled_for, correlation_id, opened_at, state, started_at, claimed_until)"
    " VALUES ('{}', now() - interval '5 min', gen_random_uuid(), now() - interval '{}', {})"
)


@pytest.mark.parametrize("case", BUSY)
async def test_a_part_that_moves_beside_much_busier_ones_does_not_stand_still(shared_url: str, case: str) -> None:
    assert await found(shared_url, *BUSY[case], looked=20) == []


@pytest.mark.parametrize("case", STUCK)
async def test_a_part_that_stands_still_beside_much_busier_ones_is_found(shared_url: str, case: str) -> None:
    assert len(await found(shared_url, *STUCK[case], looked=20)) == 1


async def test_runs_that_wait_while_workers_run_others_move(shared_url: str) -> None:
    """Many jobs at midnight share the workers. A run that a later one went past stands still."""
    waits = RUN.format("report", "5 min", "'waiting', NULL, NULL")
    runs = RUN.format("nightly", "{}", f"'started', now() - interval '4 min', {LATER}")
    assert await found(shared_url, JOBS, waits, runs.format("5 min")) == []
    [it] = await found(shared_url, JOBS, waits, runs.format("2 min"))
    assert (it.part, it.overtaken) == ("report", True)


@pytest.mark.parametrize("case", STANDING)
async def test_what_stands_still_is_found(shared_url: str, case: str) -> None:
    rows, expected = STANDING[case]
    got = [(str(it.kind), it.part.split(" ")[0], it.due) for it in await found(shared_url, *rows)]
    assert got == expected


@pytest.mark.parametrize("case", MOVING)
async def test_what_moves_or_waits_on_purpose_is_not(shared_url: str, case: str) -> None:
    assert await found(shared_url, *MOVING[case]) == []


# --- rows that should leave for the archive ---


def batch(ago: str, first: str, kind: str = "outbox") -> str:
    return (
        "INSERT INTO archive_batches"
        " (kind, number, rows, size, sha256, first_id, first_at, last_id, last_at, archived_at)"
        f" SELECT '{kind}', 1, 1, 1, 'x', id, at, id, at, now() - interval '{ago}'"
        f" FROM (SELECT gen_random_uuid() AS id, now() - interval '{first}' AS at) AS row"
    )


def handled(ago: str) -> str:
    return message(ago, processed_at=f"now() - interval '{ago}'", stream="'S'")


JOB = (
    "INSERT INTO scheduled_jobs (name, schedule, registered_at)"
    " VALUES ('archive:sea', 'every 1h', now() - interval '{}')"
)
RESTORED = (
    "INSERT INTO audit_log (at, actor, action, ids)"
    " VALUES (now() - interval '5 min', 'x', 'archive.restore', '{}')"
)
#: Rows of tables whose rows leave after ten days, and the parts of which nothing leaves.
ARCHIVES = {
    "nothing": ([], []),
    "rows that are due since today": ([published("10 days 20 hours"), handled("10 days 20 hours")], []),
    "rows of which none ever left": (
        [
            published("12 days"),
            published("13 days"),
            handled("12 days"),
            task("12 days", status="'completed'", finished_at="now() - interval '12 days'"),
        ],
        [("inbox/S", 1), ("outbox/S", 2), ("tasks", 1)],
    ),
    "rows of which others leave": ([published("12 days"), batch("1 hour", "13 days"), JOB.format("90 days")], []),
    "a row that later ones went past": (
        [published("12 days"), batch("1 hour", "11 days"), JOB.format("90 days")],
        [("outbox/S", 1)],
    ),
    "rows, and none has left since yesterday": (
        [published("12 days"), batch("26 hours", "13 days"), JOB.format("90 days")],
        [("outbox/S", 1)],
    ),
    "a row beside another kind that leaves": (
        [published("12 days"), batch("1 hour", "13 days", "tasks")],
        [("outbox/S", 1)],
    ),
    "rows of an archive that was just switched on": ([published("90 days"), JOB.format("5 min")], []),
    "a row that was just restored": (
        [published("90 days"), batch("2 days", "13 days"), batch("1 hour", "12 days", "inbox"), RESTORED],
        [],
    ),
    "a message that came from no stream": (
        [message("90 days", processed_at="now() - interval '90 days'")],
        [],
    ),
}


@pytest.mark.parametrize("case", ARCHIVES)
async def test_rows_that_do_not_leave_for_the_archive_are_found(shared_url: str, case: str) -> None:
    rows, expected = ARCHIVES[case]
    fill(shared_url, rows)
    async with connected(shared_url, "test") as source:
        look = PostgresMovements(source, bound=BOUND, dead_head_blocks=False)
        got = await look.unarchived("sea", timedelta(days=10))
    assert [(it.part, it.due) for it in got] == expected
