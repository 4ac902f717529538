"""Times that others wrote are read, clipped, or known to be unreadable."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relay.domain.archive import ArchiveKind, RowFilter
from relay.domain.moments import EARLIEST, LATEST, UNREADABLE, moment, readable

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
