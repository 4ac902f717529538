"""Metrics from facts, for Prometheus: how often something happened, and how long it took.

Every metric carries the context. The other labels have few values, which are known in advance: subscriptions,
classes, servers, names from the application's code. Ids belong in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from relay.domain import facts
from relay.domain.alerts import AlertClass
from relay.domain.archive import ArchiveKind, StoreUnreachable
from relay.domain.errors import BrokerUnreachable, DatabaseUnreachable, QueueUnreachable
from relay.domain.facts import Fact
from relay.domain.policies import DeadLetterClass
from relay.domain.traceparent import Trace

#: Stands for a subscription that is not configured. Its name comes from a dead letter, which anyone may write.
OTHER: Final = "other"
#: In seconds. A handler may take seconds; its time-out is 30 s by default.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: In seconds. What waits may wait for a handler that is away.
_WAITS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800, 7_200)
#: Labels whose attribute has another name, because "class" and "type" have a meaning in Python.
_ATTRIBUTES: Final = {"class": "kind", "alert": "kind", "type": "task_type"}
_ALWAYS: Final[Mapping[str, Collection[str]]] = {
    "class": [kind.value for kind in DeadLetterClass],
    "alert": [kind.value for kind in AlertClass],
    "kind": [kind.value for kind in ArchiveKind],
    "server": [it.server for it in (BrokerUnreachable, DatabaseUnreachable, QueueUnreachable, StoreUnreachable)],
    "waits_for": ["turn", "room"],
}

#: Which values each label may have, by context.
Labels = Mapping[str, Mapping[str, Collection[str]]]


@dataclass(frozen=True, slots=True)
class Count:
    """A counter, and by how much a fact increases it."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    by: Callable[[Any], float] = lambda _: 1


