"""Bad input is refused where it enters, with a code and the field, and harms nothing around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine
from sqlalchemy import event as listen
from sqlalchemy.orm import Session, sessionmaker

from relay import Event, Outbox, RelayError
from relay.domain.errors import InvalidEvent, NoTransaction, PayloadTooLarge
from tests.integration.publishing import Producer, Relay, engine_url, event, outbox_rows, query

OUTBOX = Outbox("vibespro")


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Anything(BaseModel):
    value: Any


TOMORROW = datetime.now(UTC) + timedelta(days=1)
NAIVE = datetime(2026, 1, 2)  # noqa: DTZ001

#: What is wrong, its code, its field.
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"topic": "vibespro.event." + "x" * 5_000}, "INVALID_SUBJECT", "topic"),
    ({"topic": "vibespro.event.>"}, "INVALID_SUBJECT", "topic"),
    ({"event_type": "x" * 5_000}, "INVALID_SUBJECT", "event_type"),
    ({"event_type": "vibe.created"}, "INVALID_SUBJECT", "event_type"),
    ({"event_type": ""}, "INVALID_OUTBOX", "event_type"),
    ({"event_version": 0}, "INVALID_SUBJECT", "event_version"),
    ({"payload": "x" * 1_048_576}, "PAYLOAD_TOO_LARGE", "payload"),
    ({"payload": [1e-300] * 10_000}, "PAYLOAD_TOO_LARGE", "payload"),  # as PostgreSQL writes it
    ({"payload": {"n": math.nan}}, "INVALID_PAYLOAD", "payload.n"),
    ({"payload": [1, -math.inf]}, "INVALID_PAYLOAD", "payload[1]"),
    ({"payload": {"text": "a\x00b"}}, "INVALID_PAYLOAD", "payload.text"),
    ({"payload": {"a\x00b": 1}}, "INVALID_PAYLOAD", "payload"),
    ({"payload": ["\ud800"]}, "INVALID_PAYLOAD", "payload[0]"),
    ({"payload": nested(1_500)}, "INVALID_PAYLOAD", "payload"),
    ({"payload": Anything(value=nested(1_500))}, "INVALID_PAYLOAD", "payload"),
    ({"payload": Anything(value=object())}, "INVALID_PAYLOAD", "payload"),
    ({"payload": {"n": 2**63}}, "INVALID_PAYLOAD", "payload.n"),
    ({"payload": {"at": NAIVE}}, "INVALID_PAYLOAD", "payload.at"),
    ({"payload": {1: 2}}, "INVALID_PAYLOAD", "payload"),
    ({"headers": None}, "INVALID_HEADER", "headers"),
    ({"headers": {"Nats-Rollup": "all"}}, "INVALID_HEADER", "headers.Nats-Rollup"),
    ({"headers": {"nats-msg-id": "1"}}, "INVALID_HEADER", "headers.nats-msg-id"),
    ({"headers": {"A B": "1"}}, "INVALID_HEADER", "headers"),
    ({"headers": {"A": "1\r\nB: 2"}}, "INVALID_HEADER", "headers.A"),
    ({"occurred_at": TOMORROW}, "FUTURE_EVENT", "occurred_at"),
    ({"occurred_at": NAIVE}, "INVALID_TIMESTAMP", "occurred_at"),
    ({"occurred_at": "2026-01-02"}, "INVALID_TIMESTAMP", "occurred_at"),
    ({"available_at": NAIVE}, "INVALID_TIMESTAMP", "available_at"),
    ({"id": 7}, "INVALID_OUTBOX", "id"),
    ({"id": "x" * 201}, "INVALID_KEY", "id"),
    ({"correlation_id": "a\nb"}, "INVALID_KEY", "correlation_id"),
    ({"causation_id": ""}, "INVALID_KEY", "causation_id"),
    ({"headers": {"Relay-Actor-Id": "ann"}}, "INVALID_ACTOR", "actor_kind"),
    ({"aggregate_id": ""}, "INVALID_KEY", "aggregate_id"),
    ({"aggregate_id": "ä" * 101}, "INVALID_KEY", "aggregate_id"),
    ({"aggregate_type": "a\x00"}, "INVALID_KEY", "aggregate_type"),
    ({"partition_key": ""}, "INVALID_KEY", "partition_key"),
    ({"partition_key": "k" * 402}, "INVALID_KEY", "partition_key"),
]


def bad_event(values: dict[str, Any]) -> Event:
    good = {"event_type": "vibe_created", "aggregate_type": "vibe", "aggregate_id": "v1", "payload": {}}
    return Event(**good | values)


def check(refused: Callable[[], object], code: str, field: str) -> None:
    with pytest.raises(RelayError) as caught:
        refused()
    assert (caught.value.code, caught.value.field) == (code, field)
    assert code in str(caught.value)
    assert field in str(caught.value)


def test_each_kind_of_bad_input_has_its_code_and_field_and_spoils_nothing_else(database_url: str) -> None:
    engine = create_engine(engine_url(database_url))
    with Session(engine) as session:
        OUTBOX.add(session, event("before"))
        for values, code, field in BAD:
            # The good event of the same call is not written either.
            check(lambda: OUTBOX.add_many(session, [event("refused"), bad_event(values)]), code, field)  # noqa: B023
        OUTBOX.add(session, event("after"))
        session.commit()
    engine.dispose()
    assert [row["aggregate_id"] for row in outbox_rows(database_url)] == ["before", "after"]


@pytest.mark.anyio
async def test_bad_input_leaves_the_transaction_of_every_target_usable(
    producer: Producer, database_url: str
) -> None:
    query(database_url, "CREATE TABLE vibes (id int)")
    await producer.execute("INSERT INTO vibes VALUES (1)")
    for values, code, _ in BAD[:3]:
        with pytest.raises(InvalidEvent) as caught:
            await producer.add(event("refused"), bad_event(values))
        assert caught.value.code == code
    await producer.call("commit")
    assert outbox_rows(database_url) == []
    assert len(query(database_url, "SELECT * FROM vibes")) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("envelope", ["handler", "raw", "message-envelope"])
@pytest.mark.parametrize("text", [None, '"' * 199, "\u65e5" * 66])
async def test_the_largest_event_that_is_accepted_can_be_published(
    relay: Relay, envelope: str, text: str | None
) -> None:
    await relay.create_stream()
    # With the longest names: the envelope and the headers grow with them, the key threefold.
    longest: dict[str, Any] = {
        "event_type": "t" * 64,
        "partition_key": "ä" * 200,
        "id": text and f"{text}!",
        "correlation_id": text or uuid4(),
        "causation_id": text or uuid4(),
        "headers": {f"Header-{number}": "v" * 200 for number in range(32)},
    }
    low, high = 0, 1_048_576
    while high - low > 1:
        size = (low + high) // 2
        try:
            relay.outbox._row(event(**longest, payload={"": "x" * size}))
        except PayloadTooLarge:
            high = size
        else:
            low = size
    assert low > 1_000_000
    [event_id] = relay.add(event(**longest, payload={"": "x" * low}))
    assert (await relay.command(envelope=envelope).publish(event_id)).seq == 1


def test_a_lower_limit_of_the_broker_can_be_told() -> None:
    small = Outbox("vibespro", max_payload=10_000)
    small._row(event(payload="x" * 5_000))
    check(lambda: small._row(event(payload="x" * 9_000)), "PAYLOAD_TOO_LARGE", "payload")


def test_what_is_too_short_to_be_measured_would_fit() -> None:
    measured, trusted = (Outbox("vibespro", max_payload=60_000) for _ in range(2))
    measured._surely_fits = 0
    # Of all texts of a length, PostgreSQL might make most of this one.
    worst = ("1e-999 " * 1_000)[: trusted._surely_fits - len('""') - 1]
    longest = event(payload=worst, event_type="t" * 64, partition_key="\u4e2d" * 133)
    assert trusted._row(longest).payload == measured._row(longest).payload
    check(lambda: measured._row(event(payload=worst * 2)), "PAYLOAD_TOO_LARGE", "payload")
    check(lambda: trusted._row(event(payload=worst * 2)), "PAYLOAD_TOO_LARGE", "payload")


# --- sessions without a transaction to share ---


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine(engine_url(database_url))
    yield engine
    engine.dispose()


def add(session: Session, name: str) -> None:
    OUTBOX.add(session, event(name))


def names(url: str) -> list[str]:
    return [row["aggregate_id"] for row in outbox_rows(url)]


def test_after_the_commit_it_is_too_late(engine: Engine, database_url: str) -> None:
    factory = sessionmaker(engine)
    listen.listen(factory, "after_commit", lambda session: add(session, "late"))
    with factory() as session, pytest.raises(NoTransaction):
        session.commit()
    assert names(database_url) == []


def test_a_session_that_never_begins_by_itself_has_to_be_begun(engine: Engine, database_url: str) -> None:
    with Session(engine, autobegin=False) as session:
        with pytest.raises(NoTransaction):
            add(session, "refused")
        with session.begin():
            add(session, "kept")
    assert names(database_url) == ["kept"]
