"""The rules that the statements of the inbox share: each asks all of them, and asks the function.

So each case is tried twice: with the rule, and with a rule that lets everything pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from relay.adapters.postgres.sql import statement

Connection = psycopg.Connection[Any]

SECOND = timedelta(seconds=1)
CLAIM = {"lease": SECOND, "max_attempts": 3, "exhausted": "too often", "expired": "too late"}
IT, OTHER = uuid4(), uuid4()
CLAIMS: Mapping[str, dict[str, Any]] = {
    "inbox/claim+in_turn": {"message_id": IT, **CLAIM},
    "inbox/claim_many+in_turn": {"ids": [IT], "again": [IT], "alone": False, **CLAIM},
}
SENDS: Mapping[str, dict[str, Any]] = {
    "inbox/promote": {"ids": [IT]},
    "inbox/next_of_keys": {"subscription": "sub", "order_keys": ["k"]},
    "inbox/overdue_ordered": {"subscription": "sub", "limit": 10, "grace": SECOND, "failed": None},
}
ALL = {**CLAIMS, **SENDS}
ROW = """
INSERT INTO inbox_messages (message_id, subject, subscription, stream, stream_seq, order_key, order_seq)
VALUES (%s, 's', 'sub', 'UP', %s, 'k', %s)
"""
#: The rule as it is, a part of its text, and what stands there instead.
Weakening = tuple[str, str, str]
FREE: Weakening = ("relay_is_free", "RETURN ", "RETURN true OR ")
FIRST: Weakening = ("relay_head", "ORDER BY i.order_seq, i.message_id", "ORDER BY i.order_seq DESC")
MAY_RUN: Weakening = ("relay_may_run", "WHERE ", "WHERE true OR ")
#: What has been done to the message, so that it must not be taken, and the rule that sees it.
CASES: Mapping[str, tuple[LiteralString, Weakening]] = {
    "it is claimed": ("UPDATE inbox_messages SET claimed_until = now() + interval '1 hour'", FREE),
    "it is in back-off": ("UPDATE inbox_messages SET next_attempt_at = now() + interval '1 hour'", FREE),
    "it is behind another": (
        """
        INSERT INTO inbox_messages (message_id, subject, subscription, stream, order_key, order_seq)
        VALUES (gen_random_uuid(), 's', 'sub', 'UP', 'k', 4)
        """,
        FIRST,
    ),
    "it is behind a dead one": (
        """
        INSERT INTO inbox_messages
          (message_id, subject, subscription, stream, order_key, order_seq, dead_lettered_at)
        VALUES (gen_random_uuid(), 's', 'sub', 'UP', 'k', 4, now())
        """,
        FIRST,
    ),
    "an earlier one may still come": ("UPDATE inbox_watermarks SET stream_seq = 4", MAY_RUN),
    "its stream has no watermark": ("DELETE FROM inbox_watermarks", MAY_RUN),
    "its key is parked": ("INSERT INTO parked_keys VALUES ('sub', 'k', now(), gen_random_uuid(), 'r')", MAY_RUN),
}


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    """A connection to an inbox with one message that may run."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(ROW, [IT, 5, 5])
        connection.execute("INSERT INTO inbox_watermarks VALUES ('sub', 'UP', 9, 9)")
        yield connection


def taken(conn: Connection, name: str, **parameters: Any) -> set[UUID]:
    rows = conn.execute(statement(name), {"token": uuid4(), **(parameters or ALL[name])}).fetchall()
    return {row[0] for row in rows}


def weaken(conn: Connection, rule: Weakening) -> None:
    name, before, after = rule
    [[text]] = conn.execute("SELECT pg_get_functiondef(%s::regproc)", [name]).fetchall()
    assert before in text
    conn.execute(text.replace(before, after, 1).encode())


@pytest.mark.parametrize("name", ALL)
def test_a_message_whose_turn_it_is_is_taken(conn: Connection, name: str) -> None:
    assert taken(conn, name) == {IT}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("case", CASES)
def test_no_statement_takes_it_out_of_its_turn(conn: Connection, name: str, case: str) -> None:
    done, rule = CASES[case]
    conn.execute(done)
    assert IT not in taken(conn, name)
    weaken(conn, rule)
    assert IT in taken(conn, name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("past", ["processed_at = clock_timestamp()", "stepped_over = true"])
def test_what_is_done_or_stepped_over_holds_no_key(conn: Connection, name: str, past: LiteralString) -> None:
    conn.execute(ROW, [OTHER, 4, 4])
    assert IT not in taken(conn, name)
    conn.execute(f"UPDATE inbox_messages SET {past} WHERE message_id = %s", [OTHER])
    assert IT in taken(conn, name)


@pytest.mark.parametrize("name", CLAIMS)
def test_what_was_requeued_waits_for_the_one_that_runs_in_its_place(conn: Connection, name: str) -> None:
    conn.execute(ROW, [OTHER, 6, 6])
    conn.execute("UPDATE inbox_messages SET requeues = 1 WHERE message_id = %s", [IT])
    conn.execute(
        "UPDATE inbox_messages SET claimed_until = now() + interval '1 hour' WHERE message_id = %s", [OTHER]
    )
    assert taken(conn, name) == set()
    weaken(conn, ("relay_another_runs", "WHERE ", "WHERE false AND "))
    assert taken(conn, name) == {IT}


@pytest.mark.parametrize("name", CLAIMS)
def test_without_order_no_turn_is_waited_for(conn: Connection, name: str) -> None:
    conn.execute("DELETE FROM inbox_watermarks")
    assert taken(conn, name) == set()
    assert taken(conn, name.removesuffix("+in_turn"), **ALL[name]) == {IT}


@pytest.mark.parametrize(("name", "early"), [*((it, True) for it in CLAIMS), *((it, False) for it in SENDS)])
def test_a_claim_may_come_a_moment_early_and_a_job_is_not_sent_early(
    conn: Connection, name: str, early: bool
) -> None:
    with conn.transaction():  # of one time
        conn.execute("UPDATE inbox_messages SET next_attempt_at = now() + interval '40 ms'")
        assert (taken(conn, name) == {IT}) is early
        conn.execute("UPDATE inbox_messages SET next_attempt_at = now() + interval '60 ms', claimed_until = NULL")
        assert taken(conn, name) == set()


STATE = "SELECT attempts, dead_letter_reason, dead_letter_class FROM inbox_messages"


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((0, None, None), (1, None, None)),
        ((2, None, None), (3, None, None)),
        ((3, None, None), (3, "too often", "exhausted")),
        ((1, "no", "deterministic"), (1, "no", "deterministic")),
        ((3, "no", "deterministic"), (3, "no", "deterministic")),
    ],
)
def test_a_claim_counts_an_attempt_and_gives_up_after_the_last(
    conn: Connection, name: str, before: tuple[Any, ...], after: tuple[Any, ...]
) -> None:
    conn.execute(
        "UPDATE inbox_messages SET attempts = %s, dead_letter_reason = %s, dead_letter_class = %s", before
    )
    assert taken(conn, name) == {IT}
    assert conn.execute(STATE).fetchall() == [after]


def test_both_claims_return_the_same_columns(conn: Connection) -> None:
    """One reader reads both."""
    found = {}
    for name in CLAIMS:
        cursor = conn.execute(statement(name), {"token": uuid4(), **ALL[name]})
        found[name] = {column.name for column in cursor.description or ()}
    assert found["inbox/claim_many+in_turn"] == found["inbox/claim+in_turn"] | {"tried"}