@dataclass(frozen=True, slots=True)
class Timing:
    """A histogram of the fact's ``seconds``, or of other times ``of`` it."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    of: Callable[[Any], Iterable[float]] = lambda fact: (fact.seconds,)
    buckets: Sequence[float] = _BUCKETS


_SUB: Final = ("subscription",)


def _waited(fact: facts.HandlerAnswered) -> Iterable[float]:
    return () if fact.waited is None else (fact.waited,)


COUNTS: Final[Mapping[type[Fact], tuple[Count, ...]]] = {
    facts.OutboxEventsPublished: (
        Count("events_published", "Events that JetStream has acknowledged.", by=lambda fact: len(fact.events)),
        Count("events_duplicate", "Of them, those it had already.", by=lambda fact: fact.duplicates),
    ),
    facts.PublishFailed: (Count("publish_failures", "Attempts at publishing an event that failed by its fault."),),
    facts.EventDied: (Count("events_dead", "Events that were given up and wait for an operator."),),
    facts.EventExpired: (Count("events_expired", "Events that were stale before they were published."),),
    facts.ProducersBraked: (Count("brakes", "Times the outbox was full and began to brake its producers."),),
    facts.ProducersReleased: (Count("brakes_released", "Times it was no longer full."),),
    facts.OutageSeen: (Count("outages", "Times a server could not be reached.", ("server",)),),
    facts.QueryRefused: (Count("queries_refused", "Queries of other services that were refused."),),
    facts.MessagesReceived: (
        Count("messages_received", "Messages read from the stream.", _SUB, lambda fact: fact.received),
        Count("messages_duplicate", "Of them, those the inbox had already.", _SUB, lambda fact: fact.duplicates),
    ),
    facts.PullsPaused: (Count("pulls_paused", "Times a worker found the inbox full and paused.", _SUB),),
    facts.MessagesLetGo: (
        Count("messages_let_go", "Messages acknowledged while they wait.", _SUB, lambda fact: fact.count),
    ),
    facts.PullsResumed: (Count("pulls_resumed", "Times it went on.", _SUB),),
    facts.CircuitOpened: (Count("circuits_opened", "Times a handler was found to be away.", _SUB),),
    facts.CircuitClosed: (Count("circuits_closed", "Times it was back.", _SUB),),
    facts.MessageProcessed: (Count("messages_processed", "Messages that a handler has dealt with.", _SUB),),
    facts.MessageExpired: (Count("messages_expired", "Messages that were stale before their call.", _SUB),),
    facts.MessageRetried: (Count("messages_retried", "Attempts that failed and are repeated.", _SUB),),
    facts.MessageDeadLettered: (Count("messages_dead_lettered", "Messages given up.", (*_SUB, "class")),),
    facts.DeadLetterDelayed: (
        Count("dead_letters_delayed", "Attempts at storing a dead letter that failed and are repeated.", _SUB),
    ),
    facts.ForeignLetterFound: (
        Count("foreign_letters", "Messages of others under the id of a dead letter.", _SUB),
    ),
    facts.IncidentRecorded: (
        Count("incidents_recorded", "Dead letters recorded as incidents.", (*_SUB, "class")),
    ),
    facts.AlertRaised: (
        Count("alerts_raised", "Final failures and conditions that alerted.", ("alert",), lambda fact: fact.count),
    ),
    facts.AlertFailed: (Count("alerts_failed", "Alerts that the webhook did not take."),),
    facts.MessagesReEnqueued: (
        Count("messages_reenqueued", "Messages no queue held.", _SUB, lambda fact: fact.count),
    ),
    facts.DeliveriesRecovered: (
        Count("deliveries_recovered", "Messages that had gone down with a worker.", _SUB, lambda fact: fact.count),
    ),
    facts.DeliveryExhausted: (Count("deliveries_exhausted", "Messages JetStream gave up delivering.", _SUB),),
    facts.StreamLossFound: (
        Count("stream_losses", "Events the stream lost.", ("stream",), lambda fact: fact.tail + fact.middle),
    ),
    facts.OrphansFound: (
        Count("orphans", "Events of the stream that the outbox had lost.", ("stream",), lambda fact: fact.count),
    ),
    facts.SequencesMended: (Count("sequences_mended", "Times sequences were behind their tables."),),
    facts.InboxGapFilled: (Count("inbox_gaps", "Messages the inbox had lost.", _SUB, lambda fact: fact.count),),
    facts.TasksDelivered: (
        Count("tasks_delivered", "Tasks brought to a queue.", by=lambda fact: fact.count),
        Count("tasks_redelivered", "Of them, those that were lost.", by=lambda fact: fact.count * fact.again),
    ),
    facts.TaskCompleted: (Count("tasks_completed", "Tasks that a handler has dealt with.", ("type",)),),
    facts.TaskExpired: (Count("tasks_expired", "Tasks that were stale before they were run.", ("type",)),),
    facts.TaskRetried: (Count("tasks_retried", "Attempts at tasks that failed and are repeated.", ("type",)),),
    facts.TaskFailed: (Count("tasks_failed", "Tasks that were given up and wait for an operator.", ("type",)),),
    facts.TaskPutOff: (Count("tasks_put_off", "Times a limit kept a task waiting.", ("waits_for",)),),
    facts.TaskUnhandled: (Count("tasks_unhandled", "Times a worker got a task of a type it does not know."),),
    facts.LeadTaken: (Count("leads_taken", "Times this scheduler took the lead."),),
    facts.LeadLost: (Count("leads_lost", "Times this scheduler could not renew its lead."),),
    facts.RowsArchived: (Count("rows_archived", "Rows moved to the archive.", ("kind",), lambda fact: fact.rows),),
    facts.ArchiveHeld: (Count("archive_holds", "Times rows of a stream had to stay in their table.", ("kind",)),),
    facts.BatchDeleted: (Count("archive_batches_deleted", "Batches deleted from the archive.", ("kind",)),),
    facts.ArchiveFailed: (Count("archive_failures", "Times the archive could not be trusted or continued."),),
    facts.ScheduledRunFinished: (Count("cron_runs_finished", "Runs of cron jobs carried out.", ("job",)),),
    facts.ScheduledRunRetried: (Count("cron_runs_retried", "Attempts that failed and are repeated.", ("job",)),),
    facts.ScheduledRunFailed: (Count("cron_runs_failed", "Runs of cron jobs that were given up.", ("job",)),),
    facts.ScheduledRunMissed: (Count("cron_runs_missed", "Runs no scheduler was there for in time.", ("job",)),),
}

TIMINGS: Final[Mapping[type[Fact], tuple[Timing, ...]]] = {
    facts.OutboxEventsPublished: (
        Timing("publish_batch_seconds", "How long JetStream took to acknowledge a batch."),
        Timing("publish_seconds", "How long it took to acknowledge an event.", of=lambda fact: fact.latencies),
        Timing("publish_wait_seconds", "From an event to its publication.", (), lambda it: it.waits, _WAITS),
    ),
    facts.MessagesReceived: (
        Timing("receive_wait_seconds", "How long a message was in the stream.", _SUB, lambda it: it.waits, _WAITS),
    ),
    facts.HandlerAnswered: (
        Timing("handler_seconds", "How long a handler took for a message.", _SUB),
        Timing("handle_wait_seconds", "How long a message was in the inbox.", _SUB, _waited, _WAITS),
    ),
    facts.TaskAnswered: (Timing("task_seconds", "How long a handler took for a task.", ("type",)),),
}


class MetricFacts:
    """The listener that counts. Counters of the ``expected`` labels start at 0, so that the first rise shows."""

    def __init__(self, expected: Labels, registry: CollectorRegistry) -> None:
        self._subscriptions = {name: frozenset(values["subscription"]) for name, values in expected.items()}
        self._counters = {
            kind: [(spec, _counter(spec, registry)) for spec in specs] for kind, specs in COUNTS.items()
        }
        self._histograms = {
            kind: [(spec, _histogram(spec, registry)) for spec in specs] for kind, specs in TIMINGS.items()
        }
        self.expect(expected)

    def expect(self, expected: Labels) -> None:
        """Start the counters of further labels. A counter with an unknown label starts with its first fact."""
        metrics: list[tuple[Count | Timing, Counter | Histogram]] = []
        metrics += [pair for pairs in self._counters.values() for pair in pairs]
        metrics += [pair for pairs in self._histograms.values() for pair in pairs]
        for context, values in expected.items():
            for spec, metric in metrics:
                for labels in _combinations(spec.labels, {**_ALWAYS, **values}):
                    metric.labels(context, *labels)

    def __call__(self, fact: Fact, /) -> None:
        """Count one fact."""
        kind = type(fact)
        for count, counter in self._counters.get(kind, ()):
            counter.labels(*self._labels(count, fact)).inc(count.by(fact))
        for timing, histogram in self._histograms.get(kind, ()):
            observe = histogram.labels(*self._labels(timing, fact)).observe
            for seconds in timing.of(fact):
                observe(seconds, _exemplar(fact))

    def _labels(self, spec: Count | Timing, fact: Fact) -> Iterable[str]:
        yield fact.context
        for label in spec.labels:
            value = getattr(fact, _ATTRIBUTES.get(label, label))
            if label == "subscription" and value not in self._subscriptions.get(fact.context, ()):
                value = OTHER
            yield value


def _exemplar(fact: Fact) -> dict[str, str] | None:
    """The trace of a call that somebody records. Files that processes share keep none (prometheus-client)."""
    traced: facts.Traced | None = getattr(fact, "traced", None)
    trace = None if traced is None else Trace.parse(traced.span)
    return {"trace_id": trace.trace_id, "span_id": trace.span_id} if trace is not None and trace.sampled else None


def _combinations(labels: tuple[str, ...], values: Mapping[str, Collection[str]]) -> Iterable[tuple[str, ...]]:
    return product(*(values.get(label, ()) for label in labels))


def _counter(spec: Count, registry: CollectorRegistry) -> Counter:
    return Counter(f"jetrelay_{spec.name}_total", spec.text, ("context", *spec.labels), registry=registry)


def _histogram(spec: Timing, registry: CollectorRegistry) -> Histogram:
    labels = ("context", *spec.labels)
    return Histogram(f"jetrelay_{spec.name}", spec.text, labels, registry=registry, buckets=spec.buckets)
