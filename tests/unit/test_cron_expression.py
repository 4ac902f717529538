"""The times of cron expressions, compared with a second implementation that tries every minute."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.cron.expression import Expression
from tests.sampling import marked

MINUTE = timedelta(minutes=1)
NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: Zones, and days in which their clocks change: forward and back, at midnight, by half an hour, and never.
NIGHTS = [
    ("Europe/Kyiv", "2026-03-28"),
    ("Europe/Kyiv", "2026-10-24"),
    ("America/New_York", "2026-03-07"),
    ("America/New_York", "2026-10-31"),
    ("Africa/Cairo", "2026-04-23"),  # from 00:00 to 01:00
    ("Africa/Cairo", "2026-10-29"),  # from 24:00 to 23:00
    ("America/Havana", "2026-03-07"),
    ("America/Havana", "2026-10-31"),
    ("Australia/Lord_Howe", "2026-10-03"),
    ("Australia/Lord_Howe", "2026-04-04"),
    ("Asia/Kolkata", "2026-06-30"),
    ("UTC", "2026-12-31"),
]
EXPRESSIONS = [
    "0 0 * * *",
    "0 0 * * 1",
    "0 0 1 * *",
    "30 2 * * *",
    "59 23 * * *",
    "5,35 1-3 * * *",
    "*/20 2 * * *",
    "*/4 0,1,2,3 * * *",
    "0 */2 * * *",
    "30 */3 * * *",
    "15 * * * *",
    "*/10 * * * *",
    "*/7 * * * *",
    "0 12 29 * 0",
    "0 1 * * sat-sun",
    "10 4 */2 3,4,10 *",
    "0 6 31 * 3-5",
    "0 2 30 3 *",
    "8 20-20/3 * * *",
    "41 0-0/2,2-2 * * 0-0",
    "7-7/1 3-5/2 1-31/2 * 1-1/2",
]
YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def changes() -> list[tuple[str, str]]:
    """A zone for each way in which clocks change in the year, and a day before: all zones of the system."""
    found = dict[object, tuple[str, str]]()
    for name in sorted(available_timezones()):
        zone = ZoneInfo(name)
        for week in range(0, 52, 2):
            begin, end = YEAR + timedelta(weeks=week), YEAR + timedelta(weeks=week + 2)
            before, after = begin.astimezone(zone).utcoffset(), end.astimezone(zone).utcoffset()
            while before != after and end - begin > timedelta(minutes=30):
                middle = begin + (end - begin) / 2
                begin, end = (middle, end) if middle.astimezone(zone).utcoffset() == before else (begin, middle)
            if before != after:
                day = (begin - timedelta(hours=26)).date().isoformat()
                found.setdefault((before, after, begin.astimezone(zone).replace(tzinfo=None)), (name, day))
    return list(found.values())


#: Every expression on every night in which clocks change anywhere.
NIGHTLY = [(*night, expression) for night in changes() for expression in EXPRESSIONS]


def numbers(text: str, first: int, last: int) -> set[int]:
    """What a field means."""
    found = set[int]()
    for part in text.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        begin, end = (first, last) if span == "*" else (int(low), int(high or (last if step else low)))
        found |= set(range(begin, end + 1, int(step or 1)))
    return found


@cache
def meaning(expression: str) -> tuple[list[set[int]], bool, bool]:
    """The numbers of each field; whether hours are fixed; whether either of day and weekday is enough."""
    *fields, weekday = expression.split()
    for number, name in enumerate(NAMES):
        weekday = weekday.replace(f"-{name}" if name == "sun" else name, "-7" if name == "sun" else str(number))
    limits = [(0, 59), (0, 23), (1, 31), (1, 12), (0, 7)]
    found = [numbers(field, *limit) for field, limit in zip([*fields, weekday], limits, strict=True)]
    either = not fields[2].startswith("*") and not weekday.startswith("*")
    return found, not fields[1].startswith("*"), either


def matches(expression: str, local: datetime) -> bool:
    (minutes, hours, days, months, weekdays), _, either = meaning(expression)
    if local.minute not in minutes or local.hour not in hours or local.month not in months:
        return False
    in_day = local.day in days
    in_week = local.isoweekday() in weekdays or local.isoweekday() % 7 in weekdays
    return in_day or in_week if either else in_day and in_week


@cache
def clock(zone: str, day: str) -> list[tuple[datetime, datetime]]:
    """Each minute of two days, and what a clock of the zone shows then."""
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    times = [begin + n * MINUTE for n in range(2 * 24 * 60 + 1)]
    return [(it, it.astimezone(ZoneInfo(zone)).replace(tzinfo=None)) for it in times]


def minute_by_minute(expression: str, zone: str, day: str) -> Iterator[datetime]:
    """Every minute at which a job fires, after the first one.

    With fixed hours it fires when the clock first shows a time or a later one.
    """
    _, fixed, _ = meaning(expression)
    (_, latest), *minutes = clock(zone, day)
    for time, local in minutes:
        if not fixed:
            if matches(expression, local):
                yield time
            continue
        shown = range(1, int((local - latest) / MINUTE) + 1)
        if any(matches(expression, latest + n * MINUTE) for n in shown):
            yield time
        latest = max(latest, local)


@pytest.mark.parametrize(("zone", "day"), NIGHTS)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_it_fires_at_the_times_that_every_minute_by_itself_would_say(expression: str, zone: str, day: str) -> None:
    compare(expression, zone, day)


@pytest.mark.parametrize(("zone", "day", "expression"), marked(NIGHTLY))
def test_it_does_so_wherever_clocks_change(zone: str, day: str, expression: str) -> None:
    compare(expression, zone, day)


def test_clocks_change_in_many_ways() -> None:
    assert len(changes()) > 30


def compare(expression: str, zone: str, day: str) -> None:
    (begin, _), (end, _) = clock(zone, day)[0], clock(zone, day)[-1]
    expected = list(minute_by_minute(expression, zone, day))
    parsed, found, time = Expression(expression, zone), list[datetime](), begin
    while (following := parsed.after(time)) is not None and following <= end:
        found.append(following)
        time = following
    assert found == expected


def parts(first: int, last: int) -> st.SearchStrategy[str]:
    """What a field may be."""
    number = st.integers(first, last)
    step = st.integers(1, 7).map("/{}".format)
    spans = st.tuples(number, number).map(lambda it: f"{min(it)}-{max(it)}")
    some = number.map(str) | spans | st.builds(str.__add__, spans, step)
    return st.just("*") | step.map("*{}".format) | st.lists(some, min_size=1, max_size=2).map(",".join)


@settings(max_examples=60)
@given(
    st.tuples(parts(0, 59), parts(0, 23), st.just("*") | parts(1, 28), st.just("*"), st.just("*") | parts(0, 7)),
    st.sampled_from(NIGHTS),
)
def test_any_expression_does(fields: tuple[str, ...], night: tuple[str, str]) -> None:
    compare(" ".join(fields), *night)


@pytest.mark.parametrize(("zone", "day"), NIGHTS)
@pytest.mark.parametrize("expression", ["0 0 * * *", "30 2 * * *", "*/20 1 * * *", "0 */2 * * *"])
def test_the_next_time_is_the_same_from_whatever_moment_it_is_asked_for(
    expression: str, zone: str, day: str
) -> None:
    """A scheduler that was away asks from any moment: two neighbours have nothing between them."""
    parsed = Expression(expression, zone)
    for before, after in pairwise(minute_by_minute(expression, zone, day)):
        moment = before
        while moment < after:
            assert parsed.after(moment) == after
            moment += 11 * MINUTE


def test_midnight_comes_on_the_day_after_clocks_went_forward() -> None:
    daily, weekly = Expression("0 0 * * *", "Europe/Kyiv"), Expression("0 0 * * 1", "Europe/Kyiv")
    sunday = datetime(2026, 3, 29, 12, tzinfo=UTC)
    assert daily.after(sunday) == weekly.after(sunday) == datetime(2026, 3, 29, 21, tzinfo=UTC)


def test_seconds_follow_the_same_rules() -> None:
    parsed = Expression("15 30 3 * * *", "Europe/Kyiv")
    forward = parsed.after(datetime(2026, 3, 28, 12, tzinfo=UTC))
    assert forward == datetime(2026, 3, 29, 1, tzinfo=UTC)  # clocks go from 03:00 to 04:00
    back = parsed.after(datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert back == datetime(2026, 10, 25, 0, 30, 15, tzinfo=UTC)
    assert parsed.after(back) == datetime(2026, 10, 26, 1, 30, 15, tzinfo=UTC)
