"""Rows of a role that may only INSERT: whatever they hold, the good events of others leave."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from nats.js.api import StreamConfig
from psycopg import errors
from psycopg.conninfo import make_conninfo

from relay.devstack import PostgresServer
from relay.domain.routing import Route
from tests.integration.publishing import ALL, Relay, event, query
from tests.integration.tasking import tasking

pytestmark = pytest.mark.anyio

ROWS = 600
#: Bound by what a batch takes, not by a clock: so many turns of all lanes see every good event leave.
TURNS = 12
EVENT = {"event_type": "'made'", "aggregate_type": "'case'", "aggregate_id": "n::text", "payload": "'{}'"}
TASK = {"id": "gen_random_uuid()", "type": "'mail'", "payload": "'{}'"}


@pytest.fixture(scope="module")
def inserting(postgres: PostgresServer) -> Iterator[str]:
    """A role without any right but INSERT, on whole tables."""
    name = f"producer_{uuid.uuid4().hex[:12]}"
    query(postgres.url, f"CREATE ROLE {name} LOGIN PASSWORD '{name}'")
    yield name
    query(postgres.url, f"DROP ROLE {name}")


@contextmanager
def producing(url: str, role: str) -> Iterator[psycopg.Connection[Any]]:
    query(url, f"GRANT INSERT ON outbox_events, task_outbox TO {role}")
    with psycopg.connect(make_conninfo(url, user=role, password=role), autocommit=True) as connection:
        yield connection
    query(url, f"DROP OWNED BY {role}")


def insert(connection: psycopg.Connection[Any], table: str, count: int, columns: dict[str, str]) -> None:
    values = f"SELECT {', '.join(columns.values())} FROM generate_series(1, {count}) AS n"
    connection.execute(f"INSERT INTO {table} ({', '.join(columns)}) {values}".encode())


# --- what belongs to the engine ---

ENGINE_OF_EVENTS = [
    {"publish_attempts": "2147483647"},
    {"publish_attempts": "-1"},
    {"publish_attempts": "1", "available_at": "'infinity'", "partition_key": "'vibe:v1'"},
    {"publish_attempts": "1", "available_at": "now() + interval '100 years'", "partition_key": "'vibe:v1'"},
    {"publish_error": "'x'"},
    {"published_at": "now()"},
    {"published_at": "'-infinity'"},
    {"dead_at": "now()"},
    {"dead_at": "now()", "publish_attempts": "3"},
    {"generation": "1"},
    {"generation": "-2147483648"},
    {"published_stream": "'ORDERS'"},
    {"published_seq": "9223372036854775807"},
    {"published_duplicate": "false"},
    {"available_at": "'infinity'"},
    {"available_at": "'-infinity'"},
    {"available_at": "'4713-01-01 BC'"},
    {"available_at": "'294276-12-31'"},
    {"occurred_at": "'-infinity'"},
    {"occurred_at": "'4713-01-01 BC'"},
    *({column: f"'{value}'"} for column in ("headers", "originals") for value in ("5", '["id"]', "null", '"id"')),
    # Over on arrival, as the view of MicroDAO writes it, but with a place in a stream or attempts.
    {"published_at": "now()", "topic": "'a.b'", "stream": "'S'", "published_seq": "1"},
    {"dead_at": "now()", "topic": "'a.b'", "stream": "'S'", "publish_attempts": "1"},
    {"dead_at": "'infinity'", "topic": "'a.b'", "stream": "'S'"},
    {"published_at": "'4713-01-01 BC'", "topic": "'a.b'", "stream": "'S'"},
    {"published_at": "now()", "topic": "'a.b'", "stream": "'S'", "available_at": "'infinity'"},
]
ENGINE_OF_TASKS = [
    *({"status": f"'{status}'"} for status in ("delivered", "completed", "failed", "cancelled")),
    {"attempts": "2147483647"},
    {"attempts": "-5"},
    {"last_error": "'x'"},
    {"delivered_at": "now()"},
    {"enqueued_at": "'infinity'"},
    {"next_attempt_at": "'infinity'"},
    {"waits_for": "'room'"},
    {"started_at": "now()"},
    {"claim_token": "gen_random_uuid()"},
    {"claimed_until": "'infinity'", "claim_token": "gen_random_uuid()"},
    {"finished_at": "now()"},
    {"status": "'completed'", "finished_at": "now()"},
    *({column: f"'{value}'"} for column in ("metadata", "originals") for value in ("5", "[]", "null", '"x"')),
    {"concurrency_key": "repeat('x', 1001)"},
    {"type": "repeat('x', 1001)"},
    *({column: f"'{time}'"} for column in ("available_at", "created_at")
      for time in ("infinity", "-infinity", "4713-01-01 BC", "294276-12-31")),
]  # fmt: skip
CASES = [
    *(("outbox_events", EVENT, columns) for columns in ENGINE_OF_EVENTS),
    *(("task_outbox", TASK, columns) for columns in ENGINE_OF_TASKS),
]


def test_no_producer_sets_what_the_engine_keeps_in_a_row(database_url: str, inserting: str) -> None:
    """Also not by a function of its own in front of ours, nor by the word for those who may change rows."""
    owners = ("published_at", "dead_at", "finished_at")  # over: whoever may change rows may put them back
    with producing(database_url, inserting) as connection, psycopg.connect(database_url, autocommit=True) as owner:
        owner.execute(f"CREATE SCHEMA {inserting} AUTHORIZATION {inserting}".encode())
        connection.execute(
            f"CREATE FUNCTION {inserting}.has_table_privilege(oid, text)"
            " RETURNS bool LANGUAGE sql RETURN true".encode()
        )
        connection.execute(f"SET search_path = {inserting}, public, pg_catalog".encode())
        owner.execute("SET relay.restoring = off")
        connection.execute("SET relay.restoring = on")
        for table, common, columns in CASES:
            with pytest.raises(errors.CheckViolation, match="violates check constraint") as refused:
                insert(connection, table, 1, common | columns)
            assert refused.value.diag.constraint_name in ("chk_outbox_producer", "chk_task_producer"), columns
            assert refused.value.diag.message_hint
            if not any(name in columns for name in owners):
                with pytest.raises(errors.CheckViolation):
                    insert(owner, table, 1, common | columns)
        assert query(database_url, "SELECT FROM outbox_events UNION ALL SELECT FROM task_outbox") == []


def test_a_producer_may_name_the_columns_of_the_engine_with_their_defaults(
    database_url: str, inserting: str
) -> None:
    with producing(database_url, inserting) as connection:
        start = {"published_at": "NULL", "publish_attempts": "0", "publish_error": "NULL", "generation": "0"}
        insert(connection, "outbox_events", 2, EVENT | start | {"available_at": "now() + interval '1 day'"})
        insert(
            connection, "task_outbox", 2, TASK | {"status": "'pending'", "attempts": "0", "finished_at": "NULL"}
        )


# --- what it may set ---

LONG = "repeat('x', 100000)"
HOSTILE: dict[str, dict[str, str]] = {
    "types": {"event_type": "chr(1 + n % 40) || '*.>' || n"},
    "long types": {"event_type": LONG},
    "long keys": {"partition_key": f"{LONG} || n"},
    "one key": {"partition_key": "'one'", "event_type": "'bad type'"},
    "versions": {"event_version": "CASE n % 3 WHEN 0 THEN 0 WHEN 1 THEN -2147483648 ELSE 2147483647 END"},
    "topics": {
        "topic": "(ARRAY['a.*', 'a.>', '>', ' ', '', '.', 'a..b', '$JS.API.INFO', '$SYS.x', '_INBOX.x.y',"
        " repeat('a.', 5000) || 'b', 'ü.x', 'a.b' || chr(13) || chr(10) || 'PUB x 0', chr(9), 'x.dlq.y'])"
        "[1 + n % 15]"
    },
    "headers": {
        "headers": '(ARRAY[\'{"Nats-Msg-Id": "1"}\', \'{"nats-rollup": "all"}\','
        ' \'{"A": 5}\', \'{"A b": "x"}\', \'{"A": "x\\r\\nB: y"}\', \'{"": ""}\'])[1 + n % 6]::jsonb'
    },
    "originals": {"originals": "jsonb_build_object('x', 1, 'id', n)"},
    "streams": {"stream": "(ARRAY['', 'a b', '*', '>', chr(10), repeat('s', 5000)])[1 + n % 6]"},
    "times": {"occurred_at": "'0001-01-02'::timestamptz"},
    "large": {"payload": "to_jsonb(repeat('x', 1100000))"},
    "numbers": {"payload": "('[1e' || 100000 + n || ', 1e131071]')::jsonb"},
    "bombs": {"payload": "('[' || rtrim(repeat('1e131071,', 60), ',') || ']')::jsonb"},
    "compressed bombs": {"payload": "('[' || rtrim(repeat('1e131071,', 9000), ',') || ']')::jsonb"},
    "header bombs": {"headers": "('{\"A\": [' || rtrim(repeat('1e131071,', 60), ',') || ']}')::jsonb"},
    "nested": {"payload": "(repeat('[', 1000) || repeat(']', 1000))::jsonb"},
}
#: What takes the server long to make takes tests long too.
FEWER = {"large": 20, "compressed bombs": 6, "header bombs": 30, "bombs": 30, "long keys": 200}


async def good_leave(relay: Relay, ids: list[str], turns: int = TURNS, **options: Any) -> None:
    """All of these are published within so many turns."""
    command = relay.command(**options)
    for _ in range(turns):
        await command.drain(ALL)
        left = query(relay.url, "SELECT FROM outbox_events WHERE id = ANY (%s) AND published_at IS NULL", ids)
        if not left:
            return
    raise AssertionError(f"{len(left)} of {len(ids)} good events are not published")


def good(relay: Relay) -> list[str]:
    return [str(id) for id in relay.add(*[event(f"good{number}") for number in range(64)])]


@pytest.mark.parametrize("kind", HOSTILE)
async def test_good_events_of_other_keys_leave_behind_rows_of_a_producer(
    relay: Relay, inserting: str, kind: str
) -> None:
    await relay.create_stream()
    with producing(relay.url, inserting) as connection:
        insert(connection, "outbox_events", FEWER.get(kind, ROWS), EVENT | HOSTILE[kind])
    await good_leave(relay, good(relay))


async def test_the_fleet_publishes_no_producers_row_into_the_streams_of_others(
    relay: Relay, inserting: str
) -> None:
    """Neither into those of other contexts, nor into streams of letters. Each row dies at once with the reason."""
    await relay.create_stream()
    other, letters = f"{relay.context}other", f"{relay.context}.dlq.>"
    for name, subject in ((f"{relay.stream}_OTHER", f"{other}.event.>"), (f"{relay.stream}_DLQ", letters)):
        config = StreamConfig(name=name, subjects=[subject])
        await relay.admin(lambda js, config=config: js.add_stream(config))
    topics = f"(ARRAY['{other}.event.x.v1', '{relay.context}.dlq.x', '{other}.event.std.y.v2'])[1 + n % 3]"
    with producing(relay.url, inserting) as connection:
        insert(connection, "outbox_events", 300, EVENT | {"topic": topics, "partition_key": "'vibe:good1'"})
    own = {relay.stream: [f"{relay.context}.event.>"]}
    await good_leave(relay, good(relay), turns=1, streams=own)
    states = query(
        relay.url,
        "SELECT split_part(publish_error, ':', 2) AS code, count(dead_at), max(publish_attempts) AS tries"
        " FROM outbox_events WHERE topic IS NOT NULL GROUP BY 1 ORDER BY 1",
    )
    assert [(row["code"], row["count"], row["tries"]) for row in states] == [
        (" FOREIGN_SUBJECT [topic]", 200, 1),
        (" INVALID_SUBJECT [topic]", 100, 1),
    ]
    for ending in ("OTHER", "DLQ"):
        info = await relay.admin(lambda js, ending=ending: js.stream_info(f"{relay.stream}_{ending}"))
        assert info.state.messages == 0
    # What an operator declares afterwards leaves.
    [row] = query(relay.url, "SELECT id FROM outbox_events WHERE topic LIKE %s LIMIT 1", f"{other}.event.x%")
    route = Route(topics=[f"{other}.event.>"], stream=f"{relay.stream}_OTHER")
    published = await relay.command(streams=own, routes=[route]).publish(row["id"])
    assert published.stream == f"{relay.stream}_OTHER"


async def test_rows_with_the_most_attempts_from_before_the_check_settle(relay: Relay) -> None:
    await relay.create_stream()
    worst = {"publish_attempts": "2147483647", "event_type": "CASE WHEN n % 2 = 0 THEN 'made' ELSE 'a b' END"}
    with psycopg.connect(relay.url, autocommit=True) as owner:
        owner.execute("SET relay.restoring = on")
        insert(owner, "outbox_events", ROWS, EVENT | worst)
    await good_leave(relay, good(relay))
    await relay.command().drain(ALL)
    states = "SELECT count(published_at) AS sent, count(dead_at) AS dead, max(publish_attempts) AS most"
    assert query(relay.url, f"{states} FROM outbox_events WHERE aggregate_type = 'case'") == [
        {"sent": ROWS // 2, "dead": ROWS // 2, "most": 2147483647}
    ]


REFUSING = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {deed}; RETURN NEW; END $$;
    CREATE TRIGGER refuse BEFORE UPDATE ON outbox_events
      FOR EACH ROW WHEN (NEW.aggregate_type = 'case') EXECUTE FUNCTION refuse()"""
