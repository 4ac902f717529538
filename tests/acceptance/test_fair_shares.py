"""Subscriptions whose handlers hang, beside one that is quick: it goes on while they hang."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

import psycopg
import pytest

from relay import Event, Outbox
from tests.acceptance.fleet import Fleet
from tests.sampling import marked
from tests.waiting import wait_for

HANGING = 10
EACH = 20
TIME_OUT = 60
#: Messages sent one by one beside those that hang.
PROBES = 20
#: A quick message comes to its inbox in a tenth of a second or two, on ways where no handler hangs. From there on
#: it may take so many times as long: a busy machine makes both longer.
TIMES = 5

SUBSCRIPTION = """
[contexts.vibespro.subscriptions.hanging_{number}]
stream = "VIBESPRO_EVENTS"
durable = "vibespro__hanging_{number}"
filter_subject = "vibespro.event.hang_{number}.>"
max_ack_pending = 100
handler = "{handler}"
handler_timeout = "{time_out}s"
chunk = {chunk}
"""


@pytest.fixture
def deaf() -> Iterator[str]:
    """A service to which one can connect, and that never reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/handle"


@pytest.mark.parametrize(
    ("kind", "chunk", "quick"),
    marked(
        [
            ("http", 1, "http"),
            ("http", 5, "http"),
            ("plain", 1, "plain"),
            ("plain", 5, "http"),
            ("coroutine", 1, "plain"),
        ]
    ),
)
def test_a_subscription_goes_on_beside_ten_that_hang(
    start_fleet: Callable[..., Fleet], deaf: str, kind: str, chunk: int, quick: str
) -> None:
    handler = deaf if kind == "http" else f"python:tests.acceptance.hanging_{kind}"
    options = {"handler": handler, "time_out": TIME_OUT, "chunk": chunk}
    more = [SUBSCRIPTION.format(number=number, **options) for number in range(HANGING)]
    quickly = {"handler": "python:tests.acceptance.quick_plain"} if quick == "plain" else {}
    fleet = start_fleet(more="\n".join(more), max_ack_pending=500, **quickly)
    fleet.scheduler()
    fleet.worker()
    commit(fleet)
    wait_for("each that hangs is called", lambda: called(fleet) == HANGING)
    commit(fleet)
    wait_for("the quick one has done all", lambda: done(fleet) == 2 * HANGING * EACH, seconds=TIME_OUT)
    waiting = "SELECT count(*), count(processed_at), count(last_error) FROM inbox_messages"
    [(count, processed, failed)] = fleet.query("vibespro", waiting)
    assert (processed, failed) == (0, 0), "none that hangs has come to its time-out"
    assert count == 2 * HANGING * EACH
    to_worker, in_worker = latest(fleet, [one_more(fleet, n) for n in range(PROBES)])
    assert in_worker < TIMES * to_worker, "beside those that hang a quick message waits for nothing"


def commit(fleet: Fleet) -> None:
    """For each subscription that hangs events, which the quick one hears too."""
    events = [
        Event(event_type=f"hang_{n % HANGING}", aggregate_type="vibe", aggregate_id=f"v{n}", payload={"n": n})
        for n in range(HANGING * EACH)
    ]
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        Outbox("vibespro").add_many(connection, events)


def one_more(fleet: Fleet, number: int) -> UUID:
    """Commit a message behind one for each that hangs; returns when the quick one has handled it."""
    kinds = [*(f"hang_{n}" for n in range(HANGING)), "hang_none"]
    events = [
        Event(event_type=kind, aggregate_type="vibe", aggregate_id=f"{kind}{number}", payload={}) for kind in kinds
    ]
    with psycopg.connect(fleet.urls["vibespro"]) as connection:
        *_, id = Outbox("vibespro").add_many(connection, events)
    wait_for("it is handled", lambda: fleet.inbox(id).get("processed_at"), seconds=TIME_OUT)
    return id


def latest(fleet: Fleet, ids: Sequence[UUID]) -> tuple[float, float]:
    """What nine in ten have taken at most, in seconds by one clock: from commit to inbox, and on from there."""
    asked = "SELECT {} FROM {} WHERE {} = ANY(%s)"
    committed = dict(fleet.query("vibespro", asked.format("id, occurred_at", "outbox_events", "id"), list(ids)))
    columns = "message_id, received_at, processed_at"
    rows = fleet.query("sea", asked.format(columns, "inbox_messages", "message_id"), list(ids))
    nine = len(ids) * 9 // 10 - 1
    come = sorted((received - committed[id]).total_seconds() for id, received, _ in rows)
    handled = sorted((processed - received).total_seconds() for _, received, processed in rows)
    return come[nine], handled[nine]


def called(fleet: Fleet) -> int:
    """How many subscriptions have a call under way."""
    [[count]] = fleet.query(
        "vibespro", "SELECT count(DISTINCT subscription) FROM inbox_messages WHERE attempts > 0"
    )
    return int(count)


def done(fleet: Fleet) -> int:
    [[count]] = fleet.query("sea", "SELECT count(processed_at) FROM inbox_messages")
    return int(count)
