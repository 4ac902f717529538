"""When an outbox is full, and the section `backpressure`: off by default."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from relay.domain.backlogs import FullInbox
from relay.domain.backpressure import InboxLimit, OutboxLimits, Pressure, full
from tests.unit.settings_support import BASE, Load, loader, refusal

MINUTE = timedelta(minutes=1)


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    return loader(tmp_path, monkeypatch)


def limits(above: int | None = None, age: timedelta | None = None) -> OutboxLimits:
    return OutboxLimits(above=above, age=age, action="warn", delay=timedelta(milliseconds=50))


@pytest.mark.parametrize(
    ("limit", "waiting", "seconds", "braking", "is_full"),
    [
        (limits(above=100), 100, 1e9, False, False),
        (limits(above=100), 101, 0, False, True),
        (limits(above=100), 81, 0, False, False),
        (limits(above=100), 81, 0, True, True),
        (limits(above=100), 80, 1e9, True, False),
        (limits(age=MINUTE), 10**9, 60, False, False),
        (limits(age=MINUTE), 0, 61, False, True),
        (limits(age=MINUTE), 0, 49, False, False),
        (limits(age=MINUTE), 0, 49, True, True),
        (limits(age=MINUTE), 10**9, 48, True, False),
        (limits(above=100, age=MINUTE), 81, 0, True, True),
        (limits(above=100, age=MINUTE), 0, 49, True, True),
        (limits(above=100, age=MINUTE), 80, 48, True, False),
        (limits(), 10**9, 1e9, False, False),
    ],
)
def test_it_begins_above_a_limit_and_ends_below_a_part_of_all(
    limit: OutboxLimits, waiting: int, seconds: float, braking: bool, is_full: bool
) -> None:
    pressure = Pressure(waiting, seconds, "warn" if braking else None)
    assert (full("sea", limit, pressure) is not None) == is_full


def test_it_says_why() -> None:
    assert (
        full("sea", limits(above=100), Pressure(101, 0))
        == "the outbox of sea is full: its limit is 100 waiting events"
    )
    assert (
        full("sea", limits(age=MINUTE), Pressure(0, 61))
        == "the outbox of sea is full: its limit is a wait of 60 s"
    )


def test_producers_are_told_anew_when_the_action_or_its_delay_has_changed() -> None:
    told = Pressure(0, 0, "warn", timedelta(milliseconds=50))
    assert told.tells(limits())
    assert not replace(told, action="delay").tells(limits())
    assert not replace(told, delay=timedelta(milliseconds=60)).tells(limits())


def test_a_pause_of_the_pulls_begins_at_the_limit_and_ends_below_a_part_of_it() -> None:
    limit = InboxLimit(10)
    told = [(limit.counted(count), limit.paused, limit.room) for count in (0, 9, 10, 9, 8, 7, 10)]
    assert told == [
        (False, False, 10),
        (False, False, 1),
        (True, True, 0),
        (False, True, 0),
        (False, True, 0),
        (True, False, 3),
        (True, True, 0),
    ]


def test_an_inbox_is_shown_as_full_as_long_as_a_pause_may_last() -> None:
    assert [FullInbox("from_up", count, 10).shown for count in (7, 8, 10)] == [False, True, True]
    assert str(FullInbox("from_up", 9, 10)) == (
        "the inbox of from_up holds 9 unfinished messages: pulls pause at 10 and go on below 8"
    )


def test_it_is_off_by_default(load: Load) -> None:
    assert not load().contexts["sea"].backpressure.limits().any
    assert load().contexts["sea"].inbox_limits == {}


def test_one_limit_is_enough_and_producers_are_warned(load: Load) -> None:
    found = load(f'{BASE}[contexts.sea.backpressure]\nage = "10m"\n').contexts["sea"].backpressure.limits()
    assert found == limits(age=timedelta(minutes=10))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('action = "delay"', r"contexts.sea.backpressure.above: is required, or age \(for example above = 100000"),
        ("above = 0", "backpressure.above: .* greater than or equal to 1"),
        ('above = 1\naction = "stop"', "backpressure.action: .*'warn', 'delay' or 'refuse'"),
        ('above = 1\ndelay = "1m"', "backpressure.delay: .* less than or equal to"),
    ],
)
def test_refusals(load: Load, lines: str, expected: str) -> None:
    assert re.search(expected, refusal(load, f"{BASE}[contexts.sea.backpressure]\n{lines}\n"))
