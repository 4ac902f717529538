"""What an operator has paused rests: no call, no attempt, nothing lost; and it goes on in its order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from consumer.pull import PullTimes
from relay.adapters.postgres.circuits import PostgresCircuits
from relay.adapters.postgres.controls import KnownControls, PostgresControls
from relay.adapters.postgres.inbox_chunks import PostgresChunks
from relay.adapters.postgres.pool import Pool
from relay.devstack import NatsServer
from relay.domain.controls import Act, What
from relay.domain.errors import InvalidRequest
from relay.domain.operators import Operator
from tests.integration.consuming import SUBSCRIPTION, Handler, Subscription, subscribed
from tests.integration.publishing import ALL, Relay, event, outbox_rows
from tests.integration.tasking import Mail, Tasks, tasking
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ANN = Operator("ann", "the bank is down")
LEASE = timedelta(seconds=30)
#: What is known is too old at once: every look reads.
AT_ONCE = 0.0


@pytest.fixture
async def sub(database_url: str, nats_server: NatsServer) -> AsyncIterator[Subscription]:
    async with subscribed(database_url, nats_server.url) as found:
        yield found


@pytest.fixture
async def mail(database_url: str) -> AsyncIterator[Tasks]:
    async with tasking(database_url) as found:
        yield found


def controls_of(sub: Subscription) -> PostgresControls:
    return PostgresControls(sub.pool.connection)


async def pause(sub: Subscription, until: datetime | None = None) -> PostgresControls:
    controls = controls_of(sub)
    await controls.pause(What.SUBSCRIPTION, sub.subscription, until, ANN)
    return controls


async def left(sub: Subscription, ids: Sequence[UUID]) -> list[tuple[int, bool]]:
    """The attempts of messages, and whether each is processed."""
    rows = [await sub.row(id) for id in ids]
    return [(row["attempts"], row["processed_at"] is not None) for row in rows]


# --- a subscription ---


async def test_no_way_of_claiming_takes_a_message_of_a_paused_subscription(sub: Subscription) -> None:
    ids = [await sub.received() for _ in range(3)]
    handler, controls = Handler(), await pause(sub)
    assert await sub.process(handler).process(ids[0]) is None
    assert await sub.inbox.claim(ids[0], LEASE) is None
    assert await sub.inbox.claim_many(ids, (), LEASE, 20) == {}
    assert await PostgresChunks(sub.pool).claim(ids, LEASE) == ([], [])
    assert await sub.inbox.overdue(sub.subscription, 10, at_once=True) == [], "no sweep brings them"
    assert (handler.requests, await left(sub, ids)) == ([], [(0, False)] * 3)
    assert await controls.resume(What.SUBSCRIPTION, sub.subscription, ANN)
    for id in ids:
        await sub.process(handler).process(id)
    assert await left(sub, ids) == [(1, True)] * 3


async def test_another_subscription_goes_on(sub: Subscription) -> None:
    await controls_of(sub).pause(What.SUBSCRIPTION, "another", None, ANN)
    id = await sub.received()
    await sub.process(Handler()).process(id)
    assert await left(sub, [id]) == [(1, True)]


async def test_what_runs_when_the_pause_begins_ends(sub: Subscription) -> None:
    id = await sub.received()
    claim = await sub.inbox.claim(id, LEASE)
    assert claim is not None
    await pause(sub)
    assert [it.row.message_id for it in await sub.inbox.mark_all_processed([claim])] == [id]
    assert await left(sub, [id]) == [(1, True)]


async def test_a_pull_fetches_nothing_while_it_is_paused_and_keeps_what_it_has(sub: Subscription) -> None:
    first = await sub.received()
    controls = await pause(sub)
    for _ in range(3):
        await sub.send()
    known = KnownControls(sub.pool.connection, fresh=AT_ONCE)
    looks = iter(range(3))
    pull = sub.pull()
    pull.controls = known.now
    pull.times = PullTimes(fetch=timedelta(milliseconds=100), resting=0.01)
    assert await pull.run(lambda: next(looks, None) is not None) == 0
    assert [row["message_id"] for row in await sub.rows()] == [first]
    replies = [reply async for page in sub.inbox.waiting(sub.subscription, 10) for reply in page]
    assert replies == [(await sub.row(first))["ack_subject"]], "it is kept from redelivery"
    await controls.resume(What.SUBSCRIPTION, sub.subscription, ANN)

    async def came() -> bool:
        rounds = iter(range(2))
        await pull.run(lambda: next(rounds, None) is not None)
        return len(await sub.rows()) == 4

    await eventually("the others came", came)


async def test_an_end_that_comes_while_nobody_looks_ends_the_pause(sub: Subscription) -> None:
    id = await sub.received()
    await pause(sub, datetime.now(UTC) + timedelta(hours=1))
    assert await sub.inbox.claim(id, LEASE) is None
    await sub.query("UPDATE handler_circuits SET paused_until = now()")
    await sub.query("UPDATE controls SET until = now()")
    assert await controls_of(sub).in_force() == []
    [ended] = await PostgresCircuits(sub.pool).open_ones()
    assert (ended.subscription, ended.resumed, ended.open) == (SUBSCRIPTION, True, False)
    assert await sub.inbox.claim(id, LEASE) is not None


async def test_after_a_pause_what_waited_is_enqueued_once(sub: Subscription) -> None:
    controls, circuits = await pause(sub), PostgresCircuits(sub.pool)
    assert await circuits.open_ones() == [], "while it is paused there is nothing to do"
    await controls.resume(What.SUBSCRIPTION, sub.subscription, ANN)
    assert [it.resumed for it in await circuits.open_ones()] == [True]
    await circuits.released(sub.subscription)
    assert await circuits.open_ones() == []


async def test_the_order_of_a_key_holds_over_a_pause(sub: Subscription) -> None:
    sub.keep_order()
    ids = [await sub.received() for _ in range(3)]
    handler, controls = Handler(), await pause(sub)
    for id in ids:
        await sub.process(handler).process(id)
    assert handler.requests == []
    await controls.resume(What.SUBSCRIPTION, sub.subscription, ANN)
    for id in ids:
        await sub.process(handler).process(id)
    assert [it.message_id for it in handler.requests] == ids


# --- what is kept ---


async def test_a_pause_says_who_why_since_when_and_until_when(sub: Subscription) -> None:
    until = datetime.now(UTC) + timedelta(hours=2)
    controls = await pause(sub, until)
    [it] = await controls.in_force()
    assert (it.what, it.name, it.act, it.by, it.reason) == (
        What.SUBSCRIPTION,
        SUBSCRIPTION,
        Act.PAUSE,
        "ann",
        "the bank is down",
    )
    assert it.until == until
    await controls.pause(What.SUBSCRIPTION, SUBSCRIPTION, None, Operator("bob"))
    [again] = await controls.in_force()
    assert (again.since, again.until, again.by) == (it.since, None, "bob")
    await controls.resume(What.SUBSCRIPTION, SUBSCRIPTION, ANN)
    assert not await controls.resume(What.SUBSCRIPTION, SUBSCRIPTION, ANN), "repeatable, and audited once"
    audited = await sub.query("SELECT action, actor, ids FROM audit_log ORDER BY id")
    what = [f"subscription {SUBSCRIPTION}"]
    assert [(row["action"], row["actor"], row["ids"]) for row in audited] == [
        ("control pause", "ann", what),
        ("control pause", "bob", what),
        ("control resume", "ann", what),
    ]


@pytest.mark.parametrize("hours", [-1, 24 * 366])
async def test_an_end_that_is_over_or_too_far_is_refused(sub: Subscription, hours: int) -> None:
    with pytest.raises(InvalidRequest):
        await pause(sub, datetime.now(UTC) + timedelta(hours=hours))
    assert await controls_of(sub).in_force() == []


# --- publishing ---


async def publishing(relay: Relay, controls: KnownControls) -> int:
    return await relay.command(controls=controls.now).drain(ALL)


async def test_nothing_is_published_while_publishing_is_paused(database_url: str, nats_server: NatsServer) -> None:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        ids = relay.add(event("a"), event("b"))
        controls = PostgresControls(relay.pool.connection)
        known = KnownControls(relay.pool.connection, fresh=AT_ONCE)
        await controls.pause(What.PUBLISHING, "", None, ANN)
        assert await publishing(relay, known) == 0
        assert [row["publish_attempts"] for row in outbox_rows(database_url)] == [0, 0]
        await controls.resume(What.PUBLISHING, "", ANN)
        assert await publishing(relay, known) == 2
        assert await relay.ids() == [str(id) for id in ids]


async def test_a_paused_type_of_events_holds_back_its_keys_and_no_others(
    database_url: str, nats_server: NatsServer
) -> None:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        held, behind, other = relay.add(
            event("a", event_type="billed"), event("a", event_type="shipped"), event("b", event_type="shipped")
        )
        controls = PostgresControls(relay.pool.connection)
        known = KnownControls(relay.pool.connection, fresh=AT_ONCE)
        await controls.pause(What.EVENT_TYPE, "billed", None, ANN)
        assert await publishing(relay, known) == 1
        assert await publishing(relay, known) == 0
        assert await relay.ids() == [str(other)]
        await controls.resume(What.EVENT_TYPE, "billed", ANN)
        while await publishing(relay, known):
            pass
        assert await relay.ids() == [str(other), str(held), str(behind)]


# --- tasks ---


@pytest.fixture
async def operator(database_url: str) -> AsyncIterator[Pool]:
    async with Pool(database_url, max_size=2, application_name="operator") as pool:
        yield pool


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize(("what", "name"), [(What.TASK_TYPE, "mail"), (What.TASK_QUEUE, "default")])
async def test_a_paused_task_does_not_begin_and_spends_no_attempt(
    mail: Tasks, operator: Pool, what: What, name: str, threads: bool
) -> None:
    ran: list[int] = []

    def send(payload: Mail) -> None:
        ran.append(payload.n)

    mail.register(send)
    mail.threads = threads
    controls = PostgresControls(operator.connection)
    mail.rows.controls = KnownControls(operator.connection, fresh=AT_ONCE)
    [id] = mail.schedule(Mail(n=1))
    await mail.deliver()
    await controls.pause(what, name, None, ANN)
    assert await mail.run(id) is None
    row = await mail.row(id)
    assert (ran, row["attempts"], row["waits_for"]) == ([], 0, "resume")
    assert await mail.deliverer.sweep() == 0, "no sweep brings it"
    await controls.resume(what, name, ANN)
    assert await mail.deliverer.sweep() == 1
    await mail.run(id)
    assert (ran, (await mail.row(id))["attempts"]) == ([1], 1)


async def test_the_tasks_of_a_paused_queue_stay_in_the_table(mail: Tasks, operator: Pool) -> None:
    def send(payload: Mail) -> None:
        """Do nothing."""

    def report(payload: Mail) -> None:
        """Do nothing."""

    mail.register(send)
    mail.register(report, "report", queue="reports")
    [first] = mail.schedule(Mail(n=1))
    [other] = mail.schedule(Mail(n=2), task_type="report")
    controls = PostgresControls(operator.connection)
    mail.deliverer = replace(mail.deliverer, controls=KnownControls(operator.connection, fresh=AT_ONCE).now)
    await controls.pause(What.TASK_QUEUE, "default", None, ANN)
    await mail.deliver()
    assert [it.id for it in mail.sent] == [other]
    await controls.resume(What.TASK_QUEUE, "default", ANN)
    await mail.deliver()
    assert [it.id for it in mail.sent] == [other, first]
