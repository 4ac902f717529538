"""Times that others wrote are read, clipped, or known to be unreadable."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.domain.alarm_rules import RULES
from relay.domain.alarms import Reading, judge
from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.attempts import read_attempts
from relay.domain.moments import EARLIEST, LATEST, UNREADABLE, before, moment, readable

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-29T12:00:00+00:00", NOON),
        ("2026-03-29 12:00:00+00", NOON),
        ("2026-03-29T12:00:00", NOON),
        ("infinity", LATEST),
        ("-infinity", EARLIEST),
        ("294276-12-31T00:00:00+00:00", LATEST),
        ("4713-01-01T00:00:00+00:00 BC", EARLIEST),
        ("0001-01-01T00:00:00+00:00", EARLIEST),
        ("garbage", UNREADABLE),
        ("", UNREADABLE),
        ("03/29/2026 12:00:00 UTC", UNREADABLE),
        ("2026-02-30x", UNREADABLE),
        (5, UNREADABLE),
        (["2026"], UNREADABLE),
        ({}, UNREADABLE),
    ],
)
def test_what_is_no_time_is_unreadable_and_no_other_time(text: Any, time: datetime) -> None:
    assert moment(text) == time
    assert (readable(moment(text)) is None) == (time is UNREADABLE)


@pytest.mark.parametrize("time", [EARLIEST, NOON, LATEST])
def test_a_time_before_another_stays_within_what_can_be_shown(time: datetime) -> None:
    longest = (LATEST - EARLIEST).total_seconds()
    for seconds in (longest, 1e300, float("inf")):
        assert before(time, seconds) == EARLIEST
        assert before(time, -seconds) == LATEST
    assert before(before(time, 0), 0) == time
    assert before(NOON, 90) == NOON - timedelta(seconds=90)


def test_what_has_lasted_for_ever_is_an_alarm_since_the_earliest_time() -> None:
    stalled = Reading(rule="JetrelayOutboxStalled", labels={"context": "sea"}, value=1e12, since=float("inf"))
    [alarm] = judge(RULES, [stalled], {}, NOON)
    assert alarm.since == EARLIEST
    assert "sea" in alarm.text


@pytest.mark.parametrize("at", ["-infinity", "infinity", "0001-01-01T00:00:00+00:00", "4713-01-01 00:00:00+00 BC"])
def test_an_attempt_that_ended_at_any_time_has_begun_at_one_that_can_be_shown(at: str) -> None:
    [attempt] = read_attempts([{"n": 1, "at": at, "took": 99_999_999, "next": at}])
    assert attempt.began is not None
    assert attempt.ended is not None
    assert EARLIEST <= attempt.began <= attempt.ended <= LATEST


def test_a_row_without_a_readable_time_is_shown_but_no_act_upon_older_rows_takes_it() -> None:
    row: dict[str, Any] = {
        "id": "0198d7a0-0000-7000-8000-000000000001",
        "published_at": "garbage",
        "correlation_id": None,
    }

    def fits(**limits: Any) -> bool:
        return RowFilter(**limits).fits(ArchiveKind.OUTBOX, {**row, "event_type": "x", "partition_key": ""}, str)

    assert fits()
    assert fits(since=NOON)
    assert not fits(until=NOON)
    assert not fits(since=NOON - timedelta(days=1), until=NOON)
