"""The header Retry-After: each form of RFC 9110, and everything that is none of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.model import HandlerResult, Verdict
from relay.domain.retry import LONGEST_DELAY
from relay.domain.retry_after import asked_wait, header_of

NOON = datetime(2026, 11, 26, 12, tzinfo=UTC)
LONGEST = LONGEST_DELAY.total_seconds()

CASES = [
    (["20"], 20),
    (["  20\t"], 20),
    (["007"], 7),
    (["604800"], LONGEST),
    (["604801"], LONGEST),
    (["9" * 400], LONGEST),
    (["9" * 60_000], LONGEST),
    (["Thu, 26 Nov 2026 12:01:30 GMT"], 90),
    (["Thursday, 26-Nov-26 12:01:30 GMT"], 90),
    (["Thu Nov 26 12:01:30 2026"], 90),
    (["Thu, 26 Nov 2026 14:01:30 +0200"], 90),
    (["Fri, 31 Dec 9999 23:59:59 GMT"], LONGEST),
    (["Thu, 26 Nov 2026 12:00:00 GMT"], None),
    (["Thu, 26 Nov 2026 11:59:59 GMT"], None),
    (["Thu, 01 Jan 1970 00:00:00 GMT"], None),
    (["0"], None),
    (["000"], None),
    ([], None),
    ([""], None),
    (["-5"], None),
    (["+5"], None),
    (["5.5"], None),
    (["1e3"], None),
    (["0x10"], None),
    (["５"], None),  # noqa: RUF001 - a digit that is none of ASCII
    (["5 s"], None),
    (["PT5S"], None),
    (["nan"], None),
    (["inf"], None),
    (["soon"], None),
    (["Thu, 32 Nov 2026 12:01:30 GMT"], None),
    (["Thu, 26 Nov 99999 12:01:30 GMT"], None),
    (["\x00"], None),
    (["a" * 60_000], None),
    (["5", "20"], 20),
    (["20", "5"], 20),
    (["soon", "20"], 20),
    (["Thu, 26 Nov 2026 12:01:30 GMT", "20"], 90),
    (["Thu, 26 Nov 2026 11:00:00 GMT", "0"], None),
]


@pytest.mark.parametrize(("headers", "seconds"), CASES)
def test_what_a_header_asks_for(headers: list[str], seconds: float | None) -> None:
    assert asked_wait(headers, NOON) == (None if seconds is None else timedelta(seconds=seconds))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=60)))
def test_no_header_makes_a_wait_that_is_out_of_bounds(headers: list[str]) -> None:
    wait = asked_wait(headers, NOON)
    assert wait is None or timedelta(0) < wait <= LONGEST_DELAY


@settings(max_examples=50, deadline=None)
@given(st.timedeltas(min_value=timedelta(0), max_value=LONGEST_DELAY))
def test_what_is_written_is_read_as_at_least_as_long(delay: timedelta) -> None:
    read = asked_wait([header_of(delay)], NOON)
    assert read is not None
    assert delay <= read <= delay + timedelta(seconds=1)


@pytest.mark.parametrize("status", [*range(200, 600, 7), 409, 422, 429, 500, 502, 503, 504])
def test_only_a_429_and_a_503_may_say_when(status: int) -> None:
    asked = HandlerResult.from_status(status, retry_after=timedelta(seconds=20))
    if status in {429, 503}:
        assert (asked.verdict, asked.delay, asked.counts) == (Verdict.TRANSIENT, timedelta(seconds=20), False)
    else:
        assert asked == HandlerResult.from_status(status)


@pytest.mark.parametrize("status", [429, 503])
def test_without_a_usable_header_these_are_failures_as_any_other(status: int) -> None:
    plain = HandlerResult.from_status(status)
    assert (plain.verdict, plain.delay, plain.counts) == (Verdict.TRANSIENT, None, True)
