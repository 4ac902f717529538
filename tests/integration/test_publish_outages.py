"""A broker or database that does not answer costs no attempt; afterwards all is published once and in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from nats.aio.client import Client

from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.adapters.postgres.migrations import upgrade
from relay.adapters.postgres.outbox import PostgresOutboxAdapter
from relay.devstack import NatsServer, PostgresServer
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable, SchemaMissing
from relay.domain.policies import NotSent, OutcomeUnknown, Published
from relay.ports import Message
from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

COUNT, KEYS = 400, 4
#: How soon a broker that is silent counts as away.
SHORT = timedelta(seconds=1)


@pytest.fixture
async def fragile(database_url: str, own_nats: NatsServer) -> AsyncIterator[Relay]:
    """A publisher whose NATS server may be paused and killed, with events to publish."""
    async with Relay(database_url, own_nats.url, ack_timeout=SHORT) as relay:
        await relay.create_stream()
        relay.add(*[event(f"v{number % KEYS}", payload={"n": number}) for number in range(COUNT)])
        yield relay
        own_nats.resume()


def nothing_spent(relay: Relay) -> None:
    waiting = relay.unpublished()
    assert waiting
    spent = {
        (row["publish_attempts"], row["publish_error"], row["available_at"], row["dead_at"]) for row in waiting
    }
    assert spent == {(0, None, None, None)}


async def converged(relay: Relay) -> None:
    """Publish the rest; then the stream holds each event once, each key in its order, as the ledger says."""
    await relay.drained()
    stored = await relay.ids()
    rows = outbox_rows(relay.url)
    assert sorted(stored) == sorted(str(row["id"]) for row in rows)
    by_key = defaultdict(list)
    for row in rows:
        assert stored[row["published_seq"] - 1] == str(row["id"])
        by_key[row["partition_key"]].append(row["published_seq"])
    assert all(seqs == sorted(seqs) for seqs in by_key.values())
    assert {(row["publish_attempts"], row["publish_error"]) for row in rows} == {(1, None)}


def after(batches: int, fault: Callable[[], None]) -> Callable[[], bool]:
    """Let so many batches pass, then do ``fault`` and go on."""
    asked = iter(range(1, 1_000_000))

    def go_on() -> bool:
        if next(asked) == batches + 1:  # it is asked before each batch
            fault()
        return True

    return go_on


def at_ack(relay: Relay, number: int, fault: Callable[[], None]) -> None:
    """Do ``fault`` when so many events are acknowledged, before the next ones leave."""
    count, receive = itertools.count(1), relay.publisher._on_ack

    def on_ack(*message: Any) -> None:
        if next(count) == number:
            fault()
        receive(*message)

    relay.publisher._on_ack = on_ack  # type: ignore[method-assign]


# --- the broker ---


async def test_a_broker_that_freezes_between_batches_costs_no_attempt(
    fragile: Relay, own_nats: NatsServer
) -> None:
    with pytest.raises(BrokerUnreachable):
        await fragile.command(batch_size=50).drain(ALL, after(1, own_nats.pause))
    assert len(fragile.unpublished()) == COUNT - 50
    nothing_spent(fragile)
    with pytest.raises(BrokerUnreachable):  # also while it is known to be away
        await fragile.command(batch_size=50).drain(ALL)
    nothing_spent(fragile)
    own_nats.resume()
    await converged(fragile)
    # What lay in the frozen server's socket was stored when it thawed, and recognised when it came again.
    assert any(row["published_duplicate"] for row in outbox_rows(fragile.url))


async def test_a_broker_that_freezes_within_a_batch_keeps_what_it_acknowledged(
    fragile: Relay, own_nats: NatsServer
) -> None:
    at_ack(fragile, COUNT // 2, own_nats.pause)
    with pytest.raises(BrokerUnreachable):
        await fragile.command(batch_size=COUNT).drain(ALL)
    assert COUNT // 2 - KEYS <= len(fragile.unpublished()) <= COUNT // 2
    nothing_spent(fragile)
    own_nats.resume()
    await converged(fragile)


@pytest.mark.parametrize("within", [False, True])
async def test_a_broker_that_is_killed_and_comes_back_costs_no_attempt(
    fragile: Relay, own_nats: NatsServer, within: bool
) -> None:
    if within:
        at_ack(fragile, 70, own_nats.kill)
    with pytest.raises(BrokerUnreachable):
        await fragile.command(batch_size=50).drain(ALL, after(COUNT if within else 2, own_nats.kill))
    nothing_spent(fragile)
    with pytest.raises(BrokerUnreachable):
        await fragile.command().drain(ALL)
    nothing_spent(fragile)
    own_nats.start()
    await converged(fragile)


async def test_a_broker_that_restarts_again_and_again_costs_no_attempt(
    fragile: Relay, own_nats: NatsServer
) -> None:
    while fragile.unpublished():
        # Often the connection is back within the two seconds that a batch waits for it.
        with contextlib.suppress(BrokerUnreachable):
            await fragile.command(batch_size=40).drain(ALL, after(2, own_nats.restart))
    await converged(fragile)


async def test_what_a_batch_gave_up_on_does_not_leave_after_a_reconnect(
    database_url: str, own_nats: NatsServer
) -> None:
    async with Relay(database_url, own_nats.url, ack_timeout=SHORT) as relay:
        await relay.create_stream()
        client = await relay.nats.client()
        relay.publisher._window = 20_000_000  # of a link that was quick
        own_nats.pause()
        for batch in range(2):  # the first fills the sockets, the second does not get out of the client
            messages = [
                Message(f"{batch}.{number}", f"{relay.context}.event.x", b"x" * 500_000, {})
                for number in range(40)
            ]
            outcomes = await relay.publisher.publish_all(messages)
            assert {type(outcome) for outcome in outcomes.values()} == {OutcomeUnknown, NotSent}
        assert client.pending_data_size > 0
        own_nats.kill()
        own_nats.start()
        await eventually("it is connected again", lambda: client.stats["reconnects"] and client.is_connected)
        last = Message("last", f"{relay.context}.event.x", b"{}", {"Nats-Msg-Id": "last"})
        assert isinstance((await relay.publisher.publish_all([last]))["last"], Published)
        assert await relay.ids() == ["last"]


async def test_a_frozen_broker_does_not_hold_up_the_end(database_url: str, own_nats: NatsServer) -> None:
    async with Relay(database_url, own_nats.url, ack_timeout=SHORT) as relay:
        await relay.create_stream()
        await relay.nats.client()
        relay.publisher._window = 20_000_000
        own_nats.pause()
        large = [Message(str(n), f"{relay.context}.event.x", b"x" * 500_000, {}) for n in range(40)]
        await relay.publisher.publish_all(large)
        await asyncio.wait_for(relay.nats.close(), 30)  # it would wait for the socket for ever


async def test_one_event_asked_for_by_its_id_waits_for_the_broker_too(
    fragile: Relay, own_nats: NatsServer
) -> None:
    [first, *_] = fragile.unpublished()
    own_nats.kill()
    with pytest.raises(BrokerUnreachable):
        await fragile.command().publish(first["id"])
    nothing_spent(fragile)
    own_nats.start()
    await converged(fragile)


async def test_nothing_leaves_after_the_time_of_the_claim_is_up(relay: Relay) -> None:
    await relay.create_stream()
    relay.publisher = publisher = NatsJetStreamPublisher(relay.nats, ack_timeout=timedelta(milliseconds=300))
    # A batch has twice the acknowledgement's time-out: however quick the server, it is over after ten.
    at_ack(relay, 1 + 10, lambda: time.sleep(0.7))
    # Connected beforehand, as that would take of the time, and how long it takes is another matter.
    await publisher.publish(f"{relay.context}.event.first.v1", b"{}", {"Nats-Msg-Id": "first"})
    subject = f"{relay.context}.event.vibe_created.v1"
    messages = [
        Message(str(number), subject, b"{}", {"Nats-Msg-Id": str(number)}, "one key") for number in range(1_000)
    ]
    outcomes = list((await publisher.publish_all(messages)).values())
    await (await relay.nats.client()).flush()
    published = sum(isinstance(outcome, Published) for outcome in outcomes)
    unknown = sum(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)
    assert published <= 10
    assert unknown <= 1
    assert [type(outcome) for outcome in outcomes[published + unknown :]] == [NotSent] * (
        1_000 - published - unknown
    )
    stored = (await relay.admin(lambda js: js.stream_info(relay.stream))).state.messages - 1
    assert published <= stored <= published + unknown


async def test_waiting_for_the_connection_spends_the_time_of_the_claim_too(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await relay.create_stream()
    relay.publisher = NatsJetStreamPublisher(relay.nats, ack_timeout=SHORT)
    relay.add(event())
    connect = relay.nats.client

    async def late() -> Client:
        await asyncio.sleep(2.1)  # a batch has twice the acknowledgement's time-out
        return await connect()

    with monkeypatch.context() as patch:
        patch.setattr(relay.nats, "client", late)
        with pytest.raises(BrokerUnreachable):
            await relay.command().drain(ALL)
    nothing_spent(relay)
    assert await relay.ids() == []
    await converged(relay)


# --- the database ---


def address(connection: Any) -> str:
    """Where a connection leads; what it shows itself leaves the password out."""
    return f"{connection.info.dsn} password={connection.info.password}"


async def terminate(claim: Any) -> None:
    query(address(claim.conn), "SELECT pg_terminate_backend(%s)", claim.conn.info.backend_pid)


async def outlive_the_lease(claim: Any) -> None:
    """What a process meets that was paused for longer than its claim lasts."""
    await claim.conn.execute("SET LOCAL idle_in_transaction_session_timeout = '1ms'")
    gone = "SELECT 1 FROM pg_stat_activity WHERE pid = %s"
    await eventually(
        "the claim is lost", lambda: not query(address(claim.conn), gone, claim.conn.info.backend_pid)
    )


@pytest.mark.parametrize("fault", [terminate, outlive_the_lease])
async def test_a_claim_lost_within_a_batch_is_an_outage_and_its_events_go_out_again(
    relay: Relay, fault: Any
) -> None:
    await relay.create_stream()
    relay.add(*[event(f"v{number % 3}") for number in range(30)])
    with pytest.raises(DatabaseUnreachable):
        await relay.command(claimed=fault).drain(ALL)
    nothing_spent(relay)
    assert len(relay.unpublished()) == 30
    await converged(relay)
    assert {row["published_duplicate"] for row in outbox_rows(relay.url)} == {True}


async def test_a_claim_is_a_lease_of_five_seconds(relay: Relay) -> None:
    shown: list[Any] = []

    async def look(claim: Any) -> None:
        for name in ("idle_in_transaction_session_timeout", "statement_timeout"):
            cursor = await claim.conn.execute("SELECT current_setting(%s)", [name])
            shown.extend(await cursor.fetchone())

    await relay.command(claimed=look).drain(ALL)
    assert shown == ["5s", "5s"]
    async with relay.pool.connection() as connection:
        cursor = await connection.execute("SHOW idle_in_transaction_session_timeout")
        assert await cursor.fetchone() == ("0",)


async def test_a_database_that_restarts_meanwhile_is_an_outage(
    own_postgres: PostgresServer, nats_server: NatsServer
) -> None:
    url = own_postgres.create_database("outage")
    upgrade(url)
    async with Relay(url, nats_server.url) as relay:
        await relay.create_stream()
        relay.add(*[event(f"v{number % KEYS}") for number in range(COUNT)])
        with pytest.raises(DatabaseUnreachable):
            await relay.command(batch_size=50).drain(ALL, after(1, lambda: own_postgres.stop("immediate")))
        with pytest.raises(DatabaseUnreachable):
            await relay.command().drain(ALL)
        own_postgres.start()
        assert len(relay.unpublished()) == COUNT - 50
        nothing_spent(relay)
        await converged(relay)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("SET TRANSACTION READ ONLY", DatabaseUnreachable),  # after a failover
        ("SELECT no_such_column FROM outbox_events", SchemaMissing),
        ("SELECT 1 / 0", psycopg.errors.DivisionByZero),
    ],
)
async def test_a_database_that_may_only_be_read_is_an_outage_and_a_mistake_is_none(
    relay: Relay, sql: str, error: type[Exception]
) -> None:
    await relay.create_stream()
    relay.add(event())

    async def fault(claim: Any) -> None:
        await claim.conn.execute(sql)

    with pytest.raises(error):
        await relay.command(claimed=fault).drain(ALL)
    await converged(relay)


async def test_the_server_ends_a_claim_that_idles_and_its_lanes_are_free(relay: Relay) -> None:
    """As it does for a worker that is paused: by the limit that its claim has set in one round trip."""
    outbox = PostgresOutboxAdapter(relay.pool.connection)
    async with outbox.find_unpublished(ALL.lanes, 300, 1_000_000):
        """The first claim takes more than one."""
    relay.add(event("v1"))
    held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1785882987 AND granted"

    async def freed() -> bool:
        return not query(relay.url, held)

    async def idle() -> None:
        async with outbox.find_unpublished(ALL.lanes, 300, 1_000_000) as claim:
            assert len(claim.rows) == 1
            assert not await freed()
            await eventually("the lanes are free", freed)
            await claim.mark_published({str(claim.rows[0].id): Published("S", 1, duplicate=False)})

    with pytest.raises(DatabaseUnreachable):
        await idle()
    assert relay.unpublished() != []
