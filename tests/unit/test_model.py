"""The entities and values of SDS-047 §2, and the codes of its policies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import settings

from relay.domain.errors import (
    DuplicateMessage,
    FutureEvent,
    InvalidEvent,
    InvalidHeader,
    InvalidKey,
    InvalidSubject,
    InvalidTimestamp,
    MalformedMessage,
    RelayError,
)
from relay.domain.model import HandlerResult, OutboxEvent, Verdict

quick = settings(max_examples=100, deadline=None)

ID = UUID("0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
TEXT = "0193a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
OTHER = UUID("550e8400-e29b-41d4-a716-446655440000")
NOON = datetime(2025, 12, 28, 12, 0, tzinfo=UTC)


def event(**changes: Any) -> OutboxEvent:
    fields: dict[str, Any] = {
        "id": ID,
        "aggregate_type": "vibe",
        "aggregate_id": "42",
        "event_type": "vibe_created",
        "payload": "{}",
        "occurred_at": NOON,
    }
    return OutboxEvent(**fields | changes)


# --- POL-047-001: an id and an event type ---


def test_an_event_needs_no_more_than_the_specification_asks_for() -> None:
    plain = event()
    assert (plain.event_version, plain.partition_key, plain.topic, plain.headers) == (1, "", None, {})
    assert (plain.correlation_id, plain.causation_id, plain.available_at) == (None, None, None)
    assert event(occurred_at=None).occurred_at is None  # the database sets it


@pytest.mark.parametrize("field", ["id", "event_type"])
def test_an_event_without_id_or_type_is_an_invalid_outbox(field: str) -> None:
    with pytest.raises(InvalidEvent) as raised:
        event(**{field: None})
    assert (raised.value.code, raised.value.field) == ("INVALID_OUTBOX", field)


def test_an_empty_event_type_is_an_invalid_outbox() -> None:
    with pytest.raises(InvalidEvent) as raised:
        event(event_type="")
    assert (raised.value.code, raised.value.field) == ("INVALID_OUTBOX", "event_type")


@pytest.mark.parametrize("field", ["id", "correlation_id", "causation_id"])
@pytest.mark.parametrize("value", [TEXT, 1, b"0" * 16])
def test_an_id_that_is_no_uuid_is_an_invalid_outbox(field: str, value: object) -> None:
    with pytest.raises(InvalidEvent) as raised:
        event(**{field: value})
    assert (raised.value.code, raised.value.field) == ("INVALID_OUTBOX", field)


@pytest.mark.parametrize(
    ("field", "value", "error", "where"),
    [
        ("event_type", "vibe.created", InvalidSubject, "event_type"),
        ("event_version", 0, InvalidSubject, "event_version"),
        ("aggregate_type", "", InvalidKey, "aggregate_type"),
        ("aggregate_id", "", InvalidKey, "aggregate_id"),
        ("aggregate_id", "x" * 201, InvalidKey, "aggregate_id"),
        ("aggregate_type", "a\x00b", InvalidKey, "aggregate_type"),
        ("partition_key", "x" * 402, InvalidKey, "partition_key"),
        ("partition_key", "\ud800", InvalidKey, "partition_key"),
        ("topic", "sea.*", InvalidSubject, "topic"),
        ("topic", "x" * 5_000, InvalidSubject, "topic"),
        ("topic", "", InvalidSubject, "topic"),
        ("headers", {"Nats-Rollup": "all"}, InvalidHeader, "headers.Nats-Rollup"),
        ("occurred_at", datetime(2025, 12, 28), InvalidTimestamp, "occurred_at"),  # noqa: DTZ001
        ("occurred_at", "2025-12-28T12:00:00Z", InvalidTimestamp, "occurred_at"),
        ("available_at", datetime(2025, 12, 28), InvalidTimestamp, "available_at"),  # noqa: DTZ001
        ("available_at", 60, InvalidTimestamp, "available_at"),
    ],
)
def test_a_bad_field_is_refused_by_name(field: str, value: object, error: type[InvalidEvent], where: str) -> None:
    with pytest.raises(InvalidEvent) as raised:
        event(**{field: value})
    assert (type(raised.value), raised.value.field) == (error, where)


def test_an_aggregate_of_two_longest_ids_makes_a_partition_key_that_fits() -> None:
    key = "x" * 200 + ":" + "y" * 200
    assert event(aggregate_type="x" * 200, aggregate_id="y" * 200, partition_key=key).partition_key == key


def test_an_empty_partition_key_opts_out_of_order() -> None:
    assert event(partition_key="").partition_key == ""


def test_a_full_event_keeps_what_it_was_given() -> None:
    later = NOON + timedelta(hours=1)
    full = event(
        correlation_id=OTHER, causation_id=ID, topic="sea.other", headers={"Actor-Id": "me"}, available_at=later
    )
    assert (full.correlation_id, full.causation_id) == (OTHER, ID)
    assert (full.topic, full.headers, full.available_at) == ("sea.other", {"Actor-Id": "me"}, later)


# --- POL-047-002: not in the future ---


@pytest.mark.parametrize(
    "ahead", [timedelta(days=-365), timedelta(0), timedelta(seconds=59), timedelta(minutes=1)]
)
def test_an_event_of_the_past_or_of_a_clock_a_minute_ahead_is_taken(ahead: timedelta) -> None:
    event(occurred_at=NOON + ahead).check_not_future(NOON)


@pytest.mark.parametrize("ahead", [timedelta(minutes=1, microseconds=1), timedelta(days=1)])
def test_an_event_of_the_future_is_refused(ahead: timedelta) -> None:
    with pytest.raises(FutureEvent) as raised:
        event(occurred_at=NOON + ahead).check_not_future(NOON)
    assert (raised.value.code, raised.value.field) == ("FUTURE_EVENT", "occurred_at")
    assert isinstance(raised.value, InvalidEvent)


def test_the_future_is_told_across_time_zones() -> None:
    tokyo = timezone(timedelta(hours=9))
    event(occurred_at=datetime(2025, 12, 28, 21, 0, tzinfo=tokyo)).check_not_future(NOON)
    with pytest.raises(FutureEvent):
        event(occurred_at=datetime(2025, 12, 28, 21, 2, tzinfo=tokyo)).check_not_future(NOON)


# --- POL-047-003: the inbox ---


def test_a_second_message_of_one_id_is_a_duplicate_message() -> None:
    """The primary key of inbox_messages decides; this is the code it is reported under."""
    assert DuplicateMessage.code == "DUPLICATE_MESSAGE"
    assert issubclass(DuplicateMessage, RelayError)


# --- HandlerResult ---


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.PROCESSED),
        (201, Verdict.PROCESSED),
        (204, Verdict.PROCESSED),
        (409, Verdict.ALREADY_PROCESSED),
        (422, Verdict.POISON),
        (500, Verdict.TRANSIENT),
        (503, Verdict.TRANSIENT),
        (100, Verdict.TRANSIENT),
        (199, Verdict.TRANSIENT),
        (202, Verdict.TRANSIENT),
        (203, Verdict.TRANSIENT),
        (205, Verdict.TRANSIENT),
        (206, Verdict.TRANSIENT),
        (207, Verdict.TRANSIENT),
        (208, Verdict.TRANSIENT),
        (226, Verdict.TRANSIENT),
        (299, Verdict.TRANSIENT),
        (300, Verdict.TRANSIENT),
        (404, Verdict.TRANSIENT),
        (421, Verdict.TRANSIENT),
        (423, Verdict.TRANSIENT),
    ],
)
def test_a_status_is_read_as_the_contract_says(status: int, verdict: Verdict) -> None:
    assert HandlerResult.from_status(status).verdict is verdict


@pytest.mark.parametrize(
    ("status", "given_detail", "detail"),
    [
        (200, "", ""),
        (422, "bad", "HTTP 422: bad"),
        (422, "", "HTTP 422"),
        (503, "down", "HTTP 503: down"),
        (503, "", "HTTP 503"),
    ],
)
def test_a_failure_says_why(status: int, given_detail: str, detail: str) -> None:
    assert HandlerResult.from_status(status, given_detail).detail == detail


def test_no_answer_at_all_is_transient() -> None:
    assert HandlerResult.failed("connection refused") == HandlerResult(Verdict.TRANSIENT, "connection refused")


# --- errors as the caller sees them ---


def test_an_error_says_code_field_and_what_to_do_next() -> None:
    error = FutureEvent("it lies ahead", field="occurred_at", hint="use available_at")
    assert str(error) == "FUTURE_EVENT [occurred_at]: it lies ahead (use available_at)"
    assert str(MalformedMessage("no id")) == "MALFORMED_MESSAGE: no id"
