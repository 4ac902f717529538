"""The decisions: what a handler's answer means for a message, and what a failure means for an event."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from relay.domain.model import HandlerResult, Verdict
from relay.domain.policies import (
    Ack,
    DeadLetter,
    DeadLetterClass,
    Disposition,
    GiveUp,
    NoStream,
    NotSent,
    OutcomeUnknown,
    Published,
    PublishOutcome,
    Retry,
    RowRejected,
    after_publish_failure,
    decide,
)
from relay.domain.reasons import code_of
from relay.domain.retry import Backoff, RetryPolicy

FIVE = RetryPolicy(max_attempts=5, backoff=Backoff(jitter=0))


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def after_status(status: int, attempts: int = 1, detail: str = "") -> Disposition:
    return decide(HandlerResult.from_status(status, detail), attempts, FIVE, chance=0)


# --- POL-047-005: 200 and 409 ---


def test_a_200_is_an_ack() -> None:
    assert after_status(200) == Ack()


def test_a_409_is_an_ack_because_the_handler_knows_the_message_already() -> None:
    assert after_status(409) == Ack()


@pytest.mark.parametrize("status", [200, 409])
def test_a_success_at_the_last_attempt_or_after_it_is_still_an_ack(status: int) -> None:
    assert after_status(status, attempts=5) == Ack()
    assert after_status(status, attempts=6) == Ack()


# --- POL-047-006: 422 ---


def test_a_422_is_a_dead_letter_and_never_a_retry() -> None:
    expected = DeadLetter("HTTP 422: no such vibe", DeadLetterClass.POISON)
    assert [after_status(422, attempts, "no such vibe") for attempts in (1, 4, 5, 6)] == [expected] * 4


def test_a_422_without_a_reason_says_what_it_was() -> None:
    assert after_status(422) == DeadLetter("HTTP 422", DeadLetterClass.POISON)


def test_a_reason_of_a_422_has_its_code_whatever_the_handler_says() -> None:
    for said in ("", "no such vibe", "time-out: no answer", "MALFORMED_MESSAGE"):
        decided = after_status(422, detail=said)
        assert isinstance(decided, DeadLetter)
        assert code_of(decided.reason) == "status_422"


def test_a_refusal_by_a_rule_of_the_domain_is_deterministic() -> None:
    result = HandlerResult(Verdict.REFUSED, "DomainError: the case is closed")
    assert decide(result, 1, FIVE, chance=0) == DeadLetter(result.detail, DeadLetterClass.DETERMINISTIC)


# --- POL-047-007: 5xx and no answer ---


@pytest.mark.parametrize("status", [500, 502, 503, 504, 599])
def test_a_5xx_is_not_acknowledged_but_tried_again(status: int) -> None:
    assert after_status(status) == Retry(seconds(1), f"HTTP {status}")


def test_a_time_out_is_not_acknowledged_but_tried_again() -> None:
    result = HandlerResult.failed("time-out: why")
    assert decide(result, 1, FIVE, chance=0) == Retry(seconds(1), "time-out: why")


@pytest.mark.parametrize("status", [301, 302, 400, 401, 403, 404, 405, 408, 410, 413, 429])
def test_an_answer_outside_the_contract_is_a_mistake_of_the_deployment_and_tried_again(status: int) -> None:
    assert after_status(status) == Retry(seconds(1), f"HTTP {status}")


@pytest.mark.parametrize("attempts", [1, 5, 9])
def test_a_call_that_could_not_be_made_is_no_attempt(attempts: int) -> None:
    result = replace(HandlerResult.failed("no connection"), counts=False)
    assert decide(result, attempts, FIVE, chance=0) == Retry(seconds(1), "no connection", counts=False)


def test_the_intervals_grow_with_the_attempts() -> None:
    assert [after_status(503, attempts) for attempts in (1, 2, 3, 4)] == [
        Retry(seconds(delay), "HTTP 503") for delay in (1, 2, 4, 8)
    ]


def test_chance_shortens_the_interval() -> None:
    policy = RetryPolicy(max_attempts=5, backoff=Backoff(jitter=0.2))
    assert decide(HandlerResult.failed("x"), 1, policy, chance=0.5) == Retry(seconds(0.9), "x")


# --- the last attempt ---


def test_a_failure_of_the_last_attempt_is_a_dead_letter_that_says_exhausted() -> None:
    reason = "exhausted: 5 attempts, the last one: HTTP 503: down"
    assert after_status(503, attempts=5, detail="down") == DeadLetter(reason, DeadLetterClass.EXHAUSTED)


def test_the_attempt_before_the_last_is_still_retried() -> None:
    assert after_status(503, attempts=4) == Retry(seconds(8), "HTTP 503")


def test_attempts_beyond_the_limit_are_exhausted_too_as_the_limit_may_have_been_lowered() -> None:
    result = after_status(500, attempts=9)
    assert result == DeadLetter("exhausted: 9 attempts, the last one: HTTP 500", DeadLetterClass.EXHAUSTED)


def test_by_default_a_handler_is_tried_twenty_times() -> None:
    failed = HandlerResult(Verdict.TRANSIENT, "x")
    assert isinstance(decide(failed, 19, RetryPolicy(), chance=0), Retry)
    assert isinstance(decide(failed, 20, RetryPolicy(), chance=0), DeadLetter)


@pytest.mark.parametrize("attempts", [1, 20])
@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_has_a_decision(verdict: Verdict, attempts: int) -> None:
    result = decide(HandlerResult(verdict, "why"), attempts, RetryPolicy(), chance=0)
    assert isinstance(result, Ack | DeadLetter | Retry)


def test_the_classes_of_dead_letters_have_the_names_operators_know() -> None:
    assert [kind.value for kind in DeadLetterClass] == ["poison", "deterministic", "exhausted", "unconfirmed"]


# --- publishing: the three failure classes ---


def after(
    outcome: OutcomeUnknown | RowRejected | NoStream | NotSent, attempts: int = 0, age: float = 0
) -> Retry | GiveUp | None:
    return after_publish_failure(outcome, attempts, FIVE, chance=0, age=seconds(age))


@pytest.mark.parametrize("attempts", [0, 4, 5, 1_000])
def test_an_outage_spends_no_attempt_and_never_gives_up(attempts: int) -> None:
    assert after(OutcomeUnknown("no PubAck within 5 s"), attempts) is None


@pytest.mark.parametrize("attempts", [0, 4, 5, 1_000])
def test_an_event_held_back_for_its_key_spends_no_attempt(attempts: int) -> None:
    assert after(NotSent(), attempts) is None


@pytest.mark.parametrize("attempts", [0, 4, 1_000])
def test_a_rejected_row_is_unrecoverable_at_once(attempts: int) -> None:
    assert after(RowRejected("bad subject"), attempts) == GiveUp("unrecoverable: bad subject")


TOO_LARGE_FOR_ITS_STREAM = RowRejected("too large", final=False)
UNRECOVERABLE = "unrecoverable: too large"


def test_a_row_too_large_for_its_stream_spends_an_attempt_and_backs_off_by_itself() -> None:
    assert [after(TOO_LARGE_FOR_ITS_STREAM, attempts) for attempts in (0, 1, 2, 3)] == [
        Retry(seconds(delay), "too large") for delay in (1, 2, 4, 8)
    ]


def test_a_row_too_large_for_its_stream_for_the_last_time_is_unrecoverable() -> None:
    assert after(TOO_LARGE_FOR_ITS_STREAM, attempts=4) == GiveUp(UNRECOVERABLE)
    assert after(TOO_LARGE_FOR_ITS_STREAM, attempts=5) == GiveUp(UNRECOVERABLE)


def test_a_row_with_one_attempt_dies_the_first_time_it_is_too_large_for_its_stream() -> None:
    once = RetryPolicy(max_attempts=1)
    action = after_publish_failure(TOO_LARGE_FOR_ITS_STREAM, 0, once, chance=0, age=seconds(0))
    assert action == GiveUp(UNRECOVERABLE)


def test_a_missing_stream_spends_no_attempt_and_is_tried_again_after_as_long_as_the_event_has_waited() -> None:
    assert [after(NoStream("no stream"), age=age) for age in (-60, 0, 1, 2, 4, 59, 61, 10**9)] == [
        Retry(seconds(delay), "no stream", counts=False) for delay in (1, 1, 1, 2, 4, 59, 60, 60)
    ]


@pytest.mark.parametrize("attempts", [4, 5, 1_000_000])
def test_a_missing_stream_never_kills_an_event(attempts: int) -> None:
    assert after(NoStream("no stream"), attempts, age=8) == Retry(seconds(8), "no stream", counts=False)


@pytest.mark.parametrize(("outcome", "counts"), [(RowRejected("x", final=False), True), (NoStream("x"), False)])
def test_chance_shortens_the_back_off_of_an_event(outcome: RowRejected | NoStream, *, counts: bool) -> None:
    policy = RetryPolicy(max_attempts=5, backoff=Backoff(jitter=0.2))
    decided = after_publish_failure(outcome, 0, policy, chance=0.5, age=seconds(0))
    assert decided == Retry(seconds(0.9), "x", counts=counts)


def test_a_puback_is_no_duplicate_unless_it_says_so() -> None:
    ack: PublishOutcome = Published("SEA_EVENTS", 7)
    assert ack == Published("SEA_EVENTS", 7, duplicate=False)


@pytest.mark.parametrize(("age", "wait"), [(0, 1), (4, 4), (10, 10), (86_399, 10)])
def test_a_lock_of_others_spends_no_attempt_for_a_day(age: float, wait: float) -> None:
    held = HandlerResult(Verdict.TRANSIENT, "locked", held=True)
    for attempts in (1, 3):
        verdict = decide(held, attempts, RetryPolicy(max_attempts=3), 0.0, timedelta(seconds=age))
        assert verdict == Retry(timedelta(seconds=wait), "locked", counts=False)


def test_after_that_it_is_a_failed_attempt() -> None:
    held, policy = HandlerResult(Verdict.TRANSIENT, "locked", held=True), RetryPolicy(max_attempts=2)
    day = timedelta(days=1)
    assert decide(held, 1, policy, 0.0, day) == Retry(timedelta(seconds=1), "locked")
    assert isinstance(decide(held, 2, policy, 0.0, day), DeadLetter)
    assert isinstance(decide(replace(held, final=True), 1, policy, 0.0, timedelta()), DeadLetter)
