"""Facts: everything telemetry may hear about, listed once. The core states them, listeners decide.

A fact carries ids, sizes and reasons, never a payload or a credential. What befalls one event, message or task is
told with its correlation, the operation it belongs to, and its causation, what led to it directly. Those that only
measure have their own places: how long handlers took in `relay.domain.timings`, how much waits in `relay.queries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Base of all facts. ``context`` is the bounded context it happened in."""

    context: str


class PublishedEvent(NamedTuple):
    """EVT-047-001 for one event: outbox_id, event_type, subject, published_at."""

    outbox_id: str
    event_type: str
    subject: str
    published_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxEventsPublished(Fact):
    """EVT-047-001, for one settled batch, which JetStream took ``seconds`` to acknowledge."""

    events: Sequence[PublishedEvent]
    duplicates: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishFailed(Fact):
    """An event could not be published and waits for its next attempt."""

    outbox_id: str
    correlation_id: str | None
    causation_id: str | None
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDied(Fact):
    """An event is unrecoverable: kept with ``dead_at``, for an operator to mend and re-publish. Alert."""

    outbox_id: str
    correlation_id: str | None
    causation_id: str | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageSeen(Fact):
    """A server could not be reached; nothing was spent, work goes on when it returns."""

    server: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReceived(Fact):
    """A batch arrived from the stream; ``duplicates`` of it were known already."""

    subscription: str
    received: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageProcessed(Fact):
    """A handler dealt with a message."""

    subscription: str
    message_id: UUID
    correlation_id: UUID | None
    causation_id: UUID | None
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRetried(Fact):
    """A handler failed; the message is tried again after ``delay_seconds``."""

    subscription: str
    message_id: UUID
    correlation_id: UUID | None
    causation_id: UUID | None
    attempts: int
    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered(Fact):
    """EVT-047-002: message_id, original_subject, reason, attempts; ``kind`` is its class. Alert."""

    subscription: str
    message_id: UUID
    correlation_id: UUID | None
    causation_id: UUID | None
    original_subject: str
    kind: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecorded(Fact):
    """A dead letter is recorded as an incident and waits for an operator (DESIGN §7). Alert."""

    incident_id: int
    subscription: str | None
    message_id: UUID
    event_type: str | None
    correlation_id: UUID | None
    causation_id: UUID | None
    kind: str
    reason: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFailed(Fact):
    """The webhook for alerts did not take one; it is tried again."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesReEnqueued(Fact):
    """The sweep found due rows that no queue held, for instance after Redis was flushed."""

    subscription: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveriesRecovered(Fact):
    """Messages that went down with a worker before they reached the inbox were read from the stream."""

    subscription: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryExhausted(Fact):
    """JetStream stopped delivering a message (max_deliver); it was fetched from the stream instead."""

    subscription: str
    stream_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLossFound(Fact):
    """A stream does not hold what its PubAcks promised: ``tail`` events at its end, ``middle`` before it. Alert.

    ``ids`` are the first of them. ``repaired``: they are unpublished again, and will leave once more.
    """

    stream: str
    tail: int
    middle: int
    ids: Sequence[UUID]
    repaired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxGapFilled(Fact):
    """Messages that JetStream was done with were missing from the inbox, and were read from the stream. Alert."""

    subscription: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksDelivered(Fact):
    """Tasks went to a queue, which confirmed them; ``again``: the sweep found them lost."""

    queue: str
    count: int
    again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFact(Fact):
    """Base of what is told of one task."""

    task_id: UUID
    task_type: str
    correlation_id: UUID | None
    causation_id: UUID | None
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCompleted(TaskFact):
    """A handler dealt with a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRetried(TaskFact):
    """A handler failed; the task is tried again after ``delay_seconds``."""

    delay_seconds: float
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(TaskFact):
    """A task has failed for good and waits for an operator. Alert."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPutOff(Fact):
    """A limit keeps a task waiting; no attempt is spent. ``waits_for``: turn, room."""

    task_id: UUID
    task_type: str
    waits_for: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUnhandled(Fact):
    """A worker got a task of a type that no module it has loaded registers. Nothing is lost; it waits."""

    task_id: UUID
    task_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadTaken(Fact):
    """This scheduler leads a context from now on. ``term`` counts the leaders."""

    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadLost(Fact):
    """This scheduler leads a context no more: it could not renew its lease. One that stops says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunMissed(Fact):
    """No scheduler was there for a cron job within its grace; this run will not happen."""

    job: str
    scheduled_for: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunFact(Fact):
    """Base of what is told of an attempt at a cron job."""

    job: str
    scheduled_for: datetime
    correlation_id: UUID
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunFinished(ScheduledRunFact):
    """The command of a cron job was carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunRetried(ScheduledRunFact):
    """The command raised; it is dispatched again after ``delay_seconds``."""

    error: str
    delay_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRunFailed(ScheduledRunFact):
    """The command refused, or every attempt raised. Alert."""

    error: str


class FactSink(Protocol):
    """Where facts go. Must not raise and must not block."""

    def __call__(self, fact: Fact, /) -> None:
        """Take note of a fact."""
