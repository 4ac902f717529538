"""Events of any size: a claim is bounded in bytes, and nothing leaves that its time no longer covers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from chaos.proxy import at_port
from relay.adapters.postgres import outbox
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable
from relay.domain.facts import EventDied, OutboxEventsPublished
from relay.domain.ordering import Shard
from relay.domain.policies import OutcomeUnknown, Published
from relay.ports import Message
from tests.integration.plans import explain
from tests.integration.publishing import ALL, DEADLINE, Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KB = 1_000
SHORT = timedelta(seconds=1)
#: Text that cannot be compressed, and text that is hardly anything when it is.
RANDOM = "(SELECT string_agg(md5(n || ':' || part), '') FROM generate_series(1, %(size)s / 32) AS part)"
REPEATED = "repeat('x', %(size)s)"
#: A number of 13 bytes that JSON shows in 131,072 digits.
INFLATED = "1e131071"


def insert(relay: Relay, count: int, size: int, *, keys: int = 7, text: str = RANDOM, first: int = 1) -> None:
    """Commit events of this size with plain SQL, numbered in the order of their commit."""
    sql = f"""
        INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
        SELECT gen_random_uuid(), 'thing', n %% %(keys)s, 'made', jsonb_build_object('n', n, 'text', {text})
        FROM generate_series(%(first)s, %(first)s + %(count)s - 1) AS n"""
    with psycopg.connect(relay.url, autocommit=True) as connection:
        connection.execute(sql.encode(), {"count": count, "size": size, "keys": keys, "first": first})


async def stored_once_in_order(relay: Relay, count: int, *, copies: bool = False) -> None:
    """Each event is stored once, each key in its order; none was sent twice, unless ``copies`` may have been."""
    assert (await relay.admin(lambda js: js.stream_info(relay.stream))).state.messages == count
    rows = outbox_rows(relay.url)
    assert len(rows) == count
    for key in {row["partition_key"] for row in rows}:
        places = [row["published_seq"] for row in rows if row["partition_key"] == key]
        assert places == sorted(places)
    assert {row["publish_attempts"] for row in rows} == {1}
    assert copies or not any(row["published_duplicate"] for row in rows)


# --- claims ---


@pytest.mark.parametrize(
    ("size", "text", "limit"),
    [
        (700 * KB, RANDOM, 2_000 * KB),
        (900 * KB, REPEATED, 2_000 * KB),
        (3 * KB, RANDOM, 2_000 * KB),
        (KB, RANDOM, 10 * KB),
    ],
)
async def test_a_claim_is_bounded_in_bytes_whatever_the_events_look_like_when_stored(
    relay: Relay, size: int, text: str, limit: int
) -> None:
    await relay.create_stream()
    insert(relay, 40, size, text=text)
    claims: list[int] = []

    async def note(claim: Any) -> None:
        claims.append(len(claim.rows))

    assert await relay.command(batch_bytes=limit, claimed=note).drain(ALL) == 40
    assert max(claims) == min(40, -(-limit // size))
    await stored_once_in_order(relay, 40)


async def test_a_claim_asks_for_about_as_many_large_events_as_it_may_take(relay: Relay) -> None:
    """What it locks beyond that, it locks in vain, again and again."""
    await relay.create_stream()
    insert(relay, 120, 50 * KB, keys=1)
    locked: list[int] = []

    async def note(_: Any) -> None:
        locked.append(await asyncio.to_thread(locked_in, relay.url))

    assert await relay.command(batch_bytes=100 * KB, claimed=note).drain(ALL) == 120
    assert locked[0] == 120
    # Two of four each time; more now and then, after one that found less than it asked for. All that wait: 3,600.
    assert sum(locked) < 900


def locked_in(url: str) -> int:
    """How many events that wait are locked by others."""
    waiting = "SELECT id FROM outbox_events WHERE published_at IS NULL"
    return len(query(url, waiting)) - len(query(url, f"{waiting} FOR UPDATE SKIP LOCKED"))


async def test_a_claim_asks_for_fewer_after_one_that_did_not_end_in_its_time(relay: Relay) -> None:
    await relay.create_stream()
    claims: list[int] = []

    async def note(claim: Any) -> None:
        claims.append(len(claim.rows))

    command = relay.command(claimed=note)
    # It has found out how the database tells how much is done.
    assert await command.drain(ALL) == 0
    with psycopg.connect(relay.url) as connection:
        connection.execute("LOCK TABLE outbox_events IN ACCESS EXCLUSIVE MODE")
        drained = asyncio.create_task(command.drain(ALL))
        await eventually("it waits, and is told to stop", lambda: query(relay.url, CANCEL))
        with pytest.raises(DatabaseUnreachable):
            await drained
    insert(relay, 600, 10, keys=1)
    assert await command.drain(ALL) == 600
    # An eighth, and more again after one that did.
    assert claims[:3] == [0, 300 // 8, 4 * (300 // 8)]
    assert max(claims) == 300


CANCEL = """
    SELECT pg_cancel_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'publisher' AND wait_event_type = 'Lock'"""


async def test_many_large_events_of_one_key_drain_in_order(relay: Relay) -> None:
    await relay.create_stream()
    insert(relay, 40, 900 * KB, keys=1, text=REPEATED)
    assert await relay.command().drain(ALL) == 40
    assert [body["payload"]["n"] for body in await relay.bodies()] == list(range(1, 41))
    await stored_once_in_order(relay, 40)


async def test_workers_share_events_of_all_sizes(relay: Relay) -> None:
    await relay.create_stream()
    for first, size in enumerate([10, 900 * KB, 1_500, 2_500, 60 * KB, 10, 400 * KB]):
        insert(relay, 10, size, first=10 * first + 1, text=RANDOM if first % 2 else REPEATED)
    async with Relay(relay.url, relay.nats_url, relay.context) as other:
        workers = [owner.command(batch_bytes=1_000 * KB) for owner in (relay, other)]
        published = await asyncio.gather(
            *(worker.drain(Shard(index, 2)) for worker in workers for index in range(2))
        )
    await relay.drained()
    assert sum(published) <= 70
    await stored_once_in_order(relay, 70)


async def test_an_event_larger_than_a_batch_goes_alone(relay: Relay) -> None:
    await relay.create_stream()
    insert(relay, 3, 500 * KB)
    assert await relay.command(batch_bytes=2 * KB).drain(ALL) == 3
    await stored_once_in_order(relay, 3)


async def test_no_more_is_unpacked_than_is_claimed(relay: Relay) -> None:
    insert(relay, 300, 30 * KB, text=REPEATED)
    ids = [str(row["id"]) for row in query(relay.url, "SELECT id FROM outbox_events ORDER BY seq")]
    with psycopg.connect(relay.url) as connection:
        plan = explain(
            connection,
            "outbox/large",
            after="outbox/claim_settings",
            ids=ids,
            bytes=100 * KB,
            readable=True,
            wary=False,
            largest=2**26,
            kept=None,
            most=2**26,
        )
    assert plan.fetched <= 4
    assert plan.indexes() == {"outbox_events_pkey"}
    assert not plan.read_whole()


async def test_what_is_small_when_stored_and_large_when_shown_holds_up_nobody(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    bad = [relay.insert(payload=f"[{', '.join([INFLATED] * 40)}]", partition_key="vibe:v1") for _ in range(6)]
    [behind] = relay.add(event("v1"))
    sizes: list[int] = []
    together: list[int] = []
    within = outbox._within

    async def note(claim: Any) -> None:
        sizes.append(sum(len(row.payload) for row in claim.rows))

    async def note_before(claim: Any, rows: Any, max_bytes: int) -> Any:
        together.append(sum(len(row.payload or "") for row in rows))
        return await within(claim, rows, max_bytes)

    monkeypatch.setattr(outbox, "_within", note_before)
    await relay.command(claimed=note).drain(ALL)
    assert await relay.ids() == [str(behind)]
    assert all("INVALID_PAYLOAD" in relay.row(id)["publish_error"] for id in bad)
    # The batch and the event that fills it.
    assert max(sizes) < 4 * 1024**2 + 6_000 * KB
    # What all of them are claimed with has nothing of them.
    assert max(together) < 1 * KB


async def test_what_postgresql_cannot_show_is_dead_and_holds_up_nobody(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    insert(relay, 3, 50 * KB, keys=1)
    bad = relay.insert(payload=json.dumps("x" * 30 * KB), partition_key="thing:0")
    insert(relay, 3, 50 * KB, keys=1, first=4)
    read = outbox._read

    async def refuse(claim: Any, ids: Any, max_bytes: int, *, readable: bool) -> Any:
        """As PostgreSQL does with a text of over a gigabyte, which no test should make it write."""
        if readable and str(bad) in ids:
            await claim.conn.execute("DO $$ BEGIN RAISE 'too large' USING ERRCODE = '54000'; END $$")
        return await read(claim, ids, max_bytes, readable=readable)

    monkeypatch.setattr(outbox, "_read", refuse)
    assert await relay.command().drain(ALL) == 6
    assert [body["payload"]["n"] for body in await relay.bodies()] == list(range(1, 7))
    assert "PAYLOAD_TOO_LARGE" in relay.row(bad)["publish_error"]


# --- time ---


async def test_nothing_leaves_when_the_time_of_the_claim_was_spent_before(relay: Relay) -> None:
    await relay.create_stream()
    relay.add(event())

    async def late(claim: Any) -> None:
        claim.begun -= 2 * relay.ack_timeout.total_seconds()

    with pytest.raises(BrokerUnreachable, match="time of the claim"):
        await relay.command(claimed=late).drain(ALL)
    [row] = relay.unpublished()
    assert (row["publish_attempts"], row["publish_error"]) == (0, None)
    assert await relay.ids() == []


async def test_a_claim_that_took_long_has_its_time_begin_anew(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    relay.add(event())
    begun: list[float] = []

    async def note(claim: Any) -> None:
        begun.append(claim.begun)

    taken = outbox.PostgresOutboxAdapter._take

    async def slow(self: Any, *terms: Any) -> Any:
        found = await taken(self, *terms)
        claim: Any = terms[0]
        claim.begun -= 1.0
        begun.append(time.monotonic())
        return found

    monkeypatch.setattr(outbox.PostgresOutboxAdapter, "_take", slow)
    assert await relay.command(claimed=note).drain(ALL) == 1
    assert begun[1] >= begun[0]


@asynccontextmanager
async def narrow(nats_url: str, rate: int) -> AsyncIterator[str]:
    """A link to NATS that carries ``rate`` bytes a second towards it, and holds little itself."""
    target = urlsplit(nats_url)
    tasks: set[asyncio.Task[Any]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rate: int | None) -> None:
        with suppress(OSError):
            while data := await reader.read(16_384):
                if rate:
                    await asyncio.sleep(len(data) / rate)
                writer.write(data)
                await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(target.hostname, target.port)
        for pair in ((reader, to_server, rate), (from_server, writer, None)):
            task = asyncio.create_task(carry(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=16_384)
    try:
        yield at_port(nats_url, server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


@pytest.mark.parametrize(("count", "size"), [(12, 300 * KB), (300, 10 * KB)])
async def test_a_slow_link_slows_publishing_down_and_stores_nothing_twice(
    relay: Relay, count: int, size: int
) -> None:
    await relay.create_stream()
    insert(relay, count, size)
    async with (
        narrow(relay.nats_url, 600 * KB) as url,
        Relay(relay.url, url, relay.context, ack_timeout=SHORT) as slow,
    ):
        batches: list[int] = []

        async def note(claim: Any) -> None:
            batches.append(len(claim.rows))

        # One drain does it: a batch that was cut is followed by the next.
        await eventually("all is published", lambda: _drained(slow, note))
        assert len(batches) > 2
        assert (await slow.nats.client()).stats["reconnects"] == 0
    await stored_once_in_order(relay, count, copies=True)


async def _drained(relay: Relay, note: Any) -> bool:
    with suppress(BrokerUnreachable):
        await relay.command(claimed=note).drain(ALL)
    return relay.unpublished() == []


async def test_no_more_is_under_way_than_the_link_carries(relay: Relay) -> None:
    """So the pings of the connection are answered in time, and few answers come after the time of the claim."""
    await relay.create_stream()
    async with (
        narrow(relay.nats_url, 400 * KB) as url,
        Relay(relay.url, url, relay.context, ack_timeout=SHORT) as slow,
    ):
        subject = f"{relay.context}.event.made.v1"
        messages = [Message(f"m{n}", subject, b"x" * 20 * KB, {"Nats-Msg-Id": f"m{n}"}) for n in range(500)]
        for _ in range(2):
            outcomes = list((await slow.publisher.publish_all(messages)).values())
        assert any(isinstance(outcome, Published) for outcome in outcomes)
        assert sum(isinstance(outcome, OutcomeUnknown) for outcome in outcomes) < 20


# --- settling ---


def refusing(relay: Relay, condition: str) -> None:
    """Have the database refuse some updates."""
    query(
        relay.url,
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE 'not %%', NEW.payload; END $$""",
    )
    query(
        relay.url,
        f"""CREATE TRIGGER refuse BEFORE UPDATE ON outbox_events
        FOR EACH ROW WHEN (NEW.event_type = 'bad' AND {condition}) EXECUTE FUNCTION refuse()""",
    )


