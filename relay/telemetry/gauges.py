"""Gauges: backlogs and lag from the samples of the leading scheduler, and what worker processes do now."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relay.domain.backlogs import Backlogs
from relay.domain.errors import RelayError
from relay.domain.facts import BacklogsSampled, Fact, LagSampled, LeadLost, LeadTaken
from relay.domain.lag import ContextLag
from relay.domain.policies import DeadLetterClass
from relay.domain.standstill import BacklogKind
from relay.telemetry.liveness import beats_in
from relay.telemetry.metrics import OTHER

Sampled = TypeVar("Sampled")

#: After this many intervals without a sample, the last sample is too old to show.
_FRESH_INTERVALS: Final = 4
_CLASSES: Final = [kind.value for kind in DeadLetterClass]


@dataclass(frozen=True, slots=True)
class Gauge:
    """A gauge: one attribute of the items of one part of the backlogs; "" if the part is the number itself."""

    name: str
    text: str
    part: str
    attribute: str


_AGE: Final = "oldest_age_seconds"
GAUGES: Final = (
    Gauge("outbox_events", "About how many events the outbox holds, published ones too.", "held", ""),
    Gauge("outbox_waiting", "Events that are due, and neither published nor dead.", "outbox", "waiting"),
    Gauge("outbox_oldest_age_seconds", "How long the oldest of them has waited.", "outbox", "waiting_age_seconds"),
    Gauge("outbox_delayed", "Events whose time is to come.", "outbox", "delayed"),
    Gauge(
        "outbox_overdue_seconds",
        "How long the first event that should have left waits.",
        "overdue",
        "",
    ),
    Gauge("outbox_braking", "Whether the outbox is full and brakes its producers.", "brake", "braking"),
    Gauge("outbox_dead", "Events that were given up and wait for an operator.", "outbox", "dead"),
    Gauge("inbox_waiting", "Messages that are neither processed nor dead-lettered.", "inbox", "count"),
    Gauge("inbox_oldest_age_seconds", "How long the oldest of them has waited.", "inbox", _AGE),
    Gauge("inbox_failing", "Of them, those that were tried more than three times.", "inbox", "failed_attempts"),
    Gauge("inbox_retried", "Of them, those that have failed at least once.", "inbox", "failing"),
    Gauge("inbox_let_go", "Of them, those that hold no place of JetStream's window.", "inbox", "let_go"),
    Gauge("inbox_held", "Messages that an operator has set aside.", "inbox", "held"),
    Gauge("task_outbox_waiting", "Tasks that are due and not finished.", "tasks", "count"),
    Gauge("task_outbox_oldest_age_seconds", "How long the oldest of them has been due.", "tasks", _AGE),
    Gauge("task_outbox_delayed", "Tasks whose time is to come.", "tasks", "delayed"),
    Gauge("task_outbox_failed", "Tasks that were given up and wait for an operator.", "tasks", "failed"),
    Gauge("incidents_open", "Incidents that wait for an operator.", "incidents", "count"),
    Gauge("incidents_oldest_age_seconds", "How long the oldest of them has waited.", "incidents", _AGE),
    Gauge("parked_keys", "Keys set aside behind a dead letter.", "parked", "count"),
    Gauge("parked_keys_oldest_age_seconds", "How long the first of them has been.", "parked", _AGE),
    Gauge("circuit_open_seconds", "How long the handler has been away; 0 if it is not.", "away", "seconds"),
    Gauge("paused", "What operators have paused.", "paused", ""),
    Gauge("publishing_paused", "Whether an operator has paused publishing.", "publishing_paused", ""),
    Gauge("task_queues_paused", "Of what is paused, queues of tasks.", "task_queues_paused", ""),
    Gauge("subscription_paused", "Whether an operator has paused it.", "paused_subscriptions", "paused"),
    Gauge("database_sessions", "Sessions of the fleet at the context's server.", "sessions", "held"),
    Gauge("database_sessions_share", "How many the fleet takes by default.", "sessions", "share"),
)
LEADING: Final = ("scheduler_leading", "Whether this scheduler leads the context.")
STANDING: Final = ("backlog_standing_seconds", "For how long nothing of it has moved, though something is due.")
SAMPLED: Final = ("backlog_sampled_timestamp_seconds", "When the backlogs of the context were last counted.")

_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "outbox": (),
    "held": (),
    "overdue": (),
    "brake": (),
    "sessions": (),
    "paused": (),
    "publishing_paused": (),
    "task_queues_paused": (),
    "paused_subscriptions": ("subscription",),
    "tasks": (),
    "inbox": ("subscription",),
    "parked": ("subscription",),
    "away": ("subscription",),
    "incidents": ("subscription", "class"),
}


@dataclass(frozen=True, slots=True)
class _Sample(Generic[Sampled]):
    content: Sampled
    taken: float
    at: float


class BacklogGauges(Collector):
    """The listener that keeps the last sample of each context and shows it while this scheduler leads.

    If the scheduler loses the lead, or the samples stop, it shows no old numbers.
    ``subscriptions``: those of each context. They are shown even if nothing waits.
    """

    def __init__(
        self,
        subscriptions: Mapping[str, Collection[str]],
        interval: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._subscriptions = subscriptions
        self._patience = interval * _FRESH_INTERVALS
        self._clock = clock
        self._leading: set[str] = set()
        self._samples: dict[str, _Sample[Backlogs]] = {}
        self._lags: dict[str, _Sample[ContextLag]] = {}

    def __call__(self, fact: Fact, /) -> None:
        """Record a sample or a change of the lead."""
        match fact:
            case BacklogsSampled(backlogs=backlogs):
                self._samples[fact.context] = _Sample(backlogs, self._clock(), time.time())
            case LagSampled(lag=lag):
                self._lags[fact.context] = _Sample(lag, self._clock(), time.time())
            case LeadTaken():
                # A sample from an earlier lead is too old.
                self._samples.pop(fact.context, None)
                self._lags.pop(fact.context, None)
                self._leading.add(fact.context)
            case LeadLost():
                self._leading.discard(fact.context)

    def collect(self) -> Iterable[Metric]:
        """Answer Prometheus. Runs in another thread."""
        leading = self._leading.copy()
        yield _family(*LEADING, {(name,): float(name in leading) for name in self._subscriptions})
        samples = self._samples.copy().items()
        yield _family(*SAMPLED, {(name,): sample.at for name, sample in samples if name in leading})
        yield from _lag_families(self._fresh(self._lags, leading))
        fresh = self._fresh(self._samples, leading)
        yield _family(*STANDING, _standing(fresh), ("kind",))
        for gauge in GAUGES:
            values = {(name, *labels): 0.0 for name in fresh for labels in self._expected(name, gauge.part)}
            for name, backlogs in fresh.items():
                for labels, value in self._values(name, backlogs, gauge):
                    values[name, *labels] = _merged(gauge, values.get((name, *labels), 0.0), value)
            yield _family(gauge.name, gauge.text, values, _LABELS[gauge.part])

    def _fresh(self, samples: Mapping[str, _Sample[Sampled]], leading: Collection[str]) -> dict[str, Sampled]:
        """The samples to show, by context."""
        oldest = self._clock() - self._patience
        # Copied first: the event loop goes on adding to it.
        found = dict(samples).items()
        return {name: it.content for name, it in found if name in leading and it.taken >= oldest}

    def _expected(self, context: str, part: str) -> Iterator[tuple[str, ...]]:
        subscriptions = self._subscriptions.get(context, ())
        match _LABELS[part]:
            case ():
                yield ()
            case (_,):
                yield from ((name,) for name in subscriptions)
            case _:
                yield from ((name, kind) for name in subscriptions for kind in _CLASSES)

    def _values(self, context: str, backlogs: Backlogs, gauge: Gauge) -> Iterator[tuple[tuple[str, ...], float]]:
        found: Any = getattr(backlogs, gauge.part)
        labels = _LABELS[gauge.part]
        for item in found if labels else [found]:
            values = []
            if labels:
                values.append(item.subscription if item.subscription in self._subscriptions[context] else OTHER)
            if "class" in labels:
                values.append(item.kind)
            yield tuple(values), float(getattr(item, gauge.attribute) if gauge.attribute else item)


def _standing(fresh: Mapping[str, Backlogs]) -> dict[tuple[str, ...], float]:
    """Of each kind of backlog, the part that has stood still for longest."""
    kinds = [kind.value for kind in BacklogKind if kind is not BacklogKind.STREAM]
    values: dict[tuple[str, ...], float] = {(name, kind): 0.0 for name in fresh for kind in kinds}
    for name, backlogs in fresh.items():
        for it in backlogs.standing:
            values[name, it.kind.value] = max(values[name, it.kind.value], it.still_seconds)
    return values


def _merged(gauge: Gauge, one: float, other: float) -> float:
    """Combine values that share their labels: subscriptions that are no longer configured count as one."""
    return max(one, other) if gauge.attribute in (_AGE, "seconds") else one + other


def _family(
    name: str, text: str, values: Mapping[tuple[str, ...], float], labels: tuple[str, ...] = ()
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"jetrelay_{name}", text, labels=("context", *labels))
    for at, value in values.items():
        family.add_metric(at, value)
    return family


# --- the lag ---

#: Name, text, and labels besides the context. A part that could not be read has no gauge: else it would seem 0.
LAG_GAUGES: Final = (
    ("lag_events", "Events that could be published now.", ()),
    ("lag_tasks", "Tasks that could run now.", ()),
    ("lag_messages", "Messages that could be handled now, in the stream or the inbox.", ("subscription",)),
    ("lag_stream_pending", "Of the stream, messages that were never delivered.", ("subscription",)),
    ("lag_stream_unacknowledged", "Messages that were delivered and not acknowledged.", ("subscription",)),
)


def _lag_families(lags: Mapping[str, ContextLag]) -> Iterator[Metric]:
    """The gauges for the lag of each context."""
    found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name, _, _ in LAG_GAUGES}
    for context, lag in lags.items():
        for name, labels, value in _lag_values(lag):
            found[name][context, *labels] = value
    for name, text, labels in LAG_GAUGES:
        yield _family(name, text, found[name], labels)


def _lag_values(lag: ContextLag) -> Iterator[tuple[str, tuple[str, ...], float]]:
    if not isinstance(lag.tables, RelayError):
        yield "lag_events", (), lag.tables.outbox.count
        yield "lag_tasks", (), lag.tables.tasks.count
    for name, stream in lag.streams.items():
        if not isinstance(stream, RelayError):
            yield "lag_stream_pending", (name,), stream.pending
            yield "lag_stream_unacknowledged", (name,), stream.unacknowledged
        if not isinstance(found := lag.of(name), RelayError):
            yield "lag_messages", (name,), found.count


# --- what worker processes do ---

#: Name and text, by what of a beat it is. Threads serve all contexts, so there is no label.
USAGE_GAUGES: Final = {
    "threads": ("worker_threads", "Threads and slots for handlers and tasks, of all worker processes."),
    "busy": ("worker_threads_busy", "Of them, those that are taken."),
    "waiting": ("worker_jobs_waiting", "Jobs that were fetched from Redis and not begun."),
}


class UsageGauges(Collector):
    """Adds up what the processes of a directory say. One that was killed is not counted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def collect(self) -> Iterable[Metric]:
        """Answer Prometheus. Runs in another thread."""
        beats = beats_in(self._directory).values()
        for part, (name, text) in USAGE_GAUGES.items():
            yield GaugeMetricFamily(f"jetrelay_{name}", text, value=sum(getattr(it, part) for it in beats))
