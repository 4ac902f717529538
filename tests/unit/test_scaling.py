"""How many workers a host should have: what lasts counts, in steps, within the limits, and nothing unknown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.domain.errors import DatabaseUnreachable, InvalidRequest, RelayError
from relay.domain.lag import Load
from relay.domain.scaling import Decision, History, LoadLevel, Sample, ScalingRules, decide

RULES = ScalingRules(least=2, most=10, rows=10_000, age_s=40, grow_after_s=10, shrink_after_s=60, pause_s=15)
AWAY = DatabaseUnreachable("context sea: the connection was refused")
HIGH, LOW = Load(rows=10_001, age_seconds=1.0), Load(rows=0, age_seconds=0.0)
BETWEEN = Load(rows=5_000, age_seconds=1.0)


def sizes(
    loads: Sequence[Load | RelayError],
    size: int = 2,
    *,
    rules: ScalingRules = RULES,
    every: float = 5,
    busy: Any = 0.5,
) -> list[int]:
    """The size after each of the loads, which come ``every`` so many seconds."""
    history, found = History(), []
    for number, load in enumerate(loads):
        decision = decide(rules, size, Sample(at=1_000 + number * every, load=load, busy=busy), history)
        size, history = decision.size, decision.history
        found.append(size)
    return found


def first(load: Load | RelayError, size: int = 4, busy: float | None = 0.5) -> LoadLevel:
    return decide(RULES, size, Sample(at=0, load=load, busy=busy), History()).history.pressure


# --- what is high and what is low ---


@pytest.mark.parametrize(
    ("rows", "age", "busy", "pressure"),
    [
        (10_001, 0, 0.0, LoadLevel.HIGH),
        (10_000, 0, 0.5, LoadLevel.MIDDLE),
        (2_501, 0, 0.5, LoadLevel.MIDDLE),
        (2_500, 0, 0.5, LoadLevel.LOW),
        (1, 40.1, 0.0, LoadLevel.HIGH),
        (1, 10.1, 0.0, LoadLevel.MIDDLE),
        (1, 10.0, 0.0, LoadLevel.LOW),
        (1, 0, 0.9, LoadLevel.HIGH),
        (0, 0, 0.9, LoadLevel.MIDDLE),
        (1, 0, 0.6, LoadLevel.MIDDLE),  # three of four would be busy to 0.8
        (1, 0, 0.5, LoadLevel.LOW),
    ],
)
def test_rows_age_and_busy_threads_make_a_load_high_or_low(
    rows: int, age: float, busy: float, pressure: LoadLevel
) -> None:
    assert first(Load(rows=rows, age_seconds=age), busy=busy) is pressure


def test_what_is_not_known_is_neither_high_nor_low() -> None:
    assert first(AWAY) is LoadLevel.UNKNOWN
    assert first(HIGH, busy=None) is LoadLevel.UNKNOWN
    assert first(LOW, busy=None) is LoadLevel.UNKNOWN


# --- growing ---


def test_a_load_that_stays_high_adds_half_again_in_steps_up_to_the_most() -> None:
    assert sizes([HIGH] * 20) == [2, 2, 3, 3, 3, 4, 4, 4, 6, 6, 6, 9, 9, 9, 10, 10, 10, 10, 10, 10]


def test_a_load_that_is_high_only_now_and_then_adds_nothing() -> None:
    assert sizes([HIGH, HIGH, BETWEEN, HIGH, HIGH, LOW] * 5) == [2] * 30


def test_a_single_look_is_enough_where_nothing_must_last() -> None:
    assert sizes([HIGH], rules=ScalingRules(least=1, most=3, grow_after_s=0), size=1) == [2]


# --- shrinking ---


def test_a_load_that_stays_low_ends_one_worker_at_a_time_down_to_the_least() -> None:
    found = sizes([LOW] * 24, 5, busy=0.1)
    assert found[:12] == [5] * 12
    assert found[12:] == [4, 4, 4, 3, 3, 3, 2, 2, 2, 2, 2, 2]


def test_one_high_load_begins_the_time_of_low_ones_anew() -> None:
    assert sizes([LOW] * 12 + [HIGH] + [LOW] * 12, 5) == [5] * 25


def test_between_high_and_low_nothing_changes() -> None:
    assert sizes([BETWEEN] * 100, 5) == [5] * 100


def test_a_fleet_that_grew_does_not_swing_back_before_the_load_is_low_for_long() -> None:
    found = sizes([HIGH] * 3 + [BETWEEN] * 20 + [LOW] * 12 + [BETWEEN] * 3)
    assert found == [2, 2] + [3] * 36


def test_busy_threads_keep_the_last_worker_that_is_needed() -> None:
    assert sizes([LOW] * 60, 3, busy=0.5)[-1] == 3
    assert sizes([LOW] * 60, 3, busy=0.4)[-1] == 2


# --- what is not known ---


@pytest.mark.parametrize("before", [HIGH, LOW])
def test_an_unknown_load_changes_nothing_however_long_it_lasts(before: Load) -> None:
    loads = [before, *[AWAY] * 50]
    assert sizes(loads, 5) == [5] * 51


def test_after_an_outage_the_time_begins_anew() -> None:
    assert sizes([HIGH, HIGH, AWAY, HIGH, HIGH], 5) == [5] * 5
    assert sizes([LOW] * 12 + [AWAY] + [LOW] * 12, 5) == [5] * 25


def test_it_says_why() -> None:
    def why(load: Load | RelayError, busy: float | None = 0.25) -> str:
        return decide(RULES, 2, Sample(at=0, load=load, busy=busy), History()).why

    assert why(Load(rows=12, age_seconds=3.2)) == "12 due, the oldest for 3 s, 25% of the threads busy"
    assert why(AWAY) == f"the load is not known: {AWAY}"
    assert why(HIGH, None) == "no worker has reported yet how busy it is"


# --- limits ---


@pytest.mark.parametrize(("size", "within"), [(0, 2), (1, 2), (11, 10), (7, 7)])
def test_the_limits_hold_at_once_and_whatever_is_known(size: int, within: int) -> None:
    assert sizes([AWAY], size) == [within]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"least": 0}, "--min"),
        ({"least": -1, "most": 3}, "--min"),
        ({"least": 5, "most": 4}, "--max"),
        ({"rows": 0}, "--rows"),
        ({"age_s": -1}, "--age"),
        ({"grow_after_s": float("nan")}, "--grow-after"),
        ({"shrink_after_s": float("inf")}, "--shrink-after"),
        ({"pause_s": -0.1}, "--pause"),
    ],
)
def test_rules_that_contradict_themselves_are_refused_by_name(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ScalingRules(**values)
    assert refused.value.field == field


SAMPLES = st.lists(
    st.tuples(
        st.floats(0, 100),
        st.one_of(st.just(AWAY), st.builds(Load, rows=st.integers(0, 20_000), age_seconds=st.floats(0, 1e6))),
        st.one_of(st.none(), st.floats(0, 1)),
    )
)


@given(SAMPLES, st.integers(-5, 20))
def test_whatever_comes_the_size_keeps_its_limits_and_changes_no_sooner_than_after_the_pause(
    samples: list[tuple[float, Any, float | None]], size: int
) -> None:
    history, at, changed_at = History(), 0.0, -RULES.pause_s
    size = decide(RULES, size, Sample(at=0, load=AWAY, busy=None), history).size
    for later, load, busy in samples:
        at += later
        decision: Decision = decide(RULES, size, Sample(at=at, load=load, busy=busy), history)
        assert RULES.least <= decision.size <= RULES.most
        if decision.size != size:
            assert isinstance(load, Load)
            assert busy is not None
            assert at - changed_at >= RULES.pause_s
            changed_at = at
        size, history = decision.size, decision.history