@pytest.mark.parametrize("condition", ["NEW.published_at IS NOT NULL", "true"])
async def test_a_row_that_cannot_be_settled_leaves_its_batch_settled_and_is_not_sent_again(
    relay: Relay, condition: str
) -> None:
    await relay.create_stream()
    refusing(relay, condition)
    before, bad, behind, other = relay.add(
        event("v1"), event("v1", event_type="bad", payload={"iban": "DE00"}), event("v1"), event("v2")
    )
    # A row that fails for a reason of its own, beside.
    failed = relay.insert(event_type="no subject")
    command = relay.command()
    async with asyncio.timeout(DEADLINE):
        for _ in range(3):
            await command.drain(ALL)
    rows = {row["id"]: row for row in outbox_rows(relay.url)}
    assert all(rows[id]["published_seq"] for id in (before, behind, other))
    assert rows[failed]["dead_at"]
    assert rows[bad]["published_at"] is None
    facts = [fact for fact in relay.facts if isinstance(fact, OutboxEventsPublished)]
    told = {UUID(it.outbox_id): it.published_at for fact in facts for it in fact.events}
    assert told == {id: rows[id]["published_at"] for id in (before, behind, other)}
    died = [fact for fact in relay.facts if isinstance(fact, EventDied) and fact.outbox_id == str(bad)]
    assert len(died) == 1
    assert f"unrecoverable: {relay.stream} has it as" in died[0].error
    assert "DE00" not in died[0].error
    assert (rows[bad]["dead_at"] is None) == (condition == "true")
    # Sent once: the stream would hide a second time, the facts would not.
    stored = await relay.ids()
    assert sorted(stored) == sorted(map(str, (before, bad, behind, other)))


async def test_a_failure_that_cannot_be_recorded_leaves_the_others_recorded(relay: Relay) -> None:
    await relay.create_stream()
    refusing(relay, "true")
    bad = relay.insert(event_type="bad", topic="not a subject")
    other, good = relay.insert(event_type="no subject"), relay.add(event())
    claims: list[list[str]] = []

    async def note(claim: Any) -> None:
        claims.append([row.id for row in claim.rows])

    command = relay.command(claimed=note)
    async with asyncio.timeout(DEADLINE):
        for _ in range(3):
            await command.drain(ALL)
    assert await relay.ids() == [str(id) for id in good]
    assert relay.row(other)["dead_at"]
    assert sum(str(bad) in claim for claim in claims) == 1
