"""GET /scale: its numbers, what it refuses, how often the servers are asked; and the gauges of the lag."""

from __future__ import annotations

from concurrent.futures import Future
from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from relay.domain.errors import ConsumerMissing, DatabaseUnreachable
from relay.domain.facts import LagSampled, LeadLost, LeadTaken
from relay.domain.lag import ContextLag, DueCount, StreamLag, TablesLag
from relay.telemetry.gauges import BacklogGauges
from relay.telemetry.scale import Scale

INTERVAL = 10.0
MISSING = ConsumerMissing("the stream UP has no consumer sea__in", hint="run: relay streams ensure")
AWAY = DatabaseUnreachable("no answer")


def lag(context: str = "sea", **changes: Any) -> LagSampled:
    parts: dict[str, Any] = {
        "tables": TablesLag(outbox=DueCount(5, 61.5), tasks=DueCount(2, 3.0), inbox={"in": DueCount(7, 90.25)}),
        "streams": {"in": StreamLag(pending=20, unacknowledged=4), "idle": StreamLag(pending=0, unacknowledged=0)},
    }
    return LagSampled(context=context, lag=ContextLag(context=context, **{**parts, **changes}))


class Asked:
    """Stands for the scheduler: notes who is asked for, and answers when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.contexts: list[str] = []
        self.futures: list[Future[None]] = []
        self.scale = Scale({"sea": ["in", "idle"], "up": []}, INTERVAL, self.ask, lambda: self.now, patience=0.01)
        self.answers: dict[str, LagSampled] = {}

    def ask(self, context: str) -> Future[None]:
        self.contexts.append(context)
        self.futures.append(future := Future())
        if context in self.answers:
            self.finish(self.answers[context])
        return future

    def finish(self, told: LagSampled) -> None:
        self.scale(told)
        self.futures[-1].set_result(None)

    def get(self, query: str = "") -> tuple[int, dict[str, Any]]:
        status, body = self.scale.answer(query)
        return status.value, body


@pytest.fixture
def asked() -> Asked:
    return Asked()


# --- numbers ---


def test_a_subscription_is_one_number_at_a_known_place(asked: Asked) -> None:
    asked.scale(lag())
    assert asked.get("context=sea&subscription=in") == (
        200,
        {
            "value": 27,
            "messages": 27,
            "in_stream": 20,
            "unacknowledged": 4,
            "in_inbox": 7,
            "oldest_seconds": 90.25,
        },
    )
    assert asked.get("context=sea&subscription=idle")[1]["value"] == 0


def test_a_context_is_its_events_tasks_and_messages(asked: Asked) -> None:
    asked.scale(lag())
    asked.now += 1.5
    status, body = asked.get("context=sea")
    assert status == 200
    subscriptions = body.pop("subscriptions")
    assert body == {
        "value": 34,
        "events": 5,
        "tasks": 2,
        "messages": 27,
        "oldest_seconds": 90.25,
        "rows_counted_up_to": 20_000,
        "read_seconds_ago": 1.5,
    }
    assert subscriptions == {name: asked.get(f"context=sea&subscription={name}")[1] for name in ("in", "idle")}


def test_without_parameters_it_is_the_whole_table(asked: Asked) -> None:
    asked.scale(lag())
    asked.scale(lag("up", streams={}))
    status, body = asked.get()
    assert status == 200
    assert body["contexts"] == {name: asked.get(f"context={name}")[1] for name in ("sea", "up")}
    assert (body["value"], body["events"], body["tasks"], body["messages"]) == (41, 10, 4, 27)
    assert body["oldest_seconds"] == 90.25


# --- what is not known ---


@pytest.mark.parametrize("query", ["context=sea&subscription=in", "context=sea", ""])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"streams": {"in": MISSING}}, "CONSUMER_MISSING"),
        ({"tables": AWAY}, "DATABASE_UNREACHABLE"),
    ],
)
def test_a_part_that_could_not_be_read_is_an_error_and_no_number(
    asked: Asked, query: str, changes: dict[str, Any], code: str
) -> None:
    asked.scale(lag("up", streams={}))
    asked.scale(lag(**changes))
    status, body = asked.get(query)
    assert (status, body["error"]["code"], body["error"]["context"]) == (503, code, "sea")
    assert body.keys() == {"error"}


def test_an_error_says_what_to_do(asked: Asked) -> None:
    asked.scale(lag(streams={"in": MISSING}))
    assert asked.get("context=sea")[1]["error"] == {
        "code": MISSING.code,
        "message": MISSING.message,
        "hint": MISSING.hint,
        "context": "sea",
    }


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ("context=see", 404, "UNKNOWN_CONTEXT"),
        ("context=sea&subscription=out", 404, "UNKNOWN_CONTEXT"),
        ("context=", 404, "UNKNOWN_CONTEXT"),
        ("subscription=in", 400, "INVALID_REQUEST"),
        ("context=sea&context=up", 400, "INVALID_REQUEST"),
        ("contxt=sea", 400, "INVALID_REQUEST"),
    ],
)
def test_what_does_not_exist_is_refused_and_nobody_is_asked(
    asked: Asked, query: str, status: int, code: str
) -> None:
    found, body = asked.get(query)
    assert (found, body["error"]["code"]) == (status, code)
    assert asked.contexts == []


# --- how often ---


def test_one_that_was_read_a_moment_ago_is_not_read_again(asked: Asked) -> None:
    asked.scale(lag())
    asked.now += INTERVAL
    assert [asked.get("context=sea")[0] for _ in range(5)] == [200] * 5
    assert asked.contexts == []


def test_an_old_one_is_answered_and_read_anew_once(asked: Asked) -> None:
    asked.scale(lag())
    asked.now += 1.5 * INTERVAL
    assert [asked.get("context=sea")[1]["value"] for _ in range(5)] == [34] * 5
    assert asked.contexts == ["sea"]
    asked.finish(lag(streams={}))
    assert asked.get("context=sea")[1]["value"] == 7
    assert asked.contexts == ["sea"]


def test_the_first_waits_for_the_reading(asked: Asked) -> None:
    asked.answers = {"sea": lag()}
    assert asked.get("context=sea")[0] == 200
    assert asked.contexts == ["sea"]


@pytest.mark.parametrize("age", [None, 3.5 * INTERVAL])
def test_nothing_or_too_old_is_not_known(asked: Asked, age: float | None) -> None:
    if age is not None:
        asked.scale(lag())
        asked.now += age
    for _ in range(3):
        status, body = asked.get("context=sea")
        assert (status, body["error"]["code"]) == (503, "LAG_UNKNOWN")
    assert asked.contexts == ["sea"], "one reading is under way"
    asked.finish(lag())
    assert asked.get("context=sea")[0] == 200


def test_a_reading_that_told_nothing_is_not_known(asked: Asked) -> None:
    asked.ask("sea")
    asked.scale = Scale({"sea": []}, INTERVAL, lambda _: asked.futures[0], lambda: asked.now)
    asked.futures[0].set_exception(RuntimeError("the scheduler stops"))
    status, body = asked.get("context=sea")
    assert (status, body["error"]["code"]) == (503, "LAG_UNKNOWN")


def test_an_error_is_looked_at_again_soon(asked: Asked) -> None:
    asked.scale(lag(tables=AWAY))
    assert asked.get("context=sea")[0] == 503
    assert asked.contexts == []
    asked.now += 2.5
    assert asked.get("context=sea")[0] == 503
    assert asked.contexts == ["sea"]
    asked.finish(lag())
    assert asked.get("context=sea")[0] == HTTPStatus.OK


# --- gauges ---


def gauges(*facts: Any) -> CollectorRegistry:
    listener, registry = BacklogGauges({"sea": ["in", "idle"]}, INTERVAL), CollectorRegistry()
    registry.register(listener)
    for fact in facts:
        listener(fact)
    return registry


TAKEN = LeadTaken(context="sea", term=1)


def test_the_gauges_are_the_numbers_of_scale() -> None:
    registry = gauges(TAKEN, lag())
    at = {"context": "sea", "subscription": "in"}
    expected = {"messages": 27, "stream_pending": 20, "stream_unacknowledged": 4}
    for name, value in expected.items():
        assert registry.get_sample_value(f"jetrelay_lag_{name}", at) == value
    assert registry.get_sample_value("jetrelay_lag_messages", {**at, "subscription": "idle"}) == 0
    assert registry.get_sample_value("jetrelay_lag_events", {"context": "sea"}) == 5
    assert registry.get_sample_value("jetrelay_lag_tasks", {"context": "sea"}) == 2


def test_a_part_that_could_not_be_read_has_no_gauge() -> None:
    at = {"context": "sea", "subscription": "in"}
    registry = gauges(TAKEN, lag(streams={"in": MISSING}))
    assert registry.get_sample_value("jetrelay_lag_messages", at) is None
    assert registry.get_sample_value("jetrelay_lag_events", {"context": "sea"}) == 5
    registry = gauges(TAKEN, lag(tables=AWAY))
    assert registry.get_sample_value("jetrelay_lag_messages", at) is None
    assert registry.get_sample_value("jetrelay_lag_events", {"context": "sea"}) is None
    assert registry.get_sample_value("jetrelay_lag_stream_pending", at) == 20


@pytest.mark.parametrize("facts", [[lag()], [lag(), TAKEN], [TAKEN, lag(), LeadLost(context="sea")]])
def test_only_the_leader_shows_them(facts: list[Any]) -> None:
    assert gauges(*facts).get_sample_value("jetrelay_lag_events", {"context": "sea"}) is None
