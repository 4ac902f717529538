"""What happens to events that cannot be published: bad rows, missing and full streams, and those behind them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.adapters.jetstream.publisher import NatsJetStreamPublisher
from relay.commands.publish import PublishOutboxEvents
from relay.devstack import NatsServer
from relay.domain.errors import BrokerUnreachable, NotPublishable
from relay.domain.facts import EventDied, PublishFailed
from relay.domain.identity import NatsMsgId
from relay.domain.retry import Backoff
from tests.integration.publishing import ALL, Relay, event, query
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

#: The time to wait for a PubAck by default. A claim has time for two.
DEFAULT = timedelta(seconds=2)
DEEP = "[" * 1_500 + "]" * 1_500
LARGE = '{"text": "' + "x" * 1_100_000 + '"}'

#: Rows that any program may insert by raw SQL, and the code of the reason they die for.
POISON: list[tuple[dict[str, Any], str]] = [
    ({"event_type": "bad name"}, "INVALID_SUBJECT"),
    ({"event_type": "x" * 5_000}, "INVALID_SUBJECT"),
    ({"event_type": "vibe.*"}, "INVALID_SUBJECT"),
    ({"event_type": 'bad"name', "topic": "nowhere.at.all"}, "INVALID_SUBJECT"),
    ({"event_version": 0}, "INVALID_SUBJECT"),
    ({"topic": "vibespro." + "x" * 5_000}, "INVALID_SUBJECT"),
    ({"topic": ""}, "INVALID_SUBJECT"),
    ({"topic": "vibespro.event.>"}, "INVALID_SUBJECT"),
    ({"topic": "a b\r\nPUB c 0"}, "INVALID_SUBJECT"),
    ({"payload": DEEP}, "INVALID_PAYLOAD"),
    ({"payload": LARGE}, "PAYLOAD_TOO_LARGE"),
    ({"payload": '{"n": 9223372036854775808}'}, "INVALID_PAYLOAD"),
    ({"payload": "[1e400]"}, "INVALID_PAYLOAD"),
    ({"headers": '{"Nats-Rollup": "all"}'}, "INVALID_HEADER"),
    ({"headers": '{"nats-msg-id": "1"}'}, "INVALID_HEADER"),
    ({"headers": '{"A": "1\\r\\nNats-Rollup: all"}'}, "INVALID_HEADER"),
    ({"headers": '{"A": 1}'}, "INVALID_HEADER"),
    ({"headers": "[]"}, "INVALID_HEADER"),
    ({"headers": DEEP}, "INVALID_PAYLOAD"),
    ({"originals": DEEP}, "INVALID_PAYLOAD"),
    ({"originals": '{"id": 7}'}, "INVALID_KEY"),
    ({"originals": '{"id": "550e8400-e29b-41d4-a716-446655440000"}'}, "INVALID_KEY"),
    ({"originals": '{"id": "a\\nb"}'}, "INVALID_KEY"),
    ({"occurred_at": "-infinity"}, "INVALID_OUTBOX"),
    ({"partition_key": "k" * 70_000}, "INVALID_KEY"),
]


def due(relay: Relay) -> None:
    """Let the back-off be over."""
    query(relay.url, "UPDATE outbox_events SET available_at = now() WHERE available_at IS NOT NULL")


async def drain_until_dead(relay: Relay, command: PublishOutboxEvents, event_id: UUID) -> None:
    async def tick() -> Any:
        due(relay)
        await command.drain(ALL)
        return relay.row(event_id)["dead_at"]

    await eventually("the event is dead", tick)


# --- bad rows ---


@pytest.mark.parametrize("envelope", ["handler", "message-envelope", "cloudevents", "raw"])
async def test_bad_rows_die_at_once_with_a_reason_and_harm_nobody_around_them(relay: Relay, envelope: str) -> None:
    await relay.create_stream()
    command = relay.command(envelope=envelope)
    [first] = relay.add(event("around"))
    await command.drain(ALL)
    connection = await relay.nats.client()
    ids, good = [], [str(first)]
    for number, (values, _) in enumerate(POISON):
        ids.append(relay.insert(aggregate_id=f"bad {number}", **values))
        good += map(str, relay.add(event("around"), event("around", partition_key=None)))
    assert await command.drain(ALL) == len(good) - 1
    sent = [NatsMsgId.read(message.headers) for message in await relay.messages()]
    assert sorted(str(id and id.event_id) for id in sent) == sorted(good)
    for id, (values, code) in zip(ids, POISON, strict=True):
        row = relay.row(id)
        assert row["publish_error"].startswith("unrecoverable: "), values
        assert code in row["publish_error"], values
        assert (row["publish_attempts"], row["published_at"]) == (1, None)
        assert row["dead_at"]
    assert (await relay.nats.client(), connection.stats["reconnects"]) == (connection, 0)
    died = [fact.outbox_id for fact in relay.facts if isinstance(fact, EventDied)]
    assert sorted(died) == sorted(map(str, ids))
    assert not any(isinstance(fact, PublishFailed) for fact in relay.facts)


async def test_a_row_of_bad_ones_in_one_key_holds_up_what_follows_for_no_time(relay: Relay) -> None:
    await relay.create_stream()
    dead = [relay.insert(event_type="bad name", partition_key="vibe:v1") for _ in range(5)]
    [behind] = relay.add(event("v1"))
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(behind)]
    assert all(relay.row(id)["dead_at"] for id in dead)


async def test_the_wait_between_attempts_grows_and_is_kept(relay: Relay) -> None:
    await relay.create_stream(max_msg_size=2_000)
    [bad] = relay.add(event(payload="x" * 3_000))
    backoff = Backoff(initial=timedelta(minutes=1), maximum=timedelta(minutes=3))
    command = relay.command(max_attempts=9, backoff=backoff)
    for attempts, nominal in enumerate([1, 2, 3, 3], start=1):
        await command.drain(ALL)
        await command.drain(ALL)
        row = relay.row(bad)
        assert row["publish_attempts"] == attempts
        wait = row["available_at"] - datetime.now(UTC)
        assert timedelta(minutes=0.75 * nominal) < wait <= timedelta(minutes=nominal)
        due(relay)


async def test_a_message_that_only_the_stream_refuses_is_the_fault_of_its_row(relay: Relay) -> None:
    await relay.create_stream(max_msg_size=2_000)
    big, behind, other = relay.add(event("v1", payload="x" * 3_000), event("v1"), event("v2"))
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(other)]
    assert (relay.row(big)["publish_attempts"], relay.row(behind)["publish_attempts"]) == (1, 0)
    # An operator may raise the stream's limit, so it is tried again.
    await drain_until_dead(relay, relay.command(), big)
    assert (relay.row(big)["publish_attempts"], await relay.ids()) == (3, [str(other), str(behind)])
    assert "10054" in relay.row(big)["publish_error"]


async def test_a_message_over_the_limit_of_a_server_just_met_does_not_cost_the_connection(
    relay: Relay, own_small_nats: NatsServer
) -> None:
    async with Relay(relay.url, own_small_nats.url) as small:
        await small.create_stream()
        # The body alone is below 64 kB, which is all that the client library compares.
        big = small.insert(payload='"' + "x" * 64_500 + '"', headers='{"A": "' + "x" * 1_000 + '"}')
        small.add(event("v1"), event("v2"))
        assert await small.command().drain(ALL) == 2
        assert "over the server's limit of 65536 bytes" in small.row(big)["publish_error"]
        assert small.row(big)["dead_at"]
        assert (await small.nats.client()).stats["reconnects"] == 0


@pytest.fixture
def own_small_nats(server_directory: Any) -> Any:
    class Small(NatsServer):
        def _configuration(self) -> str:
            return super()._configuration().replace("max_payload: 1MB", "max_payload: 64KB")

    with Small(server_directory / "nats") as server:
        yield server


# --- what a failed event holds back ---


async def test_a_failed_event_holds_back_its_own_key_only(relay: Relay) -> None:
    await relay.create_stream()
    relay.insert(topic="nowhere.at.all", partition_key="vibe:v1")
    overdue = event("v1", available_at=datetime.now(UTC) - timedelta(days=1))
    free, unordered, *held = relay.add(event("v2"), event("v1", partition_key=None), event("v1"), overdue)
    for _ in range(2):
        await relay.command(max_attempts=9).drain(ALL)
    due(relay)
    await relay.command(max_attempts=9).drain(ALL)
    assert sorted(await relay.ids()) == sorted([str(free), str(unordered)])
    for row in map(relay.row, held):
        assert (row["published_at"], row["publish_attempts"], row["publish_error"]) == (None, 0, None)


@pytest.mark.parametrize("blocks", [False, True])
async def test_a_dead_event_lets_its_key_go_on_or_blocks_it_as_configured(relay: Relay, blocks: bool) -> None:
    await relay.create_stream()
    dead = relay.insert(event_type="bad name", partition_key="vibe:v1")
    held, free = relay.add(event("v1"), event("v2"))
    command = relay.command(dead_head_blocks=blocks)
    await command.drain(ALL)
    assert relay.row(dead)["dead_at"]
    assert sorted(await relay.ids()) == sorted([str(free)] if blocks else [str(free), str(held)])
    if blocks:
        with pytest.raises(NotPublishable):
            await command.publish(held)
    query(relay.url, "UPDATE outbox_events SET event_type = 'mended' WHERE id = %s", dead)
    await command.publish(dead)
    await command.drain(ALL)
    assert (await relay.ids())[1 if blocks else 2] == str(dead)
    row = relay.row(dead)
    assert (row["dead_at"], row["publish_error"], row["publish_attempts"]) == (None, None, 2)


async def test_a_bad_event_asked_for_by_its_id_is_refused_with_the_reason(relay: Relay) -> None:
    await relay.create_stream()
    bad = relay.insert(event_type="bad name")
    for attempts in range(1, 5):
        with pytest.raises(NotPublishable, match="INVALID_SUBJECT"):
            await relay.command().publish(bad)
        assert relay.row(bad)["publish_attempts"] == attempts
    assert relay.row(bad)["dead_at"]


async def test_a_delayed_event_goes_out_when_it_is_due_and_holds_nobody(relay: Relay) -> None:
    await relay.create_stream()
    at = datetime.now(UTC) + timedelta(seconds=1)
    delayed, later, never = relay.add(
        event("v1", available_at=at), event("v1"), event("v2", available_at=at + timedelta(days=1))
    )
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(later)]

    async def tick() -> bool:
        return await relay.command().drain(ALL) == 1

    await eventually("the delayed event is published", tick)
    assert relay.row(delayed)["published_at"] >= at
    assert [row["id"] for row in relay.unpublished()] == [never]
    assert relay.row(delayed)["publish_attempts"] == 1


# --- streams ---


async def test_without_a_stream_events_wait_and_never_die(relay: Relay) -> None:
    ids = relay.add(event("v1"), event("v1"), event("v2"))
    command = relay.command(max_attempts=2)
    for _ in range(5):
        assert await command.drain(ALL) == 0
        rows = [relay.row(id) for id in ids]
        # The first failure marks the head of its key, and no other counts. The second of a key is not even tried.
        assert [row["publish_attempts"] for row in rows] == [1, 0, 1]
        assert [row["dead_at"] for row in rows] == [None] * 3
        due(relay)
    assert f"no stream takes the subject {relay.context}.event" in rows[0]["publish_error"]
    await relay.create_stream()
    await relay.drained()
    stored = await relay.ids()
    assert sorted(stored) == sorted(map(str, ids))
    assert stored.index(str(ids[0])) < stored.index(str(ids[1]))
    assert {row["publish_error"] for row in map(relay.row, ids)} == {None}


async def test_a_subject_no_stream_takes_holds_back_its_key_within_the_batch(relay: Relay) -> None:
    await relay.create_stream()
    lost, behind, other = relay.add(event("v1", topic="nowhere.at.all"), event("v1"), event("v2"))
    await relay.command().drain(ALL)
    assert await relay.ids() == [str(other)]
    assert (relay.row(lost)["publish_attempts"], relay.row(behind)["publish_attempts"]) == (1, 0)


async def test_failures_and_deaths_are_told_with_correlation_and_causation(relay: Relay) -> None:
    await relay.create_stream()
    about = {"correlation_id": uuid4(), "causation_id": uuid4()}
    waits, dies = relay.add(event("v1", topic="nowhere.at.all", **about), event("v2", **about))
    query(relay.url, "UPDATE outbox_events SET topic = 'a b', publish_attempts = 99 WHERE id = %s", dies)
    await relay.command().drain(ALL)
    told = [fact for fact in relay.facts if isinstance(fact, PublishFailed | EventDied)]
    assert {type(fact): fact.outbox_id for fact in told} == {PublishFailed: str(waits), EventDied: str(dies)}
    for fact in told:
        assert (fact.correlation_id, fact.causation_id) == tuple(map(str, about.values()))


async def test_a_batch_that_got_part_of_it_through_is_followed_by_another(relay: Relay) -> None:
    """However slow a link is: a job that is repeated waits longer each time."""
    relay.ack_timeout = DEFAULT  # the time of the halves is part of it
    relay.publisher = NatsJetStreamPublisher(relay.nats, ack_timeout=DEFAULT)
    await relay.create_stream(max_msgs=3, discard="new")
    relay.add(*[event(f"v{number}") for number in range(10)])
    left: list[int] = []

    async def note(claim: Any) -> None:
        left.append(len(claim.rows))

    with pytest.raises(BrokerUnreachable, match="10077"):
        await relay.command(claimed=note).drain(ALL)
    # The next one comes in halves.
    assert (left[0], sum(left[1:])) == (10, 7)


async def test_a_full_stream_pushes_back_and_costs_no_attempt(relay: Relay) -> None:
    await relay.create_stream(max_msgs=3, discard="new")
    ids = relay.add(*[event("v1") for _ in range(10)])
    for _ in range(3):
        with pytest.raises(BrokerUnreachable, match="10077"):
            await relay.command().drain(ALL)
    assert await relay.ids() == [str(id) for id in ids[:3]]
    waiting = relay.unpublished()
    assert [row["id"] for row in waiting] == ids[3:]
    assert {(row["publish_attempts"], row["publish_error"], row["available_at"]) for row in waiting} == {
        (0, None, None)
    }
    await relay.update_stream(max_msgs=100, discard="new")
    await relay.drained()
    assert await relay.ids() == [str(id) for id in ids]
