"""What an operator decides over events: failed ones again, published ones once more. The relay publishes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta, timezone
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from relay import RequestContext
from relay.adapters.postgres.pool import connected
from relay.adapters.postgres.row_operations import EventFilter, PostgresOutboxOperations
from relay.devstack import NatsServer
from relay.domain.errors import TooMany
from relay.domain.operators import Operator, Outcome
from relay.domain.retry import Backoff
from tests.integration.consuming import Handler, Subscription, subscribed
from tests.integration.incidents import waiting_for_locks
from tests.integration.publishing import ALL, Relay, event, outbox_rows, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ANN = Operator("ann", "because")
_LONG = Backoff(initial=timedelta(seconds=60))
LEDGER = ("published_stream", "published_seq", "published_duplicate")


@pytest.fixture
async def relay(database_url: str, nats_server: NatsServer) -> AsyncIterator[Relay]:
    async with Relay(database_url, nats_server.url) as relay:
        await relay.create_stream()
        yield relay


def outbox(relay: Relay) -> PostgresOutboxOperations:
    return PostgresOutboxOperations(relay.pool.connection)


def codes(outcome: Outcome) -> dict[str, str]:
    return {id: error.code for id, error in outcome.refused}


async def found(relay: Relay, *statuses: str, **wanted: Any) -> list[str]:
    page = await outbox(relay).find(EventFilter(statuses=[*statuses], **wanted), 100)
    return [str(item["id"]) for item in page.items[::-1]]


@pytest.mark.parametrize(
    ("column", "moment", "year", "status"),
    [
        ("occurred_at", "-infinity", 1, "waiting"),
        ("occurred_at", "4000-01-01 BC", 1, "waiting"),
        ("available_at", "infinity", 9999, "delayed"),
        ("available_at", "12000-01-01", 9999, "delayed"),
    ],
)
async def test_a_time_that_python_cannot_hold_hides_no_event(
    relay: Relay, column: str, moment: str, year: int, status: str
) -> None:
    sound, odd = relay.insert(), relay.insert(**{column: moment})
    assert await found(relay, "waiting", "delayed") == [str(sound), str(odd)]
    assert str(odd) in await found(relay, status)
    shown = await outbox(relay).get(odd)
    assert shown is not None
    assert shown[column].year == year
    assert shown[column].astimezone(timezone(timedelta(hours=14))).year == year
    async with connected(relay.url, "test") as source:
        wanted = EventFilter(statuses=["waiting", "delayed"])
        assert len((await PostgresOutboxOperations(source).find(wanted, 9)).items) == 2


async def test_matches_are_counted_up_to_a_limit_and_the_newest_are_shown(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.adapters.postgres.paging.MAX_COUNTED", 5)
    ids = [relay.insert(occurred_at=f"2026-01-0{day}") for day in range(1, 8)]
    wanted = EventFilter(statuses=["waiting"])
    page = await outbox(relay).find(wanted, 2)
    assert ([row["id"] for row in page.items], page.total) == ([ids[6], ids[5]], 5)
    with pytest.raises(TooMany, match="more than 4 match and the limit is 2"):
        page.all_of(2)
    whole = await outbox(relay).find(wanted, 7)
    assert [row["id"] for row in whole.all_of(7)] == ids
    with pytest.raises(TooMany, match="more than 6 "):
        (await outbox(relay).find(wanted, 6)).all_of(6)


async def test_a_dead_event_is_published_when_an_operator_says_so(relay: Relay) -> None:
    event_id = relay.insert(topic="no spaces allowed", aggregate_id="a1")
    await relay.command(max_attempts=1).drain(ALL)
    assert relay.row(event_id)["dead_at"] is not None
    assert await found(relay, "dead", error="SPACES") == [str(event_id)]
    query(relay.url, "UPDATE outbox_events SET topic = NULL")  # the cause is mended
    await relay.command().drain(ALL)
    assert await relay.ids() == []
    assert await outbox(relay).retry([event_id], ANN) == Outcome((str(event_id),), (), deed=1)
    row = relay.row(event_id)
    assert (row["dead_at"], row["available_at"], row["publish_attempts"]) == (None, None, 0)
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(event_id)]
    assert relay.row(event_id)["publish_error"] is None
    assert [dict(entry) for entry in query(relay.url, "SELECT actor, action, ids, note FROM audit_log")] == [
        {"actor": "ann", "action": "outbox.retry", "ids": [str(event_id)], "note": "because"}
    ]


async def test_attempts_start_again_and_end_again(relay: Relay) -> None:
    event_id = relay.insert(topic="no spaces allowed")
    await relay.command().drain(ALL)
    query(relay.url, "UPDATE outbox_events SET topic = 'nowhere.at.all'")
    await outbox(relay).retry([event_id], ANN)
    await relay.command(backoff=_LONG).drain(ALL)
    row = relay.row(event_id)
    assert (row["dead_at"], row["publish_attempts"]) == (None, 1)
    assert await found(relay, "failing") == [str(event_id)]
    assert (await outbox(relay).retry([event_id], ANN)).done == (str(event_id),)  # need not wait for back-off
    assert relay.row(event_id)["available_at"] is None


async def test_what_is_not_retried(relay: Relay) -> None:
    [published] = relay.add(event())
    await relay.drained()
    [waiting] = relay.add(event())
    unknown = uuid4()
    outcome = await outbox(relay).retry([published, waiting, unknown], ANN)
    assert outcome.done == ()
    assert set(codes(outcome).values()) == {"NOT_PUBLISHABLE"}
    assert len(outcome.refused) == 3
    assert relay.row(published)["published_at"] is not None
    assert query(relay.url, "SELECT * FROM audit_log") == []


async def test_an_event_that_is_just_being_published_is_not_retried(relay: Relay) -> None:
    event_id = relay.insert(topic="no spaces allowed")
    await relay.command(max_attempts=2).drain(ALL)
    async with await psycopg.AsyncConnection.connect(relay.url) as publisher:
        await publisher.execute("UPDATE outbox_events SET published_at = now(), published_seq = 7")
        retry = asyncio.create_task(outbox(relay).retry([event_id], ANN))
        await eventually("the operator waits", lambda: waiting_for_locks(relay.url))
    assert codes(await retry) == {str(event_id): "NOT_PUBLISHABLE"}
    assert relay.row(event_id)["published_seq"] == 7


async def test_a_replayed_event_is_stored_again_though_the_duplicate_window_is_open(relay: Relay) -> None:
    [event_id] = relay.add(event())
    await relay.drained()
    before = relay.row(event_id)
    assert before["published_seq"] == 1
    assert (await outbox(relay).replay([event_id], ANN)).done == (str(event_id),)
    pending = relay.row(event_id)
    assert [pending[name] for name in LEDGER] == [before[name] for name in LEDGER]  # the copy that there is
    await relay.drained()
    assert await relay.ids() == [str(event_id), f"{event_id}.1"]
    after = relay.row(event_id)
    assert [after[name] for name in LEDGER] == [relay.stream, 2, False]
    await outbox(relay).replay([event_id], ANN)
    await relay.drained()
    assert (await relay.ids())[-1] == f"{event_id}.2"


async def test_a_replay_keeps_the_order_of_each_key_over_batches(relay: Relay) -> None:
    ids = [id for n in range(30) for id in relay.add(event(f"v{n % 3}", payload={"n": n}))]
    await relay.drained()
    shuffled = sorted(ids, key=lambda id: id.int % 97)
    assert len((await outbox(relay).replay(shuffled, ANN)).done) == 30
    await relay.drained(relay.command(batch_size=4))
    replayed = [body["payload"]["n"] for body in (await relay.bodies())[30:]]
    assert len(replayed) == 30
    for key in range(3):
        assert [n for n in replayed if n % 3 == key] == list(range(key, 30, 3))


async def test_new_events_do_not_wait_behind_a_replay(relay: Relay) -> None:
    old = [id for n in range(20) for id in relay.add(event(f"v{n}"))]
    await relay.drained()
    await outbox(relay).replay(old, ANN)
    [new] = relay.add(event("new"))
    batches: list[list[str]] = []

    async def note(claim: Any) -> None:
        batches.append([row.id for row in claim.rows])

    await relay.command(batch_size=5, claimed=note).drain(ALL)
    assert str(new) in batches[0]
    await relay.drained()


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("dead", [False, True])
async def test_a_replay_that_fails_holds_back_the_rest_of_it_and_no_new_event(
    relay: Relay, blocks: bool, dead: bool
) -> None:
    first, second = relay.add(event("v1"), event("v1"))
    await relay.drained()
    await outbox(relay).replay([first, second], ANN)
    topic = "not a subject" if dead else "nowhere.at.all"
    query(relay.url, "UPDATE outbox_events SET topic = %s WHERE id = %s", topic, first)
    command = relay.command(dead_head_blocks=blocks, backoff=_LONG)
    await command.drain(ALL)
    assert relay.row(first)["publish_attempts"] == 1
    assert (relay.row(first)["dead_at"] is not None) == dead
    [new] = relay.add(event("v1"))
    await command.drain(ALL)
    assert str(new) in await relay.ids()
    # As everywhere, a dead head is skipped unless it blocks.
    assert (f"{second}.1" in await relay.ids()) == (dead and not blocks)


async def test_one_event_by_id_does_not_wait_for_a_replay_either(relay: Relay) -> None:
    [old] = relay.add(event("v1"))
    await relay.drained()
    await outbox(relay).replay([old], ANN)
    query(relay.url, "UPDATE outbox_events SET publish_attempts = 1")
    [new] = relay.add(event("v1"))
    assert (await relay.command().publish(new)).seq == 2


async def test_a_replay_that_is_on_its_way_is_not_started_again(relay: Relay) -> None:
    [event_id] = relay.add(event())
    await relay.drained()
    outcomes = await asyncio.gather(*(outbox(relay).replay([event_id], ANN) for _ in range(4)))
    assert sorted(len(outcome.done) for outcome in outcomes) == [0, 0, 0, 1]
    assert {code for outcome in outcomes for code in codes(outcome).values()} == {"NOT_REPLAYABLE"}
    assert outbox_rows(relay.url)[0]["generation"] == 1


async def test_events_are_found_by_id_aggregate_time_and_correlation(relay: Relay) -> None:
    correlation = uuid4()
    with RequestContext(correlation_id=correlation).use():
        [first] = relay.add(event("v1"))
    [second] = relay.add(event("v2", event_type="vibe_deleted"))
    await relay.drained()
    times = [row["occurred_at"] for row in outbox_rows(relay.url)]
    one, two = [str(first)], [str(second)]
    assert await found(relay, "published", aggregate_type="vibe", aggregate_id="v1") == one
    assert await found(relay, "published", correlation_id=correlation) == one
    assert await found(relay, "published", event_type="vibe_deleted") == two
    assert await found(relay, "published", since=times[1]) == two
    assert await found(relay, "published", until=times[1]) == one
    assert await found(relay, "published") == [*one, *two]
    assert await found(relay, "dead", "failing", "waiting") == []
    page = await outbox(relay).find(EventFilter(statuses=["published"]), 1)
    with pytest.raises(TooMany):
        page.all_of(1)


async def test_a_consumer_that_has_processed_an_event_skips_its_replay(
    database_url: str, nats_server: NatsServer
) -> None:
    async with (
        subscribed(database_url, nats_server.url) as sub,
        Relay(database_url, nats_server.url, context=sub.name) as relay,
    ):
        handler = Handler()
        [event_id] = relay.add(event())
        await relay.command().drain(ALL)
        await handled(sub, handler, event_id)
        await outbox(relay).replay([event_id], ANN)
        await relay.command().drain(ALL)
        assert await sub.pull().accept(await sub.fetch()) == 0
        await sub.process(handler).process(event_id)
        assert len(handler.requests) == 1
        await sub.acked()
        assert (await sub.js.stream_info(sub.stream)).state.messages == 2


async def handled(sub: Subscription, handler: Handler, event_id: UUID) -> None:
    await sub.pull().accept(await sub.fetch())
    await sub.process(handler).process(event_id)
    assert len(handler.requests) == 1
