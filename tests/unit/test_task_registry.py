"""Registering task handlers: what is refused when it is declared, and the decisions that need no database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from relay.domain.errors import InvalidHandler, InvalidPayload
from relay.domain.tasks import InvalidTask, Rate, UnknownTask, looks_again, slot
from tasks import task
from tasks.registry import TaskRegistry

ZERO = timedelta(0)


class Mail(BaseModel):
    to: str = "ann"


def send(mail: Mail) -> None:
    """Do nothing."""


def send_all(mail: Mail) -> None:
    """Do nothing."""


def no_payload() -> None:
    """Do nothing."""


def not_injected(mail: Mail, other: int) -> None:
    """Do nothing."""


def bare(mail) -> None:  # type: ignore[no-untyped-def]
    """Do nothing."""


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"type": "a b"}, "type"),
        ({"queue": "A"}, "queue"),
        ({"priority": -1}, "priority"),
        ({"priority": True}, "priority"),
        ({"max_retries": -1}, "max_retries"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency_key": "to"}, "concurrency_key"),
        ({"rate_limit": "fast"}, "rate_limit"),
        ({"rate_limit": "0/1s"}, "rate_limit"),
        ({"rate_limit": "10/soon"}, "rate_limit"),
        ({"time_limit": "0s"}, "time_limit"),
        ({"backoff": ("1m", "1s")}, "backoff"),
    ],
)
def test_options_that_make_no_sense_are_refused_and_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        task(**{"type": "mail", "into": TaskRegistry(), **options})(send)
    assert caught.value.field == field


@pytest.mark.parametrize("function", [no_payload, not_injected, bare, "send", lambda *mails: None])
def test_functions_that_cannot_be_called_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(InvalidHandler):
        task("mail", into=TaskRegistry())(function)


def test_a_type_has_one_handler_which_stays_a_plain_function() -> None:
    registry = TaskRegistry()
    assert task("mail", into=registry)(send) is send
    assert registry.named(send) is registry.named("mail")
    with pytest.raises(InvalidHandler, match=r"\bmail\b"):
        task("mail", into=registry)(send)
    with pytest.raises(UnknownTask):
        registry.named(no_payload)
    with pytest.raises(InvalidHandler, match=r"\bmail\b"):
        task("letter", into=registry)(send)


def test_who_watches_learns_of_queues_before_and_after() -> None:
    registry, queues = TaskRegistry(), list[str]()
    task("a", queue="one", into=registry)(send)
    registry.watch(queues.append)
    task("b", queue="two", into=registry)(send_all)
    assert queues == ["one", "two"]


@pytest.mark.parametrize("key", ["to", lambda mail: mail.to])
def test_the_key_of_a_concurrency_limit_is_of_its_type(key: Any) -> None:
    registry = TaskRegistry()
    task("mail", concurrency=1, concurrency_key=key, into=registry)(send)
    assert registry.named("mail").encode(Mail(to="bob")) == ('{"to": "bob"}', "mail:bob")
    task("all", concurrency=1, into=registry)(send_all)
    assert registry.named("all").encode({}) == ("{}", "all")


def test_a_key_that_the_payload_lacks_is_named() -> None:
    registry = TaskRegistry()
    task("mail", concurrency=1, concurrency_key="account", into=registry)(send)
    with pytest.raises(InvalidPayload, match=r"payload\.account"):
        registry.named("mail").encode({})


# --- the rate limit ---


@given(st.integers(1, 50), st.integers(1, 40))
def test_tasks_that_come_at_once_get_turns_an_interval_apart(tasks: int, seconds: int) -> None:
    interval, free, promised = timedelta(seconds=seconds), ZERO, ZERO
    delays = []
    for _ in range(tasks):
        delay = slot(Rate(free, promised), interval, promised=False)
        if delay <= ZERO:
            free = interval
        else:
            promised = delay
        delays.append(delay)
    assert delays == [interval * number for number in range(tasks)]


def test_a_promised_task_starts_when_the_rate_is_free_whoever_waits_behind_it() -> None:
    hour = timedelta(hours=1)
    assert slot(Rate(ZERO, 5 * hour), hour, promised=True) <= ZERO
    assert slot(Rate(hour / 2, 5 * hour), hour, promised=True) == hour / 2
    assert slot(Rate(-hour, 5 * hour), hour, promised=False) == 6 * hour


def test_those_whose_slot_is_far_away_look_again_spread_over_the_time() -> None:
    most, rate = timedelta(minutes=15), Rate(timedelta(seconds=10), timedelta(hours=1))
    looks = [looks_again(rate, UUID(int=n), most) for n in range(1000)]
    assert sorted(looks) == looks  # type: ignore[type-var]
    assert (looks[0], len({*looks})) == (rate.free_in, 1000)
    assert all(it is not None and it < most for it in looks)
    for near in (Rate(timedelta(seconds=10), most), Rate(most, timedelta(hours=1))):
        assert looks_again(near, UUID(int=1), most) is None
