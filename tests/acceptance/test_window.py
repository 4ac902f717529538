"""Good messages behind more failing ones than JetStream's window has places: they are handled at once.

The failing ones are tried again after hours: who had to wait for one of them would wait longer than any test.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg
import pytest

from relay import Event, Outbox
from tests.acceptance.fleet import Fleet
from tests.acceptance.handler import HANG, HandlerService
from tests.sampling import marked
from tests.waiting import wait_for

WINDOW = 6
FAILING = 40
GOOD = 5
#: Without a circuit: to it, nothing but failures looks like an outage of the handler.
ALONE = "circuit = false\n"
HOURS = f'{ALONE}backoff_initial = "3h"\nbackoff_max = "3h"\n'
PLAIN, COROUTINE = "python:tests.acceptance.failing_plain", "python:tests.acceptance.failing_coroutine"
#: How the failing ones wait: the handler's answer to them, the key of each, and settings.
STATES: dict[str, tuple[int, str, str]] = {
    "in back-off": (503, "{n}", ""),
    "reported to JetStream": (503, "{n}", 'on_failure = "nak"\n'),
    "behind a head in back-off": (503, "one", 'order = "key"\n'),
    "behind a dead head": (422, "one", 'order = "key"\nfailed_head = "block"\n'),
    "behind a parked head": (422, "one", 'order = "key"\nfailed_head = "park"\n'),
}


def commit(fleet: Fleet, name: str, count: int, key: str = "{n}") -> list[str]:
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        keys = [name + key.format(n=n) for n in range(count)]
        events = [Event(event_type=name, aggregate_type="vibe", aggregate_id=key, payload={}) for key in keys]
        return [str(id) for id in Outbox("vibespro").add_many(connection, events)]


def handled(fleet: Fleet, ids: list[str]) -> int:
    [[count]] = fleet.query(
        "sea", "SELECT count(processed_at) FROM inbox_messages WHERE message_id = ANY(%s::uuid[])", ids
    )
    return int(count)


def received(fleet: Fleet) -> int:
    [[count]] = fleet.query("sea", "SELECT count(*) FROM inbox_messages")
    return int(count)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("settle", ["handler", "inbox"])
def test_good_messages_pass_those_that_wait(
    start_fleet: Callable[..., Fleet], handler: HandlerService, state: str, settle: str
) -> None:
    status, key, more = STATES[state]
    if settle == "inbox" and "nak" in more:
        pytest.skip("the settings refuse it")
    fleet = start_fleet(settle=settle, max_ack_pending=WINDOW, more=HOURS + more)
    handler.verdict = lambda body, _n: status if body["event_type"] == "failing" else 200
    fleet.scheduler()
    fleet.worker()
    commit(fleet, "failing", FAILING, key)
    wait_for("all are in the inbox", lambda: received(fleet) == FAILING)
    good = commit(fleet, "good", GOOD)
    wait_for("the good ones are handled", lambda: handled(fleet, good) == GOOD)
    assert {handler.count(id) for id in good} == {1}


@pytest.mark.parametrize(
    ("kind", "chunk"), marked([(None, 1), (None, 8), (PLAIN, 1), (PLAIN, 8), (COROUTINE, 1), (COROUTINE, 8)])
)
@pytest.mark.parametrize("settle", ["handler", "inbox"])
def test_good_messages_pass_whatever_handles_them(
    start_fleet: Callable[..., Fleet], handler: HandlerService, kind: str | None, chunk: int, settle: str
) -> None:
    options = {} if kind is None else {"handler": kind}
    fleet = start_fleet(settle=settle, max_ack_pending=WINDOW, more=f"{HOURS}chunk = {chunk}\n", **options)
    handler.verdict = lambda body, _n: 503 if body["event_type"] == "failing" else 200
    fleet.scheduler()
    fleet.worker()
    commit(fleet, "failing", FAILING)
    good = commit(fleet, "good", GOOD)
    wait_for("the good ones are handled", lambda: handled(fleet, good) == GOOD)
    wait_for("each failing one has been tried", lambda: tried(fleet) == FAILING)


def tried(fleet: Fleet) -> int:
    [[count]] = fleet.query("sea", "SELECT count(*) FROM inbox_messages WHERE next_attempt_at IS NOT NULL")
    return int(count)


@pytest.mark.parametrize("kind", [None, PLAIN, COROUTINE])
def test_good_messages_pass_calls_that_hang(
    start_fleet: Callable[..., Fleet], handler: HandlerService, kind: str | None
) -> None:
    """Fewer than a worker has slots: those are another bound."""
    options = {} if kind is None else {"handler": kind}
    fleet = start_fleet(max_ack_pending=4, handler_timeout="1h", ack_wait="2h", more=HOURS, **options)
    handler.verdict = lambda body, _n: HANG if body["event_type"] == "hanging" else 200
    fleet.scheduler()
    fleet.worker()
    commit(fleet, "hanging", 6)
    good = commit(fleet, "good", GOOD)
    wait_for("the good ones are handled", lambda: handled(fleet, good) == GOOD)


def test_good_messages_pass_dead_letters_that_no_stream_takes(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(max_ack_pending=WINDOW, more=HOURS)
    handler.verdict = lambda body, _n: 422 if body["event_type"] == "failing" else 200
    fleet.jetstream(lambda js: js.delete_stream("SEA_DLQ"))
    fleet.scheduler()
    fleet.worker()
    commit(fleet, "failing", FAILING)
    good = commit(fleet, "good", GOOD)
    wait_for("the good ones are handled", lambda: handled(fleet, good) == GOOD)
    # Nothing is lost: as soon as there is a stream, it gets all of them.
    fleet.ensure()
    wait_for("all are dead letters", lambda: dead(fleet) == FAILING)


def dead(fleet: Fleet) -> int:
    [[count]] = fleet.query("sea", "SELECT count(dead_lettered_at) FROM inbox_messages")
    return int(count)


def test_retries_that_are_always_due_do_not_delay_new_messages(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    """All calls of the failing ones take longer than the time until they are due again."""
    fleet = start_fleet(
        max_ack_pending=20,
        more='circuit = false\nbackoff_initial = "50ms"\nbackoff_max = "50ms"\n',
        max_attempts=10**6,
    )

    def slowly(body: dict[str, object], _n: int) -> int:
        if body["event_type"] == "good":
            return 200
        threading.Event().wait(0.5)
        return 503

    handler.verdict = slowly
    fleet.scheduler()
    fleet.worker(threads=4)
    failing = commit(fleet, "failing", 200)
    wait_for("each has been tried", lambda: all(handler.count(id) for id in failing))
    before = len(handler.calls)
    good = commit(fleet, "good", GOOD)
    wait_for("the good ones are handled", lambda: handled(fleet, good) == GOOD)
    # In one queue all 200 would have had another turn first.
    assert len(handler.calls) - before < len(failing) / 2


def test_what_was_let_go_survives_the_death_of_its_worker_and_the_loss_of_redis(
    start_fleet: Callable[..., Fleet], handler: HandlerService
) -> None:
    fleet = start_fleet(
        max_ack_pending=WINDOW, more='circuit = false\nbackoff_initial = "2s"\nbackoff_max = "2s"\n'
    )
    handler.verdict = lambda _body, _n: 503
    fleet.scheduler()
    worker = fleet.worker()
    failing = commit(fleet, "failing", FAILING)
    wait_for("most have left the window", lambda: let_go(fleet) >= FAILING - WINDOW)
    fleet.kill(worker)
    fleet.flush()
    handler.verdict = lambda _body, _n: 200
    fleet.worker()
    wait_for("all are handled", lambda: handled(fleet, failing) == FAILING)
    wait_for("all are acknowledged", lambda: fleet.ack_pending() == 0)


def let_go(fleet: Fleet) -> int:
    [[count]] = fleet.query("sea", "SELECT count(let_go_at) FROM inbox_messages")
    return int(count)
