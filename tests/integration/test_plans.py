"""The statements that run all the time read through their indexes, whatever waits and whatever is finished beside.

Each is tried with a plan for its values and with the plan for any values: PostgreSQL may choose either.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.adapters.postgres.inbox_operations import MessageFilter, PostgresMessageOperations
from relay.adapters.postgres.paging import ends, from_oldest, in_order
from relay.adapters.postgres.pool import Connection, connected
from relay.adapters.postgres.row_operations import (
    EventFilter,
    Operations,
    PostgresOutboxOperations,
    PostgresTaskOperations,
    TaskFilter,
)
from relay.domain.ordering import LANES, Shard
from tests.integration.crowded import BACKLOG, KEYS, crowd, events, repeatable
from tests.integration.plans import explain, held_to

BLOCKED = 20_000
GRACE = timedelta(seconds=5)
BEGINNING = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Guard:
    """A statement: the indexes it reads, one of each alternative, and how many rows its busiest step may look at.

    Unless ``sorted`` says otherwise, nothing is put in order that an index does not give in order. ``planned``: it
    is planned for its values each time, so there is no plan for any values.
    """

    statement: str
    indexes: set[str]
    touched: int
    parameters: dict[str, Any] = field(default_factory=dict)
    sorted: int = 0
    after: str | None = None
    planned: bool = False


SHARD = {
    "lanes": Shard(0, 2).lanes, "marks": [0] * 33, "limit": 300, "dead_head_blocks": False, "apart": [],
}  # fmt: skip
CLAIM = {"token": uuid4(), "lease": GRACE, "max_attempts": 20, "exhausted": "x", "expired": "x"}
BUSY, QUIET = {"subscription": "busy"}, {"subscription": "quiet"}
LIMIT = {"limit": 1_000}


def any_of(store: type[Operations], wanted: type[Any], *more: str) -> dict[str, Any]:
    """The parameters of a list that excludes nothing."""
    return {
        **dict.fromkeys([*(it.name for it in fields(wanted)), "unless", "payload_path", "payload_value", *more]),
        **ends(store.orders, {}),
    }


ANY_EVENT = any_of(PostgresOutboxOperations, EventFilter)
ANY_TASK = any_of(PostgresTaskOperations, TaskFilter)
ANY_MESSAGE = any_of(PostgresMessageOperations, MessageFilter, "before_at", "before_id", "keys")
STATES_OF_EVENTS = ["waiting", "delayed", "failing", "dead", "published", "discarded", "expired"]
STATES_OF_TASKS = ["pending", "delivered", "running", "completed", "failed", "cancelled", "expired"]
STATES_OF_MESSAGES = [
    "waiting",
    "failing",
    "running",
    "parked",
    "held",
    "dead",
    "processed",
    "discarded",
    "expired",
]
OVERDUE = {"idx_outbox_unpublished", "idx_outbox_failed", "idx_outbox_due"}
UNFINISHED = {"idx_task_ready", "idx_task_due", "idx_task_sweep", "idx_task_failed"}
STATES = {"idx_outbox_published", "idx_outbox_dead", "idx_outbox_discarded", "idx_outbox_expired", *OVERDUE}
THREE = [uuid4() for _ in range(3)]
GUARDS = {
    # Half of the lanes and nothing of what is in the others; what is due is few and read in the order of time.
    "claim": Guard(
        "outbox/claim",
        {"idx_outbox_ready", "idx_outbox_due", "idx_outbox_failed", "idx_outbox_heads"},
        2 * 300,
        SHARD,
        sorted=2 * 300,
        after="outbox/claim_settings",
    ),
    "marks": Guard(
        "outbox/low_water_marks",
        {"idx_outbox_ready"},
        33,
        {"lanes": [*Shard(0, 2).lanes, -1], "marks": [0] * 33, "step": 10_000, "decided": BACKLOG},
        after="outbox/claim_settings",
    ),
    "due": Guard("outbox/due", {"idx_outbox_ready", "idx_outbox_due"}, 1_000, {"limit": 1_000}),
    # The limit, what is passed over on the way to it, and the thousand that wait longest.
    "pressure": Guard(
        "outbox/pressure",
        {"idx_outbox_unpublished", "idx_outbox_failed"},
        10_000 + 14_000,
        {"limit": 10_000, "soon": GRACE, "dead_head_blocks": False},
    ),
    # The lag is read again and again, however much waits; it is counted up to a limit.
    "lag of the outbox": Guard(
        "outbox/lag",
        {"idx_outbox_ready", "idx_outbox_due", "idx_outbox_failed"},
        2 * 20_000,
        {"limit": 20_000, "dead_head_blocks": False},
    ),
    "lag of the inbox": Guard(
        "inbox/lag", {"idx_inbox_sweep"}, 20_000 + 10, {"limit": 20_000, "subscriptions": ["busy", "quiet"]}
    ),
    "lag of the tasks": Guard(
        "tasks/lag", {"idx_task_ready", "idx_task_due", "idx_task_sweep"}, 2 * 20_000, {"limit": 20_000}
    ),
    # Backlogs and lists are counted up to a limit, however much waits or is finished.
    "outbox backlog": Guard(
        "outbox/backlog",
        # The oldest thousand, the first event of each lane, and the one that became due first.
        {"idx_outbox_unpublished", "idx_outbox_dead", "idx_outbox_due", "idx_outbox_ready"},
        1_000 + 65 + 1,
        LIMIT,
    ),
    "inbox backlog": Guard(
        "inbox/backlog", {"idx_inbox_unprocessed", "idx_inbox_dead_lettered", "idx_inbox_held"}, 1_020, LIMIT
    ),
    "backlogs of subscriptions": Guard(
        "inbox/backlogs", {"idx_inbox_sweep", "idx_inbox_held"}, 1_020, LIMIT, sorted=10
    ),
    "overdue": Guard("outbox/overdue", OVERDUE, 3_000, LIMIT, sorted=1_000),
    "backlog of tasks": Guard("tasks/backlog", UNFINISHED, 4_000, LIMIT),
    # A thousand of each state. On the way to those that wait it passes over 10,000 delayed ones, and 2,000 that
    # failed or are dead; a short look ends there.
    "list of events": Guard(
        "outbox/events",
        {*STATES, "outbox_events_pkey"},
        15_100,
        {
            **ANY_EVENT,
            "statuses": STATES_OF_EVENTS,
            "limit": 100,
            "counted": 1_000,
            "before": None,
        },
        sorted=7_000,
        planned=True,
    ),
    # Each state by an index of its own; a page is of what is found, and of that what fits is looked up by its id.
    "list of tasks": Guard(
        "tasks/tasks",
        {
            "idx_task_finished",
            "idx_task_failed",
            "idx_task_sweep",
            "idx_task_ready",
            "idx_task_due",
            "task_outbox_pkey",
        },
        6_000,
        {**ANY_TASK, "statuses": STATES_OF_TASKS, "limit": 100, "counted": 1_000, "before": None},
        sorted=6_000,
        planned=True,
    ),
    # The newest thousand of those that are processed and of those that are not: none is thrown away.
    "list of messages": Guard(
        "inbox/messages",
        {"idx_inbox_processed", "idx_inbox_unprocessed", "idx_inbox_discarded", "idx_inbox_expired"},
        2_000,
        {**ANY_MESSAGE, "mixed": True, "statuses": STATES_OF_MESSAGES, "limit": 100, "counted": 1_000},
        sorted=2_000,
        planned=True,
    ),
    "list of messages with an error": Guard(
        "inbox/messages",
        {"idx_inbox_dead_lettered", "idx_inbox_failing"},
        2_000,
        {
            **ANY_MESSAGE,
            "mixed": MessageFilter(statuses=["waiting", "failing", "dead"], error="refused").mixed,
            "error": "refused",
            "statuses": ["waiting", "failing", "dead"],
            "limit": 100,
            "counted": 1_000,
        },
        planned=True,
    ),
    "list of failing messages": Guard(
        "inbox/messages",
        {"idx_inbox_failing"},
        100,
        {**ANY_MESSAGE, "mixed": False, "statuses": ["failing"], "limit": 100, "counted": 1_000},
        sorted=100,
        planned=True,
    ),
    # Of the 300,000 that are published or wait none has an error. The 3,000 failed and the 1,000 dead are read.
    "list of events with an error": Guard(
        "outbox/events",
        {"idx_outbox_failed", "idx_outbox_dead", "idx_outbox_discarded", "idx_outbox_expired"},
        4_000,
        {
            **ANY_EVENT,
            "error": "refused",
            "statuses": STATES_OF_EVENTS,
            "limit": 100,
            "counted": 1_000,
            "before": None,
        },
        sorted=0,
        planned=True,
    ),
    # Whether backlogs move: a few rows of each lane, subscription and queue, and those that were finished last.
    "movement of events": Guard(
        "outbox/moving",
        {"idx_outbox_published", "idx_outbox_ready", "idx_outbox_due", "idx_outbox_failed"},
        30_000,
        {"looked": 2_000, "counted": 50, "dead_head_blocks": False, "bound": GRACE},
        sorted=8_000,
    ),
    "movement of messages": Guard(
        "inbox/moving",
        {"idx_inbox_processed", "idx_inbox_sweep"},
        30_000,
        {"looked": 2_000, "counted": 2_000, "bound": GRACE},
        sorted=8_000,
    ),
    "movement of tasks": Guard(
        "tasks/moving",
        {"idx_task_finished", "idx_task_ready", "idx_task_due", "idx_task_sweep", "idx_task_running"},
        20_000,
        {"looked": 2_000, "counted": 2_000, "parts": 200, "bound": GRACE},
        sorted=20_000,
    ),
    "failing handlers": Guard(
        "inbox/failing",
        {"idx_inbox_failing"},
        4_000,
        {"looked": 2_000, "counted": 2_000, "bound": GRACE},
        sorted=4_000,
    ),
    "awaited versions": Guard(
        "inbox/awaited_versions", {"idx_inbox_failing"}, 4_000, {"counted": 2_000, "name": None}, sorted=4_000
    ),
    "refused events": Guard("outbox/refused", {"idx_outbox_failed"}, 4_000, {"counted": 2_000}, sorted=4_000),
    "unrecorded letters": Guard(
        "inbox/unrecorded",
        {"idx_inbox_dead_lettered", "uq_dead_letters_message"},
        4_000,
        {"counted": 2_000, "bound": GRACE},
        sorted=4_000,
    ),
    "movement of alerts": Guard(
        "alerts/moving",
        {"idx_alerts_unsent", "idx_alerts_sent", "idx_dead_letters_unalerted"},
        10,
        {"looked": 2_000, "counted": 2_000, "bound": GRACE},
        sorted=10,
    ),
    # All finished rows are due here. In a system whose archive works, none is.
    "movement into the archive": Guard(
        "archive/moving",
        {"idx_outbox_published", "idx_inbox_processed", "idx_task_finished"},
        8_000,
        {"counted": 2_000, "age": timedelta(days=-2), "bound": timedelta(days=1), "job": "archive:sea"},
        sorted=8_000,
    ),
    # A page of the dead rows, and one look at the incidents for each: not all incidents, however many there are.
    "comparison with incidents": Guard(
        "incidents/compare",
        {"idx_inbox_dead_lettered", "uq_dead_letters_message"},
        400,
        {"before": None, "below": None, "limit": 200},
        sorted=400,
    ),
    "unfinished": Guard("inbox/open", {"idx_inbox_sweep"}, 10, {"subscriptions": ["busy", "quiet"]}),
    "sweep": Guard(
        "inbox/overdue",
        {"idx_inbox_sweep", "inbox_messages_pkey"},
        1_000,
        {**BUSY, "limit": 1_000, "grace": GRACE, "failed": False},
    ),
    "long sweep": Guard(
        "inbox/overdue",
        {"idx_inbox_sweep", "inbox_messages_pkey"},
        5_000,
        {**BUSY, "limit": 5_000, "grace": GRACE, "failed": False},
    ),
    "sweep beside a backlog": Guard(
        "inbox/overdue",
        {"idx_inbox_sweep", "inbox_messages_pkey"},
        10,
        {**QUIET, "limit": 1_000, "grace": GRACE, "failed": False},
    ),
    "due messages": Guard("inbox/due", {"idx_inbox_sweep"}, 2_000, {**BUSY, "limit": 2_000}),
    "due messages beside a backlog": Guard("inbox/due", {"idx_inbox_sweep"}, 10, {**QUIET, "limit": 2_000}),
    "let go": Guard(
        "inbox/let_go",
        {"idx_inbox_holding", "idx_inbox_sweep", "inbox_messages_pkey"},
        10,
        {**QUIET, "keep": 25, "limit": 1_000, "hangs": GRACE},
        sorted=10,
    ),
    "unfinished messages": Guard("inbox/unfinished", {"idx_inbox_sweep"}, 5_000, {**BUSY, "limit": 5_000}),
    # A page in the order of arrival ends within a batch, which is put in order by the ids.
    "waiting": Guard(
        "inbox/waiting",
        {"idx_inbox_unprocessed"},
        1_200,
        {**BUSY, "limit": 1_000, "due": False, "received_at": BEGINNING, "message_id": UUID(int=0)},
        sorted=1_200,
    ),
    "queues": Guard("tasks/pending_queues", {"idx_task_ready", "idx_task_due"}, 10, sorted=10),
    "delivered queues": Guard("tasks/delivered_queues", {"idx_task_sweep"}, 10, {"grace": GRACE}, sorted=10),
    "claim of tasks": Guard(
        "tasks/claim_pending",
        {"idx_task_ready", "idx_task_due", "task_outbox_pkey"},
        2 * 300,
        {"queue": "q1", "limit": 300},
        sorted=2 * 300,
    ),
    "sweep of tasks": Guard(
        "tasks/overdue",
        {"idx_task_sweep", "task_outbox_pkey"},
        300,
        {"queue": "q1", "limit": 300, "grace": GRACE},
    ),
    "running tasks": Guard("tasks/running", {"idx_task_running"}, 1, {"key": "key1"}),
    "claim of a message": Guard("inbox/claim", {"inbox_messages_pkey"}, 1, {"message_id": uuid4(), **CLAIM}),
    "claim of some messages": Guard(
        "inbox/claim_many",
        {"inbox_messages_pkey"},
        3,
        {"ids": THREE, "again": THREE[:1], "alone": False, **CLAIM},
    ),
    "giving back some messages": Guard(
        "inbox/unclaim", {"inbox_messages_pkey"}, 3, {"ids": THREE, "tokens": THREE}
    ),
    "settlement of some messages": Guard(
        "inbox/mark_many_processed", {"inbox_messages_pkey"}, 3, {"ids": THREE, "tokens": THREE}
    ),
    "claim of an ordered message": Guard(
        "inbox/claim+in_turn", {"inbox_messages_pkey"}, 1, {"message_id": uuid4(), **CLAIM}
    ),
    "claim of a chunk": Guard(
        "inbox/claim_many+in_turn",
        {"inbox_messages_pkey"},
        3,
        {"ids": THREE, "again": [], "alone": True, **CLAIM},
    ),
    "claim of a task": Guard("tasks/claim", {"task_outbox_pkey"}, 1, {"id": uuid4(), **CLAIM}),
    "claim of some tasks": Guard(
        "tasks/claim_many", {"task_outbox_pkey"}, 3, {"ids": THREE, "first": THREE[0], **CLAIM}
    ),
    "giving back some tasks": Guard("tasks/unclaim", {"task_outbox_pkey"}, 3, {"ids": THREE, "tokens": THREE}),
    "completion of some tasks": Guard(
        "tasks/complete_many", {"task_outbox_pkey"}, 3, {"ids": THREE, "tokens": THREE}
    ),
    "next task": Guard("tasks/next_of_key", {"idx_task_waiting", "task_outbox_pkey"}, 1, {"key": "key1"}),
}


@pytest.mark.timeout(600)  # half a million rows, on a machine that may have other things to do
def test_they_read_through_their_indexes_and_no_more_than_they_need(
    database_url: str, subtests: pytest.Subtests
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        crowd(conn)
        for (name, guard), generic in itertools.product(GUARDS.items(), (False, True)):
            if guard.planned and generic:
                continue
            with subtests.test(name, generic=generic):
                plan = explain(conn, guard.statement, generic=generic, after=guard.after, **guard.parameters)
                assert plan.indexes() == guard.indexes
                assert plan.calls() == set()
                held_to(plan, guard.touched, guard.sorted)


@pytest.mark.timeout(600)
def test_a_list_from_its_oldest_rows_on_reads_no_more_than_from_its_newest(
    database_url: str, subtests: pytest.Subtests
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        crowd(conn)
        for name, guard in GUARDS.items():
            if name.startswith("list of"):
                with subtests.test(name):
                    plan = explain(conn, guard.statement, after=guard.after, turn=from_oldest, **guard.parameters)
                    assert plan.indexes() == guard.indexes
                    held_to(plan, guard.touched, guard.sorted)


HEADS = {
    "retried": ({"available_at": "now() + interval '1 hour'"}, False),
    "dead, and dead heads block": ({"dead_at": "now()"}, True),
}


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(("state", "blocks"), HEADS.values(), ids=HEADS)
def test_what_waits_behind_a_failed_head_is_not_read(
    database_url: str, state: dict[str, str], blocks: bool, generic: bool
) -> None:
    """However much it is: a claim would not end in its time, and the other keys of the lane stand still too."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        events(conn, 1, "'hot'", publish_attempts="1", **state)
        events(conn, BLOCKED, "'hot'")
        events(conn, KEYS, "'key' || n")
        conn.execute("VACUUM ANALYZE outbox_events")
        claim = {**SHARD, "lanes": Shard(0, 1).lanes, "dead_head_blocks": blocks}
        plan = explain(conn, "outbox/claim", generic=generic, after="outbox/claim_settings", **claim)
    held_to(plan, 2 * 300, 2 * 300)


