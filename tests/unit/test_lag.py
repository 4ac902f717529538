"""Lag as values: what counts once, and that nothing unknown passes for 0."""

from __future__ import annotations

from typing import Any

import pytest

from relay.domain.errors import BrokerUnreachable, ConsumerMissing, DatabaseUnreachable, RelayError
from relay.domain.lag import NONE_DUE, ContextLag, DueCount, Load, StreamLag, TablesLag, total

AWAY, MISSING = DatabaseUnreachable("away"), ConsumerMissing("no such consumer")


def tables(outbox: DueCount = NONE_DUE, tasks: DueCount = NONE_DUE, **inbox: DueCount) -> TablesLag:
    return TablesLag(outbox=outbox, tasks=tasks, inbox=inbox)


def lag(of: TablesLag | RelayError, **streams: Any) -> ContextLag:
    return ContextLag(context="sea", tables=of, streams=streams)


def stream(pending: int = 0, unacknowledged: int = 0) -> StreamLag:
    return StreamLag(pending=pending, unacknowledged=unacknowledged)


@pytest.mark.parametrize(
    ("inbox", "unacknowledged", "count"),
    [(7, 9, 12), (9, 7, 12), (0, 0, 3)],
    ids=["acknowledged by the handler", "acknowledged on receipt", "only in the stream"],
)
def test_a_message_in_the_inbox_and_not_acknowledged_counts_once(
    inbox: int, unacknowledged: int, count: int
) -> None:
    found = lag(tables(up=DueCount(inbox, 1.0)), up=stream(3, unacknowledged)).of("up")
    assert not isinstance(found, RelayError)
    assert found.count == count


def test_a_subscription_without_rows_has_none_due() -> None:
    found = lag(tables(), up=stream(3)).of("up")
    assert not isinstance(found, RelayError)
    assert found.inbox == NONE_DUE


def test_the_load_adds_up_what_is_due_and_has_the_greatest_age() -> None:
    one = lag(tables(DueCount(1, 5.0), DueCount(10, 7.0), up=DueCount(100, 3.0)), up=stream(1_000))
    two = lag(tables(DueCount(10_000, 6.0)))
    assert total([one, two]) == Load(rows=11_111, age_seconds=7.0)
    assert total([]) == Load(rows=0, age_seconds=0.0)


@pytest.mark.parametrize(
    ("part", "error"),
    [(lag(AWAY, up=stream()), AWAY), (lag(tables(), up=MISSING), MISSING), (lag(AWAY, up=MISSING), AWAY)],
    ids=["database", "consumer", "both"],
)
def test_what_is_not_known_is_an_error_and_never_a_number(part: ContextLag, error: RelayError) -> None:
    known = lag(tables(DueCount(20_000, 600.0)))
    assert part.of("up") is error
    assert total([known, part]) is error
    assert total([part, known]) is error


def test_the_errors_of_a_context_are_all_told() -> None:
    assert lag(AWAY, one=MISSING, two=stream()).errors == (AWAY, MISSING)
    assert lag(tables(), one=stream()).errors == ()


def test_a_missing_consumer_is_retried_like_an_outage_of_the_broker() -> None:
    assert isinstance(MISSING, BrokerUnreachable)
    assert MISSING.code == "CONSUMER_MISSING"