#: Anything that a trigger of an application may raise.
RAISED = {
    "raise": "RAISE EXCEPTION 'no'",
    "policy": "RAISE insufficient_privilege",
    "own code": "RAISE EXCEPTION 'no' USING ERRCODE = 'ZZ999'",
    "undefined": "PERFORM nothing()",
    "internal": "RAISE EXCEPTION 'no' USING ERRCODE = 'XX000'",
}


@pytest.mark.parametrize("raised", RAISED)
async def test_rows_that_cannot_be_settled_do_not_come_again_in_the_place_of_others(
    relay: Relay, raised: str
) -> None:
    await relay.create_stream()
    query(relay.url, REFUSING.format(deed=RAISED[raised]))
    with psycopg.connect(relay.url, autocommit=True) as owner:
        insert(
            owner, "outbox_events", ROWS, EVENT | {"event_type": "CASE WHEN n % 2 = 0 THEN 'made' ELSE 'a b' END"}
        )
    await good_leave(relay, good(relay), turns=1)


# --- tasks ---

BOMB = "rtrim(repeat('1e131071,', {}), ',')"
#: Rows of before the check, too. What fits no function fails; the rest runs.
TASKS: dict[str, dict[str, str]] = {
    "metadata": {"metadata": "(ARRAY['5', '[]', 'null', '\"x\"', '{\"traceparent\": 5}'])[1 + n % 5]::jsonb"},
    "originals": {"originals": "('{\"x\": 1, \"id\": ' || n || '}')::jsonb"},
    "numbers of metadata": {"metadata": f"('{{\"A\": [' || {BOMB.format(60)} || ']}}')::jsonb"},
    "numbers": {"payload": f"('[' || {BOMB.format(60)} || ']')::jsonb"},
    "more than a gigabyte of numbers": {"payload": f"('[' || {BOMB.format(9_000)} || ']')::jsonb"},
    "nested": {"payload": "(repeat('[', 3000) || repeat(']', 3000))::jsonb"},
    "most attempts": {"attempts": "2147483647"},
    "types": {"type": "repeat(chr(10), 900) || n"},
}


@pytest.mark.parametrize("mode", ["loop", "thread", "ahead"])
async def test_tasks_of_a_producer_fail_alone_and_those_of_others_run(database_url: str, mode: str) -> None:
    def mail(payload: dict[str, int]) -> None:
        """Do nothing."""

    async with tasking(database_url) as tasks:
        tasks.threads, tasks.ahead = mode != "loop", mode == "ahead"
        tasks.register(mail)
        with psycopg.connect(database_url, autocommit=True) as owner:
            for columns in TASKS.values():
                insert(owner, "task_outbox", 5, TASK | {"payload": "'{\"x\": 1}'"} | columns)
        hostile = await tasks.query("SELECT id, type FROM task_outbox ORDER BY seq")
        [good] = tasks.schedule({"n": 1})
        await tasks.deliver()
        for row in hostile:
            await tasks.run(row["id"], row["type"])
        await tasks.run(good)
        assert (await tasks.row(good))["status"] == "completed"
        found = await tasks.query("SELECT status, count(*) FROM task_outbox GROUP BY 1 ORDER BY 1")
        assert [(row["status"], row["count"]) for row in found] == [
            ("completed", 16),
            ("delivered", 5),
            ("failed", 20),
        ]