@pytest.mark.parametrize("generic", [False, True])
def test_a_backlog_without_statistics_is_claimed_by_its_indexes_too(database_url: str, generic: bool) -> None:
    """A table that was empty when it was last looked at tells the planner nothing."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        conn.execute("VACUUM ANALYZE outbox_events")
        events(conn, BLOCKED, f"'key' || n % {KEYS}")
        plan = explain(conn, "outbox/claim", generic=generic, after="outbox/claim_settings", **SHARD)
    assert "idx_outbox_unpublished" not in plan.indexes()
    held_to(plan, 2 * 300, 2 * 300)


@contextmanager
def published_under_a_snapshot(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Many events were published since an old snapshot, and none waits."""
    with psycopg.connect(url) as reader, psycopg.connect(url, autocommit=True) as conn:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox_events")
        repeatable(conn)
        events(conn, BLOCKED, f"'key' || n % {KEYS}")
        conn.execute("UPDATE outbox_events SET published_at = now()")
        conn.execute("ANALYZE outbox_events")
        yield conn


@pytest.mark.parametrize("generic", [False, True])
def test_what_an_old_snapshot_keeps_is_read_by_lane_though_hardly_anything_waits(
    database_url: str, generic: bool
) -> None:
    """Statistics know nothing of what is published and cannot be removed: any index of what waits looks short."""
    with published_under_a_snapshot(database_url) as conn:
        events(conn, 1_000, f"'key' || n % {KEYS}")
        plan = explain(conn, "outbox/claim", generic=generic, after="outbox/claim_settings", **SHARD)
    assert "idx_outbox_unpublished" not in plan.indexes()
    held_to(plan, 2 * 300, 2 * 300)
    # Half of the lanes, and each event of them once: to find the first of a lane, not again from there on.
    pages = plan.root["Shared Hit Blocks"] + plan.root["Shared Read Blocks"]
    assert pages < BLOCKED / 2


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "scans"), [("dead", 0), ("failing", 0), ("waiting", 1)])
@pytest.mark.parametrize("short", [False, True])
async def test_a_list_of_few_events_reads_what_an_old_snapshot_keeps_once_at_most(
    database_url: str, status: str, scans: int, short: bool
) -> None:
    """If all is published, the statistics say that any index of what is not is as short as the others."""
    with published_under_a_snapshot(database_url) as conn:
        attempts = "0" if status == "waiting" else "1"
        events(conn, 1, "'one'", publish_attempts=attempts, dead_at="now()" if status == "dead" else "NULL")
        async with connected(database_url, "test") as lend:
            found = await PostgresOutboxOperations(lend).find(EventFilter(statuses=[status]), 10, short=short)
            async with lend() as asked:
                await asked.execute("SELECT pg_stat_force_next_flush()")
        done = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'idx_outbox_unpublished'"
        assert conn.execute(done).fetchall() == [(scans,)]
    assert found.total == 1


