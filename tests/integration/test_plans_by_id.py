"""One row is found by its id, whatever the statistics say."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from tests.integration.crowded import messages, repeatable, tasks
from tests.integration.plans import explain, held_to

GRACE = timedelta(seconds=5)
CLAIM = {"token": uuid4(), "lease": GRACE, "max_attempts": 20, "exhausted": "x", "expired": "x"}
IDS = [uuid4(), uuid4()]
ONE = {"message_id": IDS[0], **CLAIM}
ALL = {"ids": IDS, **CLAIM}
BY_ID = {
    "inbox/claim": ONE,
    "inbox/claim+in_turn": ONE,
    "inbox/claim_many": {**ALL, "again": [], "alone": False},
    "inbox/claim_many+in_turn": {**ALL, "again": [], "alone": True},
    "inbox/renew": ALL,
    "inbox/mark_processed": ALL,
    "inbox/settle_chunk": {
        **ALL,
        "errors": [None, None],
        "kinds": [None, None],
        "delays": [None, None],
        "uncounted": [0, 0],
        "notes": [None, None],
    },
}


@pytest.mark.parametrize("generic", [False, True])
def test_a_message_is_found_by_its_id_when_a_burst_follows_a_quiet_time(
    database_url: str, generic: bool, subtests: pytest.Subtests
) -> None:
    """The statistics then say that the indexes of what waits are empty, and no cheaper way could be thought of."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        messages(conn, 1, 1_000, "busy", processed_at="clock_timestamp()")
        conn.execute("VACUUM ANALYZE inbox_messages")
        messages(conn, 1_001, 5_000, "busy")
        claimed = "UPDATE inbox_messages SET claim_token = %s, message_id = %s WHERE stream_seq = %s"
        for n, id in enumerate(IDS):
            conn.execute(claimed, (CLAIM["token"], id, 1_001 + n))
        for name, parameters in BY_ID.items():
            with subtests.test(name):
                held_to(explain(conn, name, generic=generic, **parameters), 2 * len(IDS), 0)


TASK = {"id": IDS[0], "lease": GRACE, "delay": GRACE, "error": "x", "waits_for": "room", "note": "{}"}
CLAIMED = {**TASK, "token": CLAIM["token"]}
TASK_BY_ID = {
    "tasks/claim": CLAIMED,
    "tasks/lock": TASK,
    "tasks/put_off": TASK,
    "tasks/renew": CLAIMED,
    "tasks/settle": CLAIMED,
    "tasks/record_error": {**CLAIMED, "uncounted": 0},
    "tasks/fail": CLAIMED,
    "tasks/claim_many": {**CLAIMED, "ids": IDS, "first": IDS[0]},
    "tasks/unclaim": {"ids": IDS, "tokens": [CLAIM["token"]] * 2},
    "tasks/complete_many": {"ids": IDS, "tokens": [CLAIM["token"]] * 2},
}


@pytest.mark.parametrize("generic", [False, True])
def test_a_task_is_found_by_its_id_when_a_burst_follows_a_quiet_time(
    database_url: str, generic: bool, subtests: pytest.Subtests
) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        tasks(conn, 1_000, status="'completed'", finished_at="now()")
        conn.execute("VACUUM ANALYZE task_outbox")
        tasks(conn, 2_000)
        tasks(conn, 2_000, status="'delivered'", enqueued_at="now()")
        tasks(conn, 2_000, status="'delivered'", enqueued_at="now()", claim_token="gen_random_uuid()")
        claimed = "UPDATE task_outbox SET id = %(id)s, claim_token = %(token)s WHERE seq = 6000"
        conn.execute(claimed, CLAIMED)
        for name, parameters in TASK_BY_ID.items():
            with subtests.test(name):
                held_to(explain(conn, name, generic=generic, **parameters), 2, 0)
