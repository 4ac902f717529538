"""Counters and gauges: every fact is counted, labels are few, and the docs name what there is."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, get_type_hints
from uuid import UUID, uuid4

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Sample
from prometheus_client.openmetrics.exposition import generate_latest

from relay.domain import facts
from relay.domain.backlogs import (
    Backlogs,
    OutboxBacklog,
    SubscriptionBacklog,
    TaskBacklog,
    Waiting,
)
from relay.domain.facts import (
    BacklogsSampled,
    Fact,
    IncidentRecorded,
    LagSampled,
    LeadLost,
    LeadTaken,
    MessageProcessed,
    OutboxEventsPublished,
    Publication,
)
from relay.telemetry.gauges import BacklogGauges
from relay.telemetry.metrics import COUNTS, OTHER, TIMINGS, MetricFacts
from tests.clock import Clock

NOW = datetime(2026, 1, 1, tzinfo=UTC)
KNOWN = {"sea": {"subscription": ["inward"], "stream": ["SEA_EVENTS"], "job": ["nightly"], "type": ["mail"]}}
SUB = {"context": "sea", "subscription": "inward"}
#: What a label may be; everything else could be without end.
LABELS = {"context", "subscription", "class", "server", "stream", "type", "job", "waits_for", "kind", "alert"}


def told() -> list[type[Fact]]:
    """Every fact that is not the base of others."""
    found = {it for it in vars(facts).values() if isinstance(it, type) and issubclass(it, Fact)}
    bases = {base for it in found for base in it.__bases__}
    return sorted(found - bases, key=lambda it: it.__name__)


def example(kind: type[Fact]) -> Fact:
    """A fact with plausible values; of every amount it has 2."""
    names = {"subscription": "inward", "kind": "poison", "server": "nats", "job": "nightly", "task_type": "mail"}
    values: dict[Any, Any] = {
        str: "x", int: 2, float: 0.2, bool: True, UUID: uuid4(), datetime: NOW,
    }  # fmt: skip
    event = Publication("1", "opened", "sea.event.opened.v1", NOW)
    filled = {"context": "sea", "waits_for": "turn", "events": [event, event], "ids": [], "waited": 0.2}
    filled |= {"latencies": [0.1, 0.1], "waits": [0.1, 0.1]}
    hints = get_type_hints(kind)
    fields = [field.name for field in dataclasses.fields(kind)]
    return kind(**{name: {**names, **filled}.get(name, values.get(hints[name])) for name in fields})


def samples(registry: CollectorRegistry) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for family in registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def counters() -> tuple[MetricFacts, CollectorRegistry]:
    registry = CollectorRegistry()
    return MetricFacts(KNOWN, registry), registry


# --- counters ---


def test_every_fact_is_counted() -> None:
    assert {*COUNTS, *TIMINGS, BacklogsSampled, LagSampled} == {*told()}


@pytest.mark.parametrize("kind", [it for it in told() if it in COUNTS])
def test_each_fact_raises_its_counters_and_no_other(kind: type[Fact]) -> None:
    listener, registry = counters()
    before = totals(registry)
    listener(example(kind))
    raised = {name for name, value in totals(registry).items() if value != before.get(name)}
    assert raised == {f"jetrelay_{count.name}_total" for count in COUNTS[kind]}


def totals(registry: CollectorRegistry) -> dict[str, float]:
    found = samples(registry).items()
    return {name: sum(it.value for it in every) for name, every in found if name.endswith("_total")}


def test_amounts_are_those_of_the_fact() -> None:
    listener, registry = counters()
    listener(example(OutboxEventsPublished))
    listener(example(facts.StreamLossFound))
    listener(example(facts.TasksDelivered))
    assert registry.get_sample_value("jetrelay_events_published_total", {"context": "sea"}) == 2
    assert registry.get_sample_value("jetrelay_tasks_redelivered_total", {"context": "sea"}) == 2
    assert totals(registry)["jetrelay_stream_losses_total"] == 4


def test_durations_are_those_of_the_fact() -> None:
    listener, registry = counters()
    for kind, timings in TIMINGS.items():
        listener(example(kind))
        for timing in timings:
            [total] = samples(registry)[f"jetrelay_{timing.name}_sum"]
            assert total.value == pytest.approx(0.2)


def test_the_latency_of_each_event_is_counted() -> None:
    listener, registry = counters()
    listener(dataclasses.replace(example(OutboxEventsPublished), latencies=[0.002, 0.02, 0.2]))
    buckets = {it.labels["le"]: it.value for it in samples(registry)["jetrelay_publish_seconds_bucket"]}
    assert (buckets["0.005"], buckets["0.025"], buckets["+Inf"]) == (1, 2, 3)


def test_a_call_that_is_traced_is_an_exemplar() -> None:
    listener, registry = counters()
    span = f"00-{'a' * 32}-{'b' * 16}-01"
    traced = facts.Traced(span, span, uuid4(), None, "default", 1, "processed")
    listener(dataclasses.replace(example(facts.TaskAnswered), traced=traced))
    text = generate_latest(registry).decode()
    assert f'# {{span_id="{"b" * 16}",trace_id="{"a" * 32}"}} 0.2' in text


def test_counters_of_known_labels_begin_at_zero_so_that_the_first_rise_shows() -> None:
    _, registry = counters()
    assert registry.get_sample_value("jetrelay_messages_processed_total", SUB) == 0
    for name in ("poison", "deterministic", "exhausted"):
        assert registry.get_sample_value("jetrelay_incidents_recorded_total", {**SUB, "class": name}) == 0
    for server in ("nats", "postgresql", "redis"):
        outages = {"context": "sea", "server": server}
        assert registry.get_sample_value("jetrelay_outages_total", outages) == 0
    runs = {"context": "sea", "job": "nightly"}
    assert registry.get_sample_value("jetrelay_cron_runs_failed_total", runs) == 0


def test_labels_are_few_and_never_ids() -> None:
    specs = [spec for specs in (*COUNTS.values(), *TIMINGS.values()) for spec in specs]
    assert {label for spec in specs for label in spec.labels} <= LABELS


def test_a_letter_cannot_invent_labels() -> None:
    listener, registry = counters()
    for number in range(5):
        listener(dataclasses.replace(example(IncidentRecorded), subscription=f"made-up-{number}"))
    listener(dataclasses.replace(example(IncidentRecorded), subscription=None))
    recorded = {"context": "sea", "subscription": OTHER, "class": "poison"}
    assert registry.get_sample_value("jetrelay_incidents_recorded_total", recorded) == 6


def test_what_is_expected_later_begins_at_zero_and_keeps_what_was_counted() -> None:
    listener, registry = counters()
    listener(example(MessageProcessed))
    listener.expect({"sea": {**KNOWN["sea"], "job": ["hourly"]}})
    assert registry.get_sample_value("jetrelay_messages_processed_total", SUB) == 1
    runs = {"context": "sea", "job": "hourly"}
    assert registry.get_sample_value("jetrelay_cron_runs_failed_total", runs) == 0


# --- gauges ---


def sample(**changes: Any) -> BacklogsSampled:
    parts: dict[str, Any] = {
        "outbox": OutboxBacklog(5, NOW, 3, 61.5, 2),
        "held": 1_000,
        "overdue": 13,
        "inbox": [SubscriptionBacklog(subscription="inward", count=4, oldest_age_seconds=7, failed_attempts=1)],
        "tasks": TaskBacklog(count=5, oldest_age_seconds=8, delayed=6, failed=7),
        "incidents": [Waiting(subscription="inward", kind="poison", count=9, oldest_age_seconds=10)],
        "parked": [Waiting(subscription="inward", count=11, oldest_age_seconds=12)],
    }
    return BacklogsSampled(context="sea", backlogs=Backlogs(**{**parts, **changes}))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gauges(clock: Clock) -> tuple[BacklogGauges, CollectorRegistry]:
    listener, registry = BacklogGauges({"sea": ["inward", "idle"]}, 15, clock), CollectorRegistry()
    registry.register(listener)
    return listener, registry


Gauges = tuple[BacklogGauges, CollectorRegistry]
TAKEN = LeadTaken(context="sea", term=1)


def test_the_last_sample_is_shown(gauges: Gauges) -> None:
    listener, registry = gauges
    for fact in (TAKEN, sample(outbox=OutboxBacklog(2, NOW, 1, 1, 1)), sample()):
        listener(fact)
    shown = {
        (it.name, it.labels.get("subscription"), it.labels.get("class")): it.value
        for found in samples(registry).values()
        for it in found
    }
    expected = {
        ("outbox_events", None, None): 1_000, ("outbox_waiting", None, None): 3, ("outbox_delayed", None, None): 0,
        ("outbox_oldest_age_seconds", None, None): 61.5,
        ("outbox_dead", None, None): 2, ("outbox_overdue_seconds", None, None): 13,
        ("inbox_waiting", "inward", None): 4, ("inbox_oldest_age_seconds", "inward", None): 7,
        ("inbox_failing", "inward", None): 1, ("inbox_waiting", "idle", None): 0,
        ("task_outbox_waiting", None, None): 5, ("task_outbox_oldest_age_seconds", None, None): 8,
        ("task_outbox_delayed", None, None): 6, ("task_outbox_failed", None, None): 7,
        ("incidents_open", "inward", "poison"): 9, ("incidents_oldest_age_seconds", "inward", "poison"): 10,
        ("incidents_open", "inward", "exhausted"): 0, ("parked_keys", "inward", None): 11,
        ("parked_keys_oldest_age_seconds", "inward", None): 12, ("scheduler_leading", None, None): 1,
    }  # fmt: skip
    for (name, *labels), value in expected.items():
        assert shown["jetrelay_" + name, *labels] == value, name


def test_only_the_leader_shows_a_backlog(gauges: Gauges) -> None:
    listener, registry = gauges
    listener(sample())
    assert backlog(registry) is None
    listener(TAKEN)
    assert backlog(registry) is None, "a sample from an earlier lead"
    listener(sample())
    assert backlog(registry) == 3
    listener(LeadLost(context="sea"))
    listener(sample())  # of a tick that was under way
    assert backlog(registry) is None
    assert registry.get_sample_value("jetrelay_scheduler_leading", {"context": "sea"}) == 0


def backlog(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("jetrelay_outbox_waiting", {"context": "sea"})


def test_a_sample_that_is_old_is_not_shown_and_its_time_is(gauges: Gauges, clock: Clock) -> None:
    listener, registry = gauges
    listener(TAKEN)
    listener(sample())
    clock.now += 60
    assert backlog(registry) == 3
    clock.now += 1
    assert backlog(registry) is None
    assert registry.get_sample_value("jetrelay_backlog_sampled_timestamp_seconds", {"context": "sea"})


def test_subscriptions_that_are_not_configured_are_one_together(gauges: Gauges) -> None:
    listener, registry = gauges
    listener(TAKEN)
    left = [
        SubscriptionBacklog(subscription=name, count=2, oldest_age_seconds=age, failed_attempts=0)
        for name, age in (("gone", 5.0), ("gone_too", 9.0), (None, 7.0))
    ]
    listener(sample(inbox=left))
    at = {"context": "sea", "subscription": OTHER}
    assert registry.get_sample_value("jetrelay_inbox_waiting", at) == 6
    assert registry.get_sample_value("jetrelay_inbox_oldest_age_seconds", at) == 9
