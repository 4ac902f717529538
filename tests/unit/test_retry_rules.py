"""Retry policies of applications: whatever one does, its row has a decision, at last the usual back-off."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.domain.errors import AlreadyProcessed, ClaimLost, ConnectionsBusy, DomainError, InvalidHandler
from relay.domain.model import HandlerResult, Verdict
from relay.domain.policies import Ack, DeadLetter, DeadLetterClass, Retry, decide
from relay.domain.reasons import code_of
from relay.domain.retry import LONGEST_DELAY, Backoff, Dead, InvalidRetry, Never, RetryLater, RetryPolicy
from relay.execution.calls import answer
from relay.execution.retry_rules import RetryRule, RuleLimits

FIVE = RetryPolicy(max_attempts=5, backoff=Backoff(jitter=0))
PATIENT = RuleLimits(seconds=60)
Ask = Callable[[RetryRule, HandlerResult, BaseException, int], HandlerResult]


def in_a_thread(rule: RetryRule, result: HandlerResult, error: BaseException, attempt: int) -> HandlerResult:
    return rule.judge(result, error, attempt)


def on_the_loop(rule: RetryRule, result: HandlerResult, error: BaseException, attempt: int) -> HandlerResult:
    return asyncio.run(rule.judge_async(result, error, attempt))


@pytest.fixture(params=[in_a_thread, on_the_loop])
def ask(request: pytest.FixtureRequest) -> Ask:
    asked: Ask = request.param
    return asked


def ruled(ask: Ask, says: Any, error: BaseException | None = None, attempt: int = 1) -> HandlerResult:
    error = error or ValueError("secret")
    policy = says if callable(says) else lambda _error, _attempt: says
    return ask(RetryRule(policy, PATIENT), answer(error), error, attempt)


@pytest.mark.parametrize(
    ("says", "delay"), [(5, 5), (0.25, 0.25), (0, 0), (timedelta(minutes=2), 120), (LONGEST_DELAY, 604_800)]
)
def test_a_delay_replaces_the_back_off_and_the_attempt_counts(ask: Ask, says: Any, delay: float) -> None:
    result = ruled(ask, says)
    assert decide(result, 1, FIVE, chance=0.9) == Retry(timedelta(seconds=delay), "ValueError")
    assert isinstance(decide(result, 5, FIVE, chance=0.9), DeadLetter), "its attempts end all the same"


def test_never_says_that_the_message_is_at_fault(ask: Ask) -> None:
    verdict = decide(ruled(ask, Never), 1, FIVE, chance=0)
    assert verdict == DeadLetter("ValueError: its retry policy says Never", DeadLetterClass.DETERMINISTIC)


def test_dead_ends_the_attempts(ask: Ask) -> None:
    verdict = decide(ruled(ask, Dead), 1, FIVE, chance=0)
    reason = "exhausted: 1 attempts, the last one: ValueError: its retry policy says Dead"
    assert verdict == DeadLetter(reason, DeadLetterClass.EXHAUSTED)


def test_it_gets_the_exception_and_the_attempt(ask: Ask) -> None:
    seen: list[tuple[BaseException, int]] = []
    error = KeyError("x")
    ruled(ask, lambda *asked: seen.append(asked) or 1, error, attempt=3)
    assert seen == [(error, 3)]


class Odd(int):
    def __gt__(self, _other: object) -> bool:
        raise RuntimeError("secret")

    __lt__ = __gt__


WRONG: list[Any] = [
    Odd(5),
    *(None, True, "5", "Never", b"", [], (5,), object(), 1j, Ellipsis, int, ValueError("secret")),
    *(float("nan"), float("inf"), float("-inf"), -1, -0.001, 1e300, 10**400, timedelta(seconds=-1), timedelta.max),
    *(timedelta.min, LONGEST_DELAY + timedelta(microseconds=1)),
]


@pytest.mark.parametrize("says", WRONG, ids=[*map(str, range(len(WRONG)))])
def test_what_is_no_answer_is_told_and_the_usual_back_off_applies(ask: Ask, says: Any) -> None:
    verdict = decide(ruled(ask, lambda *_: says, attempt=3), 3, FIVE, chance=0)
    assert isinstance(verdict, Retry)
    assert (verdict.delay, verdict.counts) == (timedelta(seconds=4), True)
    assert verdict.error.startswith("ValueError: its retry policy is not used: INVALID_RETRY")
    assert "secret" not in verdict.error
    assert code_of(verdict.error) == "raised_ValueError"


def raising(error: BaseException) -> Callable[[Any, int], Any]:
    def policy(_error: Any, _attempt: int) -> Any:
        raise error

    return policy


@pytest.mark.parametrize("error", [RuntimeError("secret"), SystemExit(1), KeyboardInterrupt(), StopIteration()])
def test_one_that_raises_is_told_and_the_usual_back_off_applies(ask: Ask, error: BaseException) -> None:
    verdict = decide(ruled(ask, raising(error)), 1, FIVE, chance=0)
    assert isinstance(verdict, Retry)
    assert (verdict.delay, type(error).__name__ in verdict.error, "secret" in verdict.error) == (
        timedelta(seconds=1),
        True,
        False,
    )


@pytest.fixture
def hanging() -> Iterator[Callable[[Any, int], float]]:
    end = threading.Event()

    def hang(_error: Any, _attempt: int) -> float:
        end.wait(60)
        return 1.0

    yield hang
    end.set()


def test_one_that_hangs_is_told_and_takes_no_more_than_its_threads(ask: Ask, hanging: Any) -> None:
    rule, error = RetryRule(hanging, RuleLimits(seconds=0.01, calls=3)), ValueError()
    before = threading.active_count()
    reasons = [ask(rule, answer(error), error, 1).detail for _ in range(6)]
    assert all("INVALID_RETRY" in reason for reason in reasons)
    assert [("no answer" in reason, "have not returned" in reason) for reason in reasons] == [
        *[(True, False)] * 3,
        *[(False, True)] * 3,
    ]
    assert threading.active_count() <= before + 3
    assert decide(ruled(ask, 7), 1, FIVE, chance=0) == Retry(timedelta(seconds=7), "ValueError"), "others go on"


@pytest.mark.parametrize(
    "error",
    [
        *(DomainError("no"), AlreadyProcessed("done"), RetryLater(delay=9), ConnectionsBusy("busy")),
        ClaimLost("lost"),
    ],
)
def test_it_is_not_asked_about_what_is_decided_already(ask: Ask, error: BaseException) -> None:
    assert ruled(ask, Dead, error) == answer(error)


simple = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.timedeltas() | st.binary()


@settings(max_examples=200, deadline=None)
@given(simple | st.lists(simple) | st.sampled_from([Never, Dead]), st.integers(1, 10), st.floats(0, 0.999))
def test_every_answer_has_a_decision_within_bounds(says: Any, attempt: int, chance: float) -> None:
    verdict = decide(ruled(in_a_thread, lambda *_: says, attempt=attempt), attempt, FIVE, chance)
    assert not isinstance(verdict, Ack)
    if isinstance(verdict, Retry):
        assert timedelta(0) <= verdict.delay <= LONGEST_DELAY
        assert verdict.counts
        assert attempt < 5


class Rules:
    def __call__(self, error: Exception, attempt: int, *, factor: int = 2) -> float:
        return attempt * factor


def test_any_callable_of_two_arguments_is_one(ask: Ask) -> None:
    assert ruled(ask, Rules(), attempt=2).delay == timedelta(seconds=4)
    assert ruled(ask, lambda *_: 1).delay == timedelta(seconds=1)


async def coroutine(error: Exception, attempt: int) -> float:
    return 1.0


@pytest.mark.parametrize("policy", [5, "5", None, lambda: 1, lambda _error: 1, lambda *, a, b: 1, coroutine, sys])
def test_what_cannot_be_asked_is_refused_at_once(policy: Any) -> None:
    with pytest.raises(InvalidHandler) as caught:
        RetryRule(policy)
    assert caught.value.field == "retry"


# --- RetryLater ---


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        *((30, 30), (0.5, 0.5), (timedelta(minutes=1), 60), (0, 0), (-5, 0), (timedelta(days=-1), 0)),
        *((1e300, 604_800), (float("inf"), 604_800), (10**400, 604_800), (timedelta.max, 604_800)),
    ],
)
def test_a_function_asks_to_be_called_later_within_bounds(delay: Any, seconds: float) -> None:
    assert RetryLater(delay=delay).delay == timedelta(seconds=seconds)


@pytest.mark.parametrize("delay", [None, "30", True, float("nan"), [30], object()])
def test_what_is_no_delay_is_refused_where_it_is_raised(delay: Any) -> None:
    with pytest.raises(InvalidRetry):
        RetryLater(delay=delay)


def test_a_delay_in_the_place_of_the_text_is_refused() -> None:
    with pytest.raises(InvalidRetry):
        RetryLater(30, delay=30)  # type: ignore[arg-type]


def test_it_is_an_answer_that_says_when_and_spends_no_attempt() -> None:
    result = answer(RetryLater("the bank is closed", delay=30))
    assert (result.verdict, result.delay, result.counts) == (Verdict.TRANSIENT, timedelta(seconds=30), False)
    assert code_of(result.detail) == "raised_RetryLater"
