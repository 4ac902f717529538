"""The tables of a context's database: SDS-047 §9 under the same names, and what DESIGN §4 adds."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors, sql
from sqlalchemy import MetaData, create_engine

from relay.adapters.postgres.processed_events import processed_events_table
from relay.devstack import PostgresServer
from tests import oldest
from tests.integration import catalogue
from tests.waiting import wait_for

Connection = psycopg.Connection[Any]

DEADLINE = 20.0
SHORTEST = (
    "INSERT INTO outbox_events (aggregate_type, aggregate_id, event_type, payload)"
    " VALUES ('case', '7', 'opened', '{}')"
)
INSERT = "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload) VALUES"
EVENT = f"{INSERT} (gen_random_uuid(), 'case', %s, 'opened', '{{}}') RETURNING partition_key, seq"


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def empty_database(postgres: PostgresServer) -> Iterator[str]:
    name = f"empty_{uuid.uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


# --- the catalogue ---


def test_the_outbox_has_the_columns_of_the_specification_first_then_ours(conn: Connection) -> None:
    found = catalogue.columns(conn, "outbox_events")
    assert list(found.items()) == [*catalogue.SDS_OUTBOX.items(), *catalogue.OUR_OUTBOX.items()]


def test_the_inbox_has_the_columns_of_the_specification_first_then_ours(conn: Connection) -> None:
    found = catalogue.columns(conn, "inbox_messages")
    assert list(found.items()) == [*catalogue.SDS_INBOX.items(), *catalogue.OUR_INBOX.items()]


def test_constraints_are_those_of_the_specification_and_pol_047_004(conn: Connection) -> None:
    assert catalogue.constraints(conn, "outbox_events") == catalogue.SDS_OUTBOX_CONSTRAINTS
    expected = catalogue.SDS_INBOX_CONSTRAINTS | catalogue.OUR_INBOX_CONSTRAINTS
    assert catalogue.constraints(conn, "inbox_messages") == expected


def test_indexes_are_those_of_the_specification_and_ours(conn: Connection) -> None:
    expected = catalogue.SDS_OUTBOX_INDEXES | catalogue.OUR_OUTBOX_INDEXES
    assert catalogue.indexes(conn, "outbox_events") == expected
    expected = catalogue.SDS_INBOX_INDEXES | catalogue.OUR_INBOX_INDEXES
    assert catalogue.indexes(conn, "inbox_messages") == expected


def test_incidents_and_the_audit_log_are_as_designed(conn: Connection) -> None:
    assert list(catalogue.columns(conn, "dead_letters").items()) == list(catalogue.DEAD_LETTERS.items())
    assert catalogue.constraints(conn, "dead_letters") == catalogue.DEAD_LETTERS_CONSTRAINTS
    assert catalogue.indexes(conn, "dead_letters") == catalogue.DEAD_LETTERS_INDEXES
    assert list(catalogue.columns(conn, "audit_log").items()) == list(catalogue.AUDIT_LOG.items())
    assert catalogue.indexes(conn, "audit_log") == catalogue.AUDIT_LOG_INDEXES
    assert catalogue.columns(conn, "selections") == catalogue.SELECTIONS
    assert catalogue.indexes(conn, "selections") == {"idx_selections_made": "(made_at)"}


def test_archived_batches_are_as_designed(conn: Connection) -> None:
    assert list(catalogue.columns(conn, "archive_batches").items()) == list(catalogue.ARCHIVE_BATCHES.items())
    assert catalogue.constraints(conn, "archive_batches") == catalogue.ARCHIVE_BATCHES_CONSTRAINTS
    unannounced = {"idx_archive_unannounced": "(archived_at) WHERE (announced_at IS NULL)"}
    assert catalogue.indexes(conn, "archive_batches") == unannounced
    assert list(catalogue.columns(conn, "archived_messages").items()) == list(catalogue.ARCHIVED_MESSAGES.items())
    assert catalogue.constraints(conn, "archived_messages") == {
        "archived_messages_pkey": "PRIMARY KEY (message_id)"
    }


def test_processed_events_are_one_row_for_each_handler_and_message(conn: Connection) -> None:
    assert catalogue.columns(conn, "processed_events") == catalogue.PROCESSED_EVENTS
    assert catalogue.constraints(conn, "processed_events") == catalogue.PROCESSED_EVENTS_CONSTRAINTS
    assert catalogue.indexes(conn, "processed_events") == catalogue.PROCESSED_EVENTS_INDEXES


def test_watermarks_and_parked_keys_are_as_designed(conn: Connection) -> None:
    assert catalogue.columns(conn, "inbox_watermarks") == catalogue.INBOX_WATERMARKS
    assert catalogue.constraints(conn, "inbox_watermarks") == {
        "inbox_watermarks_pkey": "PRIMARY KEY (subscription, stream)"
    }
    assert catalogue.columns(conn, "parked_keys") == catalogue.PARKED_KEYS
    assert catalogue.constraints(conn, "parked_keys") == {
        "parked_keys_pkey": "PRIMARY KEY (subscription, order_key)"
    }


def test_the_scheduler_has_its_lease_its_jobs_and_their_runs(conn: Connection) -> None:
    assert list(catalogue.columns(conn, "scheduler_lease").items()) == list(catalogue.SCHEDULER_LEASE.items())
    assert list(catalogue.columns(conn, "scheduled_jobs").items()) == list(catalogue.SCHEDULED_JOBS.items())
    assert list(catalogue.columns(conn, "scheduled_runs").items()) == list(catalogue.SCHEDULED_RUNS.items())
    assert catalogue.constraints(conn, "scheduled_runs") == catalogue.SCHEDULED_RUNS_CONSTRAINTS
    assert catalogue.indexes(conn, "scheduled_runs") == catalogue.SCHEDULED_RUNS_INDEXES
    assert conn.execute("SELECT expires_at, term FROM scheduler_lease").fetchall() == [(None, 0)]


def test_the_task_outbox_is_as_designed(conn: Connection) -> None:
    assert list(catalogue.columns(conn, "task_outbox").items()) == list(catalogue.TASK_OUTBOX.items())
    assert catalogue.constraints(conn, "task_outbox") == catalogue.TASK_OUTBOX_CONSTRAINTS
    assert catalogue.indexes(conn, "task_outbox") == catalogue.TASK_OUTBOX_INDEXES
    assert catalogue.storage(conn, "task_outbox") == catalogue.STORAGE
    assert list(catalogue.columns(conn, "task_rates").items()) == list(catalogue.TASK_RATES.items())
    assert catalogue.constraints(conn, "task_rates") == {"task_rates_pkey": "PRIMARY KEY (type)"}


def test_busy_tables_are_vacuumed_early_and_keep_room_for_updates(conn: Connection) -> None:
    assert catalogue.storage(conn, "outbox_events") == catalogue.STORAGE
    assert catalogue.storage(conn, "inbox_messages") == catalogue.STORAGE | {"fillfactor": "70"}


def test_triggers_serve_rows_without_a_key_and_wake_once_a_statement(conn: Connection) -> None:
    assert catalogue.triggers(conn, "outbox_events") == catalogue.TRIGGERS


def test_rules_are_written_so_that_the_planner_puts_their_text_in_the_place_of_calls(conn: Connection) -> None:
    safe = "s"
    rules = {
        **dict.fromkeys(catalogue.RULES, "i"),
        "relay_is_free": "s",
        "relay_is_held_up": "s",
        "relay_incident_state": "s",
    }
    expected = {name: (f"RETURN {text}", rules[name] + safe, False) for name, text in catalogue.RULES.items()}
    found = catalogue.rules(conn)
    assert {name: found.pop(name) for name in expected} == expected
    assert set(found) == catalogue.RULES_WITH_SUBQUERIES
    assert {(volatility[0] in "is", special) for _, volatility, special in found.values()} == {(True, False)}


def test_there_are_no_other_tables(conn: Connection) -> None:
    found = catalogue.tables(conn)
    ours = [
        "alert_conditions",
        "alerts",
        "archive_batches",
        "archived_events",
        "archived_messages",
        "audit_log",
        "controls",
        "corrections",
        "dead_letters",
        "erased_messages",
        "handler_circuits",
        "history",
        "history_tallies",
        "inbox_messages",
        "inbox_replays",
        "inbox_watermarks",
        "orphaned_events",
        "outbox_events",
        "parked_keys",
    ]
    scheduler = ["scheduled_jobs", "scheduled_runs", "scheduler_lease"]
    more = ["processed_events", "relay_alembic_version", "relay_wakeup", *scheduler, "selections", "subject_keys"]
    assert found == [*ours, *more, "task_outbox", "task_rates"]


def test_a_service_makes_processed_events_as_the_migrations_do(conn: Connection, empty_database: str) -> None:
    metadata = MetaData()
    processed_events_table(metadata)
    metadata.create_all(create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(empty_database)))
    with psycopg.connect(empty_database) as created:
        assert catalogue.shape(created, "processed_events") == catalogue.shape(conn, "processed_events")


# --- rows ---


def test_a_row_of_the_specifications_columns_only_is_valid(conn: Connection) -> None:
    values = dict.fromkeys(catalogue.SDS_OUTBOX) | {
        "id": uuid.uuid4(), "aggregate_type": "case", "aggregate_id": "7", "event_type": "opened",
        "event_version": 2, "payload": '{"a": 1}', "occurred_at": "2025-12-28T22:00:00Z", "publish_attempts": 0,
    }  # fmt: skip
    names = sql.SQL(", ").join(map(sql.Identifier, values))
    marks = sql.SQL(", ").join(map(sql.Placeholder, values))
    conn.execute(sql.SQL("INSERT INTO outbox_events ({}) VALUES ({})").format(names, marks), values)
    ours = conn.execute(
        "SELECT partition_key, seq > 0, headers, generation, dead_at FROM outbox_events"
    ).fetchall()
    assert ours == [("case:7", True, {}, 0, None)]


def test_the_shortest_rows_get_the_specifications_defaults(conn: Connection) -> None:
    conn.execute(SHORTEST)
    [id] = conn.execute("SELECT id FROM outbox_events").fetchone() or ()
    assert id.version == (4 if oldest.WANTED else 7)
    row = conn.execute(
        "SELECT event_version, occurred_at <= now(), published_at, publish_attempts FROM outbox_events"
    ).fetchone()
    assert row == (1, True, None, 0)
    conn.execute("INSERT INTO inbox_messages (message_id, subject) VALUES (gen_random_uuid(), 'sea.event.a.v1')")
    row = conn.execute(
        "SELECT received_at <= now(), processed_at, attempts, last_error FROM inbox_messages"
    ).fetchone()
    assert row == (True, None, 0, None)


def test_policies_hold_for_raw_sql_too(conn: Connection) -> None:
    with pytest.raises(errors.CheckViolation, match="chk_occurred_not_future"):  # POL-047-002
        conn.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, occurred_at)"
            " VALUES (gen_random_uuid(), 'case', '7', 'opened', '{}', now() + interval '2 minutes')"
        )
    with pytest.raises(errors.CheckViolation, match="chk_inbox_processed_after_received"):  # POL-047-004
        conn.execute(
            "INSERT INTO inbox_messages (message_id, subject, processed_at)"
            " VALUES (gen_random_uuid(), 's', now() - interval '1 second')"
        )
    conn.execute("INSERT INTO inbox_messages (message_id, subject) VALUES (%s, 's')", [uuid.UUID(int=1)])
    with pytest.raises(errors.UniqueViolation):  # POL-047-003
        conn.execute("INSERT INTO inbox_messages (message_id, subject) VALUES (%s, 's')", [uuid.UUID(int=1)])


# --- order per key for producers in raw SQL ---


def test_within_a_key_seq_follows_commits_though_transactions_overlap(conn: Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as first, psycopg.connect(database_url) as second:
        (key, seq_1) = first.execute(EVENT, ["7"]).fetchone() or ()
        with ThreadPoolExecutor() as pool:
            later = pool.submit(lambda: second.execute(EVENT, ["7"]).fetchone())
            try:
                wait_for("the other waits", lambda: catalogue.waiting_for_advisory_locks(conn) == 1)
                assert not later.done()
                (_, seq_2) = first.execute(EVENT, ["7"]).fetchone() or ()
            finally:
                first.commit()
            (_, seq_3) = later.result(DEADLINE) or ()
    assert key == "case:7"
    assert seq_1 < seq_2 < seq_3


def test_another_key_does_not_wait(conn: Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as first:
        first.execute(EVENT, ["7"])
        conn.execute("SET lock_timeout = '2s'")
        assert conn.execute(EVENT, ["8"]).fetchone()


def test_a_transaction_that_locks_the_lane_holds_raw_producers_back(conn: Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as many_keys:
        many_keys.execute("SELECT pg_advisory_xact_lock(1785882989, hashtext('case:7') & 63)")
        conn.execute("SET lock_timeout = '50ms'")
        with pytest.raises(errors.LockNotAvailable):
            conn.execute(EVENT, ["7"])


def test_a_row_that_names_its_key_keeps_it_and_takes_no_lock(conn: Connection) -> None:
    with conn.transaction():
        conn.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload, partition_key)"
            " VALUES (gen_random_uuid(), 'case', '7', 'opened', '{}', '')"
        )
        locks = conn.execute(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        )
        assert locks.fetchone() == (0,)
    assert conn.execute("SELECT partition_key FROM outbox_events").fetchall() == [("",)]


def test_a_producer_needs_no_right_but_insert_and_no_search_path(conn: Connection) -> None:
    role = sql.Identifier(f"producer_{uuid.uuid4().hex}")
    conn.execute(sql.SQL("CREATE ROLE {}").format(role))
    conn.execute(sql.SQL("GRANT INSERT ON outbox_events TO {}").format(role))
    conn.execute("UPDATE relay_wakeup SET sleeping = true")
    conn.execute(sql.SQL("SET ROLE {}").format(role))
    conn.execute("SET search_path = ''")
    conn.execute(
        INSERT.replace("outbox_events", "public.outbox_events") + " (%s, 'a', '1', 't', '{}')", [uuid.uuid4()]
    )
    conn.execute("RESET ROLE")
    assert conn.execute("SELECT partition_key FROM public.outbox_events").fetchall() == [("a:1",)]
    conn.execute(sql.SQL("DROP OWNED BY {}").format(role))
    conn.execute(sql.SQL("DROP ROLE {}").format(role))


# --- the wake-up hint ---


def test_a_hint_is_sent_only_while_the_publisher_sleeps(conn: Connection, database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as listener:
        listener.execute("LISTEN relay_outbox")
        conn.execute(EVENT, ["awake"])
        conn.execute("UPDATE relay_wakeup SET sleeping = true")
        conn.execute(
            f"{INSERT} (gen_random_uuid(), 'a', '1', 't', '{{}}'), (gen_random_uuid(), 'a', '2', 't', '{{}}')"
        )
        conn.execute("NOTIFY relay_outbox, 'the end'")  # hints come in the order of commits
        heard = []
        for notification in listener.notifies(timeout=DEADLINE):
            heard.append(notification.payload)
            if notification.payload == "the end":
                break
    assert heard == ["", "the end"]


def test_there_is_one_wakeup_row_for_ever(conn: Connection) -> None:
    assert catalogue.columns(conn, "relay_wakeup") == catalogue.RELAY_WAKEUP
    assert conn.execute("SELECT id, sleeping FROM relay_wakeup").fetchall() == [(True, False)]
    with pytest.raises(errors.UniqueViolation):
        conn.execute("INSERT INTO relay_wakeup DEFAULT VALUES")
    with pytest.raises(errors.CheckViolation):
        conn.execute("INSERT INTO relay_wakeup (id) VALUES (false)")
