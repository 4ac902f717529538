"""A message is known by its subscription and its id, whatever other subscriptions hold or have archived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid5

import hypothesis.strategies as some
import psycopg
import pytest
from hypothesis import example, given, settings

from relay.adapters.postgres.inbox import PostgresInboxAdapter
from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.ordered_inbox import OrderedInboxAdapter
from relay.adapters.postgres.pool import Pool
from relay.adapters.postgres.sql import statement
from relay.devstack import PostgresServer
from relay.domain.identity import ID, view_id
from relay.ports import InboxRow
from tests.integration import catalogue
from tests.integration.consuming import LEASE, inbox_row
from tests.integration.publishing import query

#: Rows of populated inboxes have keys that were made with it.
VIEWS: Final = UUID("0d7a6c1b-93e2-5f0e-8a44-5c9f2b1de7a3")
SUBSCRIPTIONS = ("from_orders", "from_shipping", "audit")
#: Ids of two producers that number their events.
TAGS = tuple(UUID(int=n, version=4) for n in range(1, 5))
#: Also what another message may have taken: the ids made from them for a subscription.
IDS = (*TAGS, *(view_id(name, TAGS[0]) for name in SUBSCRIPTIONS), view_id("audit", view_id("audit", TAGS[0])))

subscriptions = some.sampled_from(SUBSCRIPTIONS)
batches = some.tuples(subscriptions, some.lists(some.sampled_from(IDS), min_size=1, max_size=5))
steps = some.one_of(
    some.tuples(some.just("insert"), some.lists(batches, min_size=1, max_size=3)),
    some.tuples(some.just("process"), some.tuples(subscriptions, some.sampled_from(IDS))),
    some.tuples(some.just("archive"), some.sampled_from(IDS)),
)


@dataclass
class Inbox:
    """The inbox of a context, and what each of its subscriptions must know."""

    url: str
    pool: Pool
    #: What a subscription has seen: the last place of each message, and whether it is done.
    seen: dict[tuple[str, UUID], tuple[int, bool]] = field(default_factory=dict)
    seq: int = 0

    def adapter(self, subscription: str) -> PostgresInboxAdapter:
        return OrderedInboxAdapter(self.pool) if subscription == "audit" else PostgresInboxAdapter(self.pool)

    async def insert(self, batches: Sequence[tuple[str, Sequence[UUID]]]) -> None:
        """Insert batches at the same time, each of its subscription, and check the answers."""
        made = [(subscription, self._rows(subscription, ids)) for subscription, ids in batches]
        answers = await asyncio.gather(*(self.adapter(name).insert(rows) for name, rows in made))
        fresh: set[tuple[str, UUID]] = set()
        for (subscription, rows), inserted in zip(made, answers, strict=True):
            assert [it.id for it in inserted] == list(dict.fromkeys(row.id for row in rows))
            for it in inserted:
                known = (subscription, it.id)
                assert it.done == self.seen.get(known, (0, False))[1], known
                if it.new:
                    assert known not in self.seen, known
                    assert known not in fresh, known
                    fresh.add(known)
        for subscription, rows in made:
            for row in rows:
                known = subscription, row.id
                assert known in self.seen or known in fresh, known
                done = self.seen.get((subscription, row.id), (0, False))[1]
                self.seen[subscription, row.id] = (row.stream_seq, done)

    def _rows(self, subscription: str, ids: Sequence[UUID]) -> list[InboxRow]:
        rows = []
        for id in ids:
            self.seq += 1
            rows.append(
                inbox_row(
                    self.seq, message_id=id, subscription=subscription, stream=subscription.upper(), order_key="k"
                )
            )
        return rows

    def process(self, known: tuple[str, UUID]) -> None:
        if known in self.seen:
            name, id = known
            query(
                self.url,
                "UPDATE inbox_messages SET processed_at = clock_timestamp()"
                " WHERE subscription = %s AND coalesce(source_id, message_id) = %s",
                name,
                id,
            )
            self.seen[known] = (self.seen[known][0], True)

    def archive(self, id: UUID) -> None:
        """Archive the row of this key, if it is finished."""
        with psycopg.connect(self.url) as conn:
            found = "SELECT message_id FROM inbox_messages WHERE message_id = %s AND processed_at IS NOT NULL"
            ids = [key for (key,) in conn.execute(found, [id])]
            conn.execute(statement("archive/delete_inbox"), {"ids": ids, "number": 1})

    def check(self) -> None:
        """Every message has one row, here or in the archive; places are those of its own subscription."""
        rows = query(self.url, "SELECT * FROM inbox_messages")
        archived = query(self.url, "SELECT * FROM archived_messages")
        views = [(row["subscription"], row["source_id"] or row["message_id"]) for row in (*rows, *archived)]
        assert sorted(views) == sorted(self.seen)
        for row in rows:
            known = row["subscription"], row["source_id"] or row["message_id"]
            assert row["stream"] == row["subscription"].upper()
            assert (row["processed_at"] is not None) == self.seen[known][1]
            assert row["source_id"] is None or row["originals"] == {ID: str(row["source_id"])}


async def play(url: str, story: Sequence[tuple[str, Any]]) -> None:
    query(url, "TRUNCATE inbox_messages, archived_messages, inbox_watermarks")
    pool = Pool(url, max_size=4, application_name="inbox")
    await pool.open()
    try:
        inbox = Inbox(url, pool)
        for what, value in story:
            if what == "insert":
                await inbox.insert(value)
            else:
                getattr(inbox, what)(value)
            inbox.check()
    finally:
        await pool.close()


def test_each_subscription_has_its_own_view_of_what_it_has_seen(database_url: str) -> None:
    """Batches at the same time, ids that others hold or that were made for others, rows in the archive."""

    @settings(max_examples=60)
    @example(story=[("insert", [("from_orders", TAGS), ("from_shipping", TAGS[::-1]), ("audit", TAGS)])])
    @example(
        story=[("insert", [("from_orders", IDS)]), ("insert", [("audit", TAGS)]), ("insert", [("audit", IDS)])]
    )
    @given(story=some.lists(steps, min_size=1, max_size=8))
    def check(story: list[tuple[str, Any]]) -> None:
        asyncio.run(play(database_url, story))

    check()


# --- one by one ---


@pytest.fixture
async def inbox(database_url: str) -> AsyncIterator[PostgresInboxAdapter]:
    pool = Pool(database_url, max_size=4, application_name="inbox")
    await pool.open()
    yield PostgresInboxAdapter(pool)
    await pool.close()


@pytest.mark.anyio
async def test_the_first_row_of_an_id_stays_as_it_is_and_the_second_has_a_key_that_never_changes(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    first = inbox_row(5, subscription="from_orders", stream="ORDERS")
    [one] = await inbox.insert([first])
    [before] = query(database_url, "SELECT * FROM inbox_messages")
    [other] = await inbox.insert([first._replace(subscription="from_shipping", stream="SHIPPING", stream_seq=9)])
    assert (one.message_id, other.new, other.id) == (first.message_id, True, first.message_id)
    assert other.message_id == uuid5(VIEWS, f"from_shipping/{first.message_id}")
    rows = {row["message_id"]: row for row in query(database_url, "SELECT * FROM inbox_messages")}
    assert rows[first.message_id] == before
    assert rows[other.message_id]["originals"] == {"id": str(first.message_id)}
    claim = await inbox.claim(other.message_id, LEASE)
    assert claim is not None
    assert (claim.row.id, claim.row.source_id, claim.row.stream_seq) == (first.message_id, first.message_id, 9)


@pytest.mark.anyio
async def test_what_stands_in_an_inbox_of_before_is_recognised(
    inbox: PostgresInboxAdapter, database_url: str
) -> None:
    """Rows of plain SQL name no subscription, and rows that were archived before name none either."""
    plain, archived = inbox_row(1), inbox_row(2)
    query(database_url, "INSERT INTO inbox_messages (message_id, subject) VALUES (%s, 's')", plain.message_id)
    query(database_url, "INSERT INTO archived_messages (message_id, batch) VALUES (%s, 1)", archived.message_id)
    for subscription in ("from_orders", "from_shipping"):
        rows = [row._replace(subscription=subscription) for row in (plain, archived)]
        assert [(it.new, it.done) for it in await inbox.insert(rows)] == [(False, False), (False, True)]


@pytest.mark.anyio
async def test_another_place_of_the_same_id_is_a_repeat(inbox: PostgresInboxAdapter) -> None:
    row = inbox_row(1)
    await inbox.insert([row])
    assert [it.new for it in await inbox.insert([row._replace(stream_seq=7), row._replace(stream_seq=8)])] == [
        False
    ]


@pytest.mark.anyio
async def test_a_populated_database_of_the_first_release_is_upgraded_and_knows_what_it_has_seen(
    postgres: PostgresServer, database_url: str
) -> None:
    url = postgres.create_database("populated")
    upgrade(url, "0100_baseline")
    seen, archived = inbox_row(1, subscription="from_orders"), inbox_row(2, subscription="from_orders")
    written = "INSERT INTO inbox_messages (message_id, subject, subscription) VALUES (%s, 's', 'from_orders')"
    query(url, written, seen.message_id)
    query(url, "INSERT INTO archived_messages (message_id, batch) VALUES (%s, 1)", archived.message_id)
    upgrade(url)
    with psycopg.connect(url) as upgraded, psycopg.connect(database_url) as fresh:
        assert catalogue.everything(upgraded) == catalogue.everything(fresh)
    pool = Pool(url, max_size=1, application_name="inbox")
    await pool.open()
    try:
        inbox = PostgresInboxAdapter(pool)
        assert [(it.new, it.done) for it in await inbox.insert([seen, archived])] == [
            (False, False),
            (False, True),
        ]
        [other] = await inbox.insert([seen._replace(subscription="from_shipping")])
        assert (other.new, other.source_id) == (True, seen.message_id)
    finally:
        await pool.close()
        postgres.drop_database("populated")
