"""What a processed message leaves on the disk: its row, room for its claim, and entries of indexes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg
import pytest

from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.ports import ClaimedMessage, InboxRow
from tests.integration.consuming import LEASE, inbox_row
from tests.integration.crowded import messages, repeatable
from tests.integration.plans import explain, held_to

pytestmark = pytest.mark.anyio

MESSAGES = 1_800
#: An event of 350 bytes in its envelope.
BODY = b'{"payload": "' + b"x" * 650 + b'"}'
#: As workers do: so many are inserted together, so many are claimed together, so many share a settlement.
PULLED, CLAIMED, SETTLED = 90, 8, 32
CHAIN = UUID(int=7)
SIZE = "SELECT pg_total_relation_size('inbox_messages')"
#: The first one only describes the index.
PAGES = "SELECT pg_relation_size('idx_inbox_correlated') / current_setting('block_size')::int"


async def work_off(inbox: PostgresInboxAdapter, rows: Sequence[InboxRow]) -> None:
    """Claim and settle the rows, several together, while a few hundred wait."""
    running: deque[ClaimedMessage] = deque()
    for pulled in range(0, len(rows), PULLED):
        batch = rows[pulled : pulled + PULLED]
        await inbox.insert(batch)
        for first in range(0, len(batch), CLAIMED):
            some = batch[first : first + CLAIMED]
            claims = await asyncio.gather(*(inbox.claim(row.message_id, LEASE) for row in some))
            running.extend(claim for claim in claims if claim is not None)
            while len(running) > SETTLED:
                await inbox.mark_all_processed([running.popleft() for _ in range(SETTLED)])
    await inbox.mark_all_processed(list(running))


async def test_a_processed_message_leaves_little_more_than_itself(database_url: str) -> None:
    """Half of each page was room for claims. It stayed empty for ever, because an insert leaves it free."""
    pool = Pool(database_url, max_size=4, application_name="disk")
    await pool.open()
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        try:
            await work_off(PostgresInboxAdapter(pool), [inbox_row(seq, body=BODY) for seq in range(MESSAGES)])
        finally:
            await pool.close()
        [size] = conn.execute(SIZE).fetchone() or [0]
    assert size / MESSAGES < 1_950


@pytest.mark.parametrize("generic", [False, True])
def test_a_chain_is_found_by_its_correlation_and_others_cost_no_entry(database_url: str, generic: bool) -> None:
    with psycopg.connect(database_url, autocommit=True) as conn:
        repeatable(conn)
        messages(conn, 1, 20_000, "busy")
        messages(conn, 20_001, 3, "busy", correlation_id=f"'{CHAIN}'")
        conn.execute("VACUUM ANALYZE inbox_messages")
        asked: dict[str, Any] = {"ids": [], "correlations": [CHAIN], "stream": None, "seq": None, "limit": 1_000}
        plan = explain(conn, "life/messages", generic=generic, **asked)
        [pages] = conn.execute(PAGES).fetchone() or [None]
    held_to(plan, 10, 10)
    assert pages == 2
