"""Back-off: 1, 2, 4 … 60 seconds, a little less by chance, never more."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.retry import Backoff

quick = settings(max_examples=100, deadline=None)

seconds = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=30))
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
failure_counts = st.integers(min_value=1, max_value=10**9)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    initial = draw(seconds)
    return Backoff(
        initial=initial,
        maximum=initial + draw(seconds),
        jitter=draw(st.floats(min_value=0, max_value=0.499)),
    )


def test_without_jitter_the_delay_doubles_from_one_second_to_sixty() -> None:
    delays = [Backoff(jitter=0).delay(failures, 0.5).total_seconds() for failures in range(1, 10)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_jitter_takes_away_a_fifth_at_most_by_default() -> None:
    assert Backoff().delay(1, 0) == timedelta(seconds=1)
    assert Backoff().delay(1, 0.5) == timedelta(seconds=0.9)
    assert Backoff().delay(4, 0.5) == timedelta(seconds=7.2)
    assert timedelta(seconds=48) < Backoff().delay(50, 0.999) < timedelta(seconds=48.1)


def test_the_limits_are_settings() -> None:
    backoff = Backoff(initial=timedelta(seconds=3), maximum=timedelta(seconds=10), jitter=0)
    assert [backoff.delay(failures, 0).total_seconds() for failures in (1, 2, 3, 4)] == [3, 6, 10, 10]


def test_a_maximum_equal_to_the_initial_delay_gives_a_constant_one() -> None:
    backoff = Backoff(initial=timedelta(seconds=5), maximum=timedelta(seconds=5), jitter=0)
    assert {backoff.delay(failures, 0) for failures in (1, 2, 7)} == {timedelta(seconds=5)}


@pytest.mark.parametrize("failures", [41, 64, 10**6, 10**12])
def test_a_row_that_failed_for_years_still_gets_its_delay(failures: int) -> None:
    """An event without a stream is tried for ever, so the count has no bound."""
    assert Backoff(jitter=0).delay(failures, 0) == timedelta(seconds=60)
    slow = Backoff(initial=timedelta(hours=1), maximum=timedelta(days=1), jitter=0)
    assert slow.delay(failures, 0) == timedelta(days=1)


@pytest.mark.parametrize("failures", [0, -1])
def test_without_a_failure_there_is_no_delay(failures: int) -> None:
    with pytest.raises(ValueError, match="at least one failure"):
        Backoff().delay(failures, 0)


@pytest.mark.parametrize(
    ("initial", "maximum", "jitter"),
    [(0, 60, 0.2), (-1, 60, 0.2), (2, 1, 0.2), (1, 60, -0.1), (1, 60, 0.5), (1, 60, float("nan"))],
)
def test_a_back_off_that_would_not_grow_is_refused(initial: float, maximum: float, jitter: float) -> None:
    with pytest.raises(ValueError, match="back-off needs"):
        Backoff(initial=timedelta(seconds=initial), maximum=timedelta(seconds=maximum), jitter=jitter)


@quick
@given(backoff=backoffs(), failures=failure_counts, chance=chances)
def test_a_delay_is_never_above_nominal_and_never_below_it_by_more_than_the_jitter(
    backoff: Backoff, failures: int, chance: float
) -> None:
    nominal = Backoff(initial=backoff.initial, maximum=backoff.maximum, jitter=0).delay(failures, 0)
    delay = backoff.delay(failures, chance)
    assert delay <= nominal <= backoff.maximum
    assert delay >= nominal * (1 - backoff.jitter) - timedelta(microseconds=1)


@quick
@given(backoff=backoffs(), failures=st.integers(min_value=1, max_value=60), early=chances, late=chances)
def test_up_to_the_maximum_each_wait_is_longer_than_the_one_before_whatever_the_chance(
    backoff: Backoff, failures: int, early: float, late: float
) -> None:
    before, after = backoff.delay(failures, early), backoff.delay(failures + 1, late)
    if 2**failures <= backoff.maximum // backoff.initial:
        assert after > before