@pytest.mark.anyio
async def test_a_list_in_order_changes_nothing_for_later_statements(database_url: str) -> None:
    """Before PostgreSQL 18 a plan with a disabled step seems so dear that it would be compiled, for 0.15 s."""
    wanted = EventFilter(statuses=["dead"])

    async def settings(conn: Connection) -> list[str]:
        asked = "SELECT current_setting('enable_sort'), current_setting('jit')"
        return [*(await (await conn.execute(asked)).fetchall())[0]]

    async with connected(database_url, "test") as lend:
        async with lend() as conn:
            before = await settings(conn)
        async with in_order(lend, wanted, short=False)() as conn:
            assert await settings(conn) == ["off", "off"]
        async with lend() as conn:
            assert await settings(conn) == before
        assert before[0] == "on"
        assert in_order(lend, EventFilter(statuses=["dead"], event_type="x"), short=False) is lend


def test_the_backlog_of_other_lanes_is_not_read(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        events(conn, BLOCKED, "'hot'")
        events(conn, 10, "'key' || n")
        conn.execute("VACUUM ANALYZE outbox_events")
        found = conn.execute("SELECT hashtext('hot') & 63").fetchone()
        assert found is not None
        others = [lane for lane in range(LANES) if lane != found[0]]
        plan = explain(conn, "outbox/claim", after="outbox/claim_settings", **{**SHARD, "lanes": others})
    held_to(plan, LANES, LANES)
