"""The checks of nats-server, its streams and consumers, of Redis and of handlers, against what they may say."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.adapters.jetstream.inspection import BrokerState, DurableState, StreamState
from relay.adapters.jetstream.topology import Difference
from relay.adapters.redis_inspection import QueueState
from relay.domain.findings import Finding, Severity
from relay.ops.doctor import handlers, queues, streams
from relay.ops.doctor.streams import Broker
from relay.settings import Settings

SUBSCRIPTION = {"stream": "UP_EVENTS", "filter_subject": "up.event.>", "handler": "http://127.0.0.1:9/h"}
SETTINGS = Settings.model_validate(
    {
        "contexts": {
            "sea": {
                "database_url": "postgresql://db/sea",
                "archive": {"after": "90d", "directory": "/cold"},
                "subscriptions": {"up": SUBSCRIPTION},
            }
        }
    }
)
DAY = 86_400.0
OWN = StreamState(name="SEA_EVENTS", subjects=["sea.event.>"], max_age=7 * DAY)
UP = StreamState(name="UP_EVENTS", subjects=["up.event.>"], max_age=7 * DAY)
WELL = BrokerState(
    version=(2, 14, 0),
    max_payload=1024**2,
    count=2,
    sync_interval=0.0,
    streams={"SEA_EVENTS": OWN, "UP_EVENTS": UP},
    consumers={"UP_EVENTS/sea__up": DurableState(name="UP_EVENTS/sea__up", ack_wait=120.0)},
)


def found(state: BrokerState = WELL, settings: Settings = SETTINGS) -> list[Finding]:
    broker = Broker.of(state, settings)
    return [finding for check in (*streams.CHECKS, *streams.CLOSE_CHECKS) for finding in check(broker)]


def of(stream: StreamState, **changes: Any) -> list[Finding]:
    return found(replace(WELL, streams={**WELL.streams, stream.name: replace(stream, **changes)}))


def consumer(**changes: Any) -> list[Finding]:
    [state] = [it for it in WELL.consumers.values() if it is not None]
    return found(replace(WELL, consumers={state.name: replace(state, **changes)}))


def codes(findings: Iterable[Finding]) -> list[tuple[str, Severity]]:
    return [(finding.code, finding.severity) for finding in findings]


def test_a_server_that_is_well_has_no_finding() -> None:
    assert found() == []


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"version": (2, 13, 9)}, "BROKER_OLD", Severity.WARNING),
        ({"sync_interval": 120.0}, "SYNC_LATE", Severity.WARNING),
        ({"sync_interval": None, "unseen": "nats.monitor is not set"}, "SYNC_UNKNOWN", Severity.UNKNOWN),
        ({"max_payload": 65_536}, "PAYLOAD_SMALL", Severity.WARNING),
        ({"answering": [("sea.queries.>", "X")]}, "STREAM_ANSWERS", Severity.WARNING),
        ({"consumers": {"UP_EVENTS/sea__up": None}}, "CONSUMER_MISSING", Severity.ERROR),
        ({"streams": {"SEA_EVENTS": None, "UP_EVENTS": UP}}, "STREAM_MISSING", Severity.ERROR),
    ],
)
def test_each_fault_of_the_server_has_its_code(changes: dict[str, Any], code: str, severity: Severity) -> None:
    assert codes(found(replace(WELL, **changes))) == [(code, severity)]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"memory": True}, "STREAM_IN_MEMORY"),
        ({"early": True}, "STREAM_EARLY"),
        ({"drops": True}, "STREAM_DROPS"),
        ({"alone": True}, "STREAM_ALONE"),
        ({"duplicate_window": 64.0}, "WINDOW_SHORT"),
        ({"max_msg_size": 1_000}, "PAYLOAD_SMALL"),
        ({"full": 0.9}, "STREAM_FULL"),
    ],
)
def test_each_fault_of_a_stream_has_its_code(changes: dict[str, Any], code: str) -> None:
    [finding] = of(OWN, **changes)
    assert (finding.code, finding.subject) == (code, "stream SEA_EVENTS")
    assert finding.remedy


def test_limits_that_are_just_kept_are_no_findings() -> None:
    assert of(OWN, duplicate_window=64.1) == []
    assert of(OWN, full=0.89) == []
    assert of(OWN, max_msg_size=1024**2) == []


@pytest.mark.parametrize(("most", "stream"), [(1024**2, -1), (8 * 1024**2, 1024**2), (8 * 1024**2, -1)])
def test_a_payload_that_neither_stays_nor_is_taken_is_told(most: int, stream: int) -> None:
    taken = most if stream < 0 else stream
    streams = {**WELL.streams, "SEA_EVENTS": replace(OWN, max_msg_size=stream)}

    def of_limit(limit: int) -> set[tuple[str, str]]:
        context = {"database_url": "postgresql://db/sea", "payload_limit": limit}
        settings = Settings.model_validate({"contexts": {"sea": context}})
        told = found(replace(WELL, max_payload=most, streams=streams), settings)
        return {(it.code, it.subject) for it in told} - {("PAYLOAD_SMALL", "stream SEA_EVENTS")}

    assert of_limit(taken - 1_024) == set()
    assert of_limit(taken - 1_023) == {("PAYLOAD_LIMIT_HIGH", "contexts.sea.payload_limit")}


def test_a_filter_that_its_stream_does_not_take_is_an_error_and_one_it_takes_in_part_a_warning() -> None:
    assert codes(of(UP, subjects=["up.events.>"])) == [("FILTER_OUTSIDE", Severity.ERROR)]
    assert codes(of(UP, subjects=["up.event.cases.>"])) == [("FILTER_OUTSIDE", Severity.WARNING)]
    assert of(UP, subjects=["other.>", "up.>"]) == []


@pytest.mark.parametrize("age", [0.0, 90 * DAY, 400 * DAY])
def test_rows_that_leave_the_inbox_before_their_messages_leave_the_stream_are_an_error(age: float) -> None:
    [finding] = of(UP, max_age=age)
    assert (finding.code, finding.severity) == ("ARCHIVED_TOO_SOON", Severity.ERROR)
    assert "contexts.sea.archive.after" in finding.remedy


def test_a_consumer_that_delivers_again_while_a_handler_may_work_is_told() -> None:
    assert codes(consumer(ack_wait=30.0)) == [("ACK_WAIT_SHORT", Severity.WARNING)]
    assert consumer(ack_wait=30.5) == []


def test_a_consumer_that_is_paused_delivers_nothing() -> None:
    assert codes(consumer(paused=True)) == [("CONSUMER_PAUSED", Severity.ERROR)]


def test_what_differs_from_the_configuration_says_whether_it_can_be_changed() -> None:
    def differing(field: str, *, changeable: bool) -> Difference:
        shared = {"kind": "consumer", "name": "UP_EVENTS/sea__up", "expected": "b", "actual": "a"}
        return Difference(field=field, changeable=changeable, **shared)  # type: ignore[arg-type]

    one, other = consumer(differences=[differing("x", changeable=True), differing("y", changeable=False)])
    [start] = consumer(differences=[differing("start_at", changeable=False)])
    assert {it.code for it in (one, other, start)} == {"TOPOLOGY_DIFFERS"}
    assert "relay streams ensure" in one.remedy
    assert "relay streams ensure" not in other.remedy
    assert "start_at = " in start.remedy


# --- Redis ---


@pytest.mark.parametrize(
    ("changes", "code", "severity"),
    [
        ({"replica": True}, "QUEUE_READ_ONLY", Severity.ERROR),
        ({"ahead": -30.0}, "CLOCKS_DIFFER", Severity.WARNING),
        ({"policy": "allkeys-lru"}, "QUEUE_EVICTS", Severity.WARNING),
        ({"limit": 100, "used": 91}, "QUEUE_FULL", Severity.WARNING),
        ({"workers": 0}, "NO_WORKER", Severity.WARNING),
        ({"refused": "INFO"}, "QUEUE_UNKNOWN", Severity.UNKNOWN),
    ],
)
def test_each_fault_of_redis_has_its_code(changes: dict[str, Any], code: str, severity: Severity) -> None:
    state = QueueState(workers=1)
    checks = (*queues.CHECKS, *queues.CLOSE_CHECKS)
    assert [it for check in checks for it in check(state)] == []
    state = replace(state, **changes)
    assert codes(it for check in checks for it in check(state)) == [(code, severity)]


# --- the configuration ---


def test_a_module_is_looked_for_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "shop_of_test"
    package.mkdir()
    for name in ("__init__", "handlers"):
        (package / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    assert handlers.installed("shop_of_test.handlers")
    assert not handlers.installed("shop_of_test.other")
    assert not handlers.installed("shop_of_test.handlers.deeper")
    assert not handlers.installed("no_such_package_of_test")


def test_modules_that_are_missing_are_named() -> None:
    own = {**SUBSCRIPTION, "handler": "python:no_such_module_of_test"}
    settings = Settings.model_validate(
        {
            "contexts": {"sea": {"database_url": "postgresql://db/sea", "subscriptions": {"up": own}}},
            "actor_modules": ["tasks.actors", "nor_this_one_of_test"],
        }
    )
    assert [(it.code, it.subject) for it in handlers.modules(settings)] == [
        ("MODULE_MISSING", "subscription sea.up"),
        ("MODULE_MISSING", "actor_modules"),
    ]
    assert list(handlers.modules(SETTINGS)) == []


def test_the_address_of_a_webhook_is_not_shown() -> None:
    [finding] = handlers.unreachable("alerts of sea", "https://u:pw@hooks.example/T0/s3cret", "no answer")
    assert (finding.code, finding.subject) == ("HANDLER_UNREACHABLE", "alerts of sea")
    assert " hooks.example:443: " in finding.text
    [finding] = handlers.unreachable("subscription sea.up", "http://u:pw@127.0.0.1:9/h", "refused")
    assert finding.severity is Severity.ERROR
    assert " http://***@127.0.0.1:9/h: " in finding.text
    assert list(handlers.unreachable("subscription sea.up", "http://127.0.0.1:9/h", "")) == []


def test_pools_that_may_take_more_connections_than_there_are_are_told() -> None:
    assert list(handlers.connections(SETTINGS, {"sea": 4}, 5)) == [], "the default fits the server"
    given = SETTINGS.model_copy(update={"max_connections": 64})
    [finding] = handlers.connections(given, {"sea": 96}, 5)
    assert finding.code == "CONNECTION_BUDGET"
    assert re.findall(r"\d+", finding.text)[:4] == ["6", "1", "97", "96"]
    assert list(handlers.connections(given, {"sea": 97}, 5)) == []
    modest = SETTINGS.model_copy(update={"max_connections": 10})
    assert list(handlers.connections(modest, {"sea": 61}, 5)) == []
    assert list(handlers.connections(given, {}, 5)) == []
