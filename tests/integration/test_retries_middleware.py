"""Dramatiq's retry middleware on the relay's curve, and what its log line and the queue say of a retry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import dramatiq
import pytest
from dramatiq.broker import MessageProxy
from dramatiq.errors import Retry
from dramatiq.middleware import Retries

from relay.adapters.dramatiq.broker import RelayBroker, delayed
from relay.adapters.dramatiq.retries import BACKOFF, BackoffRetries, RetryJob, shown
from relay.devstack import ValkeyServer
from relay.domain.errors import BrokerUnreachable
from relay.domain.reasons import in_short
from relay.domain.retry import Backoff, Later
from relay.execution.calls import answer
from tests.integration.queueing import fresh_broker, working
from tests.jobs import job
from tests.waiting import wait_for

QUICK = Backoff(initial=timedelta(milliseconds=20), maximum=timedelta(milliseconds=90), jitter=0)
EXACT = Backoff(jitter=0)


def put_off(broker: RelayBroker) -> list[dramatiq.Message[Any]]:
    """The jobs that wait for their time."""
    texts: Any = broker.client.hvals(f"{broker.namespace}:q.DQ.msgs")
    return [dramatiq.Message.decode(text) for text in texts]


def fail(broker: RelayBroker, error: BaseException, retries: int = 0) -> dramatiq.Message[Any]:
    """End a job with an error, as a worker does; returns the job that follows."""
    message = MessageProxy(job("q", "work").copy(options={"retries": retries} if retries else {}))

    def work() -> None:
        raise error

    try:
        work()
    except BaseException as raised:
        broker.emit_after("process_message", message, exception=raised)
    [found] = put_off(broker)
    return found


@pytest.fixture
def make(valkey: ValkeyServer) -> Callable[..., RelayBroker]:
    def make(**options: Any) -> RelayBroker:
        broker = fresh_broker(valkey.url, [BackoffRetries()])
        dramatiq.actor(lambda: None, broker=broker, actor_name="work", queue_name="q", **options)
        return broker

    return make


def waits(message: dramatiq.Message[Any]) -> float:
    """After how many seconds a job is tried again."""
    return float(message.options["eta"] - message.options["requeue_timestamp"]) / 1000


@pytest.mark.parametrize("retries", [0, 1, 2, 3, 6, 60])
@pytest.mark.parametrize("error", [Retry("NATS"), Retry(), KeyError("secret"), SystemExit(1)], ids=repr)
def test_a_job_without_a_row_gets_the_delay_of_the_same_curve_as_rows(
    make: Callable[..., RelayBroker], error: BaseException, retries: int
) -> None:
    found = fail(make(max_retries=None, **{BACKOFF: EXACT}), error, retries)
    assert waits(found) == pytest.approx(EXACT.delay(retries + 1, 0).total_seconds(), abs=1)
    assert found.options["retries"] == retries + 1
    assert "secret" not in str(found.options)


def test_a_row_gets_its_own_delay_and_its_reason_is_told(
    make: Callable[..., RelayBroker], caplog: pytest.LogCaptureFixture
) -> None:
    broker = make(max_retries=None, **{BACKOFF: EXACT})
    with caplog.at_level(logging.INFO, "relay.retries"):
        found = fail(broker, RetryJob(Later.of(timedelta(seconds=4), in_short("HTTP 503: no account DE02"))))
    assert waits(found) == pytest.approx(4, abs=1)
    said = 'Retry("HTTP 503", in 4 s)'
    assert found.options["traceback"].strip().endswith(f": {said}")
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [said]
    assert "DE02" not in caplog.text + str(found.options)


@pytest.mark.parametrize(
    ("reason", "short"),
    [
        ("HTTP 503", "HTTP 503"),
        ("HTTP 429: SLOW_DOWN", "HTTP 429"),
        ("time-out: no answer within 30 s", "timeout"),
        ("ConnectError: Connection refused: Cannot connect to host sr:80", "connection refused"),
        (answer(ValueError("DE02")).detail, "ValueError"),
        ("whatever a person wrote DE02", "other"),
    ],
)
def test_a_reason_is_told_in_short_and_without_its_text(reason: str, short: str) -> None:
    assert shown(Later.of(timedelta(seconds=1.5), in_short(reason))) == f'Retry("{short}", in 1.5 s)'


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0, "0"), (0.9187, "0.919"), (4, "4"), (59.96, "60"), (3_600, "3600"), (604_800.4, "604800")],
)
def test_a_delay_is_told_in_plain_numbers(seconds: float, told: str) -> None:
    assert shown(timedelta(seconds=seconds), "HTTP 503") == f'Retry("HTTP 503", in {told} s)'


def test_a_message_that_failed_in_a_chunk_says_so_too() -> None:
    found = delayed(job("q", "work"), Later.of(timedelta(seconds=4), "HTTP 503"))
    assert found.options["traceback"] == 'Retry("HTTP 503", in 4 s)'


def test_actors_of_the_application_keep_the_curve_of_dramatiq(make: Callable[..., RelayBroker]) -> None:
    found = fail(make(min_backoff=30_000, max_backoff=40_000), KeyError("x"), 5)
    assert 19 <= waits(found) <= 41
    assert "KeyError" in found.options["traceback"]


def test_a_job_that_may_not_be_tried_again_dies_as_with_dramatiq(make: Callable[..., RelayBroker]) -> None:
    broker = make(max_retries=0)
    message = MessageProxy(job("q", "work"))
    broker.emit_after("process_message", message, exception=KeyError("x"))
    assert (message.failed, put_off(broker)) == (True, [])


def test_a_worker_tries_a_job_again_by_its_curve(valkey: ValkeyServer) -> None:
    broker, ran = fresh_broker(valkey.url, [BackoffRetries()]), list[int]()

    def stumble() -> None:
        ran.append(1)
        if len(ran) < 5:
            raise Retry(BrokerUnreachable.code)

    options: dict[str, Any] = {"max_retries": None, BACKOFF: QUICK}
    actor = dramatiq.actor(stumble, broker=broker, actor_name="n", queue_name="q", **options)
    with working(broker):
        actor.send()
        wait_for("it has run five times", lambda: len(ran) == 5)


def test_it_is_dramatiqs_own_middleware() -> None:
    assert isinstance(BackoffRetries(), Retries)
